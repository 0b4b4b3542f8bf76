"""Every adapter with the real SDK against the fault provider: plain, tools, streams, JSON, errors, circuits."""

from __future__ import annotations

import anthropic
import msgspec
import openai
import pytest
from providers_kit import KINDS, MODELS, TOOL, World, question, turns

from holdfast import Budget, Circuit, CircuitOpenError, HoldfastError, Policy, StreamCutError, fault_of
from holdfast.events import Retry, StreamResumed
from holdfast.policies.models.capabilities import Needs
from holdfast.policies.models.usage import Usage, usage_of
from holdfast.providers import Assistant, Reply, Request, ToolCall, ToolResult, User
from holdfast.testing.provider.script import read_file

each = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def world_of(tmp_path):
    def make(script="", **options):
        if "replies" not in script:
            return World(script, **options)
        path = tmp_path / "script.toml"
        path.write_text(script, encoding="utf-8")
        return World(read_file(path), **options)

    return make


# Plain


@each
def test_a_question_is_answered_with_its_usage_and_why_it_ended(kind):
    world = World()
    reply = world.exchange(world.model(kind), question("What is a holdfast?", system="Be brief.", max_output=77))
    assert reply.text == "You said: What is a holdfast?"
    assert (reply.stop, reply.model, reply.calls, reply.data) == ("end", MODELS[kind], (), None)
    assert isinstance(reply.usage, Usage)
    assert reply.usage.output == 6
    (sent,) = world.sent
    assert "Be brief." in str(sent)
    assert 77 in sent.values()
    assert reply.message == Assistant(text="You said: What is a holdfast?")


@each
def test_one_attempt_is_one_request_and_the_sdks_own_retries_are_off(kind):
    world = World("500, 529, ok")
    reply = world.exchange(world.model(kind), question())
    assert reply.text == "You said: hello"
    assert world.received == 3
    assert world.provider.counters.injected == {"500": 1, "529": 1}
    assert [event.attempt for event in world.of(Retry)] == [1, 2]


@each
def test_it_waits_as_long_as_the_provider_asks(kind):
    world = World("429;retry-after=33, ok")
    world.exchange(world.model(kind), question())
    assert world.runtime.clock.monotonic() == pytest.approx(33)


def test_the_conversation_and_its_answers_can_be_kept_as_json():
    call = ToolCall(id="1", name="weather", arguments={"city": "Oslo"})
    request = Request(
        messages=(User(text="hi"), Assistant(calls=(call,)), ToolResult(id="1", text="rain", failed=True)),
        tools=(TOOL,),
        needs=Needs(levels={"reasoning": "preferred"}, window=9),
    )
    assert msgspec.json.decode(msgspec.json.encode(request), type=Request) == request
    reply = Reply(text="x", calls=(call,), stop="tools", usage=Usage(input=1), model="m")
    assert msgspec.json.decode(msgspec.json.encode(reply), type=Reply) == reply


# Tools


@each
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_a_tool_is_called_and_its_result_taken_back(kind, streamed, world_of):
    world = world_of('replies = "tools"')
    model = world.model(kind)
    request = question("How is the weather?", tools=(TOOL,))

    def ask(request):
        return world.stream(model, request)[-1] if streamed else world.exchange(model, request)

    first = ask(request)
    (call,) = first.calls
    assert (first.stop, first.text, call.name) == ("tools", "", "weather")
    assert call.arguments == {"city": "example", "days": 1}
    assert call.id
    result = ToolResult(id=call.id, text="It rains.")
    second = ask(msgspec.structs.replace(request, messages=(*request.messages, first.message, result)))
    assert (second.stop, second.text, second.calls) == ("end", "The tool says: It rains.", ())
    assert call.id in str(world.sent[1])
    assert world.received == 2


def test_results_of_several_calls_are_one_turn_for_anthropic():
    world = World()
    calls = tuple(ToolCall(id=name, name="weather", arguments={}) for name in "ab")
    results = (ToolResult(id="a", text="rain"), ToolResult(id="b", text="no such city", failed=True))
    messages = (User(text="hi"), Assistant(text="Let me look.", calls=calls), *results, User(text="and?"))
    world.exchange(world.model("anthropic"), Request(messages=messages, tools=(TOOL,)))
    sent = world.sent[0]["messages"]
    assert [turn["role"] for turn in sent] == ["user", "assistant", "user"]
    assert [block["type"] for block in sent[1]["content"]] == ["text", "tool_use", "tool_use"]
    assert [block.get("is_error") for block in sent[2]["content"]] == [None, True, None]


# Streams


@each
def test_a_stream_gives_words_and_then_the_whole_reply(kind):
    world = World()
    *words, reply = world.stream(world.model(kind), question("one two"))
    assert words == ["You", " said:", " one", " two"]
    whole = world.exchange(world.model(kind), question("one two"))
    assert msgspec.structs.replace(reply, usage=None) == msgspec.structs.replace(whole, usage=None)
    assert reply.usage.output == 4


@each
@pytest.mark.parametrize("fault", ["cut;after=0", "529", "sse-error;after=0", "disconnect", "truncate;after=0"])
def test_a_stream_that_fails_before_its_first_word_is_begun_again_unseen(kind, fault):
    world = World(f"{fault}, ok")
    *words, reply = world.stream(world.model(kind), question("one"))
    assert words == ["You", " said:", " one"]
    assert reply.text == "You said: one"
    assert world.received == 2


@each
def test_a_tool_call_that_is_cut_is_never_put_together_from_two_answers(kind, world_of):
    world = world_of('replies = "tools"\n[[rules]]\nsteps = "cut-tool, cut-tool, ok"')
    parts = world.stream(world.model(kind), question(tools=(TOOL,)))
    assert world.provider.counters.injected == {"cut-tool": 2}
    (reply,) = parts
    assert [call.arguments for call in reply.calls] == [{"city": "example", "days": 1}]
    assert world.received == 3


@each
def test_a_stream_that_is_cut_after_its_first_words_raises_with_what_arrived(kind):
    world = World("cut;after=2")
    with pytest.raises(StreamCutError) as raised:
        world.stream(world.model(kind), question("one two"))
    assert raised.value.partial.payload == "You said:"
    assert world.received == 1


@each
def test_a_stream_that_ends_without_its_last_event_is_cut(kind):
    world = World("truncate;after=2")
    with pytest.raises(StreamCutError) as raised:
        world.stream(world.model(kind), question("one two"))
    assert raised.value.fault.code == "PROVIDER_STREAM_CUT"


@each
def test_a_cut_stream_begins_again_where_that_was_chosen(kind):
    world = World("cut;after=2, ok")
    parts = world.stream(world.model(kind), question("one"), after_first="restart")
    assert parts[:2] == ["You", " said:"]
    assert parts[2:-1] == ["You", " said:", " one"]
    assert [event.how for event in world.of(StreamResumed)] == ["restart"]


@each
def test_a_long_tool_call_that_keeps_coming_is_no_silence(kind, world_of):
    world = world_of('replies = "tools"\n[[rules]]\nsteps = "drip;every=10"')
    model = world.model(kind, policy=Policy(timeout=25, patience=None))
    (reply,) = world.stream(model, question(tools=(TOOL,)))
    assert reply.calls[0].arguments == {"city": "example", "days": 1}
    assert world.runtime.clock.monotonic() > 60
    assert world.received == 1


@each
def test_silence_after_the_first_words_is_reported_as_such(kind):
    world = World("silence;after=2")
    with pytest.raises(StreamCutError) as raised:
        world.stream(world.model(kind, policy=Policy(timeout=30)), question("one two"))
    assert raised.value.fault.code == "PROVIDER_STREAM_STALLED"


@each
def test_a_budget_is_charged_what_a_stream_used(kind):
    world = World()
    model = world.model(kind)

    async def read():
        with Budget(tokens=10_000) as budget:
            async with model.stream(question("one two")) as parts:
                reply = [part async for part in parts][-1]
            return budget, reply

    budget, reply = world.run(read())
    assert budget.spend().tokens == reply.usage.total > 0


# JSON


@each
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_an_answer_by_schema_comes_as_a_value(kind, streamed, world_of):
    world = world_of(turns('{"city": "Oslo"}'))
    request = question(schema={"type": "object", "properties": {"city": {"type": "string"}}})
    model = world.model(kind)
    reply = world.stream(model, request)[-1] if streamed else world.exchange(model, request)
    assert reply.data == {"city": "Oslo"}
    assert "json_schema" in str(world.sent[0])


@each
def test_an_answer_that_is_not_the_json_of_its_schema_is_retried_once_and_then_raised(kind, world_of):
    world = world_of(turns("Sure! Here it is"))
    with pytest.raises(HoldfastError) as raised:
        world.exchange(world.model(kind), question(schema={"type": "object"}))
    assert raised.value.fault.code == "PROVIDER_OUTPUT_INVALID"
    assert world.received == 2


# Errors


ERRORS = (
    ("401", "AUTH_FAILED", "AuthenticationError", 1),
    ("quota", "PROVIDER_", None, 1),
    ("overflow", "PROVIDER_CONTEXT_OVERFLOW", "BadRequestError", 1),
    ("not-found", "PROVIDER_MODEL_NOT_FOUND", "NotFoundError", 1),
    ("500*9", "PROVIDER_INTERNAL_ERROR", "InternalServerError", 3),
    ("rate-limit*9", "PROVIDER_RATE_LIMITED", "RateLimitError", 6),
    ("malformed-json*9", "", None, None),
)


@each
@pytest.mark.parametrize(("script", "code", "error", "requests"), ERRORS, ids=[script for script, *_ in ERRORS])
def test_the_sdks_own_error_comes_through_with_its_fault(kind, script, code, error, requests):
    world = World(script)
    with pytest.raises(Exception) as raised:
        world.exchange(
            world.model(kind, policy=Policy(profile="stud", patience=None, circuit=Circuit(failures=99, rate=None))),
            question(),
        )
    assert fault_of(raised.value).code.startswith(code)
    if error is not None:
        assert isinstance(raised.value, getattr(anthropic if kind == "anthropic" else openai, error))
    if requests is not None:
        assert world.received == requests


@each
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_an_error_inside_a_good_answer_is_an_error(kind, streamed):
    world = World("error-200, ok")
    model = world.model(kind)
    reply = world.stream(model, question())[-1] if streamed else world.exchange(model, question())
    assert reply.text == "You said: hello"
    assert [event.fault.code for event in world.of(Retry)] == ["PROVIDER_OVERLOADED"]


@each
def test_a_page_with_status_200_is_a_failure_and_retried(kind):
    world = World("html;status=200, ok")
    assert world.exchange(world.model(kind), question()).text == "You said: hello"
    assert [event.fault.code for event in world.of(Retry)] == ["PROVIDER_MALFORMED_RESPONSE"]
    assert world.received == 2


@each
def test_a_long_answer_need_not_be_streamed(kind):
    world = World()
    # The Anthropic SDK rejects such a request unless it has a time limit.
    assert world.exchange(world.model(kind), question(max_output=64_000)).text == "You said: hello"


# Circuits


@each
def test_S1_27_circuits_are_per_provider_model_and_key(kind):
    world = World()
    world.exchange(world.model(kind, credential="team-a"), question())
    lines = {line.name for line in world.runtime.registry}
    model = MODELS[kind]
    assert lines == {f"provider:{kind}", f"model:{kind}/{model}", f"key:{kind}/team-a"}


@each
def test_R53_a_key_that_is_refused_is_left_alone_and_another_key_goes_on(kind, world_of):
    world = world_of('replies = "echo"\n[[rules]]\nsteps = "401"\nloop = true\nkeys = ["bad"]')
    policy = Policy(circuit=Circuit(failures=2, rate=None))
    bad, good = (world.model(kind, key=key, policy=policy) for key in ("bad", "good"))
    for _ in range(2):
        with pytest.raises((anthropic.AuthenticationError, openai.AuthenticationError)):
            world.exchange(bad, question())
    with pytest.raises(CircuitOpenError) as rejected:
        world.exchange(bad, question())
    assert rejected.value.circuit.startswith(f"key:{kind}/key-")
    assert world.received == 2
    assert world.exchange(good, question()).text == "You said: hello"
    shown = str(world.heard.events) + str([line.name for line in world.runtime.registry])
    assert "'bad'" not in shown


@each
def test_what_an_answer_used_is_read_as_any_answers_usage(kind):
    world = World()
    reply = world.exchange(world.model(kind), question())
    assert usage_of(reply) == reply.usage
