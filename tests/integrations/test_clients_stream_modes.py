"""Streams of the real SDKs that break off: what the caller chose is what happens, and no tool call is made of two answers."""

from __future__ import annotations

import json

import pytest
from clients_forms import ANSWER, REPLACEABLE, STREAMED, arguments_in, client_for, is_whole, play, recovering, text_in

from holdfast import Policy, Runtime, StreamCutError, recover
from holdfast.events import AttemptStarted, StreamResumed
from holdfast.policies.circuit import PROVIDER
from holdfast.testing import Capture, FaultProvider, Midpoint, VirtualClock, run

EACH = pytest.mark.parametrize("form", STREAMED.values(), ids=STREAMED)
BOTH = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
INSIDE = pytest.mark.parametrize("inside", ["bare", "recovering"])
ARGUMENTS = {"city": "example", "days": 1}
TOOLS = 'replies = "tools"\n[[rules]]\nsteps = "{}"'


class Live:
    """A stream through `recover(…).stream` over a bare or a recovering client."""

    def __init__(self, script, form, inside, **options):
        self.runtime, self.heard, self.events = Runtime(clock=VirtualClock(), rng=Midpoint()), Capture(), []
        self.runtime.configure(
            Policy(profile="stud", circuit=PROVIDER), {}
        )  # so that a test can count attempts and seconds
        self.runtime.on(self.heard)
        self.provider = FaultProvider(script, clock=self.runtime.clock)
        self.client = client_for(form, self.provider.transport(), is_async=True)
        if inside == "recovering":
            self.client = recovering(form, self.client, runtime=self.runtime)
        self.form = form
        self.live = recover("assistant", runtime=self.runtime).stream(lambda: form.begin(self.client), **options)

    def read(self):
        run(self._read(), clock=self.runtime.clock)
        return self

    async def _read(self):
        async with self.live() as stream:
            async for event in stream:
                self.events.append((stream.restarts, event))

    @property
    def text(self):
        return "".join(text_in(event) for _, event in self.events)

    def since_restart(self, read):
        return "".join(read(event) for restarts, event in self.events if restarts)


# --- text ---


@BOTH
@EACH
def test_raise_is_the_default_and_the_cut_carries_what_arrived(form, is_async):
    result = play("cut;after=3", form, is_async=is_async)
    assert isinstance(result.error, StreamCutError)
    assert result.text == "You said: What"
    assert result.error.partial.complete == len(result.events)
    assert result.error.partial.payload == result.events
    assert result.attempts == result.provider.counters.received == 1


@EACH
@INSIDE
def test_restart_begins_again_and_says_so(form, inside):
    live = Live("cut;after=3", form, inside, after_first="restart").read()
    assert live.text == "You said: What" + ANSWER
    assert live.since_restart(text_in) == ANSWER
    (resumed,) = live.heard.of(StreamResumed)
    assert (resumed.how, resumed.items) == ("restart", len([e for restarts, e in live.events if not restarts]))
    assert live.provider.counters.received == 2


@EACH
@INSIDE
def test_continue_asks_for_the_rest(form, inside):
    seen = []

    async def rest(partial):
        seen.append(partial.complete)
        left = partial.complete
        async for event in await form.begin(live.client):
            left -= 1
            if left < 0:
                yield event

    live = Live("cut;after=3", form, inside, after_first="continue", resume=rest)
    live.read()
    assert live.text == ANSWER
    assert [event.how for event in live.heard.of(StreamResumed)] == ["continue"]
    assert seen == [live.heard.of(StreamResumed)[0].items]
    assert live.provider.counters.received == 2


@EACH
@INSIDE
def test_restarts_are_attempts_and_end_with_them(form, inside):
    live = Live("cut;after=3, loop", form, inside, after_first="restart")
    with pytest.raises(StreamCutError) as cut:
        live.read()
    assert live.provider.counters.received == 3
    assert cut.value.partial.complete == len([e for restarts, e in live.events if restarts == 2])


@EACH
@INSIDE
def test_before_the_first_event_nothing_is_resumed(form, inside):
    live = Live("529, disconnect, ok", form, inside).read()
    assert (live.text, live.provider.counters.received) == (ANSWER, 3)
    assert len(live.heard.of(AttemptStarted)) == (3 if inside == "bare" else 4)  # one is the operation around it
    assert live.heard.of(StreamResumed) == []


@EACH
@INSIDE
@pytest.mark.parametrize(("step", "code"), [("silence;after=2", "PROVIDER_STREAM_STALLED"), ("sse-error;after=2;error=rate-limit", "PROVIDER_RATE_LIMITED")])  # fmt: skip
def test_silence_and_errors_in_the_middle_are_cuts_like_others(form, inside, step, code):
    live = Live(step, form, inside, idle=15)
    with pytest.raises(StreamCutError) as cut:
        live.read()
    assert (cut.value.fault.code, live.text) == (code, "You said:")
    assert live.runtime.clock.monotonic() == (15 if "silence" in step else 0)
    again = Live(step, form, inside, idle=15, after_first="restart").read()
    assert again.since_restart(text_in) == ANSWER
    assert again.provider.counters.received == 2


# --- tool calls ---


@BOTH
@EACH
@pytest.mark.parametrize("after", [1, 2, 3])
def test_half_a_tool_call_is_never_whole(form, is_async, after):
    result = play(TOOLS.format(f"cut-tool;after={after}"), form, is_async=is_async)
    assert isinstance(result.error, StreamCutError)
    assert result.arguments
    with pytest.raises(json.JSONDecodeError):
        json.loads(result.arguments)
    assert not any(is_whole(form, event) for event in result.events)
    assert result.attempts == result.provider.counters.received == 1


@EACH
@INSIDE
def test_a_restart_gives_the_whole_tool_call_from_one_answer(form, inside):
    live = Live(TOOLS.format("cut-tool;after=2"), form, inside, after_first="restart").read()
    assert json.loads(live.since_restart(arguments_in)) == ARGUMENTS
    assert sum(is_whole(form, event) for _, event in live.events) >= 1
    assert live.provider.counters.received == 2


@EACH
@INSIDE
def test_continue_never_joins_the_fragments_of_two_answers(form, inside):
    resumed_with = []

    async def rest(partial):
        resumed_with.append(partial)
        async for event in await form.begin(live.client):
            yield event

    live = Live(TOOLS.format("cut-tool;after=2"), form, inside, after_first="continue", resume=rest)
    with pytest.raises(StreamCutError) as cut:
        live.read()
    assert (resumed_with, live.provider.counters.received) == ([], 1)
    assert cut.value.partial.complete == len(live.events)
    assert not any(is_whole(form, event) for _, event in live.events)


@pytest.mark.parametrize("form", REPLACEABLE.values(), ids=REPLACEABLE)
def test_before_its_arguments_a_tool_call_is_made_again_unseen(form):
    result = play(TOOLS.format("cut-tool;after=0"), form, is_async=True)
    assert result.error is None
    assert json.loads(result.arguments) == ARGUMENTS
    assert result.attempts == result.provider.counters.received == 2
