"""The history of a session, as a person reads it: its turns and steps, with times, attempts and results.

Invariant: it only reads. Results and inputs are cut and masked, because they are shown and passed on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from holdfast.once.identity import IN_DOUBT, KEPT, identity_of, key_of, short_name, suffix
from holdfast.once.records import StepEnded, StepStarted, is_doubtful
from holdfast.runtime.secrets import process_redactor
from holdfast.sessions import codec
from holdfast.sessions.journal import entries_of, memory_of
from holdfast.sessions.log import Answered, QuestionRaised, StepsForgotten, TurnEnded, TurnStarted, read_entry
from holdfast.stores.chain import session_chain
from holdfast.stores.redaction import Mask
from holdfast.stores.verification import records_of

if TYPE_CHECKING:
    from holdfast.once.records import EntryBody
    from holdfast.stores import AuditRecord, Entry, Store

__all__ = ["History", "QuestionHistory", "StepHistory", "StepState", "TurnHistory", "history_of"]

_CUT = 200
"""Characters of a result or an input that are shown."""

StepState: TypeAlias = Literal["done", "failed", "unknown", "forgotten"]
"""`forgotten`: somebody let its turn begin anew, or rejected its result. It runs again when it is called."""


class StepHistory(msgspec.Struct, kw_only=True):
    """One step of a session."""

    key: str
    """What `resolve` takes: the session's id and the step's name."""
    call: str
    """What was called, with the arguments if they were kept: `deploy("version 2")`."""
    state: StepState
    effect: str | None = None
    """The declared effect, if the log has it: only unsafe steps write a start."""
    runs: int = 0
    """How often the step was begun."""
    retries: int = 0
    """How many retries of `recover` there were inside of it."""
    offset: int | None = None
    """The place of its last entry in the log: `fork_session(…, at=offset)` includes the step. None if that part of the log was dropped."""
    began_at: float | None = None
    """Only for steps that write a start."""
    ended_at: float | None = None
    result: str = ""
    """The result, or the fault, cut and masked."""
    evidence: str = ""
    """What shows that an unsafe step that failed did not happen, such as `connection-refused` or `status-404`."""
    not_replayed: bool = False
    """Whether a later run of the program ended well without calling it, although it is unsafe: the code may have changed."""
    resolved: bool = False
    """Whether a person or a check settled what happened, after the outcome was unknown."""
    resolved_by: str = ""
    """Who settled it, if the log says so."""


class TurnHistory(msgspec.Struct, kw_only=True):
    """One turn of a session."""

    number: int
    input: str = ""
    first: int | None = None
    """The place of its start in the log. `fork_session(…, at=first - 1)` is the session before the turn."""
    last: int | None = None
    """The place of its end in the log."""
    began_at: float | None = None
    ended_at: float | None = None
    outcome: str = "in flight"
    reason: str = ""
    steps: list[StepHistory] = []


class QuestionHistory(msgspec.Struct, kw_only=True):
    """A question of a session, and how it was answered."""

    id: str
    turn: int
    prompt: str
    offset: int
    """The place of the question in the log."""
    raised_at: float
    outcome: str = "open"
    by: str = ""
    answered_at: float | None = None


class History(msgspec.Struct, kw_only=True):
    """What happened in a session, as far as its log goes back."""

    session: str
    outside: list[StepHistory] = []
    """The steps outside of turns."""
    turns: list[TurnHistory] = []
    questions: list[QuestionHistory] = []
    oldest: int = 1
    """The log begins with this entry. What was before it was dropped."""

    def steps(self) -> list[StepHistory]:
        """Return all steps."""
        return [*self.outside, *(step for turn in self.turns for step in turn.steps)]

    def in_doubt(self, key: str) -> Literal["", "known", "answered"]:
        """Return whether an agent's model has the result that the outcome of this step is unknown, and whether the model has answered since.

        Such a call does not run again, whatever a person finds out: the model acts on the result that it got.
        """
        keys = {step.key for step in self.steps()}
        if f"{key}{IN_DOUBT}" not in keys:
            return ""
        # The key of a call ends with the number of its request and its place: `…/1.0`. The next request is `…/2`.
        run, _, place = key.rpartition("/")
        number = place.partition(".")[0]
        return "answered" if number.isdigit() and f"{run}/{int(number) + 1}" in keys else "known"


async def history_of(store: Store, session: str) -> History:
    """Return the history of a session.

        history = await history_of(store, "release-42")
        print([step.call for step in history.steps() if step.state == "unknown"])

    Raise SESS_NOT_FOUND for an unknown session, and SESS_MANIFEST_DRIFT if its log is damaged.
    """
    record = await store.session(session)
    reader = _Reader(session, record.oldest)
    async for entry in entries_of(store, session, record.oldest - 1):
        body = read_entry(session, entry)
        if body is not None:
            reader.take(body, entry)
    memory = await memory_of(store, session)
    # Steps of a part of the log that was dropped are in the checkpoint only.
    for name, kept in memory.session_steps.items():
        reader.add(kept, name)
    open_ = memory.unknown()
    for after, step in reader.steps.items():
        step.state = "unknown" if after in open_ else "failed" if step.state == "unknown" else step.state
    async for sealed in records_of(store, session_chain(session)):
        reader.annotate(sealed)
    return reader.history


class _Reader:
    """Builds the history, entry by entry."""

    def __init__(self, session: str, oldest: int) -> None:
        self.history = History(session=session, oldest=oldest)
        self.steps: dict[str, StepHistory] = {}
        """By what follows the session in the step's key."""
        self._turns: dict[int, TurnHistory] = {}
        self._questions: dict[str, QuestionHistory] = {}
        self._mask = Mask(process_redactor())

    def take(self, body: EntryBody, entry: Entry) -> None:
        at = entry.at
        match body:
            case TurnStarted():
                turn = self._turn(body.turn)
                turn.first = entry.offset
                turn.began_at, turn.input = at, "" if body.input is None else self._text(body.input)
            case TurnEnded():
                turn = self._turn(body.turn)
                turn.last = entry.offset
                turn.ended_at, turn.outcome, turn.reason = at, body.outcome, body.reason
            case StepStarted():
                step = self._step(body)
                step.offset = entry.offset
                step.runs, step.began_at, step.ended_at = step.runs + 1, at, None
                step.effect, step.state, step.result, step.evidence = body.effect, "unknown", "", ""
            case StepEnded():
                self._ended(body, entry)
            case StepsForgotten():
                for name in body.steps:
                    if (forgotten := self.steps.get(suffix(body.turn, name))) is not None:
                        forgotten.state = "forgotten"
            case QuestionRaised():
                prompt = str(body.payload.get("prompt", ""))
                raised = QuestionHistory(id=body.id, turn=body.turn, prompt=prompt, offset=entry.offset, raised_at=at)
                self._questions[body.id] = raised
                self.history.questions.append(raised)
            case Answered() if (question := self._questions.get(body.id)) is not None:
                question.outcome, question.by, question.answered_at = body.outcome, body.by, at

    def add(self, kept: StepStarted | StepEnded, name: str) -> None:
        """Add a step that only the checkpoint knows."""
        # Steps of the first version have their turn's number before their name, as in their key.
        after = name if kept.turn else suffix(0, name)
        if after not in self.steps and suffix(kept.turn, kept.step) not in self.steps:
            if isinstance(kept, StepEnded):
                self._ended(kept, None)
            else:
                self._step(kept).state = "unknown"

    def annotate(self, record: AuditRecord) -> None:
        """Count retries, and note what people settled, from the audit chain."""
        step = self.steps.get(record.correlation.removeprefix(f"{self.history.session}/"))
        if step is None:
            return
        if record.kind == "Retry":
            step.retries += 1
        elif record.kind == "Integrity":
            step.not_replayed = True
        elif record.kind == "Approval":
            step.resolved = True

    def _ended(self, body: StepEnded, entry: Entry | None) -> None:
        known = self.steps.get(suffix(body.turn, body.step))
        if body.resolution is not None and known is not None and known.state != "unknown":
            # Somebody else was faster. The first resolution counts.
            return
        step = self._step(body)
        if body.resolution is not None:
            step.resolved, step.resolved_by = True, body.resolution.by
        step.ended_at, step.offset = (None, None) if entry is None else (entry.at, entry.offset)
        # A step that is safe to repeat writes no start, so its end is what shows that it ran.
        if step.effect is None:
            step.runs += 1
        step.state = "unknown" if is_doubtful(body) else "done" if body.ok else "failed"
        step.result, step.evidence = self._result(bytes(body.result), ok=body.ok), body.evidence

    def _turn(self, number: int) -> TurnHistory:
        if number not in self._turns:
            turn = self._turns[number] = TurnHistory(number=number, steps=[])
            self.history.turns.append(turn)
        return self._turns[number]

    def _step(self, entry: StepStarted | StepEnded) -> StepHistory:
        after = suffix(entry.turn, entry.step)
        if after not in self.steps:
            step = StepHistory(key=key_of(self.history.session, after), call=_call(entry), state="done")
            self.steps[after] = step
            (self._turn(entry.turn).steps if entry.turn else self.history.outside).append(step)
        return self.steps[after]

    def _result(self, stored: bytes, *, ok: bool) -> str:
        value = msgspec.json.decode(self._mask.json(stored))
        fault = value.get("fault") if not ok and isinstance(value, dict) else None
        if isinstance(fault, dict):
            return _cut(f"{fault.get('code', '')}: {fault.get('message', '')}")
        text = "" if value is None else _cut(msgspec.json.encode(codec.readable(value)).decode())
        # Version 1 masked results in the store, and so does an export. A resumed program gets the masks.
        return f"{text} (masked when it was stored)" if ok and codec.is_masked(stored) else text

    def _text(self, value: Any) -> str:
        if isinstance(value, str):
            return _cut(process_redactor().text(value))
        return _cut(self._mask.json(msgspec.json.encode(value)).decode())


def _call(entry: StepStarted | StepEnded) -> str:
    identity = identity_of(entry)
    name = short_name(identity) or entry.fn or entry.step
    if name == KEPT:
        name = f"agent: {identity.key.rpartition('/')[2]}"
    # The number of the use tells two calls with the same arguments apart.
    use = entry.step.rpartition("#")[2] if "#" in entry.step and not identity.key else ""
    return _cut(f"{name}{entry.shown}") + (f" (use {use})" if use not in ("", "1") else "")


def _cut(text: str) -> str:
    return text if len(text) <= _CUT else f"{text[: _CUT - 1]}…"
