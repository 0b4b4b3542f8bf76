"""A workflow's results, failures and bindings in the log of its session.

A call is a step of the session: it is known by its name, its inputs, and whether it is the first, second … of them. A run
that is made again gets the stored results, so the machine goes the same way again.

Invariant: a call that has a stored result is not made again. A failure is stored as a result only if the program handles it, because only
then the program went on from it; any other failed call is made again. An unsafe call of unknown outcome stops the workflow.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from holdfast.faults import Fault, HoldfastError, OutcomeUnknownError
from holdfast.once.doubt import UnsettledError
from holdfast.once.outcome import Found, Mark
from holdfast.runtime.secrets import process_redactor
from holdfast.sessions import codec
from holdfast.sessions.call import as_step
from holdfast.sessions.later import ask_operator, ends_the_run, resumable, wait_later
from holdfast.workflow.values import digest, plain, show

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from holdfast.runtime.runtime import Runtime
    from holdfast.runtime.tool import ToolContract
    from holdfast.sessions.later import Origin
    from holdfast.sessions.session import Session
    from holdfast.workflow.requests import Binding, Bound, CallRequest, Escalate, Later

T = TypeVar("T")

__all__ = [
    "BINDINGS",
    "Ended",
    "Keeper",
    "SessionKeeper",
    "all_or_first_failure",
    "constant",
    "ends_the_run",
    "plain_result",
    "run_in_session",
    "shown_value",
    "unsettled",
]

_OUTCOME = Mark("holdfast.workflow")
"""Stands around the stored outcome of a call."""
BINDINGS = "holdfast.bindings"
"""The field of a stored checkpoint that holds its bindings."""
_SHOWN = 1_000
"""Characters of a value that a checkpoint shows."""


class Ended(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a call ended."""

    value: Any = None
    fault: Fault | None = None
    stored: bool = False
    """Whether that is from an earlier run."""


def unsettled(call: CallRequest, fault: Fault) -> UnsettledError:
    """Return the error of an unsafe call that failed where the program would go on. First it must be known whether it happened."""
    message = f"{call.kind} {call.name} failed and may have happened: {fault.message}"
    doubt = Fault.of("TOOL_OUTCOME_UNKNOWN", message, context=fault.context, cause=fault.cause)
    return UnsettledError(doubt, _OUTCOME.on(msgspec.to_builtins(Ended(fault=fault))))


class Keeper:
    """Keeps what a run has done. This one keeps nothing: a run without a session."""

    async def call(
        self, strand: str, call: CallRequest, contract: ToolContract | None, make: Callable[[], Awaitable[Ended]]
    ) -> Ended:
        """Make a call, or return how it ended before."""
        ended: Ended = await Keeper.once(self, f"{strand}{call.name}", make, contract)
        return ended

    async def bound(self, strand: str, number: int, bound: Bound) -> None:
        """Keep bindings; raise SESS_STEP_DRIFT if an earlier run had other values."""

    async def once(
        self,
        name: str,
        make: Callable[[], Awaitable[Any]],
        contract: ToolContract | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return what `make` returns, or what it returned in an earlier run.

        `contract` declares the effect of `make`; `arguments` are shown if it is in doubt.
        """
        del name, contract, arguments
        try:
            return await make()
        except UnsettledError as error:
            # A step around the run must not take it for its own.
            raise OutcomeUnknownError(error.fault) from error

    async def stored(self, name: str) -> Any:
        """Return what `once` has stored under a name; None if there is nothing."""
        del name

    def doubts(self) -> tuple[str, ...]:
        """Return the keys of unsafe calls that were cut off: they may have happened."""
        return ()

    async def wait_later(self, name: str, later: Later) -> None:
        """Return when a delay is over; raise `ParkedError` if it is stored and not over."""
        del name
        await asyncio.sleep(later.seconds)

    async def ask_operator(self, name: str, escalate: Escalate) -> bool:
        """Return whether the operator says that it is tried again. Without a session there is nobody to ask."""
        del name, escalate
        return False


class SessionKeeper(Keeper):
    """Keeps everything in the log of a session."""

    def __init__(self, session: Session, run: str, program: str, origin: Origin | None, runtime: Runtime) -> None:
        self._session = session
        self._run = run
        self._origin = origin
        self._runtime = runtime
        self._program = program
        """Tells programs apart: the values of an edited one may differ."""

    async def call(
        self, strand: str, call: CallRequest, contract: ToolContract | None, make: Callable[[], Awaitable[Ended]]
    ) -> Ended:
        """Make the call as a step of the session."""
        ran = False

        async def made(*_: Any, **__: Any) -> Any:
            nonlocal ran
            ran = True
            return _OUTCOME.on(msgspec.to_builtins(await make()))

        with self._session.part(self._run, task=call.strand, earlier=f"{self._run}/{strand}"):
            step = as_step(made, call.name, contract and contract.about_repeating)
            stored = _OUTCOME.read(await self._session.step(step, *call.args, **call.inputs))
        ended = Ended(value=stored.result) if isinstance(stored, Found) else msgspec.convert(stored, Ended)
        return msgspec.structs.replace(ended, stored=not ran)

    async def bound(self, strand: str, number: int, bound: Bound) -> None:
        """Write a checkpoint with the bindings; compare it with the one of an earlier run."""
        found = [_record(binding) for binding in bound.bindings]
        step = self._session.keyed(f"{self._run}/{strand}bound/{self._program}/{number}")

        async def bind(checkpoint: dict[str, Any]) -> dict[str, Any]:
            return checkpoint

        checkpoint = {BINDINGS: found, "strand": strand, "program": self._program}
        before = await step.step(as_step(bind, "bind"), checkpoint)
        for now, then in zip(found, before[BINDINGS], strict=False):
            if (now["name"], now["digest"]) != (then["name"], then["digest"]):
                raise _drift(self._session.id, then, now)

    async def once(
        self,
        name: str,
        make: Callable[[], Awaitable[Any]],
        contract: ToolContract | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> Any:
        """Make it as a step with this name."""

        async def made(**_: Any) -> Any:
            return await make()

        step = as_step(made, name.rpartition("/")[2], contract and contract.about_repeating)
        return await self._session.keyed(f"{self._run}/{name}").step(step, **(arguments or {}))

    async def stored(self, name: str) -> Any:
        """Return the result of the step with this name; None if it has none."""
        return await self._session.keyed(f"{self._run}/{name}").stored()

    def doubts(self) -> tuple[str, ...]:
        """Return those of the session."""
        return self._session.unknown

    async def wait_later(self, name: str, later: Later) -> None:
        """Wait in the store."""
        await wait_later(
            self._session,
            f"{self._run}/{name}",
            later.seconds,
            later.fault,
            origin=self._origin,
            attempt=later.attempt,
            attempts=later.attempts,
            runtime=self._runtime,
        )

    async def ask_operator(self, name: str, escalate: Escalate) -> bool:
        """Ask through the session."""
        return await ask_operator(
            self._session,
            f"{self._run}/{name}",
            escalate.fault,
            attempts=escalate.attempts,
            origin=self._origin,
            runtime=self._runtime,
        )


async def run_in_session(
    session: Session,
    name: str,
    inputs: dict[str, Any],
    finish: Callable[[str, Keeper], Awaitable[T]],
    runtime: Runtime,
    *,
    program: str = "",
    ends: Callable[[Exception], bool] = lambda _: False,
) -> T:
    """Run a workflow or a stage machine in a session, once per session and inputs. A run that is not over goes on.

    finish: gets the key of the run and its keeper. ends: whether an exception of it ends the run; after another one it goes on.
    """

    async def work(key: str) -> T:
        async def go_on(origin: Origin | None) -> T:
            return await finish(key, SessionKeeper(session, key, program, origin, runtime))

        return await resumable(session, name, inputs, key, go_on, ends=ends)

    return await session.numbered(name, inputs, work)


async def all_or_first_failure(
    work: Sequence[Awaitable[T]], least: type[Exception], *, stops_others: bool = True
) -> list[T]:
    """Run all at the same time and return their results. A failure stops the others, if it says so, and is raised when they have ended.

    least: an exception that says less than all others, so that another one is raised if there is one.
    """
    if len(work) == 1:
        return [await work[0]]
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION if stops_others else asyncio.ALL_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    failures = [task.exception() for task in tasks if not task.cancelled()]
    for failure in sorted(filter(None, failures), key=lambda failure: isinstance(failure, least)):
        raise failure
    return [task.result() for task in tasks]


def constant(value: T) -> Callable[[], Awaitable[T]]:
    """Return a function that gives a value, for `Keeper.once`."""

    async def give() -> T:
        return value

    return give


def _record(binding: Binding) -> dict[str, Any]:
    return {
        "name": binding.name,
        "shown": shown_value(binding.name, binding.value),
        "digest": digest(binding.value),
        "line": binding.position.line,
        "column": binding.position.column,
    }


def shown_value(name: str, value: Any, most: int = _SHOWN) -> str:
    """Return a value as text, masked and cut. Its name may say that it is a secret."""
    if isinstance(value, (list, dict)):
        # A large or deep value is cut before it is masked, because masking reads all of it.
        return process_redactor().text(show(value, most))
    return show(process_redactor().value({name: plain(value)})[name], most)


def _drift(session: str, then: dict[str, Any], now: dict[str, Any]) -> HoldfastError:
    message = (
        f"line {now['line']}, column {now['column']}: {then['name']} was {then['shown']} when this workflow ran before, and now "
        f"{now['name']} is {now['shown']}. A primitive or a registered function gives other values than before. "
        f"Make it give the same values, or run the workflow in a new session"
    )
    context = {"session_id": session, "before": then["shown"], "now": now["shown"], "binding": now["name"]}
    return HoldfastError(Fault.of("SESS_STEP_DRIFT", process_redactor().text(message), context=context))


def plain_result(value: Any, where: str) -> Any:
    """Return a result as plain JSON values, as the log stores it; raise `InvalidError` for what JSON cannot hold."""
    return codec.plain(value, where)
