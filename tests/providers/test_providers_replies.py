"""How answers are read that the fault provider does not send: at the limit, declined, with broken arguments, empty."""

from __future__ import annotations

import json

import anthropic
import httpx2
import msgspec
import openai
import pytest
from providers_kit import TOOL, question

from holdfast import HoldfastError, Runtime
from holdfast.providers import Assistant, Request, ToolResult, User
from holdfast.providers.anthropic import anthropic_model
from holdfast.providers.openai import openai_model
from holdfast.providers.xai import xai_model
from holdfast.testing import VirtualClock, run

HALF, WHOLE = '{"city": "Os', '{"city": "Oslo"}'


def message(stop, *blocks):
    usage = {"input_tokens": 1, "output_tokens": 1}
    shell = {"id": "m", "type": "message", "role": "assistant", "model": "c", "stop_sequence": None, "usage": usage}
    return {**shell, "content": list(blocks), "stop_reason": stop}


def response(status, *items, **more):
    shell = {"id": "r", "object": "response", "created_at": 1, "model": "g", "error": None, "incomplete_details": None}
    return {**shell, "status": status, "output": list(items), **more}


def output(text):
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"id": "i", "type": "message", "role": "assistant", "status": "completed", "content": [part]}


def called(arguments):
    return {"type": "function_call", "id": "f", "call_id": "1", "name": "weather", "arguments": arguments}


def completion(finish, **said_):
    choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": None, **said_}}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": "x", "choices": [choice]}


def function(arguments, call_id="1"):
    return {"id": call_id, "type": "function", "function": {"name": "weather", "arguments": arguments}}


def chunk(finish=None, **delta):
    choice = {"index": 0, "finish_reason": finish, "delta": delta}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "x", "choices": [choice]}


class Wire:
    """Answers every request with this body, or with these events, and counts."""

    def __init__(self, *bodies, stream=False):
        self.requests = 0
        self.sent = []
        if stream:
            self.content = "".join(_event(body) for body in bodies).encode()
            self.kind = "text/event-stream"
        else:
            self.content, self.kind = json.dumps(bodies[0]).encode(), "application/json"

    async def __call__(self, request):
        self.requests += 1
        self.sent.append(json.loads(request.content))
        return httpx2.Response(200, content=self.content, headers={"content-type": self.kind})

    def model(self, kind):
        http = httpx2.AsyncClient(transport=httpx2.MockTransport(self))
        runtime = Runtime(clock=VirtualClock())
        if kind == "anthropic":
            return anthropic_model(
                "c", anthropic.AsyncAnthropic(api_key="k", http_client=http), runtime=runtime
            ), runtime
        make = openai_model if kind == "openai" else xai_model
        return make("m", openai.AsyncOpenAI(api_key="k", http_client=http), runtime=runtime), runtime

    def reply(self, kind, request=None):
        model, runtime = self.model(kind)
        request = question(tools=(TOOL,)) if request is None else request

        async def read():
            if self.kind == "application/json":
                return await model.exchange(request)
            async with model.stream(request) as parts:
                return [part async for part in parts][-1]

        return run(read(), clock=runtime.clock)


def _event(body):
    return (f"event: {body['type']}\n" if "type" in body else "") + f"data: {json.dumps(body)}\n\n"


TEXT = {"type": "text", "text": "Well"}


@pytest.mark.parametrize(
    ("kind", "body", "stop"),
    [
        ("anthropic", message("max_tokens", TEXT), "length"),
        ("anthropic", message("model_context_window_exceeded", TEXT), "length"),
        ("anthropic", message("refusal", TEXT), "refused"),
        ("anthropic", message("something_new", TEXT), "other"),
        (
            "openai",
            response("incomplete", output("Well"), incomplete_details={"reason": "max_output_tokens"}),
            "length",
        ),
        ("openai", response("incomplete", output("Well"), incomplete_details={"reason": "content_filter"}), "refused"),
        ("openai", response("cancelled", output("Well")), "other"),
        ("xai", completion("length", content="Well"), "length"),
        ("xai", completion("content_filter", content="Well"), "refused"),
        ("xai", completion("stop", refusal="Well"), "refused"),
        ("xai", completion("something_new", content="Well"), "other"),
    ],
)
def test_why_it_stopped_is_one_word(kind, body, stop):
    reply = Wire(body).reply(kind)
    assert (reply.stop, reply.text) == (stop, "Well")


LIMIT = {"incomplete_details": {"reason": "max_output_tokens"}}
USE = {"type": "tool_use", "id": "1", "name": "weather"}


@pytest.mark.parametrize("written", [HALF, "", "{}", WHOLE])
@pytest.mark.parametrize(
    ("kind", "make", "stop"),
    [
        ("anthropic", lambda written: message("max_tokens", {**USE, "input": parsed(written)}), "length"),
        ("anthropic", lambda written: message("something_new", {**USE, "input": parsed(written)}), "other"),
        ("anthropic", lambda written: message(None, {**USE, "input": parsed(written)}), "other"),
        ("openai", lambda written: response("incomplete", called(written), **LIMIT), "length"),
        ("openai", lambda written: response("in_progress", called(written)), "other"),
        ("openai", lambda written: response("completed", {**called(written), "status": "incomplete"}), "other"),
        ("xai", lambda written: completion("length", tool_calls=[function(written)]), "length"),
        ("xai", lambda written: completion("insufficient_system_resource", tool_calls=[function(written)]), "other"),
    ],
)
def test_XA1_an_answer_that_did_not_come_to_its_end_has_no_calls(kind, make, stop, written):
    wire = Wire(make(written))
    reply = wire.reply(kind)
    assert (reply.stop, reply.calls) == (stop, ())
    assert wire.requests == 1


def parsed(written):
    """What Anthropic has for arguments that were cut."""
    return json.loads(written) if written == WHOLE else {}


START = {"type": "message_start", "message": message(None)}
END = {"type": "message_stop"}


def block(index, *pieces):
    begun = {"type": "tool_use", "id": str(index), "name": "weather", "input": {}}
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    return [
        {"type": "content_block_start", "index": index, "content_block": begun},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def stopped(reason):
    delta = {"stop_reason": reason, "stop_sequence": None}
    return {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 2}}


@pytest.mark.parametrize(
    ("pieces", "reason", "stop"),
    [
        ([*block(0, '{"city": ', '"Oslo"}'), *block(1, HALF)], "max_tokens", "length"),
        (block(0, WHOLE), "max_tokens", "length"),
        (block(0), "max_tokens", "length"),
        # The block has no end, although the message has one.
        (block(0)[:-1], "tool_use", "other"),
    ],
)
def test_XA1_nor_has_a_streamed_one(pieces, reason, stop):
    reply = Wire(START, *pieces, stopped(reason), END, stream=True).reply("anthropic")
    assert reply.calls == ()
    assert reply.stop == stop
    assert (reply.usage.input, reply.usage.output) == (1, 2)


def test_fragments_of_several_calls_that_come_mixed_are_kept_apart():
    def piece(index, arguments, **more):
        return chunk(tool_calls=[{"index": index, "function": {"arguments": arguments, **more}, "type": "function"}])

    begun = [
        chunk(tool_calls=[{"index": index, **function("", str(index))}]) for index in (0, 1)
    ]  # both begin before either goes on
    pieces = [piece(0, '{"city": '), piece(1, '{"city": "Ber'), piece(0, '"Oslo"}'), piece(1, 'gen"}')]
    reply = Wire(*begun, *pieces, chunk("tool_calls"), stream=True).reply("xai")
    assert [(call.id, call.arguments["city"]) for call in reply.calls] == [("0", "Oslo"), ("1", "Bergen")]


@pytest.mark.parametrize("arguments", [HALF, "[1]", "null", "nonsense"])
@pytest.mark.parametrize("kind", ["openai", "xai"])
def test_arguments_that_are_no_object_are_a_defect_of_the_answer_and_retried_once(kind, arguments):
    body = response("completed", called(arguments)) if kind == "openai" else completion("tool_calls", tool_calls=[function(arguments)])  # fmt: skip
    wire = Wire(body)
    with pytest.raises(HoldfastError, match="the arguments of weather are not a JSON object") as raised:
        wire.reply(kind)
    assert raised.value.fault.code == "PROVIDER_OUTPUT_INVALID"
    assert wire.requests == 2


@pytest.mark.parametrize("kind", ["openai", "xai"])
def test_a_tool_without_parameters_may_be_called_with_nothing(kind):
    body = response("completed", called("")) if kind == "openai" else completion("tool_calls", tool_calls=[function("")])  # fmt: skip
    (call,) = Wire(body).reply(kind).calls
    assert call.arguments == {}


def test_an_answer_without_any_choice_is_empty():
    body = {**completion("stop"), "choices": []}
    with pytest.raises(HoldfastError) as raised:
        Wire(body).reply("xai")
    assert raised.value.fault.code == "PROVIDER_EMPTY_RESPONSE"


def test_a_response_that_failed_is_a_failure():
    failed = response("failed", error={"code": "server_error", "message": "The server had an error"})
    with pytest.raises(HoldfastError) as raised:
        Wire(failed).reply("openai")
    assert raised.value.fault.code == "PROVIDER_INTERNAL_ERROR"


THINKING = {"type": "thinking", "thinking": "It is a number.", "signature": "c2ln"}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "search", "input": {"q": "x"}}


def _streamed(*blocks):
    """Return the events of a message with these blocks, each in two pieces."""
    yield {"type": "message_start", "message": message(None) | {"usage": {"input_tokens": 1, "output_tokens": 1}}}
    for index, block in enumerate(blocks):
        empty = {"thinking": {"thinking": "", "signature": ""}, "tool_use": {"input": {}}, "text": {"text": ""}}
        started = {**block, **empty.get(block["type"], {})}
        yield {"type": "content_block_start", "index": index, "content_block": started}
        for delta in _deltas(block):
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    yield {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 5}}
    yield {"type": "message_stop"}


def _deltas(block):
    match block["type"]:
        case "thinking":
            half = len(block["thinking"]) // 2
            yield {"type": "thinking_delta", "thinking": block["thinking"][:half]}
            yield {"type": "thinking_delta", "thinking": block["thinking"][half:]}
            yield {"type": "signature_delta", "signature": block["signature"]}
        case "tool_use":
            text = json.dumps(block["input"])
            yield {"type": "input_json_delta", "partial_json": text[:3]}
            yield {"type": "input_json_delta", "partial_json": text[3:]}
        case "text":
            yield {"type": "text_delta", "text": block["text"]}


@pytest.mark.parametrize("streamed", [False, True])
def test_thinking_goes_back_to_anthropic_unchanged_with_the_results_of_its_calls(streamed):
    blocks = [THINKING, TEXT, {"type": "redacted_thinking", "data": "eA=="}, CALL]
    wire = Wire(*_streamed(*blocks), stream=True) if streamed else Wire(message("tool_use", *blocks))
    reply = wire.reply("anthropic")
    assert reply.text == "Well"
    assert [call.id for call in reply.calls] == ["toolu_1"]
    following = Request(
        messages=(User(text="hi"), reply.message, ToolResult(id="toolu_1", text="found")), tools=(TOOL,)
    )
    wire.reply("anthropic", following)
    assert wire.sent[1]["messages"][1] == {"role": "assistant", "content": blocks}
    # A conversation is stored, and must be the same afterwards.
    assert msgspec.json.decode(msgspec.json.encode(reply.message), type=Assistant) == reply.message


def test_another_provider_does_not_get_the_thinking():
    answer = Assistant(text="Well", calls=(), blocks=(THINKING, TEXT))
    wire = Wire(response("completed", output("Yes")))
    wire.reply("openai", Request(messages=(User(text="hi"), answer, User(text="and?"))))
    assert "It is a number." not in json.dumps(wire.sent[0])


def test_a_call_that_was_cut_off_is_left_out_of_what_goes_back():
    started = list(_streamed(THINKING, CALL))
    events = [each for each in started if each.get("delta", {}).get("partial_json") != json.dumps(CALL["input"])[3:]]
    events[-2] = {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {"output_tokens": 5}}
    reply = Wire(*events, stream=True).reply("anthropic")
    assert (reply.calls, reply.blocks) == ((), (THINKING,))


HALF_SAID = {"type": "text", "text": "a \ud83d b"}


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("anthropic", message("tool_use", HALF_SAID, {**USE, "input": {"city": "Oslo"}})),
        (
            "anthropic",
            message(
                "tool_use",
                {"type": "thinking", "thinking": "\ud83d", "signature": "s"},
                HALF_SAID,
                {"type": "text", "text": "\n"},
                {**USE, "input": {"city": "Oslo"}},
            ),
        ),
        ("openai", response("completed", output("a \ud83d b"), called(WHOLE))),
        ("xai", completion("tool_calls", content="a \ud83d b", tool_calls=[function(WHOLE)])),
    ],
)
def test_an_answer_with_half_a_character_can_be_sent_back(kind, body):
    wire = Wire(body)
    reply = wire.reply(kind)
    assert reply.text.strip() == "a \ufffd b"
    assert [call.arguments for call in reply.calls] == [{"city": "Oslo"}]
    turns = (User(text="?"), reply.message, ToolResult(id="1", text="rain"))
    wire.reply(kind, Request(messages=turns, tools=(TOOL,)))
    assert "\ufffd" in json.dumps(wire.sent[-1], ensure_ascii=False)


HALF_CITY = {"city": "Os\ud83dlo"}


@pytest.mark.parametrize("half", [json.dumps(HALF_CITY), json.dumps(HALF_CITY, ensure_ascii=False)])
@pytest.mark.parametrize("kind", ["anthropic", "anthropic-stream", "openai", "xai"])
def test_a_call_with_half_a_character_is_a_mistake_that_can_be_sent_back(kind, half):
    wires = {
        "anthropic": lambda: Wire(message("tool_use", {**USE, "input": HALF_CITY})),
        "anthropic-stream": lambda: Wire(*_pieces(half), stream=True),
        "openai": lambda: Wire(response("completed", called(half))),
        "xai": lambda: Wire(completion("tool_calls", tool_calls=[function(half)])),
    }
    wire, asked = wires[kind](), Request(messages=(User(text="?"),), tools=(TOOL,), accepts_invalid=True)
    reply = wire.reply(kind.split("-")[0], asked)
    assert "not a JSON object" in reply.calls[0].mistake
    assert list(reply.calls[0].arguments) == ["invalid_json"]
    turns = (User(text="?"), reply.message, ToolResult(id=reply.calls[0].id, text="wrong", failed=True))
    wire.reply(kind.split("-")[0], Request(messages=turns, tools=(TOOL,), accepts_invalid=True))
    assert msgspec.json.decode(msgspec.json.encode(reply.message), type=Assistant) == reply.message


def _pieces(*written):
    """Return the events of a message with one call, whose arguments come in these pieces."""
    events = list(_streamed(CALL))
    deltas = [{"type": "input_json_delta", "partial_json": each} for each in written]
    return [
        *events[:2],
        *({"type": "content_block_delta", "index": 0, "delta": each} for each in deltas),
        *events[-3:],
    ]


def test_two_halves_of_a_character_in_two_pieces_of_a_call_are_a_character():
    reply = Wire(*_pieces('{"city": "\ud83d', '\ude00"}'), stream=True).reply("anthropic")
    assert [(call.arguments, call.mistake) for call in reply.calls] == [({"city": "\U0001f600"}, "")]
