"""Bugs that Holdfast once had, put back one at a time: the generator must find each of them within some hundred programs.

A bug is put back by a patch of a small seam that brings its harm back, not its old code. A program counts as found only if the
unchanged code plays it well.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.agents import once as agents_once  # noqa: F401 - loaded, so that its parts can be patched
from holdfast.once import replay
from holdfast.once.identity import function_name
from holdfast.runtime.acts import watch_acts
from holdfast.runtime.failures.left_behind import LeftBehind
from holdfast.sessions import call, doubts, journal, openings, place, retention, runs, session, siblings, step_runner
from holdfast.sessions.callee import given_hash
from holdfast.sessions.repeated_turns import EqualTurnSteps
from holdfast.sessions.step_runner import StepRunner
from holdfast.stores import Commit
from holdfast.stores.sqlite.high_water import HighWater
from holdfast.tasks import director, performer
from holdfast.tasks import system as tasks_system
from holdfast.tasks.stages import act as stages_act
from holdfast.tasks.stages import run as stages_run
from holdfast.tasks.workflows import run as workflow_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.once.replay import Use

__all__ = ["BUGS"]

Put = Callable[..., None] if TYPE_CHECKING else Any
"""`setattr`."""


def xd1(put: Put) -> None:
    """An exception that is no failure of a service shows that nothing happened."""
    real = step_runner.evidence_in

    def evidence(error: BaseException, fault: Any, *, entered: bool = True) -> str:
        return real(error, fault, entered=entered) or ("" if fault.maybe_executed else "believed")

    put(step_runner, "evidence_in", evidence)


def xd2(put: Put) -> None:
    """The call after a cancelled one does not wait for its writes."""
    real = step_runner.until_free

    async def until_free(use: Use) -> None:
        use.left = ()
        if use.busy:
            await real(use)

    put(step_runner, "until_free", until_free)


def xd3(put: Put) -> None:
    """A turn does what an earlier one of the same input has done."""
    put(EqualTurnSteps, "_decide", StepRunner._decide)


def xd4_tasks(put: Put) -> None:
    """Nothing tells equal calls of several tasks apart."""
    put(replay.Use, "fits", lambda *_: True)
    put(replay.Calling, "is_of_other", lambda *_: False)
    put(step_runner, "check_apart", lambda *_: None)


def xd4_modules(put: Put) -> None:
    """A function is known without its module."""
    real = call.known_by
    put(call, "known_by", lambda fn, name, contract: function_name("", real(fn, name, contract).partition(":")[2]))


def xd5(put: Put) -> None:
    """Nobody looks whether the store still has what was stored."""
    put(journal, "Commit", lambda **parts: Commit(**{**parts, "after": None}))
    put(journal.Journal, "_later", lambda self: self.store.read(self.session, after=self.seen))
    put(HighWater, "lost", lambda *_: "")


def xd6(put: Put) -> None:
    """What is called inside of a step has no place of its own."""
    put(place.Here, "places", property(lambda _: ()))


def xd8(put: Put) -> None:
    """Arguments are compared as they are written."""
    put(call, "hash_of", given_hash)


def xd9(put: Put) -> None:
    """Nothing notices that a call waits for itself."""
    put(replay.Use, "needs", lambda *_: False)


def xd14(put: Put) -> None:
    """The last declaration of a function counts."""
    put(sys.modules["holdfast.runtime.tool"], "_check_not_declared_otherwise", lambda *_: None)


def xd16(put: Put) -> None:
    """An answer about a call is an answer about its next start, too."""
    put(doubts.Doubts, "start", lambda *_: "")


def xd17(put: Put) -> None:
    """Drift is decided after ten rounds of the loop, whoever is still on the way."""

    async def let_others_act(_: Any, found: Callable[[], Any], **__: Any) -> Any:
        for _ in range(10):
            await asyncio.sleep(0)
            if (what := found()) is not None:
                return what
        return None

    put(step_runner, "let_others_act", let_others_act)
    put(siblings, "let_others_act", let_others_act)


def xd19(put: Put) -> None:
    """Each opening of a session is a run of the program."""
    put(openings, "keep", lambda *_: None)


def xk1(put: Put) -> None:
    """A failure of a task of a workflow is one that `retry` may catch."""
    put(workflow_run, "in_doubt", lambda *_: False)


def xk2(put: Put) -> None:
    """A call of a workflow is known by the path of its strand."""
    put(session.Session, "part", lambda self, key, *, task="", earlier="": place.part(self._journal, earlier or key))


def xk4(put: Put) -> None:
    """The answer of a function belongs to the prompt alone."""
    real = performer.performed

    class Blind:
        """A session that does not look at the inputs."""

        def __init__(self, real: Any) -> None:
            self._real = real

        def step(self, fn: Any, prompt: str, *_: Any) -> Any:
            return self._real.step(fn, prompt)

    async def performed(name: str, by: Any, assignment: Any, given: Any) -> Any:
        is_function = given is not None and not performer.is_agent(by)
        return await real(name, by, assignment, Blind(given) if is_function else given)

    put(sys.modules["holdfast.tasks.execution"], "performed", performed)


def xk5(put: Put) -> None:
    """The script of a loop runs again in each run of the program."""
    real = director._tried
    put(director, "_tried", lambda loop, script, proposal, _: real(loop, script, proposal, None))


def xt1(put: Put) -> None:
    """A thread that was left behind is forgotten."""
    put(LeftBehind, "runs", lambda *_: False)


def xw1(put: Put) -> None:
    """After an unsafe Act in doubt the machine goes on with its stages, though not with another attempt."""
    real = stages_run.StageRun.failed_or
    must_not_repeat = stages_run.must_not_repeat

    async def failed_or(self: Any, work: Any, contract: Any = None) -> Any:
        ended = await real(self, work, contract)
        is_final = ended.fault is not None and contract is not None and must_not_repeat(contract.effect, ended.fault)
        return msgspec.structs.replace(ended, is_final=True) if is_final else ended

    put(stages_run.StageRun, "failed_or", failed_or)
    put(stages_run, "must_not_repeat", lambda *_: False)


def xw2(put: Put) -> None:
    """A task is done in another way after an unsafe call that happened, or may have."""
    put(tasks_system, "_is_final", lambda _: False)


def xw3(put: Put) -> None:
    """Doubts in the turn in flight and outside of turns do not see each other."""
    put(StepRunner, "_doubts_elsewhere", lambda self, _: self._memory.doubts)


def xw4(put: Put) -> None:
    """What turns without a key did is dropped with the rest."""

    async def first_needed(_: Any, __: Any, before: int) -> int:
        return before

    put(retention, "_first_needed", first_needed)


def xw5(put: Put) -> None:
    """A call of a stage's function in doubt is a failed one for its next attempt."""
    put(stages_act, "must_not_repeat", lambda *_: False)


def xw6(put: Put) -> None:
    """What the agent of a task has called does not count for the task."""
    real = performer.performed

    async def performed(name: str, by: Any, *given: Any) -> Any:
        with watch_acts() as acts:
            if performer.is_agent(by):
                acts._around = None
            return await real(name, by, *given)

    put(sys.modules["holdfast.tasks.execution"], "performed", performed)


def xw7(put: Put) -> None:
    """A run inside of a step is counted in the session."""
    put(runs, "known_as", place.known_before)


def xw8(put: Put) -> None:
    """Nothing tells for whom one of several equal runs was made."""
    put(replay.Uses, "expect", lambda *_: None)


def xw9(put: Put) -> None:
    """The step's own key is all that `verify` gets."""
    put(call.Call, "keys_to_verify", lambda _, key: (key, key))


BUGS: dict[str, Callable[[Put], None]] = {
    bug.__name__: bug
    for bug in (
        xd1,
        xd2,
        xd3,
        xd4_tasks,
        xd4_modules,
        xd5,
        xd6,
        xd8,
        xd9,
        xd14,
        xd16,
        xd17,
        xd19,
        xk1,
        xk2,
        xk4,
        xk5,
        xt1,
        xw1,
        xw2,
        xw3,
        xw4,
        xw5,
        xw6,
        xw7,
        xw8,
        xw9,
    )
}
"""By the finding that each of them was."""
