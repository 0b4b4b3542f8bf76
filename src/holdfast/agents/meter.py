"""What one request of an agent cost: every answer that was paid for, also those that could not be used.

Invariant: a request of a model that makes its calls without a recovery is reserved and charged here, and nowhere else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.agents.decide import Spent
from holdfast.agents.models import NamedModel, listed_names
from holdfast.policies.budget import NANO
from holdfast.policies.models.quote import Quote, quote_of
from holdfast.policies.models.usage import Usage
from holdfast.providers.cached import CachedModel
from holdfast.providers.chain import ModelChain
from holdfast.providers.model import RecoveringModel
from holdfast.runtime.budgets.budget import Budget
from holdfast.runtime.budgets.reserve import reserve_async
from holdfast.runtime.operation.adapter import Adapter
from holdfast.runtime.operation.operation import Operation
from holdfast.runtime.operation.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from holdfast.providers.messages import Reply, Request
    from holdfast.providers.model import Model
    from holdfast.runtime.runtime import Runtime

__all__ = ["RequestMeter"]


class RequestMeter(Budget):
    """Watches the requests of a run, one after the other."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime=runtime)
        self._given = runtime
        self._answers: list[tuple[Usage, float | None]] = []

    def note_answer(self, usage: Usage, usd: float | None) -> None:
        """Remember an answer that was paid for."""
        self._answers.append((usage, usd))

    def unused(self, reply: Reply | None) -> Spent | None:
        """Return what was paid besides the reply; None: nothing."""
        answers = self._answers
        if reply is not None and answers and answers[-1][0] == reply.usage:
            answers = answers[:-1]
        if not answers:
            return None
        usage = sum((used for used, _ in answers), Usage())
        costs = [usd for _, usd in answers if usd is not None]
        is_known = len(costs) == len(answers)
        return Spent(usage=usage, usd=sum(round(usd * NANO) for usd in costs) / NANO if is_known else None)

    async def charged(
        self, model: Model, request: Request, send: Callable[[], Awaitable[Reply]], budget: Budget | None
    ) -> Reply:
        """Send a request. What a model of the application's own reports is charged here: no recovery does it."""
        # What comes late, from a request before it, belongs to that one.
        self._answers, self.holder, before = [], None, 0
        if budget is None:
            with self:
                return await send()
        # It only holds the reservation: it makes no attempt, and nothing is part of it.
        holder = Operation(Plan(None, None, alone=True, runtime=self._given), _Asked(model, request))
        charges = holder.charges
        if charges is None:
            with self:
                return await send()
        if not _recovers(model):
            await reserve_async(holder, (), {})
            self.holder = charges
        try:
            with self:
                before = self.spend().attempts
                reply = await send()
            if self.spend().attempts == before:
                # No recovery has made the call.
                charges.begin(again=False)
                charges.end(reply, None, again=False)
        except BaseException as error:
            if not isinstance(error, Exception) and self.spend().attempts == before:
                # It was cancelled, and may have been worked on.
                charges.end_stopped(again=False)
            raise
        finally:
            charges.release()
        return reply


class _Asked(Adapter):
    """What a request of an application's own model may use."""

    def __init__(self, model: Model, request: Request) -> None:
        self._model = model
        self._request = request

    def quote(self, op: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Quote | None:  # noqa: ARG002 - the request says it all
        """Return what the request may use at most."""
        name = next(iter(listed_names(self._model)))
        return quote_of(self._request, model=name, max_output=self._request.max_output)


def _recovers(model: Model) -> bool:
    """Return whether a model makes its calls through a recovery, which reserves and charges them."""
    return isinstance(model, RecoveringModel | ModelChain | NamedModel | CachedModel)
