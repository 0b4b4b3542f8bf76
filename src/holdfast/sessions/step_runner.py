"""Runs the steps of one turn, or of a session outside of turns: each once.

Invariant: an unsafe step begins at most once, whether it is retried, cancelled, timed out, called again in this process or in the
next one. If its outcome is unknown, every call of it raises `OutcomeUnknownError` until somebody resolves it.
"""

from __future__ import annotations

import asyncio
import inspect
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from holdfast import options
from holdfast.faults import Fault, HoldfastError, InvalidError, OutcomeUnknownError
from holdfast.once.doubt import (
    UnsettledError,
    check_not_repeated,
    drift_error,
    happened_meanwhile,
    unknown_error,
    unstored_note,
)
from holdfast.once.evidence import NOT_CALLED, VERIFIED
from holdfast.once.identity import Identity, key_of, name_in, step_name, suffix, uses_in
from holdfast.once.outcome import Drifted, InDoubt, Repeat, Return, decide_step, did_nothing, needs_start
from holdfast.once.place import in_part, in_step
from holdfast.once.records import StepEnded, StepStarted, is_bound, is_doubtful, may_have_happened
from holdfast.once.replay import Use, Uses
from holdfast.runtime.acts import acted
from holdfast.runtime.callables import is_async
from holdfast.runtime.failures.evidence import evidence_in, was_entered
from holdfast.runtime.failures.left_behind import LEFT_BEHIND
from holdfast.runtime.failures.shown_request import DOUBT
from holdfast.runtime.operation.postconditions import NOT_VERIFIED, check_async, recovers, verify_async
from holdfast.runtime.recover import recover
from holdfast.runtime.suppress import suppress, suppressed
from holdfast.runtime.tool import CANNOT_TELL, NOT_HAPPENED, Happened
from holdfast.sessions import codec
from holdfast.sessions.call import Call, RunningStep, call_of, check_declared, check_function
from holdfast.sessions.idempotency import keyed
from holdfast.sessions.journal import Journal, audit
from holdfast.sessions.log import StepsForgotten
from holdfast.sessions.map_items import MapItems, coming_of
from holdfast.sessions.open_ends import check_done, leave_open
from holdfast.sessions.place import around_here, gate, inside, known_as, outer_places, part, task_here, whom_alive
from holdfast.sessions.runs import Runs
from holdfast.sessions.scopes import Scope
from holdfast.sessions.siblings import (
    PATIENCE_S,
    attempts_around,
    calling_of,
    check_apart,
    let_others_act,
    moved_from,
    until_free,
    use_after_others,
)
from holdfast.sessions.steps import answers_to, shown
from holdfast.stores.address import cli_option

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    from holdfast.faults import Outcome
    from holdfast.once.outcome import StepDecision
    from holdfast.once.records import StepEntry
    from holdfast.runtime.runtime import Runtime
    from holdfast.runtime.suppress import Suppression
    from holdfast.runtime.tool import Verdict
    from holdfast.sessions.log import SessionMemory
    from holdfast.stores import NewAudit, Receipt

__all__ = ["StepRunner"]

T = TypeVar("T")

_PLAIN = frozenset({str, int, float, bool, bytes, dict, list, tuple, type(None)})
"""Types of results that nobody awaits."""


class StepRunner:
    """The steps of one turn, or with turn 0 the steps of a session outside of turns."""

    def __init__(
        self, journal: Journal, turn: int, scope: Scope, *, threads: bool = False, called: frozenset[str] = frozenset()
    ) -> None:
        self.turn = turn
        self.scope = scope
        self._threads = threads
        """Whether plain functions run in a thread."""
        self._journal = journal
        self._uses = Uses(self._memory.steps_of(turn), called=called, parts=journal.parts)
        self._questions = Uses(self._memory.questions_of(turn))
        self._runs = Runs(journal, turn, self._memory.steps_of(turn))
        self._maps: list[MapItems] = []
        """The calls of `map` that run."""

    async def step(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        key: str = "",
        mapped: MapItems | None = None,
    ) -> Any:
        """Run a step, or return its stored result.

        Raise SESS_STEP_DRIFT if an unsafe function was called with other arguments before, and `OutcomeUnknownError` if the step
        may have happened.
        """
        self._check_open()
        if self._journal.gate is not None:
            await gate(self._journal.gate)
        call = call_of(fn, args, kwargs, key, self._journal)
        owner = None if mapped is None else mapped.owner
        is_unsafe = call.effect == "unsafe"
        calling = calling_of(self._journal, call.identity, call.earlier, owner)
        check_apart(self._uses, call.name, calling, self._journal)
        use = self._uses.take(calling) or await use_after_others(self._uses, calling, self._journal)
        if use.busy or use.left:
            await until_free(use)
        try:
            with use:
                result = await self._once(call, use)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                use.left += tuple(self._journal.late)
            if is_unsafe:
                if self.may_have_happened(use.name) or isinstance(error, OutcomeUnknownError):
                    acted(call.name)
                leave_open(self._journal, self.key(use.name), partial(self._open_end, call, use))
            if mapped is not None:
                # Until the map ends, an equal item after this one is another call.
                use.taken = True
                mapped.failed.append(use)
            raise
        if is_unsafe and not did_nothing(result):
            acted(call.name)
        return result

    async def _open_end(self, call: Call, use: Use) -> Exception | None:
        """Return the error of an unsafe step that the program went on without, unless it certainly did not happen."""
        # A thread may run for long: the step is in doubt until it ends.
        if use.left and not LEFT_BEHIND.runs(self.key(use.name)):
            await until_free(use)
        after = suffix(self.turn, use.name)
        if (unknown := self._memory.unknown().get(after)) is not None:
            if use.busy or not self._memory.is_open(self.turn):
                return self._unknown(use.name, unknown)
            verdict = await self._verify(self._step_of(call, use))
            if verdict == CANNOT_TELL:
                return self._unknown(use.name, unknown)
        known = self._memory.steps_of(self.turn).get(use.name)
        has_happened = isinstance(known, StepEnded) and known.ok and not use.taken
        return happened_meanwhile(self._journal.session, after, known) if has_happened and known else None

    async def question(self, kind: str, args: str, ask: Callable[[str], Awaitable[T]]) -> T:
        """Return `await ask(name)`, with the name of the question of this kind and hash."""
        self._check_open()
        identity = known_as(self._journal, Identity(f"?{kind}", args))
        use = self._taken(self._questions, identity)
        await until_free(use)
        with use:
            return await ask(use.name)

    async def numbered(self, name: str, args: str, work: Callable[[str], Awaitable[T]]) -> T:
        """Return `await work(key)`: see `Session.numbered`. `args` is the hash of what the work is about."""
        self._check_open()
        use = self._taken(self._runs.uses, self._runs.identity(name, args, has_earlier=self._uses.has_earlier))
        # With its turn: what is unknown about work of an earlier turn is not about this one.
        key = suffix(self.turn, use.name)
        await until_free(use)
        self._begin(in_part(key))
        with use, part(self._journal, key, is_named=False):
            return await work(key)

    def not_called(self) -> list[tuple[str, StepEntry]]:
        """Return the unsafe steps that an earlier run did and this one has not called."""
        steps = self._memory.steps_of(self.turn)
        return [(name, steps[name]) for name in self._uses.not_called() if name in steps and is_bound(steps[name])]

    def called(self) -> frozenset[str]:
        """Return the names of the unsafe steps that this run of the program has called, also in earlier openings of the session."""
        steps = self._memory.steps_of(self.turn)
        return frozenset(name for name in self._uses.called() if name in steps and is_bound(steps[name]))

    def _taken(self, uses: Uses, identity: Identity) -> Use:
        use = uses.take(calling_of(self._journal, identity), of_any_task=True)
        assert use is not None
        return use

    def _begin(self, place: str) -> None:
        """A step or a part begins, or begins anew: what is called inside are the same calls as before."""
        for uses in (self._uses, self._questions, self._runs.uses):
            uses.begin(place)

    async def map(self, fn: Callable[..., Any], items: Iterable[Any], concurrency: int) -> AsyncIterator[Outcome[Any]]:
        """Run a step for each item, `concurrency` at a time; yield the outcomes in the order of the items."""
        options.count("map.concurrency", concurrency)
        mapped = MapItems(self._journal, task_here(), fn, items)
        self._maps.append(mapped)
        try:
            for item in items:
                # Wait for the oldest task: this keeps the order of the items, and bounds how many results are held.
                if len(mapped.running) >= concurrency:
                    yield await mapped.running.popleft()
                mapped.start(partial(self.step, fn, (item,), {}, mapped=mapped))
            while mapped.running:
                yield await mapped.running.popleft()
        finally:
            # The caller may leave the loop early, or an item may have raised.
            self._maps.remove(mapped)
            await mapped.stop()
            for use in mapped.failed:
                self._uses.release(use)

    @property
    def _memory(self) -> SessionMemory:
        """What is known about the steps."""
        return self._journal.memory

    def fault_of(self, error: Exception) -> Fault:
        """Return the fault of a step's exception, by the rules of the session's runtime."""
        return self._journal.fault_of(error)

    def name_of_next(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return the name that a call of `step` with this function and arguments would have now."""
        call = call_of(fn, args, kwargs, "", self._journal)
        calling = calling_of(self._journal, call.identity, call.earlier)
        use = self._uses.take(calling, of_any_task=True)
        assert use is not None
        return use.name

    def may_have_happened(self, name: str) -> bool:
        """Whether a step may have happened and must not be repeated automatically."""
        known = self._memory.steps_of(self.turn).get(name)
        return known is not None and is_doubtful(known)

    def keyed(self, key: str) -> StepEntry | None:
        """Return what the log has about the step with this key."""
        return self._memory.steps_of(self.turn).get(step_name(Identity("", "", key), 1))

    def key(self, name: str) -> str:
        """Return the idempotency key of a step. It is the same in every attempt, also after a crash."""
        return key_of(self._journal.session, suffix(self.turn, name))

    def running(self) -> set[str]:
        """Return the steps that run now, as in `SessionMemory.unknown`."""
        return {suffix(self.turn, name) for name in self._uses.busy()}

    def _once(self, call: Call, use: Use) -> Awaitable[Any]:
        """Run a step, or return its stored result."""
        if call.effect == "unsafe" or use.name in self._memory.steps_of(self.turn):
            return self._decided(call, use)
        # Nearly every step is so: `decide_step` lets it run.
        return self._run(self._step_of(call, use), repeats=False)

    async def _decided(self, call: Call, use: Use) -> Any:
        name = use.name
        decision = await self._decide(call, use) if call.effect == "unsafe" else self._decide_safe(call, name)
        match decision:
            case Return(result):
                # Decode it each time, because the caller may change the value it gets.
                try:
                    return codec.decode(bytes(result), call.returns, call.name)
                except InvalidError as error:
                    return await self._not_resolved(call, use, error)
            case Drifted(stored):
                raise drift_error(self._journal.session, self.turn, stored, shown(call.args, call.kwargs))
            case InDoubt():
                step = self._step_of(call, use)
                match await self._verify(step):
                    case Happened(result):
                        return result
                    case verdict if verdict != NOT_HAPPENED:
                        raise self._unknown(name, call=call)
                return await self._run(step, repeats=True)
            case _:
                step = self._step_of(call, use)
                if isinstance(decision, Repeat) and not decision.unknown:
                    self._journal.recorder.add(self._record("ToolInvocation", step, repeated=True, failed_before=True))
                return await self._run(step, repeats=isinstance(decision, Repeat) and decision.unknown)

    async def _not_resolved(self, call: Call, use: Use, error: InvalidError) -> Any:
        """Raise the error of a stored result that cannot be read. If somebody gave that result, the doubt about the step is open again."""
        known = self._memory.steps_of(self.turn).get(use.name)
        if not isinstance(known, StepEnded) or not (known.resolution or known.settles):
            raise error
        verdict = await self._failed(self._step_of(call, use), error, happened=True)
        if isinstance(verdict, Happened):
            return verdict.result
        raise self._unknown(use.name) from error

    def _decide_safe(self, call: Call, name: str) -> StepDecision:
        known = self._memory.steps_of(self.turn).get(name)
        if known is not None:
            check_function(call, known)
        return decide_step(known, call.effect)

    async def _decide(self, call: Call, use: Use) -> StepDecision:
        """Decide about a step that is unsafe."""
        name = use.name
        known = self._memory.steps_of(self.turn).get(name)
        if known is not None:
            check_function(call, known)
        else:
            if (repeated := self._repeated(call, name)) is not None:
                return repeated
            await self._settle_elsewhere(call, use)
        decision = self._decide_unsafe(call, use)
        if isinstance(decision, Drifted):

            def other_decision() -> StepDecision | None:
                found = self._decide_unsafe(call, use)
                return None if isinstance(found, Drifted) else found

            # Other tasks may still be on their way to the steps that the log knows. Let them come first.
            later: StepDecision | None
            later = await let_others_act(self._journal, other_decision, patience=PATIENCE_S, but=set())
            decision = self._decide_unsafe(call, use) if later is None else later
        if isinstance(decision, Drifted):
            self._check_no_doubt(call)
        if isinstance(decision, InDoubt):
            # Somebody may have resolved it in another process.
            await self._journal.catch_up()
            decision = self._decide_unsafe(call, use)
        return decision

    def _check_no_doubt(self, call: Call) -> None:
        """Raise the error of a call of this function that is in doubt: it may keep the program from the calls that it is compared with."""
        for name in self._uses.ended(call.identity, attempts_around()):
            if self.may_have_happened(name):
                raise self._unknown(name)

    def _repeated(self, call: Call, name: str) -> StepDecision | None:
        """Raise if the call only repeats one that somebody had to find something out about, unless somebody said what it is."""
        if call.identity.key:
            return None
        steps = self._memory.steps_of(self.turn)
        equal = [
            (other, steps[other]) for other in self._uses.before(call.identity, name, call.earlier) if other in steps
        ]
        for other, known in equal:
            if known.doubted and may_have_happened(known) and suffix(self.turn, other) in self._memory.accepted:
                return decide_step(known, call.effect)
        check_not_repeated(self._journal.session, self.turn, equal, self._memory.anew)
        return None

    def _decide_unsafe(self, call: Call, use: Use) -> StepDecision:
        name = use.name
        steps = self._memory.steps_of(self.turn)
        attempts = attempts_around()
        # Only a call that the log does not know can have drifted.
        identities = () if call.identity.key or name in steps else call.identities
        places = outer_places(self._journal)
        others = [
            other for each in identities for other in self._uses.not_replayed(each, attempts, call.earlier, places)
        ]
        missing = others and self._uses.without_those_of(whom_alive(self._journal), use.task or "", others)
        if missing and self._maps:
            coming = coming_of(self._maps, self._uses, attempts)
            missing = [other for other in missing if other not in coming]
        coming_now = partial(coming_of, self._maps, self._uses, attempts)
        moved = [other for each in identities for other in moved_from(self._uses, self._journal, each, use, coming_now)]
        others, missing = [*others, *moved], [*missing, *moved]
        decision = decide_step(steps.get(name), call.effect, tuple(steps[other] for other in missing if other in steps))
        accepted = self._memory.accepted if isinstance(decision, Drifted) else ()
        for other in others:
            if other in steps and suffix(self.turn, other) in accepted:
                # Somebody said that this stored step stands for the call.
                decision = decide_step(steps[other], call.effect)
                if isinstance(decision, InDoubt):
                    raise self._unknown(other)
                self._uses.replay(other, attempts)
                break
        return decision

    async def forget(self, key: str) -> list[str]:
        """Forget a step and those recorded after it, except unsafe ones that happened or may have; return those that stay."""
        names = list(self._memory.steps_of(self.turn))
        later = names[names.index(name_in(key, self._journal.session, self.turn)) :]
        steps = self._memory.steps_of(self.turn)
        gone = [name for name in later if not is_bound(steps[name])]
        record = audit("Turn", self._journal.session, turn=self.turn, event="rerun", forgotten=len(gone), begin=key)
        await self._journal.write(StepsForgotten(turn=self.turn, steps=gone), audit=(record,))
        self._uses.forget(set(gone))
        return [name for name in later if name not in gone]

    async def _settle_elsewhere(self, call: Call, use: Use) -> None:
        """Raise if the same step of another turn, or outside of turns, may have happened. If somebody resolved one of an earlier turn, take its result."""
        memory = self._memory
        if any(call.is_of(entry) for entry in self._doubts_elsewhere(call).values()):
            await self._journal.catch_up()
        for after, entry in self._doubts_elsewhere(call).items():
            if call.is_of(entry):
                option = cli_option(self._journal.store)
                raise unknown_error(self._journal.session, after, entry, store_option=option)
        for after, settled in memory.settled.items():
            if call.is_of(settled):
                step = self._step_of(call, use)
                await self._journal.write(step.ended(ok=True, result=settled.result, settles=after))
                return

    def _doubts_elsewhere(self, call: Call) -> dict[str, StepEntry]:
        """Return the doubts of other turns, and those about this call of the session or of the turn in flight."""
        memory, other = self._memory, 0 if self.turn else self._memory.turn
        if other == self.turn:
            return memory.doubts
        steps = memory.steps_of(other)
        equal = {suffix(other, name): steps[name] for name in uses_in(steps, call.identity)}
        running = self._journal.running()
        here = {after: each for after, each in equal.items() if is_doubtful(each) and after not in running}
        return memory.doubts | here

    def _run(self, step: RunningStep, *, repeats: bool) -> Awaitable[Any]:
        # Before the step runs: after its effect it would be too late.
        if step.call.returns is not Any:
            check_declared(step.call)
        if needs_start(step.call.effect):
            return self._start_and_call(step, repeats=repeats)
        return self._call(step) if self._journal.is_owned else self._confirm_and_call(step)

    async def _confirm_and_call(self, step: RunningStep) -> Any:
        # Nothing is written before such a step, so nothing else would tell a process that was stopped that another one has taken over.
        await self._journal.confirm()
        return await self._call(step)

    async def _start_and_call(self, step: RunningStep, *, repeats: bool) -> Any:
        await self._started(step, repeats=repeats)
        if step.use.refused is not None:
            await self._write_not_called(step)
            raise step.use.refused
        return await self._call(step)

    async def _call(self, step: RunningStep) -> Any:
        call = step.call
        if self._uses.by_place or self._questions.by_place or self._runs.uses.by_place:
            self._begin(in_step(step.use.name))
        # The step has its own scope: cancelling the turn cancels the step first, with TOOL_CANCELLED.
        with Scope("tool", parent=self.scope, name=step.name):
            try:
                work = self._journal.recorder.inside(self.turn, step.name, step.key)
                with keyed(step.key), work, inside(self._journal, step.use) as block:
                    result = await self._in_thread(step) if self._threads else call.fn(*call.args, **call.kwargs)
                    if type(result) not in _PLAIN and inspect.isawaitable(result):
                        result = await result
                    # A function that recovers by itself has checked it in each attempt.
                    if call.contract is not None and not recovers(call.fn, call.contract):
                        await check_async(call.contract, result, call.args, call.kwargs)
                    if block.open is not None:
                        await check_done(block)
            # Do not catch a cancellation: the outcome of the step is then unknown, and its start is in the log.
            except Exception as error:
                verdict = await self._failed(step, error, entered=was_entered(call.fn, error))
                if isinstance(verdict, Happened):
                    return verdict.result
                error.__dict__[DOUBT] = step.key if self.may_have_happened(self._name(step)) else ""
                if not isinstance(error, UnsettledError):
                    raise
                if verdict != NOT_HAPPENED:
                    # A step around this one must not take it for its own.
                    raise OutcomeUnknownError(error.fault) from error
                # Its caller goes on with the failure, so that is the result.
                stored = msgspec.Raw(codec.encode_result(error.result, Any, call.name))
                evidence = getattr(self._memory.steps_of(self.turn)[self._name(step)], "evidence", "")
                await self._journal.write(step.ended(ok=True, result=stored, evidence=evidence))
                return error.result
            await self._store_result(step, result)
            return result

    async def _store_result(self, step: RunningStep, result: Any) -> None:
        call = step.call
        stored = b""
        try:
            stored = codec.encode_result(result, call.returns, call.name)
            await self._ended(step, stored)
        except asyncio.CancelledError:
            if call.effect == "unsafe":
                self._journal.keep_late(asyncio.ensure_future(self._mark_late(step, stored)))
            raise
        except InvalidError as error:
            # The step has happened, but its result cannot be stored. An unsafe step must not be repeated then.
            await self._failed(step, error, happened=True)
            error.add_note(unstored_note(step.key, is_unsafe=call.effect == "unsafe"))
            raise
        except HoldfastError as error:
            if call.effect == "unsafe":
                # It has happened, and the log cannot say so: nothing may be done in its place.
                self._journal.unstored = error.__dict__[DOUBT] = step.key
                error.add_note(
                    f"{call.name} has returned {shown((result,), {})}. {unstored_note(step.key, is_unsafe=True)}"
                )
            raise

    async def _mark_late(self, step: RunningStep, stored: bytes) -> None:
        """Store that the caller had gone when the step returned."""
        with _left_open(self._journal.runtime):
            await self._journal.write(step.ended(ok=True, result=msgspec.Raw(stored), late=True))

    async def _in_thread(self, step: RunningStep) -> Any:
        """Call the function, in a thread if it is a plain one. The result may still have to be awaited."""
        call = step.call
        if is_async(call.fn):
            return call.fn(*call.args, **call.kwargs)
        # Known in the whole process: the session may be left and opened again before the thread ends.
        LEFT_BEHIND.add(step.key)
        running = asyncio.ensure_future(
            asyncio.to_thread(LEFT_BEHIND.counted, step.key, call.fn, call.args, call.kwargs)
        )
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            if not running.done():
                # A thread cannot be stopped. Its result is this step's result.
                step.use.left += (asyncio.ensure_future(self._ended_late(step, running)),)
            raise

    async def _ended_late(self, step: RunningStep, running: asyncio.Future[Any]) -> None:
        """Store what a function returned whose caller was cancelled: so it is known that it happened."""
        await asyncio.wait((running,))
        call = step.call
        with _left_open(self._journal.runtime):
            error = running.exception()
            if isinstance(error, Exception):
                await self._failed(step, error, entered=was_entered(call.fn, error))
            elif error is None:
                await self._ended(step, codec.encode_result(running.result(), call.returns, call.name), late=True)

    async def _started(self, step: RunningStep, *, repeats: bool) -> None:
        """Store that a step starts. A second start is recorded in the audit trail too."""
        call = step.call
        started = StepStarted(
            turn=step.turn,
            step=step.name,
            args=step.args,
            effect=call.effect,
            repeats=repeats,
            fn=step.fn,
            place=step.place,
            task=step.task,
            around=around_here(self._journal),
            shown=shown(call.args, call.kwargs),
            key=step.key if call.contract is not None and call.contract.verify is not None else "",
        )
        records = (self._record("ToolInvocation", step, repeated=True),) if repeats else ()
        writing = asyncio.ensure_future(self._write_start(started, records))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            # The start will be in the log, but the function is not called: the step has certainly not happened.
            self._journal.keep_late(asyncio.ensure_future(self._not_called(step, writing)))
            raise

    async def _write_start(self, started: StepStarted, records: tuple[NewAudit, ...]) -> None:
        try:
            await self._journal.write(started, audit=records)
        except InvalidError:
            # The store knows a secret in the arguments that the process does not. The step may run; they are not shown.
            await self._journal.write(msgspec.structs.replace(started, shown=""), audit=records)

    async def _not_called(self, step: RunningStep, writing: asyncio.Future[Any]) -> None:
        await asyncio.wait((writing,))
        if not writing.cancelled() and writing.exception() is None:
            await self._write_not_called(step)

    async def _write_not_called(self, step: RunningStep) -> None:
        with _left_open(self._journal.runtime):
            await self._journal.write(self._end_of(step, Fault.of("TOOL_CANCELLED"), evidence=NOT_CALLED))

    def _ended(self, step: RunningStep, stored: bytes, *, late: bool = False, **facts: Any) -> Awaitable[Receipt]:
        """Store the result of a step."""
        is_unsafe = step.call.effect == "unsafe"
        records = (self._record("ToolInvocation", step, ok=True, **facts),) if is_unsafe else ()
        # Somebody may have been asked what became of it, in an earlier run of the program.
        answers = answers_to(self._memory, step.key, happened=True, result=stored) if is_unsafe and facts else ()
        return self._journal.write(step.ended(ok=True, result=msgspec.Raw(stored), late=late), *answers, audit=records)

    async def _verify(self, step: RunningStep) -> Verdict:
        """Ask the tool's `verify` about a step that may have happened, and store what it found out."""
        call = step.call
        if call.contract is None or call.contract.verify is None or LEFT_BEHIND.runs(step.key):
            # A thread that still runs may take effect after `verify` has looked.
            return CANNOT_TELL
        known = self._memory.steps_of(self.turn).get(self._name(step))
        began_with = step.key if known is None or not known.key else known.key
        reading, (likely, other) = (
            recover(effect="read", runtime=self._journal.runtime),
            call.keys_to_verify(began_with),
        )
        try:
            verdict = await reading.call(verify_async, call.contract, likely, call.args, call.kwargs)
            if verdict == NOT_HAPPENED:
                verdict = await reading.call(verify_async, call.contract, other, call.args, call.kwargs)
        except Exception as error:  # noqa: BLE001 - `verify` is the user's and may raise anything
            suppressed(error, NOT_VERIFIED, runtime=self._journal.runtime)
            return CANNOT_TELL
        if isinstance(verdict, Happened):
            await self._ended(step, codec.encode_result(verdict.result, call.returns, call.name), verified=True)
        elif verdict == NOT_HAPPENED:
            record = self._record("ToolInvocation", step, verified=True, happened=False, evidence=VERIFIED)
            fault = Fault.of("TOOL_EXECUTION_FAILED", "verify found that it did not happen")
            answers = answers_to(self._memory, step.key, happened=False, result=b"null")
            await self._journal.write(self._end_of(step, fault, evidence=VERIFIED), *answers, audit=(record,))
        return verdict

    async def _failed(
        self, step: RunningStep, error: Exception, *, happened: bool = False, entered: bool = True
    ) -> Verdict:
        """Store how a step failed. An unsafe one is in doubt, unless the failure shows that it did not happen."""
        fault = self._journal.fault_of(error)
        is_unsafe = step.call.effect == "unsafe"
        # What a thread that still runs will do is not known, whatever the body says about it.
        may_ask = is_unsafe and not happened and not LEFT_BEHIND.runs(step.key)
        evidence = evidence_in(error, fault, entered=entered) if may_ask else ""
        unknown = is_unsafe and not evidence
        facts = {"evidence": evidence} if evidence else {}
        record = self._record("Fault", step, code=fault.code, unknown=unknown, **facts)
        ended = self._end_of(step, fault, unknown=unknown, evidence=evidence)
        try:
            await self._store_failure(ended, fault, record)
            return await self._verify(step) if unknown else NOT_HAPPENED
        except HoldfastError as failure:
            # The caller must see the step's own error.
            error.add_note(f"and it could not be saved: {failure}")
            return CANNOT_TELL

    async def _store_failure(self, ended: StepEnded, fault: Fault, record: NewAudit) -> None:
        try:
            await self._journal.write(ended, audit=(record,))
        except InvalidError:
            # The store knows a secret that is in the failure's text. That the step failed must be stored nevertheless.
            code_only = msgspec.Raw(msgspec.json.encode({"code": fault.code}))
            await self._journal.write(msgspec.structs.replace(ended, result=code_only), audit=(record,))

    def _end_of(self, step: RunningStep, fault: Fault, *, unknown: bool = False, evidence: str = "") -> StepEnded:
        """Return the entry of a step that failed."""
        result = msgspec.Raw(msgspec.json.encode(fault.for_audit()))
        return step.ended(ok=False, result=result, unknown=unknown, evidence=evidence)

    def _record(self, kind: str, step: RunningStep, **facts: Any) -> NewAudit:
        return audit(kind, step.key, step=step.name, effect=step.call.effect, **facts)

    def _name(self, step: RunningStep) -> str:
        """Return the step's name in the memory of its turn or session."""
        return name_in(step.key, self._journal.session, self.turn)

    def _step_of(self, call: Call, use: Use) -> RunningStep:
        name = use.name
        known = self._memory.steps_of(self.turn).get(name)
        identity = call.identity
        if known is None:
            fn = call.name if identity.key else identity.fn
            return RunningStep(
                call, use, self.key(name), self.turn, name, identity.args, fn, identity.place, use.task or ""
            )
        # A step that an earlier version began keeps the turn and all that it was known by.
        return RunningStep(
            call, use, self.key(name), known.turn, known.step, known.args, known.fn, known.place, use.task or ""
        )

    def _check_open(self) -> None:
        """Raise if the turn is over. A task that runs longer than its turn must not write into the next turn."""
        if self._journal.failed is not None:
            error = HoldfastError(self._journal.failed)
            error.__dict__[DOUBT] = self._journal.unstored
            raise error
        if not self._memory.is_open(self.turn):
            message = f"Session '{self._journal.session}' takes no step: its turn {self.turn} is over"
            context = {"session_id": self._journal.session, "turn": self.turn}
            raise HoldfastError(Fault.of("SESS_TURN_CONCURRENT", message, context=context))

    def _unknown(self, name: str, known: StepEntry | None = None, call: Call | None = None) -> OutcomeUnknownError:
        known, journal = self._memory.steps_of(self.turn)[name] if known is None else known, self._journal
        sent, option = "" if call is None else call.sent(known.key or self.key(name)), cli_option(journal.store)
        return unknown_error(journal.session, suffix(self.turn, name), known, store_option=option, sent=sent)


def _left_open(runtime: Runtime | None) -> Suppression:
    """Ignore and report a failure to store that a step was not called: the doubt about it stays open, which is safe."""
    return suppress(HoldfastError, reason="a step that was not called stays unknown", runtime=runtime)
