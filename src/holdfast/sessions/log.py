"""The entries that a session writes into its log, and the memory that follows from them.

The context is stored as what changed in it (`difference`), never the whole again, so the log grows with what a turn adds.

Invariant: `SessionMemory.take` is the only reader. Applying the whole log gives the same memory as applying the entries after a
checkpoint to that checkpoint. `patched(old, difference(old, new))` equals `new`, with the same types.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

import msgspec

from holdfast.once.records import EntryBody, StepEnded, StepEntry, StepStarted, is_bound, is_doubtful
from holdfast.stores import Entry, NewEntry
from holdfast.stores.encryption import unreadable
from holdfast.stores.errors import damaged
from holdfast.stores.records import WorkStatus  # noqa: TC001 - msgspec reads it

__all__ = [
    "Answered",
    "Change",
    "ContextSaved",
    "Message",
    "QuestionRaised",
    "RunParked",
    "RunUnparked",
    "SessionMemory",
    "SignalTaken",
    "Signalled",
    "StateChanged",
    "StepAccepted",
    "StepsForgotten",
    "TimerSet",
    "TurnEnded",
    "TurnOutcome",
    "TurnStarted",
    "WorkNoted",
    "WorkSubmitted",
    "difference",
    "new_entry",
    "patched",
    "read_entry",
]


class StateChanged(EntryBody, frozen=True, tag="session_state"):
    """The session went from one state to another. The entry's type names the change, for example `session_active`."""

    state: str
    reason: str = ""


TurnOutcome: TypeAlias = Literal["ok", "failed", "cancelled", "abandoned"]


class TurnStarted(EntryBody, frozen=True, tag="turn_started"):
    """A turn began."""

    turn: int
    input: Any = None
    given: str = ""
    """The hash of the input, to compare inputs. Version 1 masked secrets in the stored input."""
    run: int = 0
    """The number of the first turn of the same run of the program. If the program is run from its start again, it repeats the turns
    from there on. Earlier versions did not write it."""
    key: str = ""
    """What the program calls the turn, as `once.identity.turn_key` stores it: it is done once per session."""
    again: bool = False
    """Whether the program says that it is meant anew, although an earlier turn had the same input."""
    request: str = ""
    """What the program worked on, as `holdfast.request` named it."""
    own: bool = False
    """Only in logs of version 1: a turn that held the steps outside of any `turn` block. They are the session's own steps now."""


class TurnEnded(EntryBody, frozen=True, tag="turn_ended"):
    """A turn ended."""

    turn: int
    outcome: TurnOutcome
    reason: str = ""


class QuestionRaised(EntryBody, frozen=True, tag="interaction_raised"):
    """A question waits for a person's answer."""

    id: str
    step: str
    """The question's name in its turn or session."""
    turn: int
    """The number of its turn; 0 for a question outside of any turn."""
    kind: str
    payload: dict[str, Any] = msgspec.field(default_factory=dict)
    args: str = ""
    """The hash of kind and payload. An answer is valid for exactly this question."""
    expires_at: float | None = None


class Answered(EntryBody, frozen=True, tag="interaction_answered"):
    """The answer to a question, as it is stored."""

    id: str
    """The question's id."""
    outcome: Literal["accepted", "rejected", "timeout", "dismissed"]
    value: Any = None
    reason: str = ""
    by: str = ""
    """Who answered."""


class Message(EntryBody, frozen=True, tag="message"):
    """A message of the conversation."""

    content: Any = None
    role: str = "user"
    id: str = ""
    """The id that the sender gave it; empty if it gave none."""
    client: str = ""
    """The sender."""


class ContextSaved(EntryBody, frozen=True, tag="context_saved"):
    """The application's values (`Session.context`) were saved. Only what changed is stored."""

    number: int
    """1, 2, 3 … in the session. A checkpoint may hold the effect of entries after it, and this shows which."""
    changes: list[Any]
    """See `Change`. The first entry of a session has the whole."""


class StepsForgotten(EntryBody, frozen=True, tag="steps_forgotten"):
    """Steps run again when they are called, because somebody wants their turn to begin anew, or rejects their results."""

    turn: int
    """The number of their turn; 0 for steps outside of any turn."""
    steps: list[str]
    anew: bool = False
    """Whether the whole turn begins anew: its questions are asked again, and the context is what it was before the turn."""


class StepAccepted(EntryBody, frozen=True, tag="step_accepted"):
    """A stored step stands for calls of its function with other arguments, too."""

    turn: int
    step: str
    again: bool = False
    """Whether it says the opposite about an equal call: that one is meant anew."""


class RunParked(EntryBody, frozen=True, tag="run_parked"):
    """A run waits: an agent for the end of a usage limit, or other work for its next attempt."""

    agent: str
    """The agent, or the key of the work."""
    until: float
    """Wall clock."""
    turn: int = 0
    """The number of the turn in flight; 0 if there is none."""
    code: str = ""
    """The code of the failure."""
    reason: str = ""
    """Its message, masked."""
    program: str = ""
    """What any process can run that knows it, such as `workflow review`; empty: only the program of the session can go on."""
    given: Any = None
    """What that is run with."""


class RunUnparked(EntryBody, frozen=True, tag="run_unparked"):
    """A run goes on: its time has come, or somebody says so."""

    agent: str
    by: str = ""
    """Who ended it; empty if the time was over."""


class TimerSet(EntryBody, frozen=True, tag="timer_set"):
    """The program waits until a time, or for a signal until then."""

    key: str
    """The key of the wait, of `Session.numbered`."""
    until: float
    """Wall clock."""


class Signalled(EntryBody, frozen=True, tag="signal"):
    """Somebody told the program something: `holdfast.sessions.signal`."""

    name: str
    id: str
    value: Any = None
    by: str = ""


class SignalTaken(EntryBody, frozen=True, tag="signal_taken"):
    """A wait of the program has ended, with a signal or because its time was over."""

    key: str
    """As in `TimerSet`."""
    name: str
    id: str = ""
    """The id of the signal; empty: the time was over."""
    value: Any = None


class WorkSubmitted(EntryBody, frozen=True, tag="work_submitted"):
    """The session is a work item: workers run this program in it."""

    program: str
    inputs: Any = None
    """Its arguments as JSON values, by name."""
    version: str = ""
    key: str = ""
    """What the submitter called it."""
    tenant: str = ""


class WorkNoted(EntryBody, frozen=True, tag="work_noted"):
    """What has become of the work item."""

    status: WorkStatus
    value: Any = None
    """What the program returned, as JSON."""
    fault: Any = None
    """Why its last attempt failed, as JSON."""
    by: str = ""
    """Who changed it; empty: its worker."""


_Known: TypeAlias = (
    TurnStarted
    | TurnEnded
    | StepStarted
    | StepEnded
    | StepAccepted
    | StepsForgotten
    | QuestionRaised
    | Answered
    | Message
    | ContextSaved
    | RunParked
    | RunUnparked
    | TimerSet
    | Signalled
    | SignalTaken
    | WorkSubmitted
    | WorkNoted
)
_READ = msgspec.json.Decoder(_Known)
_TYPES = frozenset(kind.__struct_config__.tag for kind in get_args(_Known))


def read_entry(session: str, entry: Entry) -> EntryBody | None:
    """Return the body of an entry, or None if it is of a type that sessions do not read.

    Raise SESS_MANIFEST_DRIFT for an entry that cannot be decoded, and SESS_KEY_WRONG for one that the store has no key for.
    """
    if entry.type not in _TYPES:
        return None
    try:
        body: EntryBody = _READ.decode(entry.body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise unreadable(session, f"entry {entry.offset} ({entry.type})", entry.body, error) from error
    return body


_ENCODER = msgspec.json.Encoder()


def new_entry(body: EntryBody, id_: str, type_: str | None = None) -> NewEntry:
    """Return an entry to append, of the body's own type or of `type_`."""
    return NewEntry(type=type_ or str(body.__struct_config__.tag), body=_ENCODER.encode(body), id=id_)


_NONE: dict[str, Any] = {}
"""What every empty field of a memory is. It is never changed: a process may hold many thousands of idle sessions."""
_NO_NAMES: list[str] = []


class CutTurn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A turn with a key that has not ended well. It goes on when the program comes to it again."""

    turn: int
    steps: dict[str, StepStarted | StepEnded]
    questions: dict[str, QuestionRaised] = msgspec.field(default_factory=dict)
    answers: dict[str, Answered] = msgspec.field(default_factory=dict)

    def bound(self) -> CutTurn:
        """Return only what must not happen twice."""
        return CutTurn(turn=self.turn, steps={name: entry for name, entry in self.steps.items() if is_bound(entry)})


_CUT_TURNS = 16
"""How many turns with a key that did not end well are kept whole."""


class SessionMemory(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a session knows from its log. A checkpoint stores all of it."""

    version: int = 1
    """The version of the snapshot. Snapshots of version 1 lack the steps outside of turns: `read_memory` finds them in the log."""
    turn: int = 0
    """The number of the last turn."""
    in_flight: bool = False
    """Whether that turn is still in flight."""
    input: Any = None
    """The turn's input."""
    given: str = ""
    """The hash of the input."""
    run: int = 0
    """The number of the first turn of the run of the program that began that turn; 0 if it is not known."""
    key: str = ""
    """The key of that turn."""
    again: bool = False
    """Whether it is meant anew, although an earlier turn had the same input."""
    request: str = ""
    """What the program worked on when that turn began."""
    last: int = 0
    """The highest number of a turn. A turn with a key that goes on has an earlier number."""
    keyed: dict[str, int] = msgspec.field(default_factory=dict)
    """The turns with a key that have ended well: their numbers, by key."""
    cut: dict[str, CutTurn] = msgspec.field(default_factory=dict)
    """The turns with a key that have ended otherwise, by key."""
    ended: str = ""
    """How that turn has ended: the reason, or the outcome if there is none; empty while it is in flight."""
    own: bool = False
    """Whether that turn is one of version 1 that held the steps outside of turns. It is never in flight."""
    steps: dict[str, StepStarted | StepEnded] = msgspec.field(default_factory=dict)
    """The last entry of each step of the turn in flight, by the step's name."""
    questions: dict[str, QuestionRaised] = msgspec.field(default_factory=dict, name="asked")
    """The questions of the turn in flight, by name. Checkpoints store them as `asked`."""
    session_steps: dict[str, StepStarted | StepEnded] = msgspec.field(default_factory=dict)
    """The last entry of each step outside of turns, by name. Steps of version 1 have their turn's number before the name: `3/pay#1`."""
    session_questions: dict[str, QuestionRaised] = msgspec.field(default_factory=dict)
    """The questions outside of turns, by name."""
    answers: dict[str, Answered] = msgspec.field(default_factory=dict)
    """The answers, by the question's id."""
    doubts: dict[str, StepStarted | StepEnded] = msgspec.field(default_factory=dict)
    """Steps of turns that have ended which may have happened, by turn and name: `2/pay@…`. They wait until somebody resolves them."""
    settled: dict[str, StepEnded] = msgspec.field(default_factory=dict)
    """Doubts that were resolved as happened after their turn had ended. The next call of the same step takes the result."""
    message_count: int = 0
    last_message_id: str | None = None
    context: Any = None
    """`Session.context` as it was saved last, as JSON values."""
    saves: int = 0
    """How often it was saved."""
    context_before: Any = None
    """What the context was before the turn in flight saved its own, in a list. If the turn fails, it is the context again."""
    accepted: list[str] = msgspec.field(default_factory=list)
    """Steps that stand for calls with other arguments, too, by what follows the session in their key."""
    anew: list[str] = msgspec.field(default_factory=list)
    """Steps after which an equal call is meant anew, as in `accepted`."""
    parked: dict[str, RunParked] = msgspec.field(default_factory=dict)
    """The runs that wait until a time, by agent or key."""
    timers: dict[str, float] = msgspec.field(default_factory=dict)
    """When the waits of the program end, by key."""
    signals: dict[str, list[Signalled]] = msgspec.field(default_factory=dict)
    """What nobody has waited for yet, by name, in order."""
    taken: dict[str, SignalTaken] = msgspec.field(default_factory=dict)
    """How the waits for signals ended, by key."""
    submitted: WorkSubmitted | None = None
    noted: WorkNoted | None = None

    def __post_init__(self) -> None:
        self._share_empty()

    def _share_empty(self) -> None:
        for name in _DICTS:
            if not getattr(self, name):
                setattr(self, name, _NONE)
        if not self.accepted:
            self.accepted = _NO_NAMES
        if not self.anew:
            self.anew = _NO_NAMES

    def _own(self, name: str) -> dict[str, Any]:
        """Return a field that is about to be changed."""
        kept: dict[str, Any] = getattr(self, name)
        if kept is _NONE:
            kept = {}
            setattr(self, name, kept)
        return kept

    def take(self, session: str, entry: Entry) -> None:
        """Apply the next entry of the log. Entries of other types belong to other readers and are skipped."""
        body = read_entry(session, entry)
        if body is None:
            return
        try:
            self.apply(body, entry.id)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise damaged(session, f"its entry {entry.offset} ({entry.type}) does not fit those before it") from error

    def steps_of(self, turn: int) -> dict[str, StepStarted | StepEnded]:
        """Return the steps of the turn in flight, or with 0 the steps outside of turns."""
        return self.steps if turn else self.session_steps

    def questions_of(self, turn: int) -> dict[str, QuestionRaised]:
        """Return the questions of the turn in flight, or with 0 the questions outside of turns."""
        return self.questions if turn else self.session_questions

    def is_open(self, turn: int) -> bool:
        """Whether steps of this turn may be written: it is in flight, or it is 0."""
        return turn == 0 or (self.in_flight and self.turn == turn)

    def pending(self) -> list[QuestionRaised]:
        """Return the questions without an answer."""
        raised = [*self.session_questions.values(), *self.questions.values()]
        return [question for question in raised if question.id not in self.answers]

    def unknown(self) -> dict[str, StepStarted | StepEnded]:
        """Return the steps that may have happened and must not be repeated automatically.

        Their names are what follows the session in their key: `deploy@…` outside of turns, `2/deploy@…` in turn 2.
        """
        found = {name: entry for name, entry in self.session_steps.items() if is_doubtful(entry)}
        found |= self.doubts
        found |= {f"{self.turn}/{name}": entry for name, entry in self.steps.items() if is_doubtful(entry)}
        return found

    def apply(self, body: EntryBody, id_: str) -> None:
        """Apply the body of an entry with this id."""
        match body:
            # Most entries are of steps.
            case StepEnded() | StepStarted():
                self._apply_step(body, id_)
            case TurnStarted():
                self.key = ""
                self._end_turn()
                self.turn, self.in_flight, self.own = body.turn, not body.own, body.own
                self.input, self.given, self.run, self.ended = body.input, body.given, body.run, ""
                self.key, self.again, self.last = body.key, body.again, max(self.last, body.turn)
                self.request = body.request
                self._go_on(self.cut.get(body.key))
            case TurnEnded(outcome=outcome, reason=reason):
                self._end_turn(outcome)
                self.ended = reason or outcome
            case QuestionRaised():
                self._apply_question(body)
            case Answered(id=question):
                # The first answer counts. The store's claim rejects a second answer.
                self._own("answers").setdefault(question, body)
            case Message():
                self.message_count += 1
                # The sender knows the message by its own id, and asks for what came after that.
                self.last_message_id = body.id or id_
            case ContextSaved():
                self._save_context(body)
            case _:
                self._apply_choice(body)

    def _apply_question(self, body: QuestionRaised) -> None:
        if self.own and body.turn == self.turn:
            self._own("session_questions")[body.step] = body
        elif self.is_open(body.turn):
            # An entry that was written after its turn had ended must not count as part of the next turn.
            self._own("questions" if body.turn else "session_questions")[body.step] = body

    def _apply_choice(self, body: EntryBody) -> None:
        """Apply what somebody chose to do about stored steps, and which runs wait."""
        match body:
            case StepsForgotten(turn=turn) if self.is_open(turn):
                self._forget(body)
            case StepAccepted(turn=turn, step=step, again=again):
                after = f"{turn}/{step}" if turn else step
                if again:
                    self.anew = [*self.anew, after]
                else:
                    self.accepted = [*self.accepted, after]
            case RunParked(agent=agent):
                self.parked = {**self.parked, agent: body}
            case RunUnparked(agent=agent):
                self.parked = {name: run for name, run in self.parked.items() if name != agent}
            case _:
                self._apply_work(body)

    def _apply_work(self, body: EntryBody) -> None:
        """Apply what the program of a work item waits for, and what has become of it."""
        match body:
            case TimerSet(key=key, until=until):
                self.timers = {**self.timers, key: until}
            case Signalled(name=name, id=id_):
                # A checkpoint holds the effect of the entries of its own commit, which come again when the log is read.
                waiting = self.signals.get(name, [])
                if not any(one.id == id_ for one in waiting):
                    self.signals = {**self.signals, name: [*waiting, body]}
            case SignalTaken(key=key, name=name, id=id_):
                self.taken = {**self.taken, key: body}
                self.timers = {other: until for other, until in self.timers.items() if other != key}
                left = [one for one in self.signals.get(name, []) if one.id != id_]
                self.signals = {
                    **{n: w for n, w in self.signals.items() if n != name},
                    **({name: left} if left else {}),
                }
            case WorkSubmitted():
                self.submitted = body
            case WorkNoted():
                self.noted = body
            case _:
                pass

    def _save_context(self, body: ContextSaved) -> None:
        # A checkpoint holds the effect of the entries of its own commit, which come again when the log is read.
        if body.number <= self.saves:
            return
        if self.in_flight and self.context_before is None:
            self.context_before = [self.context]
        self.context, self.saves = patched(self.context, body.changes), body.number

    def _drop_context(self) -> None:
        if self.context_before is not None:
            self.context, self.context_before = self.context_before[0], None

    def _forget(self, body: StepsForgotten) -> None:
        gone = set(body.steps)
        kept = {name: entry for name, entry in self.steps_of(body.turn).items() if name not in gone}
        if body.turn:
            self.steps = kept
        else:
            self.session_steps = kept
        if body.anew:
            self.questions = {}
            self._drop_context()

    def _end_turn(self, outcome: TurnOutcome = "ok") -> None:
        # A turn that did not end well leaves nothing in the context.
        if outcome != "ok":
            self._drop_context()
        self.context_before = None
        self._keep_keyed(outcome)
        # Nobody has found out about these yet, and the end of the turn does not change that.
        doubts = {f"{self.turn}/{name}": entry for name, entry in self.steps.items() if is_doubtful(entry)}
        # Make new dicts instead of changing them: a checkpoint that is being written has a shallow copy with the old dicts.
        self.doubts = self.doubts | doubts
        self.in_flight, self.input, self.given, self.run, self.own = False, None, "", 0, False
        self.key, self.again = "", False
        kept = {raised.id for raised in self.session_questions.values()}
        self.answers = {question: answer for question, answer in self.answers.items() if question in kept}
        self.steps = self.questions = _NONE
        self._share_empty()

    def _keep_keyed(self, outcome: TurnOutcome) -> None:
        """Remember how a turn with a key has ended, and what it has done if it may go on."""
        if not self.key or not self.in_flight:
            return
        if outcome == "ok":
            self.keyed = {**self.keyed, self.key: self.turn}
            return
        ids = {raised.id for raised in self.questions.values()}
        answers = {question: answer for question, answer in self.answers.items() if question in ids}
        cut = CutTurn(turn=self.turn, steps=self.steps, questions=self.questions, answers=answers)
        # What was given up is not used again, except what must not happen twice. And most failed turns never come again.
        kept = list(self.cut.items())
        older = {key: turn.bound() for key, turn in kept[:-_CUT_TURNS]} | dict(kept[-_CUT_TURNS:])
        self.cut = {**older, self.key: cut.bound() if outcome == "abandoned" else cut}

    def _go_on(self, cut: CutTurn | None) -> None:
        """A turn with a key goes on with what it has done."""
        if cut is None:
            return
        self.cut = {key: kept for key, kept in self.cut.items() if kept is not cut}
        self.questions, self.answers = cut.questions, {**self.answers, **cut.answers}
        doubts, settled = dict(self.doubts), dict(self.settled)
        for name, entry in cut.steps.items():
            after = f"{cut.turn}/{name}"
            if is_doubtful(entry):
                # Somebody may have found out about it meanwhile. What did not happen is simply not there.
                found = doubts.pop(after, None) or settled.pop(after, None)
                if found is None:
                    continue
                entry = found  # noqa: PLW2901 - the newer one
            self._own("steps")[name] = entry
        self.doubts, self.settled = doubts, settled
        self._share_empty()

    def _apply_step(self, body: StepStarted | StepEnded, id_: str) -> None:
        turn, name = body.turn, body.step
        old = f"{turn}/{name}"
        if (self.own and turn == self.turn) or old in self.session_steps:
            # A step outside of turns, as version 1 wrote it.
            _put(self._own("session_steps"), old, body, id_)
        elif self.is_open(turn):
            _put(self._own("steps" if turn else "session_steps"), name, body, id_)
            if isinstance(body, StepEnded) and body.settles in self.settled:
                self.settled = {key: kept for key, kept in self.settled.items() if key != body.settles}
        elif old in self.doubts and isinstance(body, StepEnded) and not body.unknown:
            # Somebody resolved it after its turn had ended.
            if body.ok:
                self.settled = {**self.settled, old: body}
            self.doubts = {key: kept for key, kept in self.doubts.items() if key != old}


_DICTS = (
    "steps",
    "questions",
    "session_steps",
    "session_questions",
    "answers",
    "doubts",
    "settled",
    "parked",
    "keyed",
    "cut",
    "timers",
    "signals",
    "taken",
)


def _put(steps: dict[str, StepEntry], name: str, body: StepEntry, id_: str) -> None:
    """Keep the last entry about a step, with what only its start says: its function and its arguments as text."""
    before = steps.get(name)
    doubted = before is not None and before.doubted
    if isinstance(body, StepStarted):
        steps[name] = msgspec.structs.replace(body, begun=id_, doubted=doubted) if is_doubtful(body) else body
        return
    if body.resolution is not None and (before is None or not is_doubtful(before)):
        # The program itself, or somebody else, was faster to find out. The first one counts.
        return
    if before is not None and (before.fn or before.shown or before.effect):
        # It is in doubt anew if the result that somebody gave did not fit.
        begun = (before.begun or id_) if body.unknown else ""
        doubted = doubted or body.late or body.resolution is not None
        body = msgspec.structs.replace(
            body,
            fn=before.fn,
            place=before.place,
            task=before.task,
            shown=before.shown,
            effect=before.effect,
            key=before.key,
            around=before.around,
            begun=begun,
            doubted=doubted,
        )
    steps[name] = body


# --- what changed in the context ---

Change: TypeAlias = list[Any]
"""A path, and what happens there: `[path, value]` sets a value, `[path]` removes a name of a table, and
`[path, start, count, part]` replaces a part of a list or text."""

_DEEPEST = 32
"""How deep two values are compared. Deeper parts are stored as a whole if they differ."""


def difference(old: Any, new: Any) -> list[Change]:
    """Return the changes that make `old` into `new`."""
    changes: list[Change] = []
    _compare(old, new, [], changes)
    return changes


def _compare(old: Any, new: Any, path: list[str | int], changes: list[Change]) -> None:
    if isinstance(old, dict) and isinstance(new, dict) and len(path) < _DEEPEST:
        changes += [[[*path, name]] for name in old if name not in new]
        for name, value in new.items():
            if name in old:
                _compare(old[name], value, [*path, name], changes)
            else:
                changes.append([[*path, name], value])
    elif isinstance(old, list) and isinstance(new, list) and len(path) < _DEEPEST:
        _compare_lists(old, new, path, changes)
    elif isinstance(old, str) and isinstance(new, str):
        _compare_texts(old, new, path, changes)
    elif not _is_same(old, new):
        changes.append([path, new])


def _compare_lists(old: list[Any], new: list[Any], path: list[str | int], changes: list[Change]) -> None:
    shorter = min(len(old), len(new))
    start = next((n for n in range(shorter) if not _is_same(old[n], new[n])), shorter)
    end = next((n for n in range(shorter - start) if not _is_same(old[-1 - n], new[-1 - n])), shorter - start)
    count, part = len(old) - start - end, new[start : len(new) - end]
    if count == len(part) == 1:
        _compare(old[start], part[0], [*path, start], changes)
    elif count or part:
        changes.append([path, start, count, part])


def _compare_texts(old: str, new: str, path: list[str | int], changes: list[Change]) -> None:
    if old == new:
        return
    # Text mostly grows at its end. A search for other differences would cost more than it saves.
    if old and new.startswith(old):
        changes.append([path, len(old), 0, new[len(old) :]])
    else:
        changes.append([path, new])


def _is_same(old: Any, new: Any) -> bool:
    """Whether two values have the same JSON. Python's `==` finds 1, 1.0 and True equal."""
    return bool(old == new) and msgspec.json.encode(old) == msgspec.json.encode(new)


def patched(old: Any, changes: list[Change]) -> Any:
    """Return the value with the changes applied. Raise ValueError, TypeError, LookupError for changes that do not fit it."""
    for path, *change in changes:
        old = _changed(old, path, change)
    return old


def _changed(value: Any, path: list[str | int], change: list[Any]) -> Any:
    if not path:
        return _spliced(value, change)
    name, *rest = path
    copied = value.copy()
    if not rest and not change:
        del copied[name]
    elif not rest and len(change) == 1:
        copied[name] = change[0]
    else:
        copied[name] = _changed(value[name], rest, change)
    return copied


def _spliced(value: Any, change: list[Any]) -> Any:
    if len(change) == 1:
        return change[0]
    start, count, part = change
    return value[:start] + part + value[start + count :]
