"""The paths of the fault provider besides the three usual ones, called by the real SDKs where they are installed."""

from __future__ import annotations

import io
import json
import socket

import anthropic
import botocore.config
import botocore.session
import httpx2
import jsonschema
import openai
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from provider_calls import CLAUDE, GPT, MESSAGES, anthropic_client, openai_client

from holdfast import fault_of
from holdfast.testing import FaultProvider, VirtualClock, serve_in_thread
from holdfast.testing.provider import Limit, Request
from holdfast.testing.provider.http import Data, ReplyHead
from holdfast.testing.provider.routes import ROUTES, locate
from holdfast.testing.provider.schema import example

GEMINI = "gemini-2.5-pro"
ECHO = "You said: What is a holdfast?"
ASKED = [{"role": "user", "parts": [{"text": "What is a holdfast?"}]}]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@pytest.fixture
def provider():
    with serve_in_thread() as provider:
        yield provider


@pytest.fixture
def http(provider):
    with httpx2.Client(base_url=provider.url, headers={"x-goog-api-key": "k"}) as client:
        yield client


def talk(provider, sent, until=None):
    """Send bytes; return everything until the server closes, or until the given bytes arrive."""
    with socket.create_connection(("127.0.0.1", provider.port), timeout=2) as connection:
        connection.sendall(sent)
        came = b""
        while (until is None or until not in came) and (data := connection.recv(65536)):
            came += data
        return came


# --- HTTP ---


def test_FI6_a_head_request_gets_no_body_and_the_connection_goes_on(provider):
    """Claude Code begins with it. A body would be read as the beginning of the next answer."""
    provider.set_script("503")
    came = talk(
        provider,
        b"HEAD / HTTP/1.1\r\nhost: x\r\n\r\nHEAD /v1/messages HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
    )
    assert came.count(b"HTTP/1.1 200 OK") == 2
    assert came.endswith(b"\r\n\r\n")
    assert b"{" not in came
    assert provider.counters.received == 0  # it takes no step


def test_FI6_a_websocket_is_declined_so_that_the_client_uses_http(provider):
    upgrade = b"upgrade: websocket\r\nconnection: Upgrade\r\nsec-websocket-key: x\r\nsec-websocket-version: 13\r\n"
    came = talk(provider, b"GET /v1/responses HTTP/1.1\r\nhost: x\r\n" + upgrade + b"\r\n", until=b"}")
    assert came.startswith(b"HTTP/1.1 426 Upgrade Required\r\n")
    assert provider.counters.refused == 1


CHUNKED = b"POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: k\r\ntransfer-encoding: chunked\r\n\r\n"


def chunks(body, size):
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%X\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_FI6_a_chunked_body_is_read_and_the_next_request_too(provider, size):
    body = json.dumps({"model": CLAUDE, "messages": MESSAGES}).encode()
    whole = CHUNKED + chunks(body, size)
    last = whole.replace(b"host: x\r\n", b"host: x\r\nconnection: close\r\n")
    with socket.create_connection(("127.0.0.1", provider.port), timeout=2) as connection:
        sent = whole + last
        for at in range(0, len(sent), 50):
            connection.sendall(sent[at : at + 50])
        came = b""
        while data := connection.recv(65536):
            came += data
    assert came.count(ECHO.encode()) == 2
    assert [request.body for request in provider.requests] == [body, body]


def test_FI6_chunk_extensions_and_trailers_are_skipped(provider):
    body = json.dumps({"model": CLAUDE, "messages": MESSAGES}).encode()
    sent = CHUNKED + b"%x;name=value\r\n%b\r\n0\r\nx-checksum: 5\r\n\r\n" % (len(body), body)
    assert talk(provider, sent, until=b"}}").startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("rest", "status"), [(b"banana\r\n", 400), (b"fffffffff\r\n", 413), (b"2\r\nabc\r\n", 400), (b"-1\r\n", 400)]
)
def test_FI6_a_wrong_chunk_gets_an_error(provider, rest, status):
    assert talk(provider, CHUNKED + rest).startswith(b"HTTP/1.1 %d " % status)


# --- failures inside the Responses protocol ---


def test_FI6_the_error_event_has_the_next_sequence_number(provider):
    provider.set_script("sse-error;after=2")
    with httpx2.Client(base_url=provider.url, headers={"authorization": "Bearer k"}) as client:
        body = {"model": GPT, "input": "one two three four", "stream": True}
        came = client.post("/v1/responses", json=body).text
    events = [json.loads(line.removeprefix("data: ")) for line in came.splitlines() if line.startswith("data: ")]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["type"] == "error"
    assert events[-1]["error"]["message"].startswith("That model is currently overloaded")


def test_FI6_a_response_reports_its_own_failure_in_a_stream(provider):
    provider.set_script("failed;after=1;error=rate-limit")
    with openai_client(provider) as client:
        events = list(client.responses.create(model=GPT, input="hello there", stream=True))
    assert events[-1].type == "response.failed"
    assert events[-1].sequence_number == len(events) - 1
    assert events[-1].response.status == "failed"
    assert events[-1].response.error.code == "rate_limit_exceeded"
    assert any(event.type == "response.output_text.delta" for event in events)


def test_FI6_a_response_reports_its_own_failure_without_a_stream(provider):
    provider.set_script("failed")
    with openai_client(provider) as client:
        response = client.responses.create(model=GPT, input="hello")
    assert (response.status, response.error.code) == ("failed", "server_error")
    assert response.output == []


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions"])
def test_FI6_in_other_protocols_a_failed_answer_is_an_error_in_the_stream(path):
    def sent(step):
        provider = FaultProvider(step, clock=VirtualClock())
        body = json.dumps({"model": "x", "stream": True}).encode()
        return list(provider.plan(Request("POST", path, {"x-api-key": "k"}, body)))

    assert sent("failed") == sent("sse-error")


# --- structured outputs and tool_choice ---


class Forecast(pydantic.BaseModel):
    class Day(pydantic.BaseModel):
        name: str
        degrees: float
        sky: str | None

    city: str
    days: list[Day]
    unit: str


def test_FI6_structured_outputs_fit_their_schema_in_every_sdk(provider):
    with openai_client(provider) as client:
        parsed = client.chat.completions.parse(model=GPT, messages=MESSAGES, response_format=Forecast)
        assert isinstance(parsed.choices[0].message.parsed, Forecast)
        answer = client.responses.parse(model=GPT, input="hello", text_format=Forecast)
        assert isinstance(answer.output_parsed, Forecast)
        plain = client.chat.completions.create(model=GPT, messages=MESSAGES, response_format={"type": "json_object"})
        assert json.loads(plain.choices[0].message.content) == {}
    with anthropic_client(provider) as client:
        message = client.messages.parse(model=CLAUDE, max_tokens=9, messages=MESSAGES, output_format=Forecast)
        assert isinstance(message.parsed_output, Forecast)


def test_FI6_a_streamed_structured_output_fits_its_schema(provider):
    with (
        openai_client(provider) as client,
        client.chat.completions.stream(model=GPT, messages=MESSAGES, response_format=Forecast) as stream,
    ):
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Forecast)


def test_FI6_a_strict_tool_gets_arguments_of_its_schema(provider):
    provider.set_script('replies = "tools"')
    tool = openai.pydantic_function_tool(Forecast)
    assert tool["function"]["strict"] is True
    with openai_client(provider) as client:
        answer = client.chat.completions.parse(model=GPT, messages=MESSAGES, tools=[tool])
    assert isinstance(answer.choices[0].message.tool_calls[0].function.parsed_arguments, Forecast)


SCHEMAS = [
    {"type": "object", "properties": {"n": {"type": "integer", "minimum": 5, "multipleOf": 3}}, "required": ["n"]},
    {"type": "object", "properties": {"n": {"type": "number", "exclusiveMaximum": -2}}, "required": ["n"]},
    {"type": "object", "required": ["other"], "properties": {}},
    {"type": "array", "items": {"$ref": "#/$defs/A"}, "minItems": 2, "$defs": {"A": {"const": 4}}},
    {"anyOf": [{"type": "string", "minLength": 20}, {"type": "null"}]},
    {"type": ["null", "string"], "maxLength": 3},
    {"type": "string", "format": "date-time"},
    {"allOf": [CITY, {"type": "object", "properties": {"n": {"enum": [3, 4]}}, "required": ["n"]}]},
    {"$ref": "#/$defs/T", "$defs": {"T": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/T"}, {"type": "null"}]}}, "required": ["next"], "additionalProperties": False}}},
    {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "boolean"}], "items": False},
    True,
]  # fmt: skip


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_FI6_an_example_fits_its_schema(schema):
    made = example(schema)
    jsonschema.validate(made, schema, format_checker=jsonschema.FormatChecker())
    assert len(json.dumps(made)) < 10_000


KEYWORDS = st.sampled_from(
    [
        "type",
        "properties",
        "items",
        "enum",
        "anyOf",
        "allOf",
        "$ref",
        "required",
        "minItems",
        "minimum",
        "minLength",
        "const",
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["object", "array", "string", "#", "#/items"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYWORDS, inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_FI6_any_schema_has_an_example(schema):
    json.dumps(example(schema))


TOOLS = {
    "anthropic": [{"name": name, "input_schema": CITY} for name in ("first", "second")],
    "chat": [{"type": "function", "function": {"name": name, "parameters": CITY}} for name in ("first", "second")],
    "responses": [{"type": "function", "name": name, "parameters": CITY} for name in ("first", "second")],
}
CHOICES = [
    ("anthropic", {"type": "any"}, "first"),
    ("anthropic", {"type": "tool", "name": "second"}, "second"),
    ("anthropic", {"type": "none"}, None),
    ("anthropic", {"type": "auto"}, None),
    ("chat", "required", "first"),
    ("chat", {"type": "function", "function": {"name": "second"}}, "second"),
    ("chat", "none", None),
    ("chat", "auto", None),
    ("chat", {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "second"}}]}}, "second"),
    ("responses", "required", "first"),
    ("responses", {"type": "function", "name": "second"}, "second"),
    ("responses", "none", None),
    ("responses", {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "second"}]}, "second"),
]  # fmt: skip


def called(provider, protocol, choice):
    """Return the tool that the reply calls, and its arguments."""
    if protocol == "anthropic":
        with anthropic_client(provider) as client:
            answer = client.messages.create(
                model=CLAUDE, max_tokens=9, messages=MESSAGES, tools=TOOLS[protocol], tool_choice=choice
            )
        block = answer.content[0]
        return (block.name, block.input) if block.type == "tool_use" else (None, None)
    with openai_client(provider) as client:
        if protocol == "chat":
            answer = client.chat.completions.create(
                model=GPT, messages=MESSAGES, tools=TOOLS[protocol], tool_choice=choice
            )
            calls = answer.choices[0].message.tool_calls or ()
            return next(((call.function.name, json.loads(call.function.arguments)) for call in calls), (None, None))
        answer = client.responses.create(model=GPT, input="hi", tools=TOOLS[protocol], tool_choice=choice)
        item = answer.output[0]
        return (item.name, json.loads(item.arguments)) if item.type == "function_call" else (None, None)


@pytest.mark.parametrize(("protocol", "choice", "tool"), CHOICES)
def test_FI6_tool_choice_is_obeyed(provider, protocol, choice, tool):
    name, arguments = called(provider, protocol, choice)
    assert name == tool
    if tool:
        jsonschema.validate(arguments, CITY)


def test_FI6_a_forbidden_tool_is_not_called_where_tools_are_called_otherwise(provider):
    provider.set_script('replies = "tools"')
    for protocol, choice in (("anthropic", {"type": "none"}), ("chat", "none"), ("responses", "none")):
        assert called(provider, protocol, choice) == (None, None)


def test_a_list_of_turns_is_played_as_it_is_written(provider):
    provider.set_script('replies = ["no"]')
    assert called(provider, "chat", "required") == (None, None)


# --- counts, models, embeddings ---


def test_FI6_tokens_are_counted(provider):
    with anthropic_client(provider) as client:
        few = client.messages.count_tokens(model=CLAUDE, messages=MESSAGES).input_tokens
        many = client.messages.count_tokens(model=CLAUDE, messages=MESSAGES * 9).input_tokens
    assert 5 < few < many
    with openai_client(provider) as client:
        assert client.responses.input_tokens.count(model=GPT, input="hello").input_tokens > 5


def test_FI6_models_are_listed_and_retrieved(provider):
    with anthropic_client(provider) as client:
        assert CLAUDE in [model.id for model in client.models.list()]
        assert client.models.retrieve(CLAUDE).display_name == CLAUDE
    with openai_client(provider) as client:
        assert GPT in [model.id for model in client.models.list()]
        assert client.models.retrieve("ft:gpt-5:mine").id == "ft:gpt-5:mine"


def test_FI6_embeddings_are_the_same_for_the_same_text(provider):
    with openai_client(provider) as client:
        one, two, three = client.embeddings.create(model="text-embedding-3-small", input=["a", "a", "b"]).data
        assert one.embedding == two.embedding != three.embedding
        assert len(one.embedding) == 1536
        assert sum(number**2 for number in one.embedding) == pytest.approx(1, abs=1e-3)
        small = client.embeddings.create(model="m", input="a", dimensions=8, encoding_format="float").data[0].embedding
        assert len(small) == 8


def test_FI6_embeddings_are_limited_and_lists_are_not():
    with serve_in_thread(limits=[Limit(requests=1)]) as provider, openai_client(provider) as client:
        client.embeddings.create(model="m", input="a")
        with pytest.raises(openai.RateLimitError):
            client.embeddings.create(model="m", input="a")
        client.models.list()


# --- files, batches, responses ---


def test_FI6_files_are_kept_listed_read_and_deleted(provider):
    with openai_client(provider) as client:
        made = client.files.create(file=("notes.txt", b"\x00holdfast\r\n--"), purpose="user_data")
        assert (made.filename, made.bytes, made.purpose) == ("notes.txt", 13, "user_data")
        assert [file.id for file in client.files.list()] == [made.id]
        assert client.files.content(made.id).read() == b"\x00holdfast\r\n--"
        assert client.files.retrieve(made.id).filename == "notes.txt"
        assert client.files.delete(made.id).deleted
        with pytest.raises(openai.NotFoundError):
            client.files.retrieve(made.id)
    with anthropic_client(provider) as client:
        kept = client.beta.files.upload(file=("notes.txt", b"text", "text/plain"))
        assert client.beta.files.retrieve_metadata(kept.id).size_bytes == 4


def test_FI6_a_batch_of_openai(provider):
    lines = [
        {"custom_id": f"c{at}", "method": "POST", "url": "/v1/chat/completions", "body": {"model": GPT, "messages": MESSAGES}}
        for at in range(3)
    ]  # fmt: skip
    lines.append({"custom_id": "bad", "method": "POST", "url": "/v1/chat/completions", "body": {}})
    data = io.BytesIO(b"\n".join(json.dumps(line).encode() for line in lines))
    with openai_client(provider) as client:
        file = client.files.create(file=("in.jsonl", data), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
        assert batch.status == "in_progress"
        batch = client.batches.retrieve(batch.id)
        assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == ("completed", 3, 1)
        results = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
        assert [each["custom_id"] for each in results] == ["c0", "c1", "c2", "bad"]
        assert results[0]["response"]["body"]["choices"][0]["message"]["content"] == ECHO
        assert results[3]["response"]["status_code"] == 400
        assert [each.id for each in client.batches.list()] == [batch.id]
        other = client.batches.create(input_file_id=file.id, endpoint="/v1/responses", completion_window="24h")
        assert client.batches.cancel(other.id).status == "cancelled"
        with pytest.raises(openai.NotFoundError):
            client.batches.create(input_file_id="none", endpoint="/v1/responses", completion_window="24h")


def test_FI6_a_batch_of_anthropic(provider):
    params = {"model": CLAUDE, "max_tokens": 9, "messages": MESSAGES}
    with anthropic_client(provider) as client:
        made = client.messages.batches.create(requests=[{"custom_id": f"c{at}", "params": params} for at in range(2)])
        assert made.processing_status == "in_progress"
        with pytest.raises(anthropic.AnthropicError):
            client.messages.batches.results(made.id) if made.results_url else client.messages.batches.results("none")
        ended = client.messages.batches.retrieve(made.id)
        assert (ended.processing_status, ended.request_counts.succeeded) == ("ended", 2)
        results = list(client.messages.batches.results(made.id))
        assert [each.custom_id for each in results] == ["c0", "c1"]
        assert results[0].result.message.content[0].text == ECHO
        assert [each.id for each in client.messages.batches.list()] == [made.id]
        other = client.messages.batches.create(requests=[{"custom_id": "c", "params": params}])
        assert client.messages.batches.cancel(other.id).processing_status == "canceling"
        assert next(iter(client.messages.batches.results(other.id))).result.type == "canceled"
        client.messages.batches.delete(made.id)
        with pytest.raises(anthropic.NotFoundError):
            client.messages.batches.retrieve(made.id)


def test_FI6_a_response_can_be_retrieved(provider):
    with openai_client(provider) as client:
        made = client.responses.create(model=GPT, input="hello")
        assert client.responses.retrieve(made.id).output_text == "You said: hello"
        items = list(client.responses.input_items.list(made.id))
        assert items[0].content[0].text == "hello"
        client.responses.delete(made.id)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(made.id)
        forgotten = client.responses.create(model=GPT, input="hello", store=False)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(forgotten.id)
    provider.reset()
    with openai_client(provider) as client, pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)


def test_a_fault_makes_no_batch_and_a_rule_may_name_a_path(provider):
    provider.set_script('[[rules]]\nsteps = "503"\nloop = true\npaths = ["/v1/messages"]\n')
    with anthropic_client(provider) as client:
        client.messages.count_tokens(model=CLAUDE, messages=MESSAGES)
        with pytest.raises(anthropic.InternalServerError):
            client.messages.create(model=CLAUDE, max_tokens=9, messages=MESSAGES)
        provider.set_script("503")
        with pytest.raises(anthropic.InternalServerError):
            client.messages.batches.create(requests=[])
        assert list(client.messages.batches.list()) == []


# --- Azure ---


def azure(provider, **more):
    return openai.AzureOpenAI(azure_endpoint=provider.url, api_key="k", api_version="2024-10-21", max_retries=0, **more)


def test_FI6_azure_has_the_deployment_in_its_path(provider):
    with azure(provider) as client:
        answer = client.chat.completions.create(model="my-deployment", messages=MESSAGES)
        assert (answer.choices[0].message.content, answer.model) == (ECHO, "my-deployment")
        assert client.embeddings.create(model="my-embedding", input="a").data[0].embedding
        assert client.responses.create(model=GPT, input="hello").output_text == "You said: hello"
    assert provider.requests[0].key == "k"
    with openai.OpenAI(base_url=f"{provider.url}/openai/v1", api_key="k", max_retries=0) as client:
        assert client.responses.create(model=GPT, input="hello").output_text == "You said: hello"


def test_FI6_azure_has_its_own_words_for_a_limit():
    with serve_in_thread(limits=["requests=6;burst=1"]) as provider, azure(provider) as client:
        client.chat.completions.create(model=GPT, messages=MESSAGES)
        with pytest.raises(openai.RateLimitError, match="Please retry after 10 seconds") as failed:
            client.chat.completions.create(model=GPT, messages=MESSAGES)
    assert "x-ms-retry-after-ms" in failed.value.response.headers
    assert fault_of(failed.value).retry_after == pytest.approx(10, abs=0.5)


# --- Bedrock ---


@pytest.fixture
def bedrock(provider):
    session = botocore.session.Session()
    session.set_credentials("AKIDEXAMPLE", "secret")
    config = botocore.config.Config(retries={"total_max_attempts": 1})
    client = session.create_client("bedrock-runtime", region_name="us-east-1", endpoint_url=provider.url, config=config)
    yield client
    client.close()


MODEL = "anthropic.claude-3-5-sonnet-20240620-v1:0"
CONVERSE = {"modelId": MODEL, "messages": [{"role": "user", "content": [{"text": "What is a holdfast?"}]}]}
TOOL_CONFIG = {
    "tools": [{"toolSpec": {"name": "weather", "inputSchema": {"json": CITY}}}],
    "toolChoice": {"any": {}},
}


def test_FI6_bedrock_invokes_a_model(provider, bedrock):
    body = json.dumps({"anthropic_version": "bedrock-2023-05-31", "max_tokens": 9, "messages": MESSAGES})
    answer = bedrock.invoke_model(modelId=MODEL, body=body)
    assert json.loads(answer["body"].read())["content"][0]["text"] == ECHO
    assert (provider.requests[-1].model, provider.requests[-1].key) == (MODEL, "AKIDEXAMPLE")
    stream = bedrock.invoke_model_with_response_stream(modelId=MODEL, body=body)["body"]
    events = [json.loads(event["chunk"]["bytes"]) for event in stream]
    assert (events[0]["type"], events[-1]["type"]) == ("message_start", "message_stop")
    texts = [event["delta"]["text"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(texts) == ECHO


def test_FI6_bedrock_converses(bedrock):
    answer = bedrock.converse(**CONVERSE)
    assert answer["output"]["message"]["content"][0]["text"] == ECHO
    assert answer["stopReason"] == "end_turn"
    events = list(bedrock.converse_stream(**CONVERSE)["stream"])
    texts = [event["contentBlockDelta"]["delta"]["text"] for event in events if "contentBlockDelta" in event]
    assert "".join(texts) == ECHO
    assert list(events[-1]) == ["metadata"]


def test_FI6_bedrock_calls_a_tool(bedrock):
    answer = bedrock.converse(**CONVERSE, toolConfig=TOOL_CONFIG)
    call = answer["output"]["message"]["content"][0]["toolUse"]
    assert (call["name"], call["input"], answer["stopReason"]) == ("weather", {"city": "example"}, "tool_use")
    events = list(bedrock.converse_stream(**CONVERSE, toolConfig=TOOL_CONFIG)["stream"])
    written = [
        event["contentBlockDelta"]["delta"]["toolUse"]["input"] for event in events if "contentBlockDelta" in event
    ]
    assert json.loads("".join(written)) == {"city": "example"}


@pytest.mark.parametrize(
    ("step", "error", "code"),
    [
        ("429", "ThrottlingException", "PROVIDER_RATE_LIMITED"),
        ("overflow", "ValidationException", "PROVIDER_CONTEXT_OVERFLOW"),
        ("unavailable", "ServiceUnavailableException", "PROVIDER_UNAVAILABLE"),
        ("forbidden", "AccessDeniedException", "AUTH_FORBIDDEN"),
    ],
)
def test_FI6_bedrock_has_its_own_errors(provider, bedrock, step, error, code):
    provider.set_script(step)
    with pytest.raises(botocore.exceptions.ClientError) as failed:
        bedrock.converse(**CONVERSE)
    assert failed.value.response["Error"]["Code"] == error
    assert fault_of(failed.value).code == code


def test_FI6_an_error_in_a_stream_of_bedrock(provider, bedrock):
    provider.set_script("sse-error;after=1;error=rate-limit")
    stream = bedrock.converse_stream(**CONVERSE)["stream"]
    with pytest.raises(botocore.exceptions.EventStreamError, match="throttlingException"):
        list(stream)
    stream.close()


# --- Vertex AI ---

VERTEX = "/v1/projects/p/locations/global/publishers"


def test_FI6_vertex_serves_anthropics_models(provider):
    with httpx2.Client(base_url=provider.url, headers={"authorization": "Bearer ya29"}) as client:
        body = {"anthropic_version": "vertex-2023-10-16", "max_tokens": 9, "messages": MESSAGES}
        answer = client.post(f"{VERTEX}/anthropic/models/claude-sonnet-4@20250514:rawPredict", json=body).json()
        assert (answer["content"][0]["text"], answer["model"]) == (ECHO, "claude-sonnet-4@20250514")
        stream = client.post(f"{VERTEX}/anthropic/models/claude-x:streamRawPredict", json=body)
        assert stream.text.startswith("event: message_start")
        count = client.post(f"{VERTEX}/anthropic/models/count-tokens:rawPredict", json={**body, "model": "m"})
        assert count.json()["input_tokens"] > 5
        provider.set_script("429, 529")
        limited = client.post(f"{VERTEX}/anthropic/models/claude-x:rawPredict", json=body)
        assert limited.json()["error"]["status"] == "RESOURCE_EXHAUSTED"
        overloaded = client.post(f"{VERTEX}/anthropic/models/claude-x:rawPredict", json=body)
        assert (overloaded.status_code, overloaded.json()["error"]["type"]) == (529, "overloaded_error")


def test_FI6_vertex_serves_gemini(provider):
    with httpx2.Client(base_url=provider.url, headers={"authorization": "Bearer ya29"}) as client:
        path = f"{VERTEX}/google/models/{GEMINI}:generateContent"
        answer = client.post(path.replace("/v1/", "/v1beta1/"), json={"contents": ASKED}).json()
        assert answer["candidates"][0]["content"]["parts"][0]["text"] == ECHO


# --- Gemini ---


def gemini(method, version="v1beta"):
    return f"/{version}/models/{GEMINI}:{method}"


def test_FI6_gemini_generates(provider, http):
    answer = http.post(gemini("generateContent"), json={"contents": ASKED}).json()
    assert answer["candidates"][0]["content"] == {"parts": [{"text": ECHO}], "role": "model"}
    assert answer["candidates"][0]["finishReason"] == "STOP"
    assert answer["usageMetadata"]["totalTokenCount"] > 5
    assert (provider.requests[-1].model, provider.requests[-1].key) == (GEMINI, "k")
    assert http.post(gemini("generateContent", "v1"), json={"contents": ASKED}).status_code == 200
    with httpx2.Client(base_url=provider.url) as bare:
        assert bare.post(gemini("generateContent") + "?key=other", json={"contents": ASKED}).status_code == 200
        assert provider.requests[-1].key == "other"
        assert bare.post(gemini("generateContent"), json={}).json()["error"]["status"] == "INVALID_ARGUMENT"


def test_FI6_gemini_streams_events_or_one_array(http):
    events = http.post(gemini("streamGenerateContent") + "?alt=sse", json={"contents": ASKED})
    assert events.headers["content-type"].startswith("text/event-stream")
    chunks = [json.loads(line.removeprefix("data: ")) for line in events.text.split("\r\n\r\n") if line]
    array = http.post(gemini("streamGenerateContent"), json={"contents": ASKED})
    assert array.headers["content-type"].startswith("application/json")
    for listed in (chunks, array.json()):
        texts = [part["text"] for chunk in listed for part in chunk["candidates"][0]["content"]["parts"]]
        assert "".join(texts) == ECHO
        assert listed[-1]["candidates"][0]["finishReason"] == "STOP"


def test_FI6_gemini_counts_embeds_and_lists(http):
    assert http.post(gemini("countTokens"), json={"contents": ASKED}).json()["totalTokens"] > 5
    content = {"parts": [{"text": "a"}]}
    assert len(http.post(gemini("embedContent"), json={"content": content}).json()["embedding"]["values"]) == 1536
    several = http.post(gemini("batchEmbedContents"), json={"requests": [{"content": content}] * 2}).json()
    assert several["embeddings"][0] == several["embeddings"][1]
    assert f"models/{GEMINI}" in [model["name"] for model in http.get("/v1beta/models").json()["models"]]
    for version in ("v1", "v1beta"):
        assert http.get(f"/{version}/models").json()["models"]
        assert http.get(f"/{version}/models/{GEMINI}").json()["name"] == f"models/{GEMINI}"


DECLARED = [{"functionDeclarations": [{"name": name, "parameters": {"type": "OBJECT", "properties": {"city": {"type": "STRING"}}, "required": ["city"]}} for name in ("first", "second")]}]  # fmt: skip


@pytest.mark.parametrize(
    ("config", "tool"),
    [
        ({"mode": "ANY"}, "first"),
        ({"mode": "ANY", "allowedFunctionNames": ["second"]}, "second"),
        ({"mode": "NONE"}, None),
        ({"mode": "AUTO"}, None),
    ],
)
def test_FI6_gemini_calls_functions_as_the_request_says(http, config, tool):
    body = {"contents": ASKED, "tools": DECLARED, "toolConfig": {"functionCallingConfig": config}}
    part = http.post(gemini("generateContent"), json=body).json()["candidates"][0]["content"]["parts"][0]
    assert part.get("functionCall") == (tool and {"name": tool, "args": {"city": "example"}})


def test_FI6_gemini_calls_a_function_that_its_sdk_declares(provider, http):
    """Google's SDK writes some names in one spelling and some in the other."""
    provider.set_script('replies = "tools"')
    declared = {"functionDeclarations": [{"name": "weather", "parameters_json_schema": CITY}]}
    body = {"contents": ASKED, "tools": [declared], "generationConfig": {}}
    part = http.post(gemini("generateContent", "v1"), json=body).json()["candidates"][0]["content"]["parts"][0]
    assert part["functionCall"] == {"name": "weather", "args": {"city": "example"}}


def test_FI6_gemini_reports_the_result_of_a_function(provider, http):
    provider.set_script('replies = "tools"')
    answered = [
        *ASKED,
        {"role": "model", "parts": [{"functionCall": {"name": "first", "args": {}}}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "first", "response": {"result": "rain"}}}]},
    ]
    body = {"contents": answered, "tools": DECLARED}
    part = http.post(gemini("generateContent"), json=body).json()["candidates"][0]["content"]["parts"][0]
    assert part["text"] == 'The tool says: {"result":"rain"}'


def test_FI6_gemini_fits_a_response_schema(http):
    schema = {"type": "OBJECT", "properties": {"days": {"type": "ARRAY", "items": {"type": "STRING"}, "minItems": "2"}}}
    config = {"responseMimeType": "application/json", "responseSchema": schema}
    answer = http.post(gemini("generateContent"), json={"contents": ASKED, "generationConfig": config}).json()
    assert json.loads(answer["candidates"][0]["content"]["parts"][0]["text"]) == {"days": ["example", "example"]}


def test_FI6_gemini_has_googles_errors(provider, http):
    provider.set_script("429;hint=34s, overloaded, overflow")
    seen = [http.post(gemini("generateContent"), json={"contents": ASKED}) for _ in range(3)]
    limited = seen[0].json()["error"]
    assert (limited["code"], limited["status"]) == (429, "RESOURCE_EXHAUSTED")
    retry = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34s"}
    assert limited["details"] == [retry]
    assert [each.json()["error"]["status"] for each in seen[1:]] == ["UNAVAILABLE", "INVALID_ARGUMENT"]


@pytest.mark.parametrize(("kind", "quota"), [("requests=6;burst=1", "GenerateRequestsPerMinute"), ("tokens=1000;burst=40", "TokensPerModelPerMinute")])  # fmt: skip
def test_FI6_a_limit_of_gemini_says_which_quota_and_when_to_retry(kind, quota):
    provider = FaultProvider(limits=[kind], clock=VirtualClock())
    body = json.dumps({"contents": ASKED}).encode()
    for _ in range(2):
        acts = list(provider.plan(Request("POST", gemini("generateContent"), {"x-goog-api-key": "k"}, body)))
    assert acts[0].status == 429
    assert not [name for name, _ in acts[0].headers if "ratelimit" in name or "retry" in name]
    error = json.loads(acts[1].data)["error"]
    failure, retry = error["details"]
    assert quota in failure["violations"][0]["quotaId"]
    assert float(retry["retryDelay"].removesuffix("s")) <= 10
    assert "Please retry in" in error["message"]


# --- the table ---


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_every_path_answers_and_is_limited_to_its_method(route):
    path = route.path
    for name in ("model", "id", "project", "location"):
        path = path.replace(f"{{{name}}}", "claude-x")
    request = Request(route.method, path, {"x-api-key": "k"}, b'{"model":"claude-x"}')
    assert locate(request).route == route
    provider = FaultProvider(clock=VirtualClock())
    acts = list(provider.plan(request))
    assert isinstance(acts[0], ReplyHead)
    assert acts[0].status == (
        404 if "{id}" in route.path or (route.path == "/v1/batches" and route.method == "POST") else 200
    )
    assert provider.counters.answered == 1
    assert b"".join(act.data for act in acts if isinstance(act, Data))
    wrong = list(provider.plan(Request("PATCH", path, {"x-api-key": "k"})))
    assert wrong[0].status == 400
