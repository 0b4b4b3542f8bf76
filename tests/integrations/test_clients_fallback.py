"""One provider for another, with the real SDKs: Claude, then GPT, then the last good answer, a lesser one, a notification."""

from __future__ import annotations

import anthropic
import pytest
from clients_forms import CLAUDE, FORMS, GPT, client_for, recovering, text_of

from holdfast import CircuitOpenError, Ok, Policy, Runtime, fault_of, recover
from holdfast.events import CircuitState, Degraded, Fallback
from holdfast.policies.circuit import PROVIDER
from holdfast.testing import Capture, FaultProvider, Midpoint, VirtualClock, run

UP = ""
CLAUDE_DOWN = '[[rules]]\nsteps = "529"\nloop = true\nmodels = ["claude-*"]'
ALL_DOWN = '[[rules]]\nsteps = "503"\nloop = true'


class Assistant:
    """What a user writes: two recovering clients, and the ways to answer in their order."""

    def __init__(self, script=UP, *, consent=None, ways=("by_gpt", "cached", "degraded"), step=None):
        self.runtime, self.heard = Runtime(clock=VirtualClock(), rng=Midpoint(), consent=consent), Capture()
        self.runtime.configure(
            Policy(profile="stud", circuit=PROVIDER), {}
        )  # so that a test can count attempts and seconds
        self.runtime.on(self.heard)
        self.provider = FaultProvider(script, clock=self.runtime.clock)
        self.notified = []
        claude, gpt = (self._client(name) for name in ("messages", "responses"))

        @recover("assistant", Policy(circuit=None), runtime=self.runtime)
        async def answer(question):
            request = {"model": CLAUDE, "max_tokens": 99, "messages": [{"role": "user", "content": question}]}
            return text_of(await claude.messages.create(**request))

        if "by_gpt" in ways:

            @answer.fallback(**(step or {}))
            async def by_gpt(question):
                return text_of(await gpt.responses.create(model=GPT, input=question))

        if "cached" in ways:
            answer.cached(ttl=600)
        if "degraded" in ways:

            @answer.degraded
            def sorry(fault, question):
                return fault.for_user()

        answer.notify(self.notified.append)
        self.answer = answer

    def _client(self, name):
        client = client_for(FORMS[name], self.provider.transport(), is_async=True)
        return recovering(FORMS[name], client, runtime=self.runtime)

    def ask(self, question="hello"):
        return run(self.answer.outcome(question), clock=self.runtime.clock)

    def requests_to(self, model):
        return sum(request.model == model for request in self.provider.requests)

    def circuit(self, provider):
        return self.runtime.registry.get(f"provider:{provider}")._breaker.recorded_state


def test_S1_15_each_way_in_its_turn():
    assistant = Assistant()
    assert (assistant.ask().value, assistant.ask().via) == ("You said: hello", "primary")

    assistant.provider.set_script(CLAUDE_DOWN)
    answer = assistant.ask("and now?")
    assert (answer.value, answer.via) == ("You said: and now?", "by_gpt")
    assert [(event.from_, event.to) for event in assistant.heard.of(Fallback)] == [("primary", "by_gpt")]

    assistant.provider.set_script(ALL_DOWN)
    kept = assistant.ask("hello")
    assert (kept.value, kept.via) == ("You said: hello", "cached")

    lesser = assistant.ask("something new")
    assert isinstance(lesser, Ok)
    assert lesser.via == "degraded"
    assert len(assistant.heard.of(Degraded)) == 2
    assert assistant.notified == []


def test_S1_15_where_nothing_is_left_somebody_is_told_and_the_primarys_own_error_is_raised():
    assistant = Assistant(ALL_DOWN, ways=("by_gpt", "cached"))
    with pytest.raises(anthropic.APIStatusError) as failed:
        run(assistant.answer("hello"), clock=assistant.runtime.clock)
    assert [fault.code for fault in assistant.notified] == ["SYS_FALLBACKS_EXHAUSTED"]
    assert fault_of(failed.value).code == "PROVIDER_UNAVAILABLE"
    assert any("by_gpt" in note for note in failed.value.__notes__)
    assert assistant.provider.counters.received == assistant.requests_to(CLAUDE) + assistant.requests_to(GPT) == 6


def test_S1_24_all_providers_down_is_a_clear_message_and_may_be_tried_again_later():
    assistant = Assistant(ALL_DOWN)
    messages = [assistant.ask(f"question {number}").value for number in range(3)]
    assert assistant.circuit("anthropic") is assistant.circuit("openai") is CircuitState.OPEN
    sent = assistant.provider.counters.received
    began = assistant.runtime.clock.monotonic()

    message = assistant.ask("once more").value
    assert assistant.provider.counters.received == sent
    assert assistant.runtime.clock.monotonic() == began
    for text in (*messages, message):
        assert text
        assert "\n" not in text
        assert "Traceback" not in text
        assert "Error(" not in text

    assistant.provider.set_script(UP)
    assistant.runtime.clock.advance(30)
    later = assistant.ask("once more")
    assert (later.value, later.via) == ("You said: once more", "primary")
    assert assistant.circuit("anthropic") is CircuitState.CLOSED


def test_S1_29_five_errors_of_claude_then_the_next_call_goes_to_openai_at_once():
    assistant = Assistant(CLAUDE_DOWN)
    while assistant.circuit("anthropic") is CircuitState.CLOSED if assistant.requests_to(CLAUDE) else True:
        assert assistant.ask(f"question {assistant.requests_to(CLAUDE)}").via == "by_gpt"
    assert assistant.requests_to(CLAUDE) == 5
    began = assistant.runtime.clock.monotonic()
    answer = assistant.ask("a new one")
    assert (answer.value, answer.via) == ("You said: a new one", "by_gpt")
    assert assistant.requests_to(CLAUDE) == 5
    assert assistant.runtime.clock.monotonic() == began
    assert assistant.heard.of(Fallback)[-1].fault.code == "CIRCUIT_OPEN"


def test_S1_29_without_a_fallback_an_open_circuit_fails_at_once():
    assistant = Assistant(CLAUDE_DOWN, ways=())
    for number in range(2):
        assistant.ask(f"question {number}")
    with pytest.raises(CircuitOpenError) as rejected:
        run(assistant.answer("a new one"), clock=assistant.runtime.clock)
    assert assistant.requests_to(CLAUDE) == 5
    assert "anthropic" in str(rejected.value)


@pytest.mark.parametrize(("says", "via", "to_gpt"), [(True, "by_gpt", 1), (False, "degraded", 0)])
def test_S1_4_a_provider_that_must_be_asked_for_is_used_only_with_consent(says, via, to_gpt):
    questions = []

    def consent(*question):
        questions.append(question)
        return says

    assistant = Assistant(CLAUDE_DOWN, consent=consent, step={"consent": "ask"})
    assert assistant.ask().via == via
    assert len(questions) == 1
    assert assistant.requests_to(GPT) == to_gpt


def test_S1_4_a_configured_fallback_is_consent():
    assistant = Assistant(CLAUDE_DOWN, consent=lambda *_: False)
    assert assistant.ask().via == "by_gpt"


def test_streams_fall_back_before_their_first_content():
    assistant = Assistant(CLAUDE_DOWN)
    claude, gpt = FORMS["messages, streamed"], FORMS["responses, streamed"]
    clients = {
        form: recovering(
            form, client_for(form, assistant.provider.transport(), is_async=True), runtime=assistant.runtime
        )
        for form in (claude, gpt)
    }
    live = recover("assistant", Policy(circuit=None), runtime=assistant.runtime)
    source = live.stream(lambda: claude.begin(clients[claude])).fallback(lambda: gpt.begin(clients[gpt]), name="gpt")

    async def read():
        async with source() as stream:
            return [event.type async for event in stream]

    types = run(read(), clock=assistant.runtime.clock)
    assert (types[0], types[-1]) == ("response.created", "response.completed")
    assert (assistant.requests_to(CLAUDE), assistant.requests_to(GPT)) == (3, 1)
