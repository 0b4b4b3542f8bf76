"""The text of an event for people: one line per event, and one line that sums an operation up.

    claude: attempt 1 of 3 failed (PROVIDER_OVERLOADED, 529); next attempt in 1.2 s
    claude recovered after 3 attempts in 3.2 s (PROVIDER_OVERLOADED ×2)

Invariant: a line holds names, codes, counts and times. It never holds the text of a failure, which may quote a prompt
or a key. One exception: the line of a child that crashed holds the beginning of the masked text that the program's own code raised.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from holdfast import options
from holdfast.events import records
from holdfast.events.observed import ObservedTotals
from holdfast.events.tracker import Tracker
from holdfast.faults import InvalidError

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.faults import AnyCode, Fault

__all__ = ["WAITS_FOR", "Levels", "LogLines"]

# The numbers of `logging`, which this room does not import.
_DEBUG, _INFO, _WARNING = 10, 20, 30

WAITS_FOR = {"CIRCUIT_OPEN": "an open circuit", "SYS_RATE_LIMITED": "its turn"}
"""What a call waits for that was rejected before it was made."""


class Levels(options.Options, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """The level of each kind of line, as `logging` numbers them. `None` leaves the line out.

    `log_events(levels=Levels(step=logging.INFO, circuit_changed=None))`. A value that is not a level raises `InvalidError`.
    """

    recovered: int | None = _INFO
    """An operation failed at first and then worked; an actor goes on after a message that failed."""
    failed: int | None = _WARNING
    """An operation was given up."""
    failed_inside: int | None = _DEBUG
    """An operation was given up inside another one, which retries, falls back, or reports the failure itself."""
    degraded: int | None = _WARNING
    """A lesser answer was given."""
    circuit_opened: int | None = _WARNING
    """A circuit opened."""
    circuit_changed: int | None = _INFO
    """A circuit closed, or lets a probe through."""
    warned: int | None = _WARNING
    """A budget is nearly spent; a failure was ignored on purpose."""
    restarted: int | None = _WARNING
    """A supervisor restarts a child."""
    step: int | None = _DEBUG
    """A retry, a repair, a fallback, a cancellation, a command, a stream that was resumed."""
    observed: int | None = _INFO
    """Observe mode: what recovery would have done, summed up once a minute."""
    attempt: int | None = _DEBUG
    """A call begins or ends. Even a call without failures has these."""

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            level = getattr(self, field)
            # True is an int in Python, and would silently mean level 1.
            if level is not None and (not isinstance(level, int) or isinstance(level, bool) or level < 0):
                raise InvalidError.at(f"levels.{field}", "a level of `logging` such as logging.INFO, or None", level)


_ENDED_BY = {
    "budget": "the budget is spent",
    "quota": "retries have used their share of the traffic",
    "retry-after": "the other side requests a longer wait than the policy accepts",
}
"""What ended an operation although its failure may pass: a limit of ours, which the code does not show."""

_NAMED_BY_CLASS = frozenset({"SYS_UNKNOWN", "SYS_PROGRAMMING_ERROR"})
"""Codes that stand for any exception: the class says more."""
_SHOWN_SPREAD_S = 0.05

_MINUTE_S = 60.0
_CENT = 0.01
_LONGEST_TEXT = 200
"""How many characters of the text of a crash are shown."""


_DIVERTS = "fallback"
"""The rule by which a target that fails leaves its calls to their fallbacks. Its end is as important as its beginning."""


class _Failures:
    """What failed so far in an operation that may still recover."""

    __slots__ = ("codes", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.codes: Counter[AnyCode] = Counter()


class _Outage:
    """The lines of a target that fails."""

    __slots__ = ("latest", "left_out", "shown", "written")

    def __init__(self) -> None:
        self.shown = 0
        """Lines written so far."""
        self.left_out = 0
        """Lines left out since the last one that was written."""
        self.written = 0.0
        self.latest = 0.0
        """When the last failure was reported, written or not. After a minute without one the outage is over."""


_REPEATED = (
    records.Retry,
    records.RetryDenied,
    records.Fallback,
    records.AgentFallback,
    records.Failed,
    records.Degraded,
    records.CircuitStateChange,
    records.MessageDropped,
)
"""What an outage, or the end of an actor with a full mailbox, reports again and again."""
_FIRST_LINES = 8
_QUIET_S = 60.0


class LogLines:
    """Writes the line of each event. It remembers the failures of an operation until the operation ends.

    With `brief`, a target that goes on failing has a line a minute. `levels` that are not a `Levels` raise `InvalidError`.

    Every event must be passed in, whether its line is shown or not: a summary is made of the events before it.
    """

    @options.suggests
    def __init__(self, levels: Levels | None = None, *, brief: bool = False) -> None:
        if levels is not None and not isinstance(levels, Levels):
            raise InvalidError.at("levels", "a Levels", levels)
        self.levels = levels = levels or Levels()
        self._failures: Tracker[_Failures] = Tracker()
        self._outages: Tracker[_Outage] | None = Tracker() if brief else None
        """What was left out of each target. None: nothing is left out."""
        self._totals: ObservedTotals | None = None
        self._writers = self._written_by(levels)

    def _written_by(self, levels: Levels) -> dict[type[records.Event], tuple[int | None, Callable[..., str]]]:
        """Return the level of each kind of event, and what writes its line."""
        return {
            records.Recovered: (levels.recovered, self._recovered),
            records.Failed: (levels.failed, self._failed),
            records.Degraded: (levels.degraded, self._degraded),
            records.Cancelled: (levels.step, self._cancelled),
            records.Commanded: (levels.step, _commanded),
            records.Retry: (levels.step, self._retry),
            records.Repaired: (levels.step, self._repaired),
            records.RetryDenied: (levels.step, _denied),
            records.Fallback: (levels.step, self._fallback),
            records.AgentFallback: (levels.step, self._fallback),
            records.StreamResumed: (levels.step, _resumed),
            records.AttemptStarted: (levels.attempt, _attempt_started),
            records.AttemptEnded: (levels.attempt, _attempt_ended),
            records.WaitBegan: (levels.attempt, _waiting),
            records.CircuitStateChange: (levels.circuit_changed, _circuit),
            records.BudgetWarning: (levels.warned, _budget),
            records.SuppressedError: (levels.warned, _suppressed),
            records.MailboxPressure: (levels.warned, _mailbox),
            records.MessageDropped: (levels.warned, _dropped),
            records.ActorResumed: (levels.recovered, _actor_resumed),
            records.ChildStarted: (levels.attempt, _child_started),
            records.ChildExited: (levels.step, _child_exited),
            records.ChildRestarting: (levels.restarted, _child_restarting),
            records.ChildStopped: (levels.attempt, _child_stopped),
            records.ChildLeaked: (levels.warned, _child_leaked),
            records.GaveUp: (levels.failed, _gave_up),
            records.MCPServerDisconnected: (levels.warned, _server_disconnected),
            records.MCPReconnectAttempt: (levels.step, _server_attempt),
            records.MCPServerReconnected: (levels.recovered, _server_reconnected),
            records.SharedStateLost: (levels.warned, _shared_lost),
            records.SharedStateBack: (levels.recovered, _shared_back),
            records.UserNotified: (levels.failed, _notified),
            records.OperatorAsked: (levels.failed, _asked),
            records.SessionTurnStart: (levels.attempt, _turn_started),
            records.SessionTurnEnd: (levels.attempt, _turn_ended),
            **dict.fromkeys(
                (records.SessionActive, records.SessionPersisted, records.SessionResumed, records.SessionClosed),
                (levels.attempt, _lifecycle),
            ),
            records.StepNotReplayed: (levels.warned, _not_replayed),
            records.StagePreFired: (levels.attempt, _phase_entered),
            records.StagePostFired: (levels.attempt, _phase_left),
            records.TaskStarted: (levels.attempt, _task_started),
            records.TaskStateChange: (levels.attempt, _task_changed),
            records.TaskOutputRejected: (levels.step, _output_rejected),
            records.TaskDecomposed: (levels.step, _decomposed),
            records.SubtaskFailed: (levels.step, _subtask_failed),
            records.TaskHalted: (levels.warned, _halted),
            records.TaskFinished: (levels.attempt, _task_finished),
            records.HookEvent: (levels.attempt, _hook),
            records.Observed: (levels.observed, self._observed),
        }

    def of(self, event: records.Event) -> tuple[int | None, str]:
        """Return the event's level and line."""
        level, line = self._writers[type(event)]
        # One kind of event, two levels: only an opened circuit needs attention.
        if isinstance(event, records.CircuitStateChange) and (
            event.to is records.CircuitState.OPEN or event.rule == _DIVERTS
        ):
            level = self.levels.circuit_opened
        if isinstance(event, records.HookEvent) and event.what in ("failed", "corrected", "error"):
            level = self.levels.step
        # The operation around it retries, falls back, or reports the failure itself: nobody has to act yet.
        if isinstance(event, records.Failed) and event.within:
            level = self.levels.failed_inside
        text = line(event)
        level = level if text else None
        if self._outages is not None and level is not None and isinstance(event, _REPEATED):
            return self._once(self._outages, event, level, text)
        return level, text

    def _once(self, outages: Tracker[_Outage], event: records.Event, level: int, text: str) -> tuple[int | None, str]:
        """Return the line of a failure, or no level if its target has had enough lines for this minute.

        An hour of an outage with 20 callers had 1,432 warnings. Now each target has its first ones, and then one a minute, which
        says how many were left out. Its beginning and its end are never left out.
        """
        if isinstance(event, records.CircuitStateChange):
            if event.rule == _DIVERTS or records.CircuitState.CLOSED in {event.from_, event.to}:
                return level, text
            name = event.circuit.removeprefix("provider:")
        else:
            name = event.actor if isinstance(event, records.MessageDropped) else _name(event)
        outage = outages.get(name)
        if outage is None or event.at - outage.latest > _QUIET_S:
            outage = _Outage()
            outages.put(name, outage)
        outage.latest = event.at
        if isinstance(event, records.CircuitStateChange) and event.to is records.CircuitState.HALF_OPEN:
            # No warning: it must not stand in the place of the one that sums them up.
            return (None if outage.shown >= _FIRST_LINES else level), text
        if outage.shown >= _FIRST_LINES and event.at - outage.written < _QUIET_S:
            outage.left_out += 1
            return None, text
        more, outage.left_out = outage.left_out, 0
        outage.shown, outage.written = outage.shown + 1, event.at
        return level, f"{text} ({more} more warnings since the last line)" if more else text

    def _observed(self, event: records.Observed) -> str:
        """Return the sum of the last minute when it is over; empty before."""
        totals = self._totals
        if totals is None:
            totals = self._totals = ObservedTotals()
        totals.add(event)
        # The wall clock may be set back.
        if 0 <= event.at - totals.since < _MINUTE_S:
            return ""
        self._totals = None
        return f"observe mode, {totals.seconds:.0f} s: {totals.brief}"

    def _retry(self, event: records.Retry) -> str:
        self._remember(event, event.fault.code)
        code = _code(event.fault)
        hint = _requested(event)
        of = "" if event.max_attempts is None else f" of {event.max_attempts}"
        left = f", {event.left:.0f} s left" if event.max_attempts is None and event.left is not None else ""
        if event.fault.code in WAITS_FOR:
            # No attempt was made, so none has failed.
            return f"{_name(event)} waits {event.delay:.1f} s for {WAITS_FOR[event.fault.code]} ({code}){left}"
        return (
            f"{_name(event)}: attempt {event.attempt}{of} failed ({code}); "
            f"next attempt in {event.delay:.1f} s{hint}{left}{_weighed(event.why)}"
        )

    def _repaired(self, event: records.Repaired) -> str:
        self._remember(event, event.fault.code)
        return f"{_name(event)} retries after {event.action}{_because_of(event.fault)}"

    def _fallback(self, event: records.Fallback | records.AgentFallback) -> str:
        if event.fault is not None:
            self._remember(event, event.fault.code)
        because = f"{'' if event.fault is None else _because(_code(event.fault))}{_weighed(event.why)}"
        who = getattr(event, "failed", "") or event.from_
        return f"{_name(event)} falls back from {who} to {event.to}{because}"

    def _recovered(self, event: records.Recovered) -> str:
        failures = self._failures.take(event.run)
        via = "" if event.via == "primary" else f" via {event.via}"
        # As in the line of a failure: the time of all attempts, not only of those after the first failure.
        took = event.after if event.took is None else event.took
        return f"{_name(event)} recovered{via} after {_calls(event.attempts)} in {took:.1f} s{_counted(failures)}"

    def _failed(self, event: records.Failed) -> str:
        failures = self._failures.take(event.run)
        fault = event.fault
        # Without attempts (an open circuit) the first failure is the earliest time known.
        since = fault.attempts[0].started if fault.attempts else None if failures is None else failures.since
        # The wall clock may be set back between the two readings.
        took = "" if since is None else f" in {max(0.0, event.at - since):.1f} s"
        because = f": {_ENDED_BY[event.reason]}" if event.reason in _ENDED_BY else ""
        # The caller has the part that arrived and an error that says so. No operator has to act.
        who = "the caller, who has the part that arrived" if event.reason == "partial" else fault.next_actor
        return (
            f"{_name(event)} failed after {_calls(event.attempts)}{took} ({_code(fault)}){because}{_fallbacks(fault)}; "
            f"next to act: {who}; holdfast explain {fault.code}"
        )

    def _degraded(self, event: records.Degraded) -> str:
        self._failures.take(event.run)
        # The reason is the failure's own text, which is not for logs.
        because = "" if event.fault is None else _because(_code(event.fault))
        return f"{_name(event)} gave a lesser answer: {event.via}{because}{_fallbacks(event.fault)}"

    def _cancelled(self, event: records.Cancelled) -> str:
        self._failures.take(event.run)
        why = f" ({event.reason})" if event.reason else ""
        return f"{_name(event)} was stopped in attempt {event.attempts}{why}"

    def _remember(self, event: records.Event, code: AnyCode) -> None:
        failures = self._failures.get(event.run)
        if failures is None:
            failures = _Failures(event.at)
            self._failures.put(event.run, failures)
        failures.codes[code] += 1


def _attempt_started(event: records.AttemptStarted) -> str:
    return f"{_name(event)} attempt {event.attempt} begins{_via(event.via)}"


def _attempt_ended(event: records.AttemptEnded) -> str:
    how = "ended well" if event.fault is None else f"failed with {event.fault.code}"
    return f"{_name(event)} attempt {event.attempt} {how} after {event.took:.3f} s{_via(event.via)}"


_WAITED_FOR = {"place": "a place", "pace": "a start", "money": "the money that others have reserved"}


def _waiting(event: records.WaitBegan) -> str:
    if event.reason in {"circuit", "turn"}:
        return ""  # the line of the first such wait is that of its `Retry`
    until = "" if event.until is None else f", {max(0.0, event.until - event.at):.1f} s at most"
    return f"{_name(event)} waits for {_WAITED_FOR[event.reason]} of {event.target}{until}"


def _commanded(event: records.Commanded) -> str:
    return f"{_name(event)} got the command {event.command}{f' from {event.by}' if event.by else ''}"


def _denied(event: records.RetryDenied) -> str:
    return f"{_name(event)} may not retry after attempt {event.attempt}: {event.because}"


def _notified(event: records.UserNotified) -> str:
    others = f" and its understudies {', '.join(event.tried)}" if event.tried else ""
    return f"the user was notified: {event.agent}{others} failed{_because_of(event.fault)}"


def _asked(event: records.OperatorAsked) -> str:
    if event.fault.code == "TOOL_OUTCOME_UNKNOWN":
        return f"{_name(event)} may have happened, and somebody has to find out{_because_of(event.fault)}"
    return f"{_name(event)} failed {event.attempts} times, and the operator is asked{_because_of(event.fault)}"


def _lifecycle(
    event: records.SessionActive | records.SessionPersisted | records.SessionResumed | records.SessionClosed,
) -> str:
    state = type(event).__name__.removeprefix("Session").lower()
    missing = [each["extId"] for each in event.skipped_extensions] if isinstance(event, records.SessionResumed) else []
    without = f", without the extensions {', '.join(missing)}" if missing else ""
    return f"session {event.session} is {state}{without}"


def _turn_started(event: records.SessionTurnStart) -> str:
    return f"turn {event.number}{_stages(event.stages)} begins"


def _turn_ended(event: records.SessionTurnEnd) -> str:
    return f"turn {event.number}{_stages(event.stages)} ended: {event.outcome}{_because_of(event.fault)}"


def _not_replayed(event: records.StepNotReplayed) -> str:
    return (
        f"{_name(event)} was done in an earlier run, and the program ended without calling it: was it renamed or moved?"
    )


def _stages(stages: tuple[str, ...]) -> str:
    return f" ({', '.join(stages)})" if stages else ""


def _phase_entered(event: records.StagePreFired) -> str:
    return f"stage {event.stage} enters {event.phase}, attempt {event.attempt}"


def _phase_left(event: records.StagePostFired) -> str:
    how = f": {event.outcome}" if event.outcome else ""
    return f"stage {event.stage} leaves {event.phase}, attempt {event.attempt}{how}{_because_of(event.fault)}"


def _resumed(event: records.StreamResumed) -> str:
    how = "goes on" if event.how == "continue" else "begins again"
    return f"{_name(event)} stream {how} after {event.items} items"


def _circuit(event: records.CircuitStateChange) -> str:
    name = event.circuit.removeprefix("provider:")
    if event.rule == _DIVERTS:
        if event.to is records.CircuitState.OPEN:
            return f"{name} fails, so its fallbacks answer{_because(event.reason)}"
        return f"{name} answers again in place of its fallbacks"
    return f"circuit {name} {event.from_} → {event.to}{_because(event.reason)}"


def _budget(event: records.BudgetWarning) -> str:
    used, limit = (_amount(value, event.unit) for value in (event.used, event.limit))
    # The usage of a call is known only afterwards, so one call can take a budget far beyond its limit.
    if event.used > event.limit:
        return f"budget overspent: {used} used, the limit is {limit}"
    if event.used == event.limit:
        return f"budget spent: all of {limit}"
    return f"budget nearly spent: {used} of {limit}"


def _amount(value: float, unit: str) -> str:
    """Return an amount with its unit: `$0.0013`, `41.5 s`, `12,000 tokens`, `1 attempt`."""
    if unit == "usd":
        # Two decimals for dollars; two digits for fractions of a cent.
        return f"${value:,.2f}" if value >= _CENT or not value else f"${value:.2g}"
    if unit == "seconds":
        return f"{value:,.1f} s"
    amount = f"{value:,.0f}"
    return f"{amount} {unit.removesuffix('s') if amount == '1' else unit}"


def _suppressed(event: records.SuppressedError) -> str:
    return f"a failure was ignored: {event.reason}{_because(event.code)}"


def _mailbox(event: records.MailboxPressure) -> str:
    waiting = f"{event.size} of at most {event.capacity} messages wait"
    return f"mailbox of {event.actor}: {waiting}{' (no more pressure)' if event.level == 'none' else ''}"


def _dropped(event: records.MessageDropped) -> str:
    return f"a message to {event.actor} was dropped: {event.message} ({event.reason})"


def _actor_resumed(event: records.ActorResumed) -> str:
    return f"{event.actor} goes on after a failure in {event.message}{_because_of(event.fault)}"


def _child_started(event: records.ChildStarted) -> str:
    return f"{event.supervisor}/{event.child} started{_again(event.incarnation)}"


def _child_exited(event: records.ChildExited) -> str:
    return f"{event.supervisor}/{event.child} {event.reason}{_crashed(event.fault)}"


def _child_restarting(event: records.ChildRestarting) -> str:
    when = f" in {event.delay:.1f} s" if event.delay else ""
    return f"{event.supervisor} restarts {event.child}{when}, attempt {event.attempt}{_crashed(event.fault)}"


def _child_stopped(event: records.ChildStopped) -> str:
    return f"{event.supervisor}/{event.child} stopped{_because_of(event.fault)}"


def _child_leaked(event: records.ChildLeaked) -> str:
    return f"{event.supervisor}/{event.child} ignored its cancellation and was left running"


def _task_started(event: records.TaskStarted) -> str:
    by = f" by {event.agent}" if event.agent else ""
    return f"{_name(event)} begins{by}{f' at depth {event.depth}' if event.depth else ''}"


def _task_changed(event: records.TaskStateChange) -> str:
    return f"{_name(event)} is {event.to}, was {event.from_}"


def _output_rejected(event: records.TaskOutputRejected) -> str:
    asked = f"asked again ({event.number} of {event.max_reasks})" if event.number <= event.max_reasks else "given up"
    return f"{_name(event)}: output rejected, {asked}{_because_of(event.fault)}"


def _decomposed(event: records.TaskDecomposed) -> str:
    return f"{_name(event)} is split into {event.parts} parts{_because_of(event.fault)}"


def _subtask_failed(event: records.SubtaskFailed) -> str:
    then = ", tried once more" if event.again else ""
    return f"{_name(event)} at depth {event.depth} failed{then}{_because_of(event.fault)}"


def _halted(event: records.TaskHalted) -> str:
    then = ", another approach is tried" if event.again else ""
    return f"{_name(event)} gets nowhere{then}{_because_of(event.fault)}"


def _hook(event: records.HookEvent) -> str:
    about = event.path or event.call or "the answer"
    return f"validator {event.validator} ({event.hook}): {event.what}, {about}"


def _task_finished(event: records.TaskFinished) -> str:
    how = "ended well" if event.fault is None else f"failed with {event.fault.code}"
    return f"{_name(event)} {how} after {event.took:.3f} s"


def _server_disconnected(event: records.MCPServerDisconnected) -> str:
    return f"MCP server {event.server} is gone{_because_of(event.fault)}"


def _server_attempt(event: records.MCPReconnectAttempt) -> str:
    when = f" in {event.delay:.2f} s" if event.delay else ""
    of = "" if event.max_attempts is None else f" of {event.max_attempts}"
    return f"connecting to MCP server {event.server} again{when}, attempt {event.attempt}{of}"


def _server_reconnected(event: records.MCPServerReconnected) -> str:
    return f"MCP server {event.server} is connected again after {event.after:.1f} s"


def _shared_lost(event: records.SharedStateLost) -> str:
    return f"shared state at {event.place} is lost ({event.reason}): this process goes on by itself"


def _shared_back(event: records.SharedStateBack) -> str:
    return f"shared state at {event.place} is back after {event.after:.1f} s"


def _gave_up(event: records.GaveUp) -> str:
    code = _crashed(event.fault)
    restarts = f"{event.restarts} restart{'' if event.restarts == 1 else 's'} in {event.window:g} s"
    if event.child_only:
        return f"{event.supervisor} gave {event.child} up after {restarts}{code}"
    return f"{event.supervisor} gave up: {event.child} ended after {restarts}{code}"


def _again(incarnation: int) -> str:
    return f" again (incarnation {incarnation})" if incarnation > 1 else ""


def _name(event: records.Event) -> str:
    return event.operation or "the call"


def _via(via: str) -> str:
    return "" if via == "primary" else f" via {via}"


def _calls(attempts: int) -> str:
    return f"{attempts} attempt{'' if attempts == 1 else 's'}"


def _code(fault: Fault) -> str:
    """Return the code with the HTTP status: people search their provider's documentation by the status, not by our code."""
    status = fault.context.get("status")
    if isinstance(status, int):
        return f"{fault.code}, {status}"
    if fault.code in _NAMED_BY_CLASS and fault.cause is not None:
        return f"{fault.code}, {fault.cause.type.rpartition('.')[2]}"
    return fault.code


def _requested(event: records.Retry) -> str:
    """Return who chose the delay, if it is not our own backoff."""
    if not event.requested:
        return ""
    requested = event.fault.retry_after
    if requested is None or event.delay - requested < _SHOWN_SPREAD_S:
        return ", as the server requested"
    return f": {requested:.1f} s as the server requested, {event.delay - requested:.1f} s spread"


def _fallbacks(fault: Fault | None) -> str:
    """Return how the fallbacks ended that were called and failed too."""
    steps = () if fault is None else fault.context.get("fallbacks", ())
    failed = [f"{step['step']} failed too ({step['code']})" for step in steps if "code" in step]
    return "".join(f"; {text}" for text in failed)


def _because(code: str | None) -> str:
    return "" if code is None else f" ({code})"


def _because_of(fault: Fault | None) -> str:
    return "" if fault is None else _because(fault.code)


def _crashed(fault: Fault | None) -> str:
    """Return the code, and for a crash of the program's own code also its class and the beginning of its text."""
    if fault is None or fault.code != "ACTOR_CRASHED" or fault.cause is None:
        return _because_of(fault)
    name, text = fault.cause.type.rpartition(".")[2], " ".join(fault.cause.message.split())
    text = text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 1]}…"
    return f" ({fault.code}, {name}{': ' if text else ''}{text})"


def _weighed(why: str) -> str:
    return f"; {why}" if why else ""


def _counted(failures: _Failures | None) -> str:
    if failures is None or not failures.codes:
        return ""
    return f" ({', '.join(code if n == 1 else f'{code} ×{n}' for code, n in failures.codes.most_common())})"
