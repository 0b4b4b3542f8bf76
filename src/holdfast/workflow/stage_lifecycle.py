"""One execution of a stage, as a pure machine: which phase comes next, and how the execution ends.

    Setup ─▶ Init ─▶ CheckGate ─┬─ proceed ─▶ Act ─▶ Assert ─┬─ ok, skip, fail ─▶ Exit ─▶ Next
      ▲                         └─ skip ─────────────────────┤
      └── retry, while attempts are left ────────────────────┘

Invariant: nothing here does I/O. Each attempt begins with Setup, and Exit and Next run once. The same ends of phases lead to the same end of
the execution.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from holdfast.faults import Fault, InvalidError, Kind, NextActor, Partial

Phase: TypeAlias = Literal["Setup", "Init", "CheckGate", "Act", "Assert", "Exit", "Next"]
PHASES: tuple[Phase, ...] = get_args(Phase)
Verdict: TypeAlias = Literal["proceed", "retry", "skip"]
"""What CheckGate says: go on to Act, or do not, and begin again or leave the stage out."""
Outcome: TypeAlias = Literal["ok", "retry", "skip", "fail"]
"""What Assert says about an attempt."""


class ActEnded(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What Act did: what Assert looks at."""

    value: Any = None
    """The result: what the completion tool got, or what the function returned."""
    text: str = ""
    """The last text of the model."""
    cap_hit: bool = False
    """Whether Act ended because it had used all its turns. This is no error."""
    turns: int = 0
    failures: tuple[Fault, ...] = ()
    """The tool calls that failed, in order. The model saw each of them, and could act on it."""


class PhaseEnded(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a phase ended: with a value, or with a fault."""

    value: Any = None
    """The verdict of CheckGate, the outcome of Assert, the `ActEnded` of Act, the plan of Next."""
    fault: Fault | None = None
    is_final: bool = False
    """Whether no other attempt may follow the fault: what was done may have happened. Only logs of earlier versions say so of an Act."""


class Enter(msgspec.Struct, frozen=True):
    """Enter a phase of an attempt."""

    phase: Phase
    attempt: int
    is_retry: bool = False
    """Whether a new attempt begins here. The driver waits for the delay of the retry first."""


class StageEnded(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How an execution of a stage ended."""

    stage: str
    outcome: Literal["ok", "skip", "fail"]
    attempts: int = 1
    value: Any = None
    """The result of Act."""
    fault: Fault | None = None
    """Why it failed: TASK_STAGE_FAILED, with the code of the last attempt's fault in its context."""
    plan: Any = None
    """What Next returned."""
    is_final: bool = False
    """Whether it must not be executed again: what an unsafe Act did may have happened."""


class Lifecycle:
    """Decides what follows each phase of one execution.

        lifecycle = Lifecycle("review", attempts=2)
        enter = lifecycle.start()                               # Enter("Setup", 1)
        enter = lifecycle.ended(PhaseEnded())                   # Enter("Init", 1)

    attempts: how often the stage is tried in one execution.
    """

    def __init__(self, stage: str, attempts: int) -> None:
        self.stage = stage
        self.most = attempts
        self.attempt = 1
        self.phase: Phase = "Setup"
        self.act = ActEnded()
        """What Act did in this attempt; empty before."""
        self.outcome: Literal["ok", "skip", "fail"] = "ok"
        """How the execution ends, from Exit on."""
        self.fault: Fault | None = None
        """Why it fails, from Exit on."""
        self._is_final = False

    def start(self) -> Enter:
        """Return the first phase."""
        return Enter("Setup", 1)

    def ended(self, end: PhaseEnded) -> Enter | StageEnded:
        """Return what follows the end of the present phase. A word that the phase does not know raises `InvalidError`."""
        if end.fault is None:
            check_word(self.stage, self.phase, end.value)
        match self.phase:
            case "Setup" | "Init":
                return self._failed(end.fault) if end.fault is not None else self._enter(_AFTER[self.phase])
            case "CheckGate":
                return self._failed(end.fault) if end.fault is not None else self._after_gate(end.value)
            case "Act":
                return self._after_act(end)
            case "Assert":
                return self._failed(end.fault) if end.fault is not None else self._after_assert(end.value)
            case "Exit":
                return self._after_exit(end)
            case "Next":
                return self._after_next(end)

    def default_outcome(self) -> Outcome:
        """Return what Assert says where the stage has none of its own: an attempt that used all its turns is made again."""
        return "retry" if self.act.cap_hit else "ok"

    def _after_gate(self, verdict: Any) -> Enter:
        verdict = "proceed" if verdict is None else verdict
        # Act is left out, and the verdict stands for the outcome of Assert.
        return self._enter("Act") if verdict == "proceed" else self._decided(verdict)

    def _after_act(self, end: PhaseEnded) -> Enter:
        if end.fault is not None:
            why = f"Act failed with {end.fault.code}: {end.fault.message}"
            self._is_final = end.is_final
            return self._fail(end.fault, why) if end.is_final else self._failed(end.fault)
        self.act = end.value
        return self._enter("Assert")

    def _after_assert(self, outcome: Any) -> Enter:
        return self._decided(self.default_outcome() if outcome is None else outcome)

    def _decided(self, outcome: Outcome) -> Enter:
        match outcome:
            case "ok" | "skip":
                self.outcome = outcome
                return self._enter("Exit")
            case "fail":
                return self._fail(None, "Assert rejected the attempt")
            case "retry":
                why = "Act used all its turns" if self.act.cap_hit else f"{self.phase} asked for another attempt"
                return self._again(None, why)

    def _failed(self, fault: Fault | None) -> Enter:
        """Return what follows an attempt that a fault ended."""
        why = "" if fault is None else f"{self.phase} failed with {fault.code}: {fault.message}"
        return self._fail(fault, why) if fault is not None and _needs_a_person(fault) else self._again(fault, why)

    def _again(self, fault: Fault | None, why: str) -> Enter:
        if self.attempt >= self.most:
            return self._fail(fault, why)
        self.attempt += 1
        self.act = ActEnded()
        return self._enter("Setup", is_retry=True)

    def _fail(self, fault: Fault | None, why: str) -> Enter:
        self.outcome = "fail"
        self.fault = stage_failed(self.stage, fault, why, attempts=self.attempt, act=self.act)
        return self._enter("Exit")

    def _after_exit(self, end: PhaseEnded) -> Enter:
        if end.value == "fail" and self.fault is None:
            self._fail(None, "Exit says that it has failed")
        self._failed_last(end.fault)
        return self._enter("Next")

    def _after_next(self, end: PhaseEnded) -> StageEnded:
        self._failed_last(end.fault)
        return StageEnded(
            stage=self.stage,
            outcome=self.outcome,
            attempts=self.attempt,
            value=self.act.value,
            fault=self.fault,
            plan=end.value,
            is_final=self._is_final,
        )

    def _failed_last(self, fault: Fault | None) -> None:
        """Take over a failure of Exit or Next. It does not hide why the stage had failed before."""
        if fault is None:
            return
        before, why = self.fault, f"{self.phase} failed with {fault.code}: {fault.message}"
        if before is None:
            self._fail(fault, why)
            return
        self.fault = msgspec.structs.replace(
            before,
            message=f"{before.message}. Then {why}",
            context={**before.context, self.phase.lower(): fault.code},
            maybe_executed=before.maybe_executed or fault.maybe_executed,
        )

    def _enter(self, phase: Phase, *, is_retry: bool = False) -> Enter:
        self.phase = phase
        return Enter(phase, self.attempt, is_retry)


def _needs_a_person(fault: Fault) -> bool:
    """Return whether another attempt cannot help, because a person must act first: a rejected key, an unpaid bill."""
    return fault.kind is Kind.PERMANENT and fault.entry.next_actor not in {NextActor.MACHINE, NextActor.MODEL}


_WORDS: dict[Phase, tuple[str, ...]] = {"CheckGate": get_args(Verdict), "Assert": get_args(Outcome)}
_AFTER: dict[Phase, Phase] = dict(pairwise(PHASES))


def stage_failed(stage: str, fault: Fault | None, why: str, *, attempts: int, act: ActEnded | None = None) -> Fault:
    """Return the fault of a stage that cannot recover, with the code of what ended it and what Act had made."""
    context: dict[str, Any] = {"stage": stage, "attempts": attempts, "reason": why}
    partial = None if fault is None else fault.partial
    if fault is not None:
        context["cause"] = fault.code
    had = None if act is None else act.value if act.value is not None else act.text
    if partial is None and had not in (None, ""):
        partial = Partial(payload=had)
    counted = "" if attempts == 1 else f" after {attempts} attempts"
    message = f"Stage {stage} cannot recover{counted}: {why}" if why else None
    maybe = fault is not None and fault.maybe_executed
    after = None if fault is None else fault.retry_after
    return Fault.of(
        "TASK_STAGE_FAILED", message, context=context, partial=partial, maybe_executed=maybe, retry_after=after
    )


def check_word(stage: str, phase: Phase, value: Any) -> None:
    """Raise `InvalidError` if CheckGate or Assert returned something that it cannot say. None is the default."""
    words = _WORDS.get(phase)
    if words is not None and value is not None and value not in words:
        raise InvalidError.at(f"stage {stage}: what {phase} returns", f"one of {', '.join(words)}, or None", value)
