"""The storm: who works, and what their requests meet in each act.

Invariant: the same seed gives the same acts. In an act each worker takes the steps written for its model, in order, whoever
else asks meanwhile.
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

__all__ = ["ANTHROPIC", "CAST", "OPENAI", "OPEN_FOR", "Act", "Way", "Worker", "storm"]

ANTHROPIC, OPENAI = "anthropic", "openai"


class Worker(msgspec.Struct, frozen=True):
    """One of those who ask."""

    name: str
    provider: str
    model: str
    spare: str = ""
    """The other provider's model that it asks when its own is down."""


# Nobody's real models of today: the SDKs warn of names that were retired since.
CAST = (
    Worker("planner", ANTHROPIC, "claude-opus", "gpt-5"),
    Worker("coder", ANTHROPIC, "claude-sonnet", "gpt-5-codex"),
    Worker("reviewer", ANTHROPIC, "claude-haiku", "gpt-5-mini"),
    Worker("tester", ANTHROPIC, "claude-mini", "gpt-5-nano"),
    Worker("writer", OPENAI, "gpt-4.1"),
)
_PLANNER, _CODER, _REVIEWER, _TESTER, _WRITER = CAST
_CLAUDES = tuple(worker for worker in CAST if worker.provider == ANTHROPIC)

_TRIES = 3
"""Calls that the usual policy makes of an unavailable provider."""
OPEN_FOR = 4.0
"""Seconds Anthropic's circuit stays open: long enough to be seen."""
_HANG_LIMIT = 1.5

# It opens with the very last failure that the outage can have, so that no order of the workers makes another count. The
# usual one opens after five.
_CIRCUIT = Circuit(failures=_TRIES * len(_CLAUDES), rate=None, open_for=OPEN_FOR)
_USUAL = Policy(circuit=_CIRCUIT)


class Way(StrEnum):
    """What the workers do in an act."""

    ASK = "ask"
    STREAM = "stream"
    CHAIN = "chain"
    """Ask, and where the provider is down, ask the other one."""


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the storm."""

    name: str
    title: str
    steps: Mapping[str, str] = {}
    """What the requests for a model meet, in the notation of fault scripts; then all is well."""
    way: Way = Way.ASK
    policy: Policy = _USUAL
    patient: bool = False
    """It begins when the open circuit lets a call through, and one worker goes ahead of the others."""


def storm(seed: int) -> tuple[Act, ...]:
    """Return the acts in order."""
    chance = seeded(seed)
    down = {worker.model: f"503*{_TRIES}" for worker in _CLAUDES}
    return (
        _rate_limits(chance),
        _overload(chance),
        _cut_streams(chance),
        _hang(chance),
        Act(
            name="refused key",
            title="A refused key: asking again cannot help, so nobody does, and the SDK's own exception comes through.",
            steps={_WRITER.model: "401"},
        ),
        Act(
            name="outage",
            title="An outage: Anthropic is down. After three tries each OpenAI answers, and the circuit opens.",
            steps=down,
            way=Way.CHAIN,
        ),
        Act(
            name="circuit open",
            title="While it is open nothing is sent: OpenAI answers at once; whom it refuses too gets a lesser answer.",
            steps={**down, _TESTER.spare: "quota"},
            way=Way.CHAIN,
        ),
        Act(
            name="return",
            title=f"Anthropic is back: after {OPEN_FOR:g} s one call goes ahead, works, and the circuit closes.",
            way=Way.CHAIN,
            patient=True,
        ),
    )


def _rate_limits(chance: Random) -> Act:
    told = (
        "429;retry-after=1",
        "429;retry-after=2",
        "429;retry-after=3",
        "429;retry-after=date+2",
        "429;retry-after-ms=1500",
        "429;retry-after=1, 429;retry-after=1",
    )
    return Act(
        name="rate limits",
        title="Rate limits: who is told how long to wait waits exactly that long, who is not waits longer each time.",
        steps={
            _PLANNER.model: chance.choice(told),
            _CODER.model: "429",
            _REVIEWER.model: chance.choice(("ok", *told)),
            _TESTER.model: chance.choice(("ok", *told)),
            _WRITER.model: chance.choice(("429;hint=1s", "429;hint=2.5s", *told)),
        },
    )


def _overload(chance: Random) -> Act:
    steps = {worker.model: chance.choice(("ok", "529", "529*2")) for worker in _CLAUDES}
    return Act(
        name="overload",
        title="Overload: Anthropic answers 529 to some; they ask again, at different moments.",
        steps={**steps, _PLANNER.model: "529", _WRITER.model: chance.choice(("ok", "503"))},
    )


def _cut_streams(chance: Random) -> Act:
    early = ("cut;after=0", "disconnect", "sse-error;after=0", "truncate;after=0")
    # No reset here: it may destroy words that had arrived, and how many is up to the machine.
    late = ("cut", "sse-error", "truncate")
    steps = {worker.model: chance.choice(("ok", *early)) for worker in CAST}
    return Act(
        name="cut streams",
        title="Cut streams: before the first word nobody notices; after it coder begins again, reviewer keeps what came.",
        steps={
            **steps,
            _PLANNER.model: chance.choice(early),
            # Not truncated: what begins a stream again sees words, and words that end well are an end.
            _CODER.model: f"{chance.choice(late[:2])};after={chance.randint(1, 3)}",
            _REVIEWER.model: f"{chance.choice(late)};after={chance.randint(2, 4)}",
        },
        way=Way.STREAM,
    )


def _hang(chance: Random) -> Act:
    hung = chance.sample(CAST, chance.randint(1, 3))
    return Act(
        name="hang",
        title=f"A hang: no answer comes at all; the call is ended after {_HANG_LIMIT:g} s and made again.",
        steps={worker.model: "hang" for worker in hung},
        policy=_USUAL.replace(timeout=_HANG_LIMIT),
    )
