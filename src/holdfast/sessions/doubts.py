"""Steps about which somebody has to find something out: whether it happened, or which of two calls was meant.

Invariant: an error says what is known (the step and its arguments, masked and cut) and everything that can be done about it.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.faults import Fault, HoldfastError, InvalidError, OutcomeUnknownError
from holdfast.runtime.secrets import process_redactor
from holdfast.runtime.suppress import suppress
from holdfast.sessions import codec
from holdfast.sessions.journal import audit
from holdfast.sessions.log import StepEnded, StepsForgotten
from holdfast.sessions.steps import identity_of, is_bound

if TYPE_CHECKING:
    from holdfast.runtime.runtime import Runtime
    from holdfast.runtime.suppress import Suppression
    from holdfast.sessions.log import SessionMemory, StepStarted
    from holdfast.stores import NewAudit

__all__ = [
    "anew",
    "call_text",
    "drifted",
    "key_of",
    "left_open",
    "name_in",
    "resolution",
    "shown",
    "stored_step",
    "suffix",
    "unknown",
]

_CUT = 1_000
"""Characters of a step's arguments that are kept."""
_SHOWN = 160
"""Characters of a step's arguments that a message shows."""


def suffix(turn: int, name: str) -> str:
    """Return what follows the session in the key of a step."""
    return f"{turn}/{name}" if turn else name


def key_of(session: str, after: str) -> str:
    """Return the key of a step: its idempotency key, and what `resolve` takes."""
    return f"{session}/{after}"


def name_in(key: str, session: str, turn: int) -> str:
    """Return the name, in its turn or session, of the step with this key."""
    after = key.removeprefix(f"{session}/")
    return after.removeprefix(f"{turn}/") if turn else after


def stored_step(memory: SessionMemory, session: str, key: str) -> StepStarted | StepEnded:
    """Return the step with this key, of the turn in flight or outside of turns; raise `InvalidError` if there is none."""
    after = key.removeprefix(f"{session}/")
    known = memory.session_steps.get(after) or memory.steps.get(after.removeprefix(f"{memory.turn}/"))
    if known is None:
        raise InvalidError.at("session", "the key of a stored step, such as SESS_STEP_DRIFT names", key)
    return known


def shown(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return the arguments of a call as text, masked and cut: `("version 2", retries=3)`."""
    parts = [_text(value) for value in args]
    parts += [f"{name}={_text({name: value}, name)}" for name, value in kwargs.items()]
    text = ", ".join(parts)
    return f"({text})" if len(text) <= _CUT else f"({text[:_CUT]}…"


def _text(value: Any, name: str = "") -> str:
    try:
        plain = process_redactor().value(codec.plain(value, "step"))
    except InvalidError:
        plain = f"<{type(value).__qualname__}>"
    # A value is masked together with its name, because only the name may say that it is a secret.
    return msgspec.json.encode(plain[name] if name and isinstance(plain, dict) else plain).decode()


def call_text(entry: StepStarted | StepEnded) -> str:
    """Return a step as a person knows it: `deploy("version 2")`."""
    identity = identity_of(entry)
    name = entry.fn or identity.fn or entry.step
    text = name + _window(entry.shown, 0)
    return f"{text} with key {identity.key!r}" if identity.key else text


def unknown(session: str, after: str, entry: StepStarted | StepEnded) -> OutcomeUnknownError:
    """Return the error of a step that may have happened."""
    key = key_of(session, after)
    verb = f"holdfast sessions resolve {session} {shlex.quote(after)}"
    message = (
        f"{call_text(entry)} was started and its end is not known, so it is not repeated. Find out whether it happened. "
        f"If it did: `await session.resolve({key!r}, happened=True, result=…)`, or `{verb} --happened --result JSON`. "
        f"If not: `happened=False`, or `{verb} --not-happened`; it runs again then"
    )
    return OutcomeUnknownError(Fault.of("TOOL_OUTCOME_UNKNOWN", message, context={"key": key, "step": entry.step}))


def drifted(
    session: str, turn: int, stored: StepStarted | StepEnded, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> HoldfastError:
    """Return the error of an unsafe step whose function the log has with other arguments."""
    now = shown(args, kwargs)
    before, after = _difference(stored.shown, now)
    name = identity_of(stored).fn
    # A step of version 1 has its turn in its name, although it belongs to the session.
    key = key_of(session, suffix(turn or stored.turn, stored.step))
    message = (
        f"{name} must not happen twice. Session '{session}' has it with other arguments, and this run of the program has not called "
        f"it with them. Before: {name}{before}. Now: {name}{after}. If the stored call stands for this one: "
        f"`await session.accept({key!r})`. If this is another one: `session.keyed(…).step(…)`, a turn of its own, or "
        f"`holdfast sessions fork {session} NEW`"
    )
    context = {
        "session_id": session,
        "step": stored.step,
        "key": key,
        "before": before,
        "now": after,
    }
    return HoldfastError(Fault.of("SESS_STEP_DRIFT", message, context=context))


def _difference(before: str, now: str) -> tuple[str, str]:
    """Return the parts of two texts to show, such that their first difference is in them."""
    if not before:
        return "(arguments that were not kept)", _window(now, 0)
    pairs = zip(before, now, strict=False)
    start = next((n for n, (one, other) in enumerate(pairs) if one != other), min(len(before), len(now)))
    return _window(before, start), _window(now, start)


def _window(text: str, around: int) -> str:
    start = max(0, around - _SHOWN // 2) if len(text) > _SHOWN else 0
    part = text[start : start + _SHOWN]
    return f"{'(…' if start else ''}{part}{'…' if start + _SHOWN < len(text) else ''}"


def resolution(
    memory: SessionMemory, session: str, key: str, *, happened: bool, result: Any
) -> tuple[StepEnded, NewAudit]:
    """Return the entry and the audit record that settle a doubt.

    `key` is the whole key, what follows the session in it, or the beginning of that if it is the only one. Raise `InvalidError` for
    a key that is not of an unknown step.
    """
    doubts = memory.unknown()
    wanted = key.removeprefix(f"{session}/")
    found = [wanted] if wanted in doubts else [after for after in doubts if wanted and after.startswith(wanted)]
    if len(found) != 1:
        known = ", ".join(key_of(session, after) for after in (found or doubts))
        expected = f"one of the unknown steps ({known or 'none'})"
        raise InvalidError.at("session.resolve", expected, key)
    entry = doubts[found[0]]
    stored = msgspec.Raw(codec.encode_given(result if happened else None, "session.resolve"))
    # Keep the name and arguments of its start, so that the step is recognised when the program calls it again.
    ended = StepEnded(turn=entry.turn, step=entry.step, args=entry.args, ok=happened, result=stored)
    return ended, audit("Approval", key_of(session, found[0]), step=entry.step, happened=happened)


def anew(memory: SessionMemory, session: str, **facts: Any) -> tuple[StepsForgotten, NewAudit]:
    """Return the entry and the audit record that let the turn in flight begin anew.

    Unsafe steps that happened, or may have, are not forgotten.
    """
    gone = [name for name, entry in memory.steps.items() if not is_bound(entry)]
    record = audit("Turn", session, turn=memory.turn, event="retried", forgotten=len(gone), **facts)
    return StepsForgotten(turn=memory.turn, steps=gone, anew=True), record


def left_open(runtime: Runtime | None) -> Suppression:
    """Ignore and report a failure to store that a step was not called: the doubt about it stays open, which is safe."""
    return suppress(HoldfastError, reason="a step that was not called stays unknown", runtime=runtime)
