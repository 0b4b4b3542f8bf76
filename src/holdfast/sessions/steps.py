"""Which step a call is, what the log says to do about it, and how a doubt about it is settled.

A step is known in its turn, or outside of turns in its session, by its function, the hash of its arguments and the number of the
use of that pair; or by a key that the program chose. The order in which steps run or end does not matter. `decide_step` says whether
to run it, to repeat it, or to return its stored result.

Invariant: a step whose result is stored is not run again. An unsafe step that may have happened is not repeated. An error about a
step says what is known (the step and its arguments, masked and cut) and everything that can be done about it. Nothing here does I/O.
"""

from __future__ import annotations

import asyncio
import itertools
import shlex
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from holdfast.faults import Fault, HoldfastError, InvalidError, OutcomeUnknownError
from holdfast.runtime.secrets import process_redactor
from holdfast.sessions import codec
from holdfast.sessions.journal import audit
from holdfast.sessions.log import (
    Answered,
    QuestionRaised,
    Resolution,
    StepEnded,
    StepsForgotten,
    StepStarted,
    is_doubtful,
)
from holdfast.stores import Claim

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.policies.decide import Effect
    from holdfast.sessions.log import SessionMemory
    from holdfast.stores import NewAudit

__all__ = [
    "IN_DOUBT",
    "IT_DID_NOT_HAPPEN",
    "IT_HAPPENED",
    "I_DO_NOT_KNOW",
    "KEPT",
    "OUTCOMES",
    "Attempts",
    "Drifted",
    "Finding",
    "Identity",
    "Repeat",
    "Return",
    "Run",
    "Settlement",
    "StepDecision",
    "Unknown",
    "Use",
    "Uses",
    "already_resolved",
    "anew",
    "answers_to",
    "call_text",
    "check_not_repeated",
    "decide_step",
    "drift_error",
    "identity_of",
    "is_bound",
    "is_later",
    "is_outermost",
    "key_of",
    "may_have_happened",
    "name_in",
    "needs_start",
    "questions_about",
    "resolve_command",
    "settlement",
    "shown",
    "step_name",
    "stored_step",
    "suffix",
    "unknown_error",
]

_HASH = 16
"""How many digits of the arguments' hash a name has: 64 bits, so that a million steps of one function do not collide."""
_KEY = "key:"
KEPT = "_keep.<locals>.keep.<locals>.kept"
"""The function of the steps in which an agent keeps something about its run. Stored sessions know them by this name, so it stays."""
IN_DOUBT = "/unknown"
"""Ends the key of the step with the result that an agent's model got for a call of unknown outcome. It follows the key of the call."""
_PART = "~"
"""Marks the hash of a step that is made inside of a part with its own key."""
_RESOLVER = "resolve"
"""The client name under which the store keeps the claims on doubts."""
_CUT = 1_000
"""Characters of a step's arguments that are kept."""
_SHOWN = 160
"""Characters of a step's arguments that a message shows."""

Attempts: TypeAlias = dict[str, int]
"""The operations (`recover`) around a call, by their run, each with the number of its present attempt."""


Recorded: TypeAlias = StepStarted | StepEnded | QuestionRaised


# `gc=False`: a session keeps these, and those of each use, as long as it is open, and may have many thousands. They hold texts, so they
# are in no cycle.
class Identity(msgspec.Struct, frozen=True, gc=False):
    """The function and the arguments of a step, or its explicit key."""

    fn: str
    args: str
    """The hash of the arguments."""
    key: str = ""


def step_name(identity: Identity, use: int) -> str:
    """Return the name of a use of a function with certain arguments: `deploy@5f1c2ab09d3e4f71`, then `deploy@…#2`."""
    if identity.key:
        return f"{_KEY}{identity.key}"
    name = f"{identity.fn}@{identity.args[:_HASH]}"
    return name if use == 1 else f"{name}#{use}"


def within(identity: Identity, part: str) -> Identity:
    """Return the identity of a step or question that is made inside of a part of the program with its own key.

    If that part has ended, it is not made again, and neither are its steps. So they are counted apart from all others.
    """
    return Identity(identity.fn, _PART + codec.arguments_hash((identity.args, part), {}, identity.fn)[: _HASH - 1])


def is_outermost(key: str) -> bool:
    """Whether a key of `Session.numbered` is that of a first use, outside of parts with their own key."""
    args = key.rpartition("@")[2]
    return not args.startswith(_PART) and "#" not in args


def is_within(identity: Identity) -> bool:
    """Whether it is the identity of a step that is made inside of a part with its own key."""
    return identity.args.startswith(_PART)


def identity_of(entry: Recorded) -> Identity:
    """Return what a step of the log is known by. Steps of version 1 had names such as `pay#2`, `pay[]#1/7` or `pay#1/2`."""
    name = entry.step
    if name.startswith(_KEY):
        return Identity("", "", name.removeprefix(_KEY))
    fn, at, rest = name.rpartition("@")
    if rest.startswith(_PART):
        return Identity(fn, rest.partition("#")[0])
    return Identity(fn if at else name.partition("#")[0].removesuffix("[]"), entry.args)


def is_later(attempts: Attempts, before: Attempts) -> bool:
    """Whether one of the operations around makes a later attempt than it did before."""
    return any(before.get(run, attempt) < attempt for run, attempt in attempts.items())


class Use(msgspec.Struct, eq=False, gc=False):
    """One use of a function with certain arguments, in this run of the program. `with use:` is the block of a call."""

    name: str
    seen: Attempts | None = None
    """Where the program called it last; None: not yet in this run."""
    taken: bool = False
    """A call has returned from it. The next call with the same arguments is another use."""
    busy: bool = False
    """A call is in it now."""
    ended: asyncio.Event | None = None
    """Set when that call ends. It is made by the first one that waits for it."""

    def __enter__(self) -> None:
        self.busy, self.taken = True, False

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # If the call fails or is cancelled, the next call with these arguments is the same use, not a second one.
        self.busy, self.taken = False, kind is None
        if self.ended is not None:
            self.ended.set()
            self.ended = None

    def is_free(self, attempts: Attempts) -> bool:
        """Whether a call is this use: nobody has taken it, or an earlier attempt of an operation around the call has."""
        return not (self.busy or self.taken) or self._is_earlier(attempts)

    def is_seen(self, attempts: Attempts) -> bool:
        """Whether the program has called it in this run, and in the present attempts of the operations around."""
        return self.seen is not None and not self._is_earlier(attempts)

    def _is_earlier(self, attempts: Attempts) -> bool:
        # `recover` calls the whole function again. What the function did in its last attempt are the same uses, not further ones.
        return is_later(attempts, self.seen or {})


class Uses:
    """The uses of the steps (or questions) of one turn, or of a session outside of turns, in this run of the program."""

    def __init__(self, recorded: Mapping[str, Recorded]) -> None:
        self._by_identity: dict[Identity, tuple[Use, ...]] = {}
        self._by_function: dict[str, list[Use]] = {}
        self._names: set[str] = set()
        for name, entry in _in_order(recorded):
            self._add(identity_of(entry), name)

    def take(self, identity: Identity, attempts: Attempts) -> Use:
        """Return the use that a call is: the first one that no other call has taken, recorded ones first."""
        for use in self._by_identity.get(identity, ()):
            if identity.key or use.is_free(attempts):
                break
        else:
            number = 1
            while (name := step_name(identity, number)) in self._names:
                number += 1
            use = self._add(identity, name)
        use.seen = attempts
        return use

    def not_replayed(self, fn: str, attempts: Attempts) -> list[str]:
        """Return the names of the known steps of a function that the program has not called yet in this run."""
        return [use.name for use in self._by_function.get(fn, ()) if not use.is_seen(attempts)]

    def replay(self, name: str, attempts: Attempts) -> None:
        """A call takes the place of this step: the program need not call it any more."""
        for uses in self._by_identity.values():
            for use in uses:
                if use.name == name:
                    use.seen, use.taken = attempts, True

    def forget(self, names: set[str]) -> None:
        """These steps run again: the next calls of them are the same uses."""
        for uses in self._by_identity.values():
            for use in uses:
                if use.name in names:
                    use.taken = False

    def busy(self) -> set[str]:
        """Return the names of the steps that run now."""
        return {use.name for uses in self._by_identity.values() for use in uses if use.busy}

    def _add(self, identity: Identity, name: str) -> Use:
        use = Use(name)
        self._names.add(name)
        self._by_identity[identity] = (*self._by_identity.get(identity, ()), use)
        # Steps of a part with its own key may be there and not be called again: nothing has drifted then.
        if not identity.key and not is_within(identity):
            self._by_function.setdefault(identity.fn, []).append(use)
        return use


def _in_order(recorded: Mapping[str, Recorded]) -> list[tuple[str, Recorded]]:
    """Return the recorded steps, those first that a call must find first.

    Version 1 began a new turn with each start of a program, and so has the same use several times. A step that may have happened
    comes first, then the newest that happened.
    """
    steps = list(recorded.items())
    if not any(name != entry.step for name, entry in steps):
        return steps

    def rank(step: tuple[str, Recorded]) -> tuple[bool, bool, int]:
        _, entry = step
        if isinstance(entry, QuestionRaised):
            return True, True, -entry.turn
        return not is_doubtful(entry), not may_have_happened(entry), -entry.turn

    return sorted(steps, key=rank)


class Run(msgspec.Struct, frozen=True):
    """The log does not know the step: run it."""


class Repeat(msgspec.Struct, frozen=True):
    """The step failed, or was started and its end is not known: run it again."""

    unknown: bool
    """Whether it may have happened once already."""


class Return(msgspec.Struct, frozen=True):
    """The step has a stored result: return it."""

    result: msgspec.Raw


class Unknown(msgspec.Struct, frozen=True):
    """The step may have happened and must not be repeated: a person has to find out."""


class Drifted(msgspec.Struct, frozen=True):
    """The log has another step of this unsafe function, which the program has not called: its arguments may have changed."""

    stored: StepStarted | StepEnded


StepDecision: TypeAlias = Run | Repeat | Return | Unknown | Drifted


def decide_step(
    known: StepStarted | StepEnded | None,
    effect: Effect | None,
    not_replayed: tuple[StepStarted | StepEnded, ...] = (),
) -> StepDecision:
    """Return what to do about a step.

    `known` is the last entry of the log about it; `not_replayed` are other steps of its function that the log knows and this run of
    the program has not called.
    """
    match known:
        case None:
            # `deploy(plan, now())` has other arguments each time. To run it again would be a second deployment.
            other = next(filter(may_have_happened, not_replayed), None) if effect == "unsafe" else None
            return Run() if other is None else Drifted(other)
        case StepEnded(ok=True, result=result):
            return Return(result)
        # The effect is what the function declares now. It may be safe to repeat now, even if it was not before the crash.
        case StepEnded(unknown=unknown):
            return Unknown() if unknown and effect == "unsafe" else Repeat(unknown)
        case _:
            # The step was started, and the process died before the end was stored.
            return Unknown() if effect == "unsafe" else Repeat(unknown=True)


def may_have_happened(entry: StepStarted | StepEnded) -> bool:
    """Whether a step happened, or may have happened."""
    return entry.ok or entry.unknown if isinstance(entry, StepEnded) else True


def is_bound(entry: StepStarted | StepEnded) -> bool:
    """Whether a step must never run again: it is unsafe, and happened or may have."""
    return entry.effect == "unsafe" and may_have_happened(entry)


def needs_start(effect: Effect | None) -> bool:
    """Whether the start must be in the log before the step runs.

    Only the start of an unsafe step decides something after a crash. Every other step is run again, with the same key.
    """
    return effect == "unsafe"


# --- steps about which somebody has to find something out ---


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


def resolve_command(session: str, after: str, store_option: str = "") -> str:
    """Return the command that resolves a doubt, without what was found out. `after` is what follows the session in its key."""
    return f"holdfast sessions resolve {session} {shlex.quote(after)}{store_option}"


def unknown_error(
    session: str, after: str, entry: StepStarted | StepEnded, *, store_option: str = ""
) -> OutcomeUnknownError:
    """Return the error of a step that may have happened. `store_option` is what a command needs to find the store."""
    key = key_of(session, after)
    verb = resolve_command(session, after, store_option)
    message = (
        f"{call_text(entry)} was started and its end is not known, so it is not repeated. Find out whether it happened.\n"
        f"  If it did:  await session.resolve({key!r}, happened=True, result=…)\n"
        f"         or:  {verb} --happened --result JSON\n"
        f"  If not:     await session.resolve({key!r}, happened=False)\n"
        f"         or:  {verb} --not-happened\n"
        f"              The program runs it again when it calls it."
    )
    return OutcomeUnknownError(Fault.of("TOOL_OUTCOME_UNKNOWN", message, context={"key": key, "step": entry.step}))


def drift_error(
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


def check_not_repeated(
    session: str, turn: int, identity: Identity, name: str, steps: Mapping[str, StepStarted | StepEnded]
) -> None:
    """Raise SESS_STEP_DRIFT if a further call of an unsafe step only repeats one that somebody had to find something out about.

    A program that catches `OutcomeUnknownError`, resolves it and calls the step once more makes that call in every later run, too.
    There the first call returns the stored result already, and the second one would be another deployment.
    """
    if identity.key or is_within(identity):
        return
    for number in itertools.count(1):
        earlier = step_name(identity, number)
        known = None if earlier == name else steps.get(earlier)
        if known is None:
            return
        if known.doubted and may_have_happened(known):
            raise _repeated_error(key_of(session, suffix(turn, earlier)), session, known)


def _repeated_error(key: str, session: str, stored: StepStarted | StepEnded) -> HoldfastError:
    message = (
        f"{call_text(stored)} happened once, and somebody had to find that out. This run of the program has called it before, so this call would "
        f"make it happen twice. If it only reads the result after `resolve`: move it into the `except OutcomeUnknownError` block, since in "
        f"this run the first call has returned the result. If it must happen again: `session.keyed(…).step(…)`"
    )
    context = {"session_id": session, "step": stored.step, "key": key}
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


class Finding(NamedTuple):
    """What somebody found out about a step of unknown outcome."""

    happened: bool
    result: bytes
    """Its result as JSON; null if it did not happen."""
    by: str
    at: float

    @classmethod
    def of(cls, *, happened: bool, result: Any, by: str, at: float) -> Finding:
        return cls(happened, codec.encode_given(result if happened else None, "session.resolve"), by, at)

    def is_same(self, ended: StepEnded) -> bool:
        """Whether a stored resolution says the same. Who found it out, and when, does not matter."""
        return ended.ok is self.happened and bytes(ended.result) == self.result


IT_HAPPENED = "It happened"
"""A choice of the question whether a step of unknown outcome happened: it is not run again."""
IT_DID_NOT_HAPPEN = "It did not happen"
"""A choice of that question: the step is run again."""
I_DO_NOT_KNOW = "I do not know"
"""A choice of that question: the outcome stays unknown."""
OUTCOMES = {IT_HAPPENED: True, IT_DID_NOT_HAPPEN: False, I_DO_NOT_KNOW: None}
"""The choices of that question, in order, and what they mean."""


def questions_about(memory: SessionMemory, key: str) -> list[QuestionRaised]:
    """Return the open questions about a doubt. Their details name its whole key as `call`."""
    return [question for question in memory.pending() if question.payload.get("details", {}).get("call") == key]


def answers_to(memory: SessionMemory, key: str, *, happened: bool, result: bytes, by: str = "") -> tuple[Answered, ...]:
    """Return the answers that close the open questions about a doubt, once it is known what became of it."""
    return tuple(
        Answered(id=question.id, outcome="accepted", value=_answer_to(question, happened, result), by=by)
        for question in questions_about(memory, key)
    )


def _answer_to(question: QuestionRaised, happened: bool, result: bytes) -> str:  # noqa: FBT001 - what was found out
    if question.kind == "Select":
        return next(words for words, means in OUTCOMES.items() if means is happened)
    given = codec.readable(msgspec.json.decode(result))
    return given if isinstance(given, str) else "" if given is None else _text(given)


class Settlement(NamedTuple):
    """The parts of the commit that settles a doubt."""

    key: str
    """The whole key of the step."""
    ended: StepEnded
    record: NewAudit
    claim: Claim
    """The store takes one finding for a doubt, and rejects any other."""
    answers: tuple[Answered, ...] = ()
    """They close the questions about the doubt that nobody has answered."""


def settlement(memory: SessionMemory, session: str, key: str, finding: Finding) -> Settlement:
    """Return what settles a doubt.

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
    entry, whole = doubts[found[0]], key_of(session, found[0])
    # Keep the name and arguments of its start, so that the step is recognised when the program calls it again.
    ended = StepEnded(
        turn=entry.turn,
        step=entry.step,
        args=entry.args,
        ok=finding.happened,
        result=msgspec.Raw(finding.result),
        resolution=Resolution(by=finding.by, at=finding.at),
    )
    # The step may be in doubt again after it was resolved as not happened and has run again. That is another doubt.
    doubt = sha256(f"{found[0]} {entry.begun}".encode()).hexdigest()[:32]
    digest = sha256(b"%d %s" % (finding.happened, finding.result)).digest()
    record = audit("Approval", whole, step=entry.step, happened=finding.happened, by=finding.by)
    answers = answers_to(memory, whole, happened=finding.happened, result=finding.result, by=finding.by)
    return Settlement(whole, ended, record, Claim(client=_RESOLVER, id=doubt, body_hash=digest), answers)


def already_resolved(session: str, first: StepEnded, call: str) -> HoldfastError:
    """Return the error of a resolution that came second and differs; `call` is the step as a person knows it."""
    assert first.resolution is not None
    by, at = first.resolution.by, first.resolution.at
    when = datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    result = _text(codec.readable(msgspec.json.decode(first.result)))
    outcome = f"happened, with the result {_window(result, 0)}" if first.ok else "not happened"
    message = (
        f"{call} was already resolved as {outcome},{f' by {by}' if by else ''} at {when}. The first resolution counts"
    )
    context = {
        "session_id": session,
        "key": key_of(session, suffix(first.turn, first.step)),
        "happened": first.ok,
        "by": by,
        "at": when,
    }
    return HoldfastError(Fault.of("SESS_ALREADY_ANSWERED", message, context=context))


def anew(memory: SessionMemory, session: str, **facts: Any) -> tuple[StepsForgotten, NewAudit]:
    """Return the entry and the audit record that let the turn in flight begin anew.

    Unsafe steps that happened, or may have, are not forgotten.
    """
    gone = [name for name, entry in memory.steps.items() if not is_bound(entry)]
    record = audit("Turn", session, turn=memory.turn, event="retried", forgotten=len(gone), **facts)
    return StepsForgotten(turn=memory.turn, steps=gone, anew=True), record
