"""A recovering client at an open circuit: it waits where nothing else can answer, and makes way where something can."""

from __future__ import annotations

import asyncio

import pytest
from clients_forms import CLAUDE, FORMS, GPT, client_for, recovering, text_of

from holdfast import CircuitOpenError, Policy, Runtime, recover
from holdfast.policies.circuit import PROVIDER
from holdfast.testing import FaultProvider, Midpoint, VirtualClock, run

DOWN_S = 50.0
CLAUDE_DOWN = f'[[rules]]\nsteps = "529"\nloop = true\nto = {DOWN_S}\nmodels = ["claude-*"]'
ALL_DOWN = f'[[rules]]\nsteps = "529"\nloop = true\nto = {DOWN_S}'
REQUEST = {"model": CLAUDE, "max_tokens": 99, "messages": [{"role": "user", "content": "hello"}]}
ANSWER = "You said: hello"
FEW = 9
"""Failures that open a circuit, and a probe or two: what a dead service may see of many callers."""


class Outage:
    """Claude (and GPT) is down for a while, and the circuits know it."""

    def __init__(self, script=CLAUDE_DOWN, policy=None):
        self.runtime = Runtime(clock=VirtualClock(), rng=Midpoint())
        self.runtime.configure(
            Policy(profile="stud", circuit=PROVIDER), {}
        )  # so that a test can count attempts and seconds
        self.provider = FaultProvider(script, clock=self.runtime.clock)
        self.claude, self.gpt = (
            recovering(
                FORMS[name],
                client_for(FORMS[name], self.provider.transport(), is_async=True),
                runtime=self.runtime,
                policy=policy,
            )
            for name in ("messages", "responses")
        )

    @property
    def now(self):
        return self.runtime.clock.monotonic()

    async def ask_claude(self):
        return text_of(await self.claude.messages.create(**REQUEST))

    async def ask_gpt(self):
        return text_of(await self.gpt.responses.create(model=GPT, input="hello"))

    async def stream_claude(self):
        async with await self.claude.messages.create(stream=True, **REQUEST) as events:
            return [event.type async for event in events][-1]

    def run(self, coroutine):
        return run(coroutine, clock=self.runtime.clock)

    def opened(self, *asking):
        """Let calls fail until the circuits are open."""
        for ask in asking:
            for _ in range(2):
                self.run(_ended(self._plainly(ask)))
        return self

    async def _plainly(self, ask):
        """Ask where there is something else, so that nobody waits."""
        answer = recover("warming up", Policy(circuit=None), runtime=self.runtime)(ask)
        answer.fallback(_nothing)
        return await answer()


async def _nothing():
    return "nothing"


async def _ended(call):
    return (await asyncio.gather(call, return_exceptions=True))[0]


@pytest.mark.parametrize("form", ["ask_claude", "stream_claude"])
def test_alone_it_waits_for_the_circuit_and_answers_in_the_end(form):
    outage = Outage()

    async def ten():
        return await asyncio.gather(*(_ended(getattr(outage, form)()) for _ in range(10)))

    outage.opened(outage.ask_claude)
    began = outage.now
    assert outage.run(ten()) == [ANSWER if form == "ask_claude" else "message_stop"] * 10
    assert DOWN_S - began < outage.now - began <= 120
    assert outage.provider.counters.injected["529"] <= FEW


def test_one_whose_policy_does_not_wait_is_rejected_at_once():
    outage = Outage(policy=Policy(wait_for_circuit=False))
    outage.opened(outage.ask_claude)
    began = outage.now
    assert isinstance(outage.run(_ended(outage.ask_claude())), CircuitOpenError)
    assert outage.now == began


def test_it_does_not_wait_beyond_its_deadline():
    outage = Outage(policy=Policy(timeout=10, deadline=10))
    outage.opened(outage.ask_claude)
    began = outage.now
    assert isinstance(outage.run(_ended(outage.ask_claude())), CircuitOpenError)
    assert outage.now == began


def test_R34_under_a_fallback_it_makes_way_at_once():
    outage = Outage()
    outage.opened(outage.ask_claude)
    answer = recover("assistant", Policy(circuit=None), runtime=outage.runtime)(outage.ask_claude)
    answer.fallback(outage.ask_gpt)
    began = outage.now
    assert outage.run(answer()) == ANSWER
    assert outage.now == began


def test_R34_a_recovery_around_it_without_fallbacks_changes_nothing():
    outage = Outage()
    outage.opened(outage.ask_claude)
    answer = recover("assistant", Policy(circuit=None), runtime=outage.runtime)(outage.ask_claude)
    assert outage.run(answer()) == ANSWER


@pytest.mark.parametrize("form", ["call", "stream"])
def test_as_the_last_of_the_fallbacks_it_waits(form):
    outage = Outage(ALL_DOWN)
    outage.opened(outage.ask_claude, outage.ask_gpt)
    around = recover("assistant", Policy(circuit=None), runtime=outage.runtime)

    async def stream(ask):
        yield await ask()

    async def streamed():
        async with around.stream(lambda: stream(outage.ask_claude)).fallback(lambda: stream(outage.ask_gpt))() as items:
            return [item async for item in items][-1]

    answer = around(outage.ask_claude)
    answer.fallback(outage.ask_gpt)
    assert outage.run(answer() if form == "call" else streamed()) == ANSWER
    models = [request.model for request in outage.provider.requests]
    assert models[-1] == GPT


def test_before_a_lesser_answer_it_makes_way():
    outage = Outage(ALL_DOWN)
    outage.opened(outage.ask_claude, outage.ask_gpt)
    answer = recover("assistant", Policy(circuit=None), runtime=outage.runtime)(outage.ask_claude)
    answer.fallback(outage.ask_gpt)
    answer.degraded(lambda fault: fault.code)
    began = outage.now
    assert outage.run(answer()) == "CIRCUIT_OPEN"
    assert outage.now == began
