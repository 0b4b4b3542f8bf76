"""What the log says about a step: that it has begun, and how it has ended.

Invariant: the tags and the names of the fields are stored, so they never change.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

__all__ = [
    "EntryBody",
    "Resolution",
    "StepEnded",
    "StepEntry",
    "StepStarted",
    "is_bound",
    "is_doubtful",
    "may_have_happened",
]


class EntryBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="said"):
    """The body of an entry. The tag's name and values are stored, so they never change."""


# `gc=False`: a step's entries hold texts and bytes, so they are in no cycle. A session keeps them, and may have many thousands.
class StepStarted(EntryBody, frozen=True, tag="step_started", gc=False):
    """Written before a step that must not simply be repeated."""

    turn: int
    """The number of its turn; 0 for a step outside of any turn."""
    step: str
    """Its name in the turn or session: see `identity.step_name`."""
    args: str
    """The hash of its arguments."""
    effect: str | None = None
    repeats: bool = False
    """Whether it was started before, and the outcome of that start is unknown."""
    fn: str = ""
    """The function: with its module, or the bare name for a step with an explicit key. Earlier versions wrote it only for those."""
    place: str = ""
    """Where it was called: see `once.place`."""
    task: str = ""
    """What the task is known by that called it, if it was not the one around the session, the step or the part."""
    around: str = ""
    """All places around it, see `place.entered`, the outermost first, with a blank between them. Earlier versions did not write it."""
    shown: str = ""
    """The arguments as text, masked and cut, for the person who has to find out what happened."""
    key: str = ""
    """The idempotency key it began with, for its tool's `verify`: in a fork of the session the step has another one."""
    begun: str = ""
    """The id of this entry: only the memory has it. It tells one doubt about a step from the next, so that each is resolved once."""
    doubted: bool = False
    """Whether the program had to find out what became of it before: only the memory has it."""


class Resolution(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Who found out what became of a step of unknown outcome, and when."""

    by: str = ""
    at: float = 0.0


class StepEnded(EntryBody, frozen=True, tag="step_ended", gc=False):
    """A step returned or failed."""

    turn: int
    """The number of its turn; 0 for a step outside of any turn."""
    step: str
    args: str
    """The hash of its arguments."""
    ok: bool
    result: msgspec.Raw = msgspec.Raw(b"null")
    """The value it returned, or the fault it failed with."""
    unknown: bool = False
    """Whether it failed but may have happened nevertheless."""
    evidence: str = ""
    """What shows that an unsafe step did not happen, though it has begun: see `evidence.py`. Earlier versions did not write it."""
    fn: str = ""
    """As in its start. The memory copies what is known about a step from its start."""
    place: str = ""
    task: str = ""
    shown: str = ""
    effect: str | None = None
    key: str = ""
    around: str = ""
    """As in its start: only the memory has them here."""
    begun: str = ""
    """As in its start, while its outcome is unknown."""
    resolution: Resolution | None = None
    """Set if somebody resolved it. Earlier versions did not write it."""
    settles: str = ""
    """The step of an earlier turn whose result, as somebody resolved it, is the result of this one."""
    late: bool = False
    """Whether its caller had gone when it returned: the program went on without the result. Earlier versions did not write it."""
    doubted: bool = False
    """As in its start."""


StepEntry: TypeAlias = StepStarted | StepEnded


def is_doubtful(entry: StepStarted | StepEnded) -> bool:
    """Whether a step may have happened and must not be repeated automatically."""
    return entry.unknown if isinstance(entry, StepEnded) else entry.effect == "unsafe"


def may_have_happened(entry: StepStarted | StepEnded) -> bool:
    """Whether a step happened, or may have happened."""
    return entry.ok or entry.unknown if isinstance(entry, StepEnded) else True


def is_bound(entry: StepStarted | StepEnded) -> bool:
    """Whether a step must never run again: it is unsafe, and happened or may have."""
    # One that took the result of a doubt has not begun itself, so nothing else says that it is unsafe.
    is_unsafe = entry.effect == "unsafe" or (isinstance(entry, StepEnded) and bool(entry.settles))
    return is_unsafe and may_have_happened(entry)
