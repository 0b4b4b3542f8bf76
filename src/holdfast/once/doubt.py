"""What is in doubt about unsafe steps, in words: an error about a step says what is known, and everything that can be done about it."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.faults import Cause, Fault, HoldfastError, OutcomeUnknownError
from holdfast.once.identity import identity_of, key_of, short_name, suffix
from holdfast.once.records import StepEnded, is_doubtful, may_have_happened

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from holdfast.once.records import StepStarted

__all__ = [
    "IT_DID_NOT_HAPPEN",
    "IT_HAPPENED",
    "I_DO_NOT_KNOW",
    "OUTCOMES",
    "UnsettledError",
    "call_text",
    "check_not_repeated",
    "drift_error",
    "happened_meanwhile",
    "resolve_command",
    "unknown_error",
    "unstored_note",
    "window",
]

_SHOWN = 160
"""Characters of a step's arguments that a message shows."""

_DIGEST = re.compile(r"^[0-9a-f]{16}\.(?=.)")

IT_HAPPENED = "It happened"
"""A choice of the question whether a step of unknown outcome happened: it is not run again."""
IT_DID_NOT_HAPPEN = "It did not happen"
"""A choice of that question: the step is run again."""
I_DO_NOT_KNOW = "I do not know"
"""A choice of that question: the outcome stays unknown."""
OUTCOMES = {IT_HAPPENED: True, IT_DID_NOT_HAPPEN: False, I_DO_NOT_KNOW: None}
"""The choices of that question, in order, and what they mean."""


class UnsettledError(OutcomeUnknownError):
    """Raised by the function of an unsafe step that failed and may have happened, if its caller goes on after a failure.

    The step is in doubt, and the caller does not go on. But if the tool's `verify` finds that it did not happen, the step returns `result`.
    """

    def __init__(self, fault: Fault, result: Any) -> None:
        super().__init__(fault)
        self.result = result


def call_text(entry: StepStarted | StepEnded) -> str:
    """Return a step as a person knows it: `deploy("version 2")`."""
    identity = identity_of(entry)
    # A stage knows the calls of its tools by their arguments, too.
    name = _DIGEST.sub("", short_name(identity) or entry.fn or entry.step)
    text = name + window(entry.shown, 0)
    if identity.key:
        return f"{text} with key {identity.key!r}"
    # The number of the use tells two calls with the same arguments apart.
    use = entry.step.rpartition("#")[2] if "#" in entry.step else ""
    return f"{text} (use {use})" if use not in ("", "1") else text


def resolve_command(session: str, after: str, store_option: str = "") -> str:
    """Return the command that resolves a doubt, without what was found out. `after` is what follows the session in its key."""
    return f"holdfast sessions resolve {session} {shlex.quote(after)}{store_option}"


def unknown_error(
    session: str, after: str, entry: StepStarted | StepEnded, *, store_option: str = "", sent: str = ""
) -> OutcomeUnknownError:
    """Return the error of a step that may have happened.

    `store_option` is what a command needs to find the store. `sent` is the key that a service got, if it is not that of the step.
    """
    key = key_of(session, after)
    verb = resolve_command(session, after, store_option)
    failure = failure_in(entry)
    where = f"; a service that gets its `call_key()` knows it by {sent!r}" if sent else ""
    message = (
        f"{call_text(entry)} {_how(failure)}, so it is not repeated. Find out whether it happened{where}.\n"
        f"  If it did:  await session.resolve({key!r}, happened=True, result=…)\n"
        f"         or:  {verb} --happened --result JSON\n"
        f"  If not:     await session.resolve({key!r}, happened=False)\n"
        f"         or:  {verb} --not-happened\n"
        f"              The program runs it again when it calls it."
    )
    context: dict[str, Any] = {"key": key, "step": entry.step}
    if failure is not None:
        context["failed_with"] = failure.code
    cause = None if failure is None else failure.cause
    return OutcomeUnknownError(Fault.of("TOOL_OUTCOME_UNKNOWN", message, context=context, cause=cause))


def happened_meanwhile(session: str, after: str, entry: StepStarted | StepEnded) -> OutcomeUnknownError:
    """Return the error of what went on without a step that happened after all: it is not done, and finds the result when it runs again."""
    message = (
        f"{call_text(entry)} has happened after the program went on without its result. Run the program again: the call "
        f"returns that result then"
    )
    context = {"key": key_of(session, after), "step": entry.step}
    return OutcomeUnknownError(Fault.of("TOOL_OUTCOME_UNKNOWN", message, context=context))


def unstored_note(key: str, *, is_unsafe: bool) -> str:
    """Return what follows for a step that has run, and whose result could not be stored."""
    if is_unsafe:
        return (
            f"The step has run, and is not repeated: settle it with session.resolve({key!r}, happened=True, result=…)"
        )
    return "The step has run, and its result is not stored: it runs again when it is called again"


class _Failure(msgspec.Struct, frozen=True):
    """What the log keeps of the failure of a step."""

    code: str
    message: str = ""
    cause: Cause | None = None


class _Failed(msgspec.Struct, frozen=True):
    fault: _Failure


def failure_in(entry: StepStarted | StepEnded) -> _Failure | None:
    """Return the failure that a step ended with; None if it was cut off, or if the store could not keep it."""
    if not isinstance(entry, StepEnded) or entry.ok:
        return None
    try:
        return msgspec.json.decode(bytes(entry.result), type=_Failed).fault
    except msgspec.MsgspecError:
        return None


def _how(failure: _Failure | None) -> str:
    """Return how a step in doubt ended, as a message says it."""
    if failure is None:
        return "was started and its end is not known"
    cause = failure.cause
    what = f"{failure.code}: {failure.message}" if cause is None else f"{cause.type}: {cause.message}"
    return f"was started and failed ({window(what, 0)}), which does not show whether it took effect"


def drift_error(session: str, turn: int, stored: StepStarted | StepEnded, now: str) -> HoldfastError:
    """Return the error of an unsafe step whose function the log has otherwise. `now` is the call's arguments as text."""
    before, after = _difference(stored.shown, now)
    name = short_name(identity_of(stored))
    has = (
        "with other arguments,"
        if before != after
        else "with other parameters, another name, or in another place or task,"
    )
    # A step of version 1 has its turn in its name, although it belongs to the session.
    key = key_of(session, suffix(turn or stored.turn, stored.step))
    message = (
        f"{name} must not happen twice. Session '{session}' has it {has} and this run of the program has not called "
        f"it so. Before: {name}{before}. Now: {name}{after}. If the stored call stands for this one: "
        f"`await session.accept({key!r})`. If this is another one: `session.keyed(…).step(…)`, a turn of its own, or "
        f"`holdfast sessions fork {session} NEW`"
    )
    if before != after:
        message += (
            ". If only the order of the calls differs, as it does in each run over a set or with `asyncio.as_completed`: "
            "go through `sorted(…)`, or give each call a key"
        )
    if is_doubtful(stored):
        message += (
            f".\nNobody knows yet whether the stored call happened. If it did not: `await session.resolve({key!r}, "
            f"happened=False)`, and this one runs"
        )
    context = {
        "session_id": session,
        "step": stored.step,
        "key": key,
        "before": before,
        "now": after,
    }
    return HoldfastError(Fault.of("SESS_STEP_DRIFT", message, context=context))


def check_not_repeated(
    session: str, turn: int, equal: Iterable[tuple[str, StepStarted | StepEnded]], anew: Collection[str]
) -> None:
    """Raise SESS_STEP_DRIFT if a further call of an unsafe step only repeats one that somebody had to find something out about.

    `anew` are the steps about which somebody said that a further call is meant.
    `equal` are the steps with the same function and arguments that come before it. A program that catches `OutcomeUnknownError`,
    resolves it and calls the step once more makes that call in every later run, too, and so does one that looks again after a timeout. There the first call returns the stored result
    already, and the second one would be another deployment.
    """
    for name, known in equal:
        if known.doubted and may_have_happened(known) and suffix(turn, name) not in anew:
            raise _repeated_error(key_of(session, suffix(turn, name)), session, known)


def _repeated_error(key: str, session: str, stored: StepStarted | StepEnded) -> HoldfastError:
    is_late = isinstance(stored, StepEnded) and stored.late
    before = "its caller had stopped waiting for it, at a timeout for example" if is_late else "was in doubt before"
    reads, block = ("", "TimeoutError") if is_late else (" after `resolve`", "OutcomeUnknownError")
    message = (
        f"{call_text(stored)} has happened, and {before}. This run of the program has called it already, so this call would "
        f"make it happen twice. If it only reads the result{reads}: move it into the `except {block}` block, since in "
        f"this run the first call has returned the result; or `await session.accept({key!r})`, and this call returns it, too. If it must happen "
        f"again: `await session.accept({key!r}, again=True)`, or `session.keyed(…).step(…)`"
    )
    context = {"session_id": session, "step": stored.step, "key": key}
    return HoldfastError(Fault.of("SESS_STEP_DRIFT", message, context=context))


def _difference(before: str, now: str) -> tuple[str, str]:
    """Return the parts of two texts to show, such that their first difference is in them."""
    if not before:
        return "(arguments that were not kept)", window(now, 0)
    pairs = zip(before, now, strict=False)
    start = next((n for n, (one, other) in enumerate(pairs) if one != other), min(len(before), len(now)))
    return window(before, start), window(now, start)


def window(text: str, around: int) -> str:
    """Return the part of a text around a place that a message shows."""
    start = max(0, around - _SHOWN // 2) if len(text) > _SHOWN else 0
    part = text[start : start + _SHOWN]
    return f"{'(…' if start else ''}{part}{'…' if start + _SHOWN < len(text) else ''}"
