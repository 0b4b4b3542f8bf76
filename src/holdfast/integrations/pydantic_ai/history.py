"""`StoreHistory`: the messages of pydantic-ai's runs in a store, written while a run goes on."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ModelMessagesTypeAdapter

from holdfast import options
from holdfast.integrations.store_log import StoreLog
from holdfast.transcript import repair

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from typing import Self

    from pydantic_ai import RunContext
    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.models import ModelRequestContext
    from pydantic_ai.run import AgentRunResult

    from holdfast.stores.store import Store

__all__ = ["StoreHistory"]


class StoreHistory(AbstractCapability[Any]):
    """A conversation in a store that is open. As a capability of a run it writes each message as soon as the run has it.

    For example:
        async with open_store("sqlite:work.db") as store:
            history = StoreHistory("customer-7", store)
            await agent.run("Pay the bill", message_history=await history.messages(), capabilities=[history])

    What a crash left behind is repaired when it is read: a call without a result gets one that says that it was interrupted. The log keeps what
    really happened. Raises what the store raises, for example SESS_STORE_UNAVAILABLE.
    """

    def __init__(self, conversation: str, store: Store) -> None:
        options.name("conversation", conversation)
        self._log = StoreLog(store, "pydantic-ai")
        self._name = self._log.name(conversation)
        self._written: dict[int, ModelMessage] = {}
        """The messages of this run that are in the store, by identity. Holding them keeps the identities."""

    async def messages(self, limit: int | None = None) -> list[ModelMessage]:
        """Return the conversation, or its last `limit` messages, as the provider accepts it."""
        messages: list[ModelMessage] = []
        if (record := await self._log.record(self._name)) is not None:
            async for entry in self._log.entries(record):
                messages += ModelMessagesTypeAdapter.validate_json(bytes(entry.body))
        # A limit may cut between a call and its result, so repair what is left.
        kept = messages if limit is None else messages[max(0, len(messages) - limit) :]
        return repair(kept, "pydantic-ai").history

    async def add(self, messages: Sequence[ModelMessage]) -> None:
        """Add messages, such as `result.new_messages()`. They are on disk when this returns."""
        if messages:
            await self._log.append(self._name, ModelMessagesTypeAdapter.dump_json(list(messages)))

    async def clear(self) -> None:
        """Remove the conversation from the store."""
        await self._log.remove(self._name)

    # --- what pydantic-ai calls ---

    async def for_run(self, ctx: RunContext[Any]) -> Self:
        """Return a copy, since each run has messages of its own."""
        del ctx
        one = copy(self)
        one._written = {}  # noqa: SLF001 - the copy is of this class
        return one

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Write what is sent: the prompt, or the results of tools."""
        await self._write(ctx)
        return request_context

    async def before_tool_execute(self, ctx: RunContext[Any], **call: Any) -> dict[str, Any]:
        """Write the answer that calls the tool, so that a crash in the tool does not lose it."""
        await self._write(ctx)
        arguments: dict[str, Any] = call["args"]
        return arguments

    async def wrap_run(
        self, ctx: RunContext[Any], *, handler: Callable[[], Awaitable[AgentRunResult[Any]]]
    ) -> AgentRunResult[Any]:
        """Write the last answer too. A run that fails has written what it sent and what it was answered."""
        result = await handler()
        await self._write(ctx, result.new_messages())
        return result

    async def _write(self, ctx: RunContext[Any], messages: Sequence[ModelMessage] | None = None) -> None:
        known = ctx.messages if messages is None else messages
        new = [each for each in known if each.run_id == ctx.run_id and id(each) not in self._written]
        self._written |= {id(each): each for each in new}
        await self.add(new)
