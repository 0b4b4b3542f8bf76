"""`SessionDurability`: pydantic-ai's runs as steps of a session, through the seam that pydantic-ai has for durable engines.

    durable(session) ─▶ agent.run ─▶ pydantic-ai asks for an operation ─▶ SessionBackend.execute ─▶ session.step

Invariant: what the model answered and what a tool returned is in the store before the run goes on. A tool whose effect is not
declared is unsafe: it never runs a second time by itself.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    CapabilityOperationId,
    DurabilityEngineSpec,
    JournalCallableOperationBackend,
    ModelCompactMessagesId,
    ModelRequestId,
    RoleBasedOperationConfig,
    ToolsetCallToolId,
)
from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse
from pydantic_ai.models import ModelRequestContext
from pydantic_core import to_jsonable_python

from holdfast import options
from holdfast.faults import InvalidError, OutcomeUnknownError
from holdfast.integrations.pydantic_ai.exceptions import for_the_model
from holdfast.once.outcome import Found, Mark
from holdfast.runtime.operation.postconditions import check_async
from holdfast.runtime.tool import ToolContract, contract_of
from holdfast.sessions.call import as_step
from holdfast.sessions.session import Session

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from pydantic_ai.agent import EventStreamHandler
    from pydantic_ai.durable_exec import DurableOperationBackend, DurableOperationId
    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.models import Model

    from holdfast.policies import Effect

__all__ = ["SessionDurability", "durable"]

DepsT = TypeVar("DepsT")

_SESSION: ContextVar[Session | None] = ContextVar("holdfast_pydantic_ai_session", default=None)

_UNDECLARED = ToolContract(effect="unsafe")
_READ = ToolContract(effect="read")

_RESULT = Mark("pydantic-ai")
"""Stands around a stored tool result."""

_SECOND = 2

_CHANGES = {"timestamp", "run_id", "conversation_id", "instructions"}
"""Fields of messages and their parts that are others when the same run is made again."""


@contextmanager
def durable(session: Session) -> Iterator[Session]:
    """Make the runs inside the block durable, for agents that have `SessionDurability`.

        async with Session.open("order-42") as session:
            with durable(session):
                await agent.run("Settle order 42")

    Raises `InvalidError` if it gets something else than a session.
    """
    if not isinstance(session, Session):
        raise InvalidError.saying("session", "a session that is open", type(session).__name__)
    token = _SESSION.set(session)
    try:
        yield session
    finally:
        _SESSION.reset(token)


class SessionDurability(BaseDurabilityCapability[DepsT]):
    """A capability that makes each request and each tool call of an agent a step of a session, inside of `durable`.

        agent = Agent(model, name="payer", capabilities=[SessionDurability()])

    A process that was killed makes the same run again: stored answers and results are returned, and only the rest runs. A tool says
    with `@holdfast.tool(effect=…)` what a call does to the world, or `effects` says it by name, for tools without a function of
    yours. Every other tool is unsafe. If an unsafe call was cut, it is not repeated, and the model reads `TOOL_OUTCOME_UNKNOWN`.
    Outside of `durable` the agent runs as it would without the capability. `models` are further models that a run may choose by
    name. `event_stream_handler` gets the events of each request while the model answers; what a run itself streams comes in a durable run
    only when the answer is stored. Events of a stored answer are not sent again. Raises `InvalidError` for an effect that does not exist, and pydantic-ai's `UserError` for an agent without a name.
    """

    engine_spec = DurabilityEngineSpec(
        engine_name="Holdfast",
        durable_unit_noun="step",
        durable_container_noun="session",
        codec=JSON_CODEC,
        # The tools that a server offers now are the ones that can be called now.
        journal_discovery=False,
    )

    @options.suggests
    def __init__(
        self,
        *,
        effects: Mapping[str, Effect] | None = None,
        models: Mapping[str, Model] | None = None,
        name: str | None = None,
        event_stream_handler: EventStreamHandler[DepsT] | None = None,
    ) -> None:
        super().__init__(models=models, name=name, event_stream_handler=event_stream_handler)
        self._contracts = {tool: ToolContract(effect=effect) for tool, effect in (effects or {}).items()}

    @property
    def in_durable_context(self) -> bool:
        """Whether the run is inside of `durable`."""
        return _SESSION.get() is not None

    def get_durable_operation_backend(self) -> DurableOperationBackend[Any]:
        """Return what runs the operations of pydantic-ai as steps."""
        config = RoleBasedOperationConfig(
            model=_READ, event=_READ, capability=_UNDECLARED, tool=_UNDECLARED, resolve_tool=self._contract
        )
        return _SessionBackend(agent_name=self.name, default_model_id=self.default_model_id, config=config)

    def _contract(self, operation: DurableOperationId, tool: object | None, name: str) -> ToolContract:
        del operation
        function = getattr(getattr(getattr(tool, "call_func", None), "__self__", None), "function", None)
        found = contract_of(function) or self._contracts.get(name, _UNDECLARED)
        # A function that recovers by itself checks its results, and sends other keys than the step's: its `verify` would look for the wrong one.
        return msgspec.structs.replace(found, verify=None, check=None) if hasattr(function, "__wrapped__") else found


class _SessionBackend(JournalCallableOperationBackend[ToolContract]):
    """Runs pydantic-ai's operations in the session of the block around them."""

    async def execute(
        self,
        *,
        operation_id: DurableOperationId,
        name: str,
        body: Callable[[], Awaitable[object]],
        cache_key: tuple[object, ...],
        config: ToolContract,
    ) -> object:
        """Run an operation as a step, or return its stored result."""
        session = _SESSION.get()
        if session is None:
            return await body()
        match operation_id:
            case ToolsetCallToolId():
                tool, arguments, context = cache_key[:3]
                # The call before the approval is stored too, with the result that it needs one.
                approved = " (approved)" if getattr(context, "tool_call_approved", False) else ""
                with _apart(session, context):
                    return await _called(session, f"{tool}{approved}", arguments, body, config)
            case ModelRequestId() | ModelCompactMessagesId():
                return await session.step(_named(name, body, config), _digest(cache_key[1]))
            case CapabilityOperationId():
                return await session.step(_named(name, body, config))
            case _:
                # Validation and discovery change nothing, and handlers of events see a run as it goes.
                return await body()


def _apart(session: Session, context: object) -> AbstractContextManager[object]:
    """Return a part for a call that is not the first of several equal ones in one answer. They run at the same time."""
    number = _number_among_equal(context)
    return nullcontext() if number < _SECOND else session.part(f"equal call {number}")


def _number_among_equal(context: object) -> int:
    """Return which of the equal calls of the latest answer this one is, counted from 1."""
    answers = [each for each in getattr(context, "messages", ()) if isinstance(each, ModelResponse)]
    calls = answers[-1].tool_calls if answers else []
    own = next((each for each in calls if each.tool_call_id == getattr(context, "tool_call_id", None)), None)
    if own is None:
        return 1
    equal = [each for each in calls if (each.tool_name, each.args_as_dict()) == (own.tool_name, own.args_as_dict())]
    return 1 + [each.tool_call_id for each in equal].index(own.tool_call_id)


async def _called(
    session: Session, tool: str, arguments: Any, body: Callable[[], Awaitable[object]], contract: ToolContract
) -> object:
    """Run one call of a tool, or return its stored result."""

    async def kept() -> object:
        found: Any = await body()
        if found["kind"] == "tool_return":
            await check_async(contract, found["result"], (), given)
        return _RESULT.on(found)

    given = to_jsonable_python(arguments, serialize_unknown=True)
    try:
        found = _RESULT.read(await session.step(_named(tool, kept, contract), **given))
    except OutcomeUnknownError as error:
        raise for_the_model(error) from error
    return {"kind": "tool_return", "result": found.result} if isinstance(found, Found) else found


def _named(name: str, body: Callable[[], Awaitable[object]], contract: ToolContract) -> Callable[..., Awaitable[Any]]:
    """Return the function of a step: its name and its arguments identify it, and its contract says whether it may be repeated."""

    async def work(*args: Any, **kwargs: Any) -> Any:
        del args, kwargs
        return await body()

    return as_step(work, name, contract)


def _digest(request: Any) -> str:
    """Return a hash of the messages of a request. A run that is made again sends the same ones, at another time."""
    messages: Sequence[ModelMessage] = request.messages if isinstance(request, ModelRequestContext) else request
    plain = ModelMessagesTypeAdapter.dump_python(list(messages), mode="json")
    kept = [{**_lasting(message), "parts": [_lasting(part) for part in message["parts"]]} for message in plain]
    return sha256(msgspec.json.encode(kept, order="sorted")).hexdigest()[:16]


def _lasting(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in _CHANGES}
