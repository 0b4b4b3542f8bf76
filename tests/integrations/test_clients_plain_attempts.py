"""A recovering client makes no fewer attempts than the SDK alone, whatever the words of an answer are."""

from __future__ import annotations

from contextlib import suppress

import httpx2
import pytest
from openai import OpenAI

import holdfast.openai
from holdfast import Policy, Runtime
from holdfast.testing import VirtualClock

ANSWER = {
    "id": "c",
    "object": "chat.completion",
    "created": 1,
    "model": "gpt-test",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}],
}


def requests_for(status: int, words: str, policy: Policy | None = None, failures: int = 2, **headers: str) -> int:
    """Return how many requests a call makes whose first ones fail in this way."""
    made = 0

    def serve(request: httpx2.Request) -> httpx2.Response:
        nonlocal made
        made += 1
        if made > failures:
            return httpx2.Response(200, json=ANSWER)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return httpx2.Response(status, json={"error": {"message": words}}, headers=named)

    http = httpx2.Client(transport=httpx2.MockTransport(serve))
    client = holdfast.openai.recovering(
        OpenAI(api_key="k", http_client=http), policy=policy, runtime=Runtime(clock=VirtualClock())
    )
    with suppress(Exception):
        client.chat.completions.create(model="gpt-test", messages=[{"role": "user", "content": "hi"}])
    return made


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (503, "upstream 3: invalid api key"),
        (500, "upstream error: Your credit balance is too low"),
        (500, "maximum context length exceeded on replica 2"),
        (500, "content_policy_violation: blocked"),
        (502, "model not found on this node"),
        (501, "not implemented"),
        (507, "insufficient storage"),
        (409, "invalid request"),
        (408, "invalid request"),
    ],
)
def test_AK15_an_answer_that_the_sdk_repeats_is_repeated_as_often(status, words):
    assert requests_for(status, words) == 3
    # After that, the words decide.
    if status >= 500:
        assert requests_for(status, "invalid api key", failures=99) == 3


def test_AK15_what_the_service_or_the_user_says_comes_first():
    assert requests_for(503, "invalid api key", x_should_retry="false") == 1
    assert requests_for(503, "invalid api key", Policy(attempts=1)) == 1
    assert requests_for(401, "invalid api key") == 1
