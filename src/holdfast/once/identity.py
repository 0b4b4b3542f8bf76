"""Which step a call is: what it is known by, and its key.

A step is known in its turn, or outside of turns in its session, by its function with its module (or by the name that a tool was given), by
the hash of its arguments as the function takes them, by its place, and by the number of the use of these; or by a key that the program
chose. The order in which steps run or end does not matter.

Invariant: the names are stored, and are the idempotency keys that other services know, so they never change.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Protocol

import msgspec

from holdfast.once.records import StepEnded, StepStarted

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

__all__ = [
    "IN_DOUBT",
    "KEPT",
    "Identity",
    "Recorded",
    "call_key_in",
    "function_name",
    "identity_of",
    "is_earlier_form",
    "is_outermost",
    "is_same_in",
    "is_within",
    "key_of",
    "name_in",
    "numbered",
    "short_name",
    "step_name",
    "suffix",
    "turn_key",
    "uses_in",
    "within",
]

_ENCODER = msgspec.json.Encoder()
_HASH = 16
"""How many digits of the arguments' hash a name has: 64 bits, so that a million steps of one function do not collide."""
_KEY = "key:"
KEPT = "_keep.<locals>.keep.<locals>.kept"
"""The function of the steps in which an agent keeps something about its run. Stored sessions know them by this name, so it stays."""
IN_DOUBT = "/unknown"
"""Ends the key of the step with the result that an agent's model got for a call of unknown outcome. It follows the key of the call."""
_PART = "~"
"""Marks the hash of a step or question that is made inside of a part with its own key."""
_MODULE = ":"
"""Ends the module in the name of a function. Names without one were written before functions were known by their modules."""


class Recorded(Protocol):
    """A step or question of the log."""

    @property
    def step(self) -> str:
        """Its name in its turn or session."""
        ...

    @property
    def args(self) -> str:
        """The hash of its arguments."""
        ...

    @property
    def turn(self) -> int:
        """The number of its turn; 0 outside of turns."""
        ...


# `gc=False`: a session keeps these, and those of each use, as long as it is open, and may have many thousands. They hold texts, so they
# are in no cycle.
class Identity(msgspec.Struct, frozen=True, gc=False):
    """The function and the arguments of a step, or its explicit key."""

    fn: str
    """`billing:fetch`, or `:fetch` for a name that was given; `fetch` in logs of earlier versions."""
    args: str
    """The hash of the arguments."""
    key: str = ""
    place: str = ""
    """Where it is called: see `once.place`. Empty: in its session or turn."""
    is_full: bool = False
    """Whether `fn` has the module, and the arguments are bound. Otherwise it is as earlier versions wrote it."""


def function_name(module: str, name: str) -> str:
    """Return what a function is known by; `module` is empty for a name that was given."""
    return f"{module}{_MODULE}{name}"


def short_name(identity: Identity) -> str:
    """Return a function's name without its module, for people."""
    return identity.fn.partition(_MODULE)[2] if identity.is_full else identity.fn


def is_earlier_form(identity: Identity) -> bool:
    """Whether an earlier version wrote it: without the module, and with the arguments as they were given."""
    return not identity.key and not identity.is_full


def step_name(identity: Identity, use: int) -> str:
    """Return the name of a use of a function with certain arguments: `deploy@5f1c2ab09d3e4f71`, then `deploy@…#2`.

    The hash has the module, the arguments and the place, so that the names stay short: people type them.
    """
    if identity.key:
        return f"{_KEY}{identity.key}"
    if is_earlier_form(identity):
        name = f"{identity.fn}@{identity.args[:_HASH]}"
    else:
        known = _ENCODER.encode((identity.fn, identity.args, identity.place))
        name = f"{short_name(identity)}@{sha256(known).hexdigest()[:_HASH]}"
    return name if use == 1 else numbered(name, use)


def numbered(first: str, use: int) -> str:
    """Return the name of a later use of a function with certain arguments; `first` is the name of the first one."""
    return f"{first}#{use}"


def uses_in(names: Container[str], identity: Identity) -> Iterator[str]:
    """Yield the names of the uses of a function with certain arguments that are among these names."""
    first = name = step_name(identity, 1)
    use = 1
    while name in names:
        yield name
        use += 1
        name = numbered(first, use)


def turn_key(key: str) -> str:
    """Return a turn's key as the log has it: short, because a session remembers all of them."""
    return sha256(key.encode()).hexdigest()[:_HASH]


def is_same_in(one: Identity, turn: int, other: Identity, other_turn: int) -> bool:
    """Whether two steps of different turns are one call. The key of an agent's call begins with the number of its turn."""
    if not one.key or not other.key:
        return one == other
    return one.key.removeprefix(f"{turn}/") == other.key.removeprefix(f"{other_turn}/")


def within(identity: Identity, part: str) -> Identity:
    """Return the identity of a step or question that is made inside of a part of the program with its own key, or of a step.

    If that part has ended, it is not made again, and neither are its steps. So they are counted apart from all others.
    """
    return Identity(
        identity.fn, _PART + sha256(msgspec.json.encode([[identity.args, part], {}])).hexdigest()[: _HASH - 1]
    )


def is_outermost(key: str) -> bool:
    """Whether a key of `Session.numbered` is that of a first use, outside of steps and of parts with their own key."""
    args = key.rpartition("@")[2]
    return not args.startswith(_PART) and "#" not in args


def is_within(identity: Identity) -> bool:
    """Whether it is the identity of a step that is made inside of a part with its own key."""
    return identity.args.startswith(_PART)


def identity_of(entry: Recorded) -> Identity:
    """Return what a step or question of the log is known by.

    Earlier versions wrote no module: there the name says all. Steps of version 1 had names such as `pay#2`, `pay[]#1/7` or `pay#1/2`.
    """
    name = entry.step
    if name.startswith(_KEY):
        return Identity("", "", name.removeprefix(_KEY))
    if isinstance(entry, StepStarted | StepEnded) and entry.fn:
        return Identity(entry.fn, entry.args, place=entry.place, is_full=True)
    fn, at, rest = name.rpartition("@")
    if rest.startswith(_PART):
        return Identity(fn, rest.partition("#")[0])
    return Identity(fn if at else name.partition("#")[0].removesuffix("[]"), entry.args)


def suffix(turn: int, name: str) -> str:
    """Return what follows the session in the key of a step."""
    return f"{turn}/{name}" if turn else name


def key_of(session: str, after: str) -> str:
    """Return the key of a step: its idempotency key, and what `resolve` takes."""
    return f"{session}/{after}"


def call_key_in(key: str, number: int = 1) -> str:
    """Return the idempotency key of the first, second … call inside of the step with this key."""
    return f"{key}/{number}"


def name_in(key: str, session: str, turn: int) -> str:
    """Return the name, in its turn or session, of the step with this key."""
    after = key.removeprefix(f"{session}/")
    return after.removeprefix(f"{turn}/") if turn else after
