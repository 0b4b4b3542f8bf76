"""The fault provider without a network: for every request the plan is complete and the counters add up."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.testing import FaultProvider, VirtualClock
from holdfast.testing.provider import Request
from holdfast.testing.provider.faults import ERRORS, FAULTS
from holdfast.testing.provider.http import Data, Pause, Raw, ReplyEnd, ReplyHead

PATHS = (
    "/v1/messages",
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/models",
    "/v1beta/models/g:generateContent",
    "/v1beta/models/g:streamGenerateContent",
    "/model/m/converse",
    "/model/m/invoke-with-response-stream",
    "/openai/deployments/d/chat/completions",
    "/v1/projects/p/locations/l/publishers/anthropic/models/m:rawPredict",
    "/v1/messages/count_tokens",
    "/v1/messages/batches",
    "/v1/embeddings",
    "/v1/files",
    "/v1/batches",
    "/v1/responses/x",
    "/v1/nothing",
)
SCALARS = st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=9)
KNOWN = st.sampled_from(
    [
        "role",
        "content",
        "type",
        "text",
        "name",
        "function",
        "parameters",
        "input_schema",
        "properties",
        "enum",
        "output",
        "schema",
        "json_schema",
        "format",
        "tools",
        "parts",
        "functionDeclarations",
        "functionCallingConfig",
        "toolSpec",
        "params",
        "requests",
    ]
)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KNOWN, inner, max_size=4), max_leaves=12
)
DOCUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "model": st.sampled_from(["claude-x", "gpt-5", "grok-4"]) | SCALARS,
        "stream": SCALARS,
        "stream_options": JSON,
        **dict.fromkeys(("messages", "input", "tools", "contents", "tool_choice", "toolConfig", "requests"), JSON),
        **dict.fromkeys(("response_format", "text", "output_config", "generationConfig"), JSON),
    },
)


@given(
    path=st.sampled_from(PATHS),
    method=st.sampled_from(["GET", "POST", "PUT"]),
    document=DOCUMENTS | JSON,
    key=st.sampled_from(["", "k"]),
    replies=st.sampled_from(['"echo"', '"tools"', '["one", { tool = "t" }]']),
)
def test_every_request_gets_a_plan(path, method, document, key, replies):
    provider = FaultProvider(f"replies = {replies}", clock=VirtualClock())
    acts = list(provider.plan(Request(method, path, {"x-api-key": key}, json.dumps(document).encode())))
    head, *body, ending = acts
    assert isinstance(head, ReplyHead)
    assert ending is ReplyEnd.END
    assert head.length in (None, sum(len(part.data) for part in body))
    counted = provider.counters
    assert counted.received == 1 == counted.answered + counted.refused


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", PATHS[:10])
@pytest.mark.parametrize("name", [*FAULTS, *ERRORS, "418", "503"])
def test_every_fault_has_a_plan_that_ends(name, path, stream):
    """In every protocol a plan has one ending, which is its last act, unless it hangs for ever."""
    provider = FaultProvider(name + (";bytes=10" if name == "oversize" else ""), clock=VirtualClock())
    method = "GET" if path == "/v1/models" else "POST"
    body = b"" if method == "GET" else json.dumps({"model": "claude-x", "stream": stream}).encode()
    *acts, last = provider.plan(Request(method, path, {"x-api-key": "k"}, body))
    assert last == Pause(None) or isinstance(last, ReplyEnd)
    assert not any(isinstance(act, ReplyEnd) or act == Pause(None) for act in acts)
    assert all(isinstance(act, (Data, ReplyHead, Raw, Pause)) for act in acts)
    assert provider.counters.injected == {name: 1}


def test_the_same_request_gets_the_same_reply():
    provider = FaultProvider(clock=VirtualClock())
    request = Request(
        "POST", PATHS[0], {"x-api-key": "k"}, b'{"model":"claude-x","messages":[{"role":"user","content":"hi"}]}'
    )
    one, other = (b"".join(act.data for act in provider.plan(request) if isinstance(act, Data)) for _ in range(2))
    assert json.loads(one)["content"] == json.loads(other)["content"]
