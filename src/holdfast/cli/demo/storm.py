"""The storm: the workers, and the faults that their requests meet in each act.

Invariant: the same seed gives the same acts. In an act each worker meets the faults written for its model, in order, whatever
the other workers do.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from holdfast.policies import Circuit, Policy
from holdfast.testing.clock import seeded

if TYPE_CHECKING:
    from random import Random

ANTHROPIC, OPENAI = "anthropic", "openai"


class DemoCaller(msgspec.Struct, frozen=True):
    """One caller with a model of its own."""

    name: str
    provider: str
    model: str
    spare: str = ""
    """The model of the other provider, which the worker falls back to."""


# The names are invented, because the SDKs warn about real models after their retirement.
CAST = (
    DemoCaller("planner", ANTHROPIC, "claude-opus", "gpt-5"),
    DemoCaller("coder", ANTHROPIC, "claude-sonnet", "gpt-5-codex"),
    DemoCaller("reviewer", ANTHROPIC, "claude-haiku", "gpt-5-mini"),
    DemoCaller("tester", ANTHROPIC, "claude-mini", "gpt-5-nano"),
    DemoCaller("writer", OPENAI, "gpt-4.1"),
)
_PLANNER, _CODER, _REVIEWER, _TESTER, _WRITER = CAST
_CLAUDES = tuple(worker for worker in CAST if worker.provider == ANTHROPIC)

_ATTEMPTS = 3
"""How often the default policy calls an unavailable provider before its fallback."""
OPEN_FOR = 4.0
"""How many seconds Anthropic's circuit stays open. It is long enough to watch."""
_HANG_LIMIT = 1.5

# The circuit opens with the very last failure of the outage, so that the counts do not depend on the order of the
# workers. The default circuit would not open in so few seconds.
_CIRCUIT = Circuit(failures=_ATTEMPTS * len(_CLAUDES), rate=None, open_for=OPEN_FOR)
_USUAL = Policy(circuit=_CIRCUIT)


class ActKind(StrEnum):
    """What the workers do in an act."""

    ASK = "ask"
    STREAM = "stream"
    CHAIN = "chain"
    """Ask, and fall back to the other provider."""


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the storm."""

    name: str
    title: str
    steps: Mapping[str, str] = {}
    """The faults for each model, in the notation of fault scripts. After them every request succeeds."""
    way: ActKind = ActKind.ASK
    policy: Policy = _USUAL
    patient: bool = False
    """The act starts when the open circuit lets a call through, and one worker goes first."""


def storm(seed: int) -> tuple[Act, ...]:
    """Return the acts in order."""
    # All acts use one random source in a fixed order, so that the same seed gives the same storm.
    chance = seeded(seed)
    down = {worker.model: f"503*{_ATTEMPTS}" for worker in _CLAUDES}
    return (
        _rate_limits(chance),
        _overload(chance),
        _cut_streams(chance),
        _hang(chance),
        Act(
            name="wrong key",
            title="A wrong key: a retry cannot help. The caller gets the SDK's own exception at once.",
            steps={_WRITER.model: "401"},
        ),
        Act(
            name="outage",
            title="An outage: Anthropic is down. After three attempts each call falls back to OpenAI, and the circuit opens.",
            steps=down,
            way=ActKind.CHAIN,
        ),
        Act(
            name="circuit open",
            title="While the circuit is open, nothing is sent to Anthropic. Where OpenAI fails too, a degraded answer is used.",
            steps={**down, _TESTER.spare: "quota"},
            way=ActKind.CHAIN,
        ),
        Act(
            name="return",
            title=f"Anthropic is back: after {OPEN_FOR:g} s one probe is sent and succeeds, and the circuit closes.",
            way=ActKind.CHAIN,
            patient=True,
        ),
    )


def _rate_limits(chance: Random) -> Act:
    with_delay = (
        "429;retry-after=1",
        "429;retry-after=2",
        "429;retry-after=3",
        "429;retry-after=date+2",
        "429;retry-after-ms=1500",
        "429;retry-after=1, 429;retry-after=1",
    )
    return Act(
        name="rate limits",
        title="Rate limits: with Retry-After, wait exactly that long; without it, exponential backoff.",
        steps={
            _PLANNER.model: chance.choice(with_delay),
            _CODER.model: "429",
            _REVIEWER.model: chance.choice(("ok", *with_delay)),
            _TESTER.model: chance.choice(("ok", *with_delay)),
            _WRITER.model: chance.choice(("429;hint=1s", "429;hint=2.5s", *with_delay)),
        },
    )


def _overload(chance: Random) -> Act:
    steps = {worker.model: chance.choice(("ok", "529", "529*2")) for worker in _CLAUDES}
    return Act(
        name="overload",
        title="Overload: Anthropic answers 529 to some calls. They are retried at different times.",
        steps={**steps, _PLANNER.model: "529", _WRITER.model: chance.choice(("ok", "503"))},
    )


def _cut_streams(chance: Random) -> Act:
    early = ("cut;after=0", "disconnect", "sse-error;after=0", "truncate;after=0")
    # There is no reset here: it may destroy words that already arrived, and their number depends on the machine.
    late = ("cut", "sse-error", "truncate")
    steps = {worker.model: chance.choice(("ok", *early)) for worker in CAST}
    return Act(
        name="cut streams",
        title="Cut streams: before the first word, retried. Later, coder starts over and reviewer keeps the words so far.",
        steps={
            **steps,
            _PLANNER.model: chance.choice(early),
            # The stream is not truncated: coder reads plain words, and a clean end after some words looks like a
            # complete answer.
            _CODER.model: f"{chance.choice(late[:2])};after={chance.randint(1, 3)}",
            _REVIEWER.model: f"{chance.choice(late)};after={chance.randint(2, 4)}",
        },
        way=ActKind.STREAM,
    )


def _hang(chance: Random) -> Act:
    # Only some workers hang. The other workers show that a hang does not delay them.
    hung = chance.sample(CAST, chance.randint(1, 3))
    return Act(
        name="hang",
        title=f"A hang: no answer at all. The call is cancelled after {_HANG_LIMIT:g} s and retried.",
        steps={worker.model: "hang" for worker in hung},
        policy=_USUAL.replace(timeout=_HANG_LIMIT),
    )
