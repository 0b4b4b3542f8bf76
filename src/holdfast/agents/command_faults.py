"""Why a run of a command-line agent failed: decided from its lines, its exit and what it printed on stderr.

Invariant: nothing here does I/O. A run without an answer is always a failure, and its fault holds what arrived before.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from holdfast.classify import from_http, from_process, from_text
from holdfast.faults import Category, Fault, HoldfastError, OutcomeUnknownError, Partial
from holdfast.faults.redaction import cap
from holdfast.once.evidence import KNOWN
from holdfast.runtime.secrets import process_redactor
from holdfast.tools.output import cut_text

if TYPE_CHECKING:
    from holdfast.agents.command_lines import Form, ProgramFailure, Report
    from holdfast.faults import Code
    from holdfast.tools.process_error import Finished

__all__ = ["CommandError", "CommandTimeoutError", "command_error", "command_fault", "is_lost", "lost_conversation"]

_CLASSIFIED_CHARS = 8_192
_SHOWN_BYTES = 500
_PARTIAL_BYTES = 1_048_576
"""How much of the text that arrived is kept in a fault: its beginning and its end."""
_NETWORK_WORDS = re.compile(r"network|timeout|econnrefused", re.IGNORECASE)
"""Words on stderr after which a run is tried once more (document 004)."""
_GENERAL = frozenset({"TOOL_EXECUTION_FAILED", "SYS_UNKNOWN", "SYS_INTERNAL_ERROR"})
"""Verdicts that name no cause: the program failed, and nobody recognises why."""
_CONNECTION = frozenset({"TOOL_TIMEOUT", "ACTOR_CLI_NETWORK", "PROVIDER_STREAM_CUT", "PROVIDER_TIMEOUT"})
_BOUNDS: dict[str, Code] = {"error_max_turns": "TASK_TURNS_EXHAUSTED", "error_max_budget_usd": "SYS_BUDGET_EXHAUSTED"}
"""Limits that were given to the program itself, by its word for them."""
_SAYS_ERROR = re.compile(
    r"\s*(?:API |Authentication )?Error\b|\s*(?:Invalid|Failed|Not logged in|Please run)\b", re.IGNORECASE
)
_LIMITS = {"start": "after its start", "idle": "", "timeout": ""}


class CommandError(HoldfastError):
    """A command-line agent failed. `error.fault` says why, and `error.fault.partial` holds what arrived.

    except CommandError as error:
        print(error.fault.code, error.fault.context["session"], error.fault.partial)
    """

    code: ClassVar[Code] = "ACTOR_CLI_ERROR"


class CommandTimeoutError(CommandError, TimeoutError):
    """A command-line agent was stopped because it printed nothing, or ran, for too long.

    except CommandTimeoutError as error:
        print(error.fault.context["limit"])
    """

    code = "PROVIDER_STREAM_STALLED"


def command_error(fault: Fault) -> CommandError:
    """Return the error of a fault."""
    return (CommandTimeoutError if "limit" in fault.context else CommandError)(fault)


def command_fault(
    report: Report,
    form: Form,
    finished: Finished | None,
    stopped: Fault | None,
    *,
    agent: str,
    resumes: bool,
    now: float,
) -> Fault | None:
    """Return why a run failed; None if it has an answer.

    stopped: the fault of a program that could not be started, or was stopped by a limit. resumes: whether the conversation can be
    resumed, so that nothing is done twice. now: the wall clock.
    """
    fault = _cause(report, form, finished, stopped, now)
    if fault is None:
        return None
    worked = report.worked or (not form.shows_calls and bool(report.text or report.stray))
    # A program that was never started has done nothing, whatever the failure is.
    was_started = stopped is None or finished is not None
    maybe_executed = was_started and worked
    may_help = _is_retried(fault, stopped)
    is_held_back = may_help and maybe_executed and not resumes
    # Each of its lines was read, and none shows that it called a tool.
    evidence = {} if maybe_executed else {"evidence": KNOWN}
    return msgspec.structs.replace(
        fault,
        message=f"{fault.message}{_why_not_again(report)}" if is_held_back else fault.message,
        maybe_executed=maybe_executed,
        retryable=may_help and not is_held_back,
        context={**fault.context, **_facts(report, finished, agent), **evidence},
        partial=_partial(report, finished),
    ).masked(process_redactor())


def is_lost(report: Report, form: Form, stderr: str) -> bool:
    """Whether the program says that it does not know the conversation that it should resume."""
    text = f"{report.failure.text if report.failure else ''}\n{report.stray}\n{stderr}".lower()
    return not report.worked and (report.is_lost or any(words in text for words in form.lost))


def lost_conversation(agent: str, session: str, *, made_by: str = "CommandAgent") -> OutcomeUnknownError:
    """Return the error of a run that was cut and whose program does not know the conversation any more.

    made_by: what takes the option that lets the run begin anew.
    """
    message = (
        f"{agent} was cut, and does not know its conversation {session}: it was cut before it had saved it, or its files are elsewhere. "
        f'Nobody knows what it did. Look at that. If the task may be begun anew: {made_by}(…, if_lost="restart")'
    )
    context = {"agent": agent, "session": session, "key": session}
    return OutcomeUnknownError(Fault.of("TOOL_OUTCOME_UNKNOWN", message, retryable=False, context=context))


def _cause(report: Report, form: Form, finished: Finished | None, stopped: Fault | None, now: float) -> Fault | None:
    if report.failure is not None:
        # The program says it best, also if it was stopped afterwards because it did not end.
        return _reported(report.failure, now)
    if report.ended:
        return None if (report.answer or "").strip() else _empty(report)
    if stopped is not None:
        if stopped.context.get("limit") not in _LIMITS:
            return stopped
        return _denied(report, form, finished, now) or _limited(stopped, finished)
    assert finished is not None
    if finished.exit_code != 0:
        return _from_stderr(finished, report.stray, now)
    return Fault.of("PROVIDER_STREAM_CUT", f"The program ended without the last line of its form ({form.name})")


def _reported(failure: ProgramFailure, now: float) -> Fault:
    text = cap(failure.text, _SHOWN_BYTES)
    if failure.code is not None:
        return Fault.of(failure.code, text, context={"reason": failure.reason})
    if (bound := _BOUNDS.get(failure.reason)) is not None:
        return Fault.of(bound, f"The program stopped at a limit of its own: {text}", context={"reason": failure.reason})
    text = failure.text[-_CLASSIFIED_CHARS:]
    fault = from_text(text, now=now) if failure.status is None else from_http(failure.status, {}, text, now=now)
    if fault.code in _GENERAL:
        fault = Fault.of("ACTOR_CLI_ERROR", context={"reason": text})
    if failure.retry_at is not None:
        fault = msgspec.structs.replace(fault, retry_after=max(0.0, failure.retry_at - now))
    return fault


def _empty(report: Report) -> Fault:
    calls = f" after {_counted(report.tool_calls, 'tool call')}" if report.tool_calls else ""
    return Fault.of("PROVIDER_EMPTY_RESPONSE", f"The program ended with an empty answer{calls}")


def _denied(report: Report, form: Form, finished: Finished | None, now: float) -> Fault | None:
    """Return why a program that printed nothing more was waiting: it said that its credentials are not accepted. None: it did not say so."""
    stderr = "" if finished is None else finished.stderr
    # In a form without kinds of lines its text may be about anything, so it must begin as such programs begin the line.
    printed = [line for line in report.all_text.splitlines() if _SAYS_ERROR.match(line)] if not form.shows_calls else []
    for text in (report.rejected, report.stray, stderr, "\n".join(printed)):
        said = next((line for line in reversed(text.splitlines()) if line.strip()), "")[-_CLASSIFIED_CHARS:]
        fault = from_text(said, now=now) if said else None
        if fault is not None and fault.category is Category.AUTH:
            return fault
    return None


def _limited(stopped: Fault, finished: Finished | None) -> Fault:
    limit, seconds = str(stopped.context["limit"]), stopped.context.get("timeout_s")
    context: dict[str, Any] = {"limit": limit, "timeout_s": seconds}
    if finished is not None:
        context["duration_ms"] = round(finished.took * 1000)
    return Fault.of("PROVIDER_STREAM_STALLED", stopped.message, context=context)


def _from_stderr(finished: Finished, stray: str, now: float) -> Fault:
    """Classify what a program printed that failed without a line of its form that says why."""
    text = (finished.stderr.strip() or stray)[-_CLASSIFIED_CHARS:]
    fault = from_process(finished.exit_code, text, now=now)
    is_network = _NETWORK_WORDS.search(text) is not None
    context = {"reason": cap(text, _SHOWN_BYTES)} if text else {}
    if is_network and (fault.code in _GENERAL or fault.code in _CONNECTION or fault.code.startswith("CONN_")):
        return Fault.of("ACTOR_CLI_NETWORK", context=context)
    if fault.code in _GENERAL:
        return Fault.of("ACTOR_CLI_ERROR", context={**context, "exit_code": finished.exit_code})
    return fault


def _is_retried(fault: Fault, stopped: Fault | None) -> bool:
    """Whether another run may help."""
    if fault.code in {"TOOL_KILLED", "TOOL_CRASHED", "TOOL_OUT_OF_MEMORY"}:
        # Somebody killed the program. It goes on where it was, if it can.
        return True
    # The limit for everything is over.
    return fault.retryable and not (stopped is not None and stopped.context.get("limit") == "timeout")


def _why_not_again(report: Report) -> str:
    did = f"made {_counted(report.tool_calls, 'tool call')}" if report.tool_calls else "may have done something"
    return f" (it is not started again: it {did}, and its conversation cannot be resumed; resume=[…] says how it can)"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _facts(report: Report, finished: Finished | None, agent: str) -> dict[str, Any]:
    facts: dict[str, Any] = {"agent": agent}
    if report.session:
        facts["session"] = report.session
    if report.usd is not None:
        facts["usd"] = report.usd
    if finished is not None:
        facts["exit_code"] = finished.exit_code
        facts["duration_ms"] = round(finished.took * 1000)
    return facts


def _partial(report: Report, finished: Finished | None) -> Partial:
    more: dict[str, Any] = {
        "printed": report.stray,
        "stderr": "" if finished is None else finished.stderr,
        "usd": report.usd,
    }
    kept = {name: value for name, value in more.items() if value}
    text = cut_text(report.all_text, _PARTIAL_BYTES)
    # The names are those of `Agent`, so that a program can read both.
    return Partial(payload={"text": text, "turns": report.turns, "tool_calls": report.tool_calls} | kept)
