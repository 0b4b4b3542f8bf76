"""What an agent does next: after a reply of its model, and after the results of its tools.

    reply ─▶ after_reply ─▶ Finish | RunTools | AskAgain | End        results ─▶ before_request ─▶ End | None

Invariant: the same record and the same reply give the same decision, so a run that is continued after a crash goes the same way.
Nothing here does I/O. Every reason to end a run is decided in this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from holdfast import options
from holdfast.faults import Fault, ItemError, Partial
from holdfast.policies.budget import NANO
from holdfast.policies.models.prices import LIST_PRICES
from holdfast.policies.models.usage import Usage
from holdfast.providers.messages import ToolCall
from holdfast.tools.schema import violations_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from holdfast.providers.messages import Message, Reply

__all__ = [
    "LEAST_OUTPUT",
    "AskAgain",
    "Bounds",
    "Completion",
    "ContinueAnswer",
    "Decision",
    "EndRun",
    "FinishRun",
    "RunRecord",
    "RunTools",
    "Spent",
    "after_invalid",
    "after_reply",
    "before_request",
    "is_asked_again",
    "raised_limit",
    "unusable",
]

LEAST_OUTPUT = 4096
"""The limit of the tokens of an answer if the application names none."""
_RAISED = 4
"""How many times as many tokens the next answer may have after one that reached that limit."""
_MOST_OUTPUT = LEAST_OUTPUT * _RAISED * _RAISED
_EMPTY = "Your last answer was empty: it had no text and called no tool. Go on with the task. If it is done, say in words what the result is."
_SHOWN = 300
"""Characters of a call's arguments that a message shows."""


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one run."""

    max_turns: int = 20
    """Answers of the model."""
    max_tool_calls: int | None = None
    same_failure: int = 3
    """How often the same call may fail in the same way."""
    no_progress: int | None = 5
    """How many turns in a row may bring only results that the model has already seen."""
    reasks: int = 2
    """How often in a row the model is asked again for an answer of the right form."""

    def __post_init__(self) -> None:
        options.count("agent.max_turns", self.max_turns)
        options.count("agent.max_tool_calls", self.max_tool_calls, least=0, optional=True)
        options.count("agent.same_failure", self.same_failure)
        options.count("agent.no_progress", self.no_progress, optional=True)
        options.count("agent.reasks", self.reasks, least=0)


class FinishRun(msgspec.Struct, frozen=True):
    """The answer is complete."""

    text: str
    data: Any = None


class RunTools(msgspec.Struct, frozen=True):
    """Run the calls. Those at the places in `blocked` are not run: their results are the faults there."""

    calls: tuple[ToolCall, ...]
    blocked: dict[int, Fault] = {}


class AskAgain(msgspec.Struct, frozen=True):
    """Ask once more, with this message after the answer."""

    text: str


class ContinueAnswer(msgspec.Struct, frozen=True):
    """The provider goes on with its answer when it gets it back: its own tools take long."""

    text: str
    """What it has said so far."""


class EndRun(msgspec.Struct, frozen=True):
    """End the run with this fault."""

    fault: Fault


Decision: TypeAlias = FinishRun | RunTools | AskAgain | ContinueAnswer | EndRun


class Completion(msgspec.Struct, frozen=True):
    """The tool that a model calls when its work is done. The arguments of the call are the result."""

    tool: str
    schema: dict[str, Any]
    """The form of the result, as JSON Schema."""

    def mistake(self, arguments: Any) -> str | None:
        """Return why arguments are no result; None if they are one."""
        if not isinstance(arguments, dict):
            return "expected an object"
        return next(iter(violations_of(self.schema, arguments)), None)


class Spent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What answers cost that could not be used."""

    usage: Usage
    usd: float | None = None
    """None: nobody knows the price of one of them."""


class RunRecord:
    """What has happened in one run so far: what it took, and what the guards compare."""

    def __init__(self) -> None:
        self.turns = 0
        self.tool_calls = 0
        self.reasks = 0
        """How often in a row the model was asked again for an answer of the right form."""
        self.text = ""
        """The last text of the model."""
        self.model = ""
        self.usage: Usage | None = Usage()
        self.usd: float | None = 0.0
        self._failures: dict[bytes, list[Fault]] = {}
        """Failures in a row, by call. All faults of one list have the same code."""
        self._warned: set[bytes] = set()
        """Calls that were not run, and whose results say so."""
        self._seen: set[tuple[bytes, str]] = set()
        """Calls with their results."""
        self._repeated = 0
        """Turns in a row that brought nothing new."""
        self._is_new = False

    def add_reply(self, reply: Reply) -> None:
        """Count a reply of the model."""
        self.turns += 1
        self.text = reply.text or self.text
        self.model = reply.model or self.model
        self.add_spend(reply.usage, LIST_PRICES.cost(reply.model, reply.usage))

    def add_spend(self, usage: Usage | None, usd: float | None) -> None:
        """Add what something cost. What is unknown once is unknown in the sum."""
        self.usage = None if usage is None or self.usage is None else self.usage + usage
        # In billionths, as a budget counts: the sums are equal to the last digit.
        self.usd = None if usd is None or self.usd is None else (round(self.usd * NANO) + round(usd * NANO)) / NANO

    def add_unused(self, unused: Spent | None) -> None:
        """Add what answers cost that could not be used."""
        if unused is not None:
            self.add_spend(unused.usage, unused.usd)

    def add_result(self, call: ToolCall, text: str, fault: Fault | None, *, is_run: bool = True) -> None:
        """Count the result of a call. A call that was not run has not failed once more."""
        key = _key(call)
        if is_run:
            earlier = self._failures.pop(key, [])
            if fault is not None:
                same = [one for one in earlier if one.code == fault.code]
                self._failures[key] = [*same, fault]
        if (key, text) not in self._seen:
            self._is_new = True
            self._seen.add((key, text))

    def end_turn(self) -> None:
        """Note that all results of a turn are there."""
        self._repeated = 0 if self._is_new else self._repeated + 1
        self._is_new = False

    def failures(self, call: ToolCall) -> list[Fault]:
        """Return the failures in a row of this call, with these arguments."""
        return self._failures.get(_key(call), [])

    def is_stuck(self, turns: int | None) -> bool:
        """Whether so many turns in a row brought nothing new."""
        return turns is not None and self._repeated >= turns

    def add_calls(self, calls: Sequence[ToolCall]) -> None:
        """Count calls that are about to be run. Without a mistake in them an earlier slip is corrected."""
        self.reasks = self.reasks + 1 if any(call.mistake for call in calls) else 0

    def warn(self, call: ToolCall) -> bool:
        """Note that the result of a call says that it was not run. Return False if an earlier result did."""
        key = _key(call)
        first = key not in self._warned
        self._warned.add(key)
        return first

    def partial(self, messages: Sequence[Message], text: str = "") -> Partial:
        """Return what there is so far, for the fault that ends the run."""
        return Partial(
            payload={
                "text": text or self.text,
                "turns": self.turns,
                "tool_calls": self.tool_calls,
                "usage": None if self.usage is None else msgspec.to_builtins(self.usage),
                "usd": self.usd,
                "messages": msgspec.to_builtins(messages),
            }
        )


def before_request(record: RunRecord, bounds: Bounds) -> EndRun | None:
    """Decide whether the model may be asked again."""
    if record.turns >= bounds.max_turns:
        return _bound("model turns", bounds.max_turns)
    if record.is_stuck(bounds.no_progress):
        reason = f"{bounds.no_progress} turns in a row repeated calls whose results the model had already seen"
        return EndRun(Fault.of("TASK_HALTED", context={"reason": reason}))
    return None


def after_reply(
    reply: Reply,
    record: RunRecord,
    bounds: Bounds,
    check: Callable[[Reply], Any] | None = None,
    *,
    completion: Completion | None = None,
    with_secrets: Collection[int] = (),
) -> Decision:
    """Decide what follows a reply.

    With `completion` the run ends when the model calls that tool with a result of the right form, and not before.
    `check` returns the answer's value, or raises `ValueError` if it has not the right form. `with_secrets` are the places of calls that
    must not run, because their arguments held a secret.
    """
    if (fault := unusable(reply)) is not None:
        return AskAgain(_EMPTY) if is_asked_again(fault, record, bounds) else EndRun(fault)
    if reply.stop == "paused":
        return ContinueAnswer(reply.text)
    if completion is not None and (decision := _completed(completion, reply, record, bounds)) is not None:
        return decision
    mistakes = [call.mistake for call in reply.calls if call.mistake]
    if mistakes and record.reasks >= bounds.reasks:
        return after_invalid("; ".join(mistakes), record, bounds)
    if reply.calls:
        return _calls(reply.calls, record, bounds, with_secrets, completion)
    if check is None:
        return FinishRun(reply.text)
    try:
        return FinishRun(reply.text, check(reply))
    except ValueError as error:
        return after_invalid(str(error), record, bounds)


def _completed(completion: Completion, reply: Reply, record: RunRecord, bounds: Bounds) -> Decision | None:
    """Return the end of a run whose model says that it is done; None: it is not, and calls other tools."""
    if not reply.calls:
        return after_invalid(f"call the tool {completion.tool} with the result when you are done", record, bounds)
    for call in reply.calls:
        if call.name == completion.tool and completion.mistake(call.arguments) is None:
            return FinishRun(reply.text, call.arguments)
    return None


def unusable(reply: Reply, limit: int | None = None) -> Fault | None:
    """Return why a reply is no answer at all: it is refused, cut or empty; None if it can be used.

    No call of such a reply may run: where it was cut, its arguments may be incomplete and still be valid JSON. `limit` is the limit of its
    tokens.
    """
    if reply.stop == "refused":
        context = {"reason": reply.text} if reply.text else {}
        return Fault.of("PROVIDER_CONTENT_POLICY", "The model declined to answer", context=context)
    if reply.stop == "length":
        of = "the limit of its tokens" if limit is None else f"the limit of {limit} tokens (max_output)"
        message = f"The answer reached {of} before its end, so nothing of it was used. Allow more with max_output, or ask for less"
        return Fault.of("TASK_OUTPUT_EXHAUSTED", message, context={} if limit is None else {"limit": limit})
    if reply.stop == "other":
        message = "The provider ended the answer before its end, and gave no reason that we know"
        return Fault.of("PROVIDER_MALFORMED_RESPONSE", message, retryable=False)
    if reply.stop != "paused" and not reply.calls and not reply.text.strip() and reply.data is None:
        return Fault.of("PROVIDER_EMPTY_RESPONSE", "The model answered with no text and no tool call")
    return None


def is_asked_again(fault: Fault, record: RunRecord, bounds: Bounds) -> bool:
    """Whether the model is asked again after such an answer. An empty one ends no run as long as it may be asked for another form."""
    return fault.code == "PROVIDER_EMPTY_RESPONSE" and record.reasks < bounds.reasks


def raised_limit(reply: Reply, limit: int, record: RunRecord, bounds: Bounds) -> int | None:
    """Return the limit with which to ask again for an answer that reached its limit; None: it is not asked for again."""
    is_last = record.turns + 1 >= bounds.max_turns
    return None if reply.stop != "length" or limit >= _MOST_OUTPUT or is_last else limit * _RAISED


def after_invalid(reason: str, record: RunRecord, bounds: Bounds) -> AskAgain | EndRun:
    """Decide what follows an answer that has not the right form."""
    if record.reasks >= bounds.reasks:
        return EndRun(Fault.of("PROVIDER_OUTPUT_INVALID", context={"reason": reason}, retryable=False))
    return AskAgain(f"Your answer did not have the required form: {reason}. Answer again in the required form.")


def _calls(
    calls: tuple[ToolCall, ...],
    record: RunRecord,
    bounds: Bounds,
    with_secrets: Collection[int],
    completion: Completion | None = None,
) -> RunTools | EndRun:
    # The model could not be asked again, so nobody would read the results. An effect without a reader is not wanted.
    if record.turns >= bounds.max_turns:
        return _bound("model turns", bounds.max_turns)
    if bounds.max_tool_calls is not None and record.tool_calls + len(calls) > bounds.max_tool_calls:
        return _bound("tool calls", bounds.max_tool_calls)
    blocked: dict[int, Fault] = {}
    for place, call in enumerate(calls):
        if place in with_secrets:
            blocked[place] = _holds_secret(call)
            continue
        if completion is not None and call.name == completion.tool:
            blocked[place] = _no_result(call, completion.mistake(call.arguments) or "")
            continue
        failures = record.failures(call)
        if len(failures) < bounds.same_failure:
            continue
        if not record.warn(call):
            return EndRun(_insists(call, failures))
        blocked[place] = _not_run(call, failures)
    return RunTools(calls, blocked)


def _bound(unit: str, limit: int) -> EndRun:
    message = f"The agent used all its {limit} {unit}" if limit else f"The agent may make no {unit}"
    return EndRun(Fault.of("TASK_LOOP_BOUND", message, context={"limit": limit, "unit": unit}))


def _holds_secret(call: ToolCall) -> Fault:
    """Return the result of a call that is not run because its arguments held a secret of the program."""
    reason = (
        f"not run: the arguments of {call.name} hold a secret of this program, which is masked here and stored nowhere. "
        "Pass the name of the secret, and let the tool read it"
    )
    return Fault.of("TOOL_INPUT_INVALID", context={"tool": call.name, "reason": reason})


def _no_result(call: ToolCall, reason: str) -> Fault:
    """Return the result of a call of the completion tool whose arguments are no result."""
    return Fault.of("TOOL_INPUT_INVALID", context={"tool": call.name, "reason": reason})


def _not_run(call: ToolCall, failures: list[Fault]) -> Fault:
    """Return the result of a call that is not run because it fails the same way each time."""
    reason = (
        f"not run: {call.name} with these arguments failed {len(failures)} times in the same way "
        f"({failures[-1].code}: {failures[-1].message}). Try something else, or say what is missing"
    )
    return Fault.of("TOOL_EXECUTION_FAILED", context={"tool": call.name, "reason": reason}, retryable=False)


def _insists(call: ToolCall, failures: list[Fault]) -> Fault:
    shown = msgspec.json.encode(call.arguments).decode()
    reason = (
        f"{call.name}({shown[:_SHOWN]}) failed {len(failures)} times with {failures[-1].code}, "
        "and the model calls it again after a result that says so"
    )
    errors = [msgspec.to_builtins(ItemError.of(call.name, fault)) for fault in failures]
    return Fault.of("TASK_HALTED", context={"tool": call.name, "reason": reason, "errors": errors})


def _key(call: ToolCall) -> bytes:
    return msgspec.json.encode((call.name, call.arguments), order="sorted")
