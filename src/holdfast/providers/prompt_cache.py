"""What a chain of models knows about prompt caches: which prompts are warm, and whether a wait is cheaper than a cold prompt.

Invariant: without a warm cache, or without the prices of both models, nothing is weighed and nothing changes.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from holdfast.policies.decide import Retry, can_fall_back
from holdfast.policies.models.prompt_cache import Weighed, is_warm, weigh
from holdfast.runtime.operation.adapter import Adapter

if TYPE_CHECKING:
    from holdfast.faults import Fault
    from holdfast.policies.models.prices import Price
    from holdfast.policies.models.usage import Usage
    from holdfast.providers.messages import Message, Reply, Request, ToolSpec
    from holdfast.providers.model import Model
    from holdfast.runtime.operation.operation import Operation
    from holdfast.runtime.runtime import Runtime

# Conversations whose cache is remembered.
_REMEMBERED = 256


class _Warm(NamedTuple):
    """A prompt that a model has in its cache."""

    usage: Usage
    at: float
    tools: tuple[ToolSpec, ...]
    length: int
    last: Message

    def begins(self, request: Request) -> bool:
        """Whether a request goes on with this prompt. A conversation that was shortened since does not."""
        messages = request.messages
        # The last message tells whether the others are the same: comparing all of them would cost more with every turn.
        return len(messages) >= self.length and messages[self.length - 1] == self.last and request.tools == self.tools


class WarmPrompts:
    """The prompts that models have in their caches, by model and conversation."""

    def __init__(self) -> None:
        self._warm: OrderedDict[tuple[str, str, str], _Warm] = OrderedDict()

    def remember(self, model: Model, request: Request, reply: Reply, now: float) -> None:
        """Remember the prompt of a reply that reports a cache."""
        usage = reply.usage
        if usage is None or not is_warm(usage, 0.0) or not request.messages:
            return
        key = _key(model, request)
        self._warm[key] = _Warm(usage, now, request.tools, len(request.messages), request.messages[-1])
        self._warm.move_to_end(key)
        if len(self._warm) > _REMEMBERED:
            self._warm.popitem(last=False)

    def find(self, model: Model, request: Request, now: float) -> _Warm | None:
        """Return the warm prompt with which a request begins."""
        warm = self._warm.get(_key(model, request)) if request.messages else None
        return warm if warm is not None and is_warm(warm.usage, now - warm.at) and warm.begins(request) else None


def _key(model: Model, request: Request) -> tuple[str, str, str]:
    return model.name, request.system, request.messages[0].text


class Weighing(Adapter):
    """Weighs a wait for the first model of a chain, whose cache is warm, against a cold prompt with the second one.

    The first model's own policy decides how often that model is asked and how long it waits itself. It is weighed when the
    model has given up. So a chain is never less patient than its first model, whose answers the user prefers.
    """

    def __init__(
        self, warm: _Warm, *, here: Price, there: Price, writes: bool, usd_per_second: float, runtime: Runtime
    ) -> None:
        self._warm = warm
        self._here, self._there = here, there
        self._writes = writes
        self._worth = usd_per_second
        self._runtime = runtime
        self._waited = self._pending = 0.0

    def propose(self, op: Operation, error: Exception) -> Retry | None:
        """Stay with the first model, although it has given up, if a wait is cheaper."""
        fault = self._runtime.fault_of(error)
        # The attempts of the models behind the first one are no concern of its cache.
        if op.via != "primary" or not can_fall_back(fault):
            return None
        self._waited += self._pending
        self._pending = 0.0
        weighed = self.weighed(fault)
        if weighed.wait is None or not weighed.stays:
            return None
        self._pending = weighed.wait
        return Retry(weighed.wait, None, "requested")

    def weighed(self, fault: Fault) -> Weighed:
        """Return the comparison for a failure: what was chosen, and what it costs."""
        wait = fault.retry_after
        age = self._runtime.clock.monotonic() - self._warm.at
        if wait is not None and not is_warm(self._warm.usage, age + wait):
            # The cache would be gone when the wait is over, so that waiting saves nothing.
            wait = None
        return weigh(
            self._warm.usage,
            here=self._here,
            there=self._there,
            wait=wait,
            waited=self._waited,
            usd_per_second=self._worth,
            writes=self._writes,
        )
