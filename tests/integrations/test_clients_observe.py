"""Observe mode with the real SDKs: the requests, waits, answers and errors of the client that was given, and what is reported."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Any

import anthropic
import openai
import pytest
from clients_kit import (
    CUT,
    DENIED,
    LIMITED,
    OVERLOADED,
    REQUEST,
    START,
    WHOLE,
    Streaming,
    Wire,
    anthropic_on,
    async_anthropic_on,
    completion,
    failing,
    message,
    openai_on,
    text,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import holdfast.anthropic
import holdfast.openai
from holdfast import Policy, Runtime
from holdfast.events import Observed
from holdfast.events.observed import ObservedTotals
from holdfast.integrations.recovery_warnings import RecoveryWarning
from holdfast.testing import Capture, VirtualClock, run

_LINES: dict[str, Any] = {
    "ok": message(),
    "overloaded": OVERLOADED,
    "limited": LIMITED,
    "denied": DENIED,
    "too large": failing(400, "invalid_request_error", "prompt is too long"),
    "error with 200": failing(200, "overloaded_error", "Overloaded"),
    "cut": CUT,
}


class Twin:
    """The same script with a client, bare or in observe mode, in virtual time; the SDK's jitter is pinned."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *lines: Any) -> None:
        self.clock = VirtualClock()
        self.runtime = Runtime(clock=self.clock, mode="observe")
        self.events = Capture()
        self.runtime.on(self.events)
        self.wire = Wire(*lines)
        monkeypatch.setattr(anthropic._base_client.time, "sleep", self.clock.sleep)
        monkeypatch.setattr(openai._base_client.time, "sleep", self.clock.sleep)
        monkeypatch.setattr(anthropic._base_client, "random", lambda: 0.5)
        monkeypatch.setattr(openai._base_client, "random", lambda: 0.5)

    @property
    def observed(self) -> list[Observed]:
        assert all(isinstance(event, Observed) for event in self.events)
        return list(self.events)  # type: ignore[arg-type]

    def sent(self) -> list[tuple[Any, ...]]:
        return [
            (request.method, str(request.url), request.headers.get("x-stainless-retry-count"), request.content)
            for request in self.wire.requests
        ]


def play(monkeypatch: pytest.MonkeyPatch, names: list[str], *, observes: bool, is_async: bool, retries: int) -> Any:
    twin = Twin(monkeypatch, *(_LINES[name] for name in [*names, "ok"]))
    make: Any = async_anthropic_on if is_async else anthropic_on
    client = make(twin.wire, max_retries=retries)
    if observes:
        client = holdfast.anthropic.recovering(client, runtime=twin.runtime)
    seen = []
    for _ in names:
        try:
            call = client.messages.create(**REQUEST)
            answer = run(call, clock=twin.clock) if is_async else call
            seen.append((repr(answer), twin.clock.monotonic()))
        except anthropic.APIError as error:
            seen.append((f"{type(error)} {error} {sorted(vars(error))}", twin.clock.monotonic()))
    return seen, twin.sent(), twin


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    names=st.lists(st.sampled_from(sorted(_LINES)), min_size=1, max_size=8),
    is_async=st.booleans(),
    retries=st.integers(0, 3),
)
def test_random_answers_come_as_from_the_bare_client(
    monkeypatch: pytest.MonkeyPatch, names: list[str], is_async: bool, retries: int
) -> None:
    bare = play(monkeypatch, names, observes=False, is_async=is_async, retries=retries)
    seen, sent, twin = play(monkeypatch, names, observes=True, is_async=is_async, retries=retries)
    assert (seen, sent) == bare[:2]
    assert len(twin.observed) == len(names)
    assert sum(event.requests for event in twin.observed) == len(sent)


def test_the_sdks_own_retries_come_back_and_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    twin = Twin(monkeypatch, OVERLOADED, CUT, message("hi"))
    claude = holdfast.anthropic.recovering(anthropic_on(twin.wire), runtime=twin.runtime)
    assert claude.messages.create(**REQUEST).content[0].text == "hi"
    (event,) = twin.observed
    assert (event.outcome, event.would, event.requests, event.unwanted) == ("answered", "nothing", 3, 0)
    assert event.took == twin.clock.monotonic() > 0


def test_retries_of_one_call_and_of_a_copy_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    twin = Twin(monkeypatch, OVERLOADED)
    claude = holdfast.anthropic.recovering(anthropic_on(twin.wire, max_retries=1), runtime=twin.runtime)
    with pytest.raises(anthropic.APIStatusError):
        claude.messages.create(**REQUEST)
    with pytest.warns(RecoveryWarning):
        other = claude.with_options(max_retries=3)
    with pytest.raises(anthropic.APIStatusError):
        other.messages.create(**REQUEST)
    assert [event.requests for event in twin.observed] == [2, 4]
    assert [event.would for event in twin.observed] == ["retry", "retry"]


def test_a_retry_that_recovery_would_not_send_is_unwanted_and_a_harm_if_it_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    twin = Twin(monkeypatch, OVERLOADED, OVERLOADED, message())
    once = Policy(attempts=1)
    claude = holdfast.anthropic.recovering(anthropic_on(twin.wire), policy=once, runtime=twin.runtime)
    claude.messages.create(**REQUEST)
    (event,) = twin.observed
    assert (event.outcome, event.would, event.reason, event.unwanted) == ("answered", "give-up", "attempts", 2)
    totals = ObservedTotals()
    totals.add(event)
    assert (totals.given_up, totals.harmed) == (1, 1)
    assert totals.verdict == (
        "1 of 1 answered call would have been worse off: 1 given up before the client's own retry answered."
    )


def test_an_error_with_status_200_is_an_answer_that_recovery_would_have_retried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    twin = Twin(monkeypatch, _LINES["error with 200"])
    claude = holdfast.anthropic.recovering(anthropic_on(twin.wire), runtime=twin.runtime)
    claude.messages.create(**REQUEST)
    (event,) = twin.observed
    assert (event.outcome, event.would) == ("answered", "retry")
    assert event.fault is not None
    assert event.fault.code == "PROVIDER_OVERLOADED"


def test_openai_is_observed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    twin = Twin(monkeypatch, OVERLOADED, completion("hi"))
    client = holdfast.openai.recovering(openai_on(twin.wire), runtime=twin.runtime)
    reply = client.chat.completions.create(model="gpt-test", messages=[{"role": "user", "content": "hi"}])
    assert reply.choices[0].message.content == "hi"
    assert [(event.outcome, event.requests) for event in twin.observed] == [("answered", 2)]


@pytest.mark.parametrize(
    ("events", "error", "outcome", "would"),
    [
        (WHOLE, None, "answered", "nothing"),
        ((START, text("Hel")), None, "answered", "give-up"),
        ((START, text("Hel")), CUT, "failed", "give-up"),
        ((), CUT, "failed", "retry"),
    ],
)
@pytest.mark.parametrize("is_async", [False, True])
def test_a_stream_passes_event_by_event_and_is_observed_to_its_end(
    monkeypatch: pytest.MonkeyPatch, events: Any, error: Exception | None, outcome: str, would: str, is_async: bool
) -> None:
    twin = Twin(monkeypatch, Streaming(*events, error=error))
    make: Any = async_anthropic_on if is_async else anthropic_on
    claude = holdfast.anthropic.recovering(make(twin.wire), runtime=twin.runtime)
    got = []

    async def read() -> None:
        async for event in await claude.messages.create(**REQUEST, stream=True):
            got.append(event.type)  # noqa: PERF401 - it must be there when the rest fails

    def read_here() -> None:
        for event in claude.messages.create(**REQUEST, stream=True):
            got.append(event.type)  # noqa: PERF401 - as above

    failure: Any = nullcontext() if error is None else pytest.raises(Exception, match="peer closed")
    with failure:
        run(read(), clock=twin.clock) if is_async else read_here()
    assert got == [event["type"] for event in events]
    assert [(event.outcome, event.would) for event in twin.observed] == [(outcome, would)]


def test_a_stream_that_nobody_reads_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    twin = Twin(monkeypatch, Streaming(*WHOLE))
    claude = holdfast.anthropic.recovering(anthropic_on(twin.wire), runtime=twin.runtime)
    stream = claude.messages.create(**REQUEST, stream=True)
    next(iter(stream))
    stream.close()
    del stream
    assert [event.outcome for event in twin.observed] == ["left"]


def test_a_cancelled_call_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    twin = Twin(monkeypatch, LIMITED, message())
    claude = holdfast.anthropic.recovering(async_anthropic_on(twin.wire), runtime=twin.runtime)

    async def main() -> None:
        call = asyncio.ensure_future(claude.messages.create(**REQUEST))
        await asyncio.sleep(5)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    run(main(), clock=twin.clock)
    assert [event.outcome for event in twin.observed] == ["left"]
