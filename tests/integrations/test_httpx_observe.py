"""Observe mode of the HTTP transports: the response comes as it is, unread, and its status says what would have been done."""

from __future__ import annotations

import httpx
import pytest

from holdfast import Runtime
from holdfast.events import Observed
from holdfast.httpx import RecoveringTransport
from holdfast.testing import Capture, VirtualClock


def test_responses_and_errors_pass_and_are_observed() -> None:
    answers = [httpx.Response(503, text="busy"), httpx.Response(200, text="ok"), httpx.ConnectError("gone")]
    sent = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        one = answers.pop(0)
        if isinstance(one, Exception):
            raise one
        return one

    runtime = Runtime(clock=VirtualClock(), mode="observe")
    heard = Capture()
    runtime.on(heard)
    client = httpx.Client(transport=RecoveringTransport(httpx.MockTransport(answer), runtime=runtime))
    assert client.get("https://example.org").text == "busy"
    assert client.get("https://example.org").text == "ok"
    with pytest.raises(httpx.ConnectError):
        client.get("https://example.org")
    assert len(sent) == 3
    found = [(event.outcome, event.would) for event in heard if isinstance(event, Observed)]
    assert found == [("failed", "retry"), ("answered", "nothing"), ("failed", "retry")]
