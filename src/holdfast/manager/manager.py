"""`ResilienceManager`: circuits, executions, metrics and events, with the methods of document 001 (S1-22).

Invariant: it adds no machinery. An operation recovers exactly as with `recover`, on the same circuits. The manager only
counts the operations that are executed through it.
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, get_args, overload

from holdfast import options as checks
from holdfast.events import KINDS, CircuitState, Event, HookEvent, RecoveryEvent, write_document, write_envelope
from holdfast.faults import Err, InvalidError, Ok
from holdfast.manager.circuit import CircuitHandle, policy_for
from holdfast.manager.metrics import ResilienceMetrics, Tallies
from holdfast.manager.options import AgentExecutionContext, ExecutionOptions, chain_of_agents
from holdfast.policies.profiles import AGENTS, PROVIDERS
from holdfast.policies.target import Target, target_of
from holdfast.runtime.callables import is_async
from holdfast.runtime.fallbacks.fallback import drive_chain, drive_chain_async
from holdfast.runtime.fault_of import fault_of
from holdfast.runtime.operation.drivers import call_plainly, call_plainly_async, drive, drive_async
from holdfast.runtime.operation.operation import Operation
from holdfast.runtime.operation.plan import Plan, PlanCache
from holdfast.runtime.operation.reports import timeline
from holdfast.runtime.runtime import Runtime, default_runtime

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from holdfast.faults import Outcome
    from holdfast.policies.circuit import Circuit
    from holdfast.policies.target import TargetLike
    from holdfast.runtime.bus import EventStream, Subscription
    from holdfast.runtime.fallbacks.fallback import Chain
    from holdfast.runtime.operation.adapter import Abort

__all__ = ["EVENT_NAMES", "ResilienceManager"]

T = TypeVar("T")

EVENT_NAMES: dict[str, type[Event]] = {str(kind.__struct_config__.tag): kind for kind in KINDS}
"""The kinds of events by name: `retry`, `circuit-state-change`, `fallback`, `agent-fallback` …"""

_NO_OPTIONS = ExecutionOptions()
_DOCUMENTED = (*get_args(RecoveryEvent), HookEvent)


class ResilienceManager:
    """Executes operations with retries, circuits, time limits and fallbacks, and counts how they went.

    Circuits belong to the runtime, so all managers of one runtime share them; each manager has its own counts. Without
    `runtime`, the default runtime is used. Anything else raises `InvalidError`.

        from holdfast.manager import ExecutionOptions, ResilienceManager

        manager = ResilienceManager()
        answer = manager.execute(ask, ExecutionOptions(provider="claude", operation_type="llm-call"))
        print(manager.get_circuit("provider:claude").state, manager.get_metrics().successful_retries)
    """

    def __init__(self, runtime: Runtime | None = None) -> None:
        if runtime is not None and not isinstance(runtime, Runtime):
            raise InvalidError.at("manager.runtime", "a Runtime or None", runtime)
        self._runtime = default_runtime() if runtime is None else runtime
        self._tallies = Tallies()
        # The registry counts for the whole runtime; this manager's count begins at zero.
        self._opens_before = self._runtime.registry.opens()
        self._plans = PlanCache(self._make_plan)

    # --- circuits ---

    def get_circuit(self, name: TargetLike, config: Circuit | None = None) -> CircuitHandle:
        """Return the circuit of a name, such as `"claude"`, `"builder"`, `"provider:claude"` or `"agent:builder"`.

        A name alone is that of a provider, or of an agent if SPEC-016 names it or it has run. A circuit that does not exist yet is closed and has counted nothing. `config` gives it its settings; without, they come from the
        first call. Raises `InvalidError` if the name is blank, and if the circuit has other settings already.
        """
        target = target_of(name, "circuit")
        if self._is_agent(target):
            target = Target(agent=target.provider)
        if not target.names:
            raise InvalidError.at("circuit", "a name such as 'provider:claude' or 'agent:builder'", str(name))
        handle = CircuitHandle(target.names[0][1], target, self._runtime, self._through)
        if config is not None:
            handle.configure(config)
        return handle

    def _is_agent(self, target: Target) -> bool:
        """Whether a name alone, which may be a provider's, is that of an agent."""
        name, known = target.provider, self._runtime.registry.known
        if not name or target != Target(provider=name) or known(f"provider:{name}") is not None:
            return False
        return name in AGENTS or known(f"agent:{name}") is not None

    @property
    def provider_circuits(self) -> dict[str, CircuitHandle]:
        """The circuits of the providers that SPEC-016 names: `manager.provider_circuits["claude"]`."""
        return {name: self.get_circuit(Target(provider=name)) for name in PROVIDERS}

    @property
    def agent_circuits(self) -> dict[str, CircuitHandle]:
        """The circuits of the agents that SPEC-016 names: `manager.agent_circuits["builder"]`."""
        return {name: self.get_circuit(Target(agent=name)) for name in AGENTS}

    def get_circuit_states(self) -> dict[str, CircuitState]:
        """Return the state of every circuit of the runtime, by name."""
        return {state.name: self.get_circuit(state.name).state for state in self._runtime.registry}

    def reset_circuit(self, name: TargetLike) -> bool:
        """Close a circuit and forget its recent failures. Return False if there is no circuit of that name."""
        handle = self.get_circuit(name)
        if self._runtime.registry.known(handle.name) is None:
            return False
        handle.reset()
        return True

    def reset_all_circuits(self) -> int:
        """Close every circuit of the runtime and return how many there are."""
        return sum(self.reset_circuit(state.name) for state in self._runtime.registry)

    # --- execution ---

    @overload
    def execute(
        self, operation: Callable[[], Coroutine[Any, Any, T]], options: ExecutionOptions = ...
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def execute(self, operation: Callable[[], T], options: ExecutionOptions = ...) -> T: ...
    def execute(self, operation: Callable[[], Any], options: ExecutionOptions = _NO_OPTIONS) -> Any:
        """Call `operation` with the retries, circuit, time limit and fallbacks of `options`; if it is async, await the result.

        Raises the operation's own error when nothing answered, `CircuitOpenError` while its circuit is open, `DeadlineError`
        at a time limit, and `AbortedError` after `options.abort` is set. For a plain function that returns a coroutine,
        such as a lambda, use `execute_async`.
        """
        if is_async(operation):
            return self.execute_async(operation, options)
        return self._call(operation, options)[0]

    async def execute_async(self, operation: Callable[[], Awaitable[T]], options: ExecutionOptions = _NO_OPTIONS) -> T:
        """Do as `execute` with any function that returns an awaitable, such as a lambda that returns a coroutine."""
        value: T = (await self._call_async(operation, options))[0]
        return value

    def outcome(self, operation: Callable[[], T], options: ExecutionOptions = _NO_OPTIONS) -> Outcome[T]:
        """Execute, and return `Ok` or `Err` instead of raising. It has every attempt, and `via` names who answered."""
        try:
            return _ok(*self._call(operation, options))
        except Exception as error:  # noqa: BLE001 - an outcome holds any failure
            return Err(fault_of(error), error)

    async def outcome_async(
        self, operation: Callable[[], Awaitable[T]], options: ExecutionOptions = _NO_OPTIONS
    ) -> Outcome[T]:
        """Do as `outcome` with any function that returns an awaitable."""
        try:
            return _ok(*await self._call_async(operation, options))
        except Exception as error:  # noqa: BLE001 - an outcome holds any failure
            return Err(fault_of(error), error)

    @overload
    def execute_agent(
        self, context: AgentExecutionContext | str, run: Callable[[str], Coroutine[Any, Any, T]]
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def execute_agent(self, context: AgentExecutionContext | str, run: Callable[[str], T]) -> T: ...
    def execute_agent(self, context: AgentExecutionContext | str, run: Callable[[str], Any]) -> Any:
        """Call `run` with the agent's name. If the agent fails for good, call `run` with the name of the next agent.

        The agent's circuit counts one outcome per operation, however many attempts it took and whatever the failure was. While the circuit is open,
        the next agent takes over at once. When all agents have failed, the first agent's error is raised; its notes name the
        errors of the others. A name alone stands for `AgentExecutionContext(agent_id=name)`.
        """
        if isinstance(context, str):
            context = AgentExecutionContext(agent_id=context)
        if not isinstance(context, AgentExecutionContext):
            raise InvalidError.at("execute_agent.context", "an AgentExecutionContext, or an agent's name", context)
        first = partial(run, context.agent_id)
        options = context.options
        plan = self._plan(options, per_operation=True)
        chain = chain_of_agents(context, run, first)
        if is_async(run):
            return self._value_async(plan, chain, first, options.abort)
        return self._run(plan, chain, first, options.abort)[0]

    # --- metrics and events ---

    def get_metrics(self) -> ResilienceMetrics:
        """Return the counts since this manager was made."""
        return self._tallies.metrics(self._runtime.registry.opens() - self._opens_before)

    def on(self, event: str, handler: Callable[[Any], object]) -> Subscription:
        """Call `handler` with every event of this name. Raises `InvalidError` if the name is not in `EVENT_NAMES`.

        Where the program keeps to the profile `spec016`, the events of a recovery are plain documents, as
        `holdfast.events.write_document` writes them: `{"type": "retry", "attempt": 1, "delay": 1000.0, "error": {…}}`. With `stud` every
        event is an envelope, as `holdfast.events.write_envelope` writes it.
        """
        kind = EVENT_NAMES.get(event)
        if kind is None:
            raise InvalidError.at("on", f"one of {', '.join(sorted(EVENT_NAMES))}", event)
        if not callable(handler):
            return self._runtime.on(handler, kind)

        def show(event: Any) -> object:
            form = self._runtime.profile.event_form
            if form == "document" and kind in _DOCUMENTED:
                return handler(write_document(event))
            return handler(write_envelope(event, self._runtime.clock.monotonic()) if form == "envelope" else event)

        # The report of a handler that raises names it.
        show.__qualname__ = getattr(handler, "__qualname__", type(handler).__name__)
        return self._runtime.on(show, kind)

    def events(self) -> EventStream[Event]:
        """Return an iterator over all events from now on: `async for event in manager.events()`."""
        return self._runtime.events()

    # --- one execution ---

    def _call(self, operation: Callable[[], Any], options: ExecutionOptions) -> tuple[Any, Operation | None]:
        _check(operation, options)
        # Checked at the call: only its result shows whether a plain function returns a coroutine.
        calling = partial(_plain, operation)
        chain = None if options.fallback_chain is None else options.fallback_chain.chain_for(calling)
        return self._run(self._plan(options), chain, calling, options.abort)

    async def _call_async(
        self, operation: Callable[[], Awaitable[Any]], options: ExecutionOptions
    ) -> tuple[Any, Operation | None]:
        _check(operation, options)
        calling = operation if is_async(operation) else partial(_awaited, operation)
        chain = None if options.fallback_chain is None else options.fallback_chain.chain_for(calling)
        return await self._run_async(self._plan(options), chain, calling, options.abort)

    def _through(self, handle: CircuitHandle, operation: Callable[[], Any]) -> Any:
        """Make one call through a circuit, without retries and time limits."""
        policy = policy_for(self._runtime, handle.target)
        policy = policy.replace(
            attempts=1,
            per_code={},
            timeout=None,
            deadline=None,
            patience=None,
            circuit=handle.circuit_for(policy),
            wait_for_circuit=False,
        )
        plan = Plan(handle.target, policy, runtime=self._runtime)
        if is_async(operation):
            return self._value_async(plan, None, operation, None)
        return self._run(plan, None, operation, None)[0]

    def _run(
        self, plan: Plan, chain: Chain | None, operation: Callable[[], Any], abort: Abort | None
    ) -> tuple[Any, Operation | None]:
        if plan.off:
            return call_plainly(plan, operation), None
        op = Operation(plan, abort=abort)
        # BaseException: a cancelled operation made attempts too, and they are counted.
        try:
            value = drive(op, operation, (), {}) if chain is None else drive_chain(op, chain, operation, (), {})
        except BaseException as error:
            self._tallies.failed(op, error)
            raise
        self._tallies.succeeded(op)
        return value, op

    async def _run_async(
        self, plan: Plan, chain: Chain | None, operation: Callable[[], Awaitable[Any]], abort: Abort | None
    ) -> tuple[Any, Operation | None]:
        if plan.off:
            return await call_plainly_async(plan, operation), None
        op = Operation(plan, abort=abort)
        try:
            if chain is None:
                value = await drive_async(op, operation, (), {})
            else:
                value = await drive_chain_async(op, chain, drive_async(op, operation, (), {}), (), {})
        except BaseException as error:
            self._tallies.failed(op, error)
            raise
        self._tallies.succeeded(op)
        return value, op

    async def _value_async(
        self, plan: Plan, chain: Chain | None, operation: Callable[[], Awaitable[Any]], abort: Abort | None
    ) -> Any:
        return (await self._run_async(plan, chain, operation, abort))[0]

    def _plan(self, options: ExecutionOptions, *, per_operation: bool = False) -> Plan:
        """Return the plan for these options. It is kept, because making one costs more than a call."""
        return self._plans.get(options.for_plan, per_operation)

    def _make_plan(self, options: ExecutionOptions, per_operation: bool) -> Plan:  # noqa: FBT001 - a part of a key
        target = options.target
        is_limited = self._runtime.timeout_named_for(target) is not None
        policy = options.applied_to(policy_for(self._runtime, target), is_limited=is_limited)
        if per_operation:
            policy = policy.replace(counts="operation")
        # Two policies that disagree about one circuit raise an error. So without settings of its own, the manager uses those
        # that each circuit has already.
        plan = Plan(
            target,
            policy,
            threads=options.threads,
            alone=options.skip_circuit_breaker,
            keeps_circuits=options.circuit_breaker is None,
            # An agent that never gets done is as useless as one that is down, whatever the reason is.
            counts_all=per_operation,
            runtime=self._runtime,
        )
        # The name is for people only; the circuits are those of the target.
        plan.name = options.operation_name or plan.name
        return plan


def _check(operation: Any, options: Any) -> None:
    checks.function("execute", operation, "execute(f)")
    if not isinstance(options, ExecutionOptions):
        raise InvalidError.at("execute.options", "ExecutionOptions", options)


def _ok(value: T, op: Operation | None) -> Ok[T]:
    return Ok(value) if op is None else Ok(value, via=op.via, attempts=timeline(op, value))


def _plain(operation: Callable[[], Any]) -> Any:
    value = operation()
    if inspect.iscoroutine(value):
        # The coroutine is closed. Otherwise Python warns that it was never awaited.
        value.close()
        raise InvalidError.saying(
            "execute", "an async function, or execute_async", "a plain function that returns a coroutine"
        )
    return value


async def _awaited(operation: Callable[[], Any]) -> Any:
    value = operation()
    return await value if inspect.isawaitable(value) else value
