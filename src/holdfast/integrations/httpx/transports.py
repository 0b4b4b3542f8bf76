"""The transports. An answer that tells of a failure is tried again; when nothing more may be tried it is handed on as it came.

Invariant: one attempt is one request to the transport inside, and the body of an answer that is not handed on is closed
before the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast import options
from holdfast.faults import InvalidError
from holdfast.integrations.httpx.bases import AsyncTransport, Transport
from holdfast.integrations.httpx.bodies import read, read_async
from holdfast.integrations.httpx.sending import (
    IDEMPOTENT,
    AnsweredError,
    Sending,
    effect_of,
    failure_in,
    limits,
    may_repeat,
    tells_failure,
)
from holdfast.integrations.inner import RECOVERS, warn, warn_of_transport
from holdfast.policies.target import Target
from holdfast.runtime.drivers import drive, drive_async
from holdfast.runtime.plan import Plan

if TYPE_CHECKING:
    from holdfast.policies import Effect, Policy
    from holdfast.runtime.runtime import Runtime

__all__ = ["AsyncRecoveringTransport", "RecoveringTransport"]

_MOST_PLANS = 1024
"""Hosts; who calls more of them pays for making plans anew."""


class _Recovering:
    """What both transports are given, and what they know of a request."""

    def __init__(
        self,
        transport: Any,
        *,
        policy: Policy | None,
        name: str | None,
        methods: frozenset[str],
        runtime: Runtime | None,
    ) -> None:
        options.names("transport.methods", methods)
        warn_of_transport(transport, above=1)
        self.policy = policy
        self.name = name
        self.methods = frozenset(method.upper() for method in methods)
        self.runtime = runtime
        self._plans: dict[tuple[str, Effect | None], Plan] = {}
        self._warned = False
        self._plan(name or "", None)  # a policy that cannot be had is told here, not at the first request

    def begin(self, request: Any) -> Sending | None:
        """Return the operation of a request; None where recovery is off."""
        self._warn_of_retries(request)
        plan = self._plan(self.name or request.url.host, effect_of(request, self.methods))
        return None if plan.off else Sending(plan, repeats=may_repeat(request, self.methods))

    def _plan(self, name: str, effect: Effect | None) -> Plan:
        known = self._plans.get((name, effect))
        if known is not None and (plan := known.fresh()) is known:
            return plan
        if known is None:
            plan = Plan(Target(provider=name), self.policy, effect=effect, runtime=self.runtime)
        if len(self._plans) >= _MOST_PLANS:
            self._plans = {}
        self._plans[name, effect] = plan
        return plan

    def _warn_of_retries(self, request: Any) -> None:
        """The SDKs count their own retries in a header; nobody else can tell that they are at work around us."""
        if self._warned or request.headers.get("x-stainless-retry-count", "0") == "0":
            return
        self._warned = True
        warn("the SDK around this transport retries as well, so attempts multiply: give its client max_retries=0")


class RecoveringTransport(Transport):
    """A transport around another whose requests recover: `httpx.Client(transport=RecoveringTransport(…))`.

    `methods` are those that may be sent twice; a request with an `Idempotency-Key` may be as well. `name` is what circuits
    and events call the other side; by default each host has its own.
    """

    def __init__(
        self,
        transport: Any,
        *,
        policy: Policy | None = None,
        name: str | None = None,
        methods: frozenset[str] = IDEMPOTENT,
        runtime: Runtime | None = None,
    ) -> None:
        if not callable(getattr(transport, "handle_request", None)):
            raise InvalidError.at("transport", "a transport such as httpx.HTTPTransport()", transport)
        self._inside = transport
        self._recovering = _Recovering(transport, policy=policy, name=name, methods=methods, runtime=runtime)

    def handle_request(self, request: Any) -> Any:
        """Send a request until an answer is worth handing on."""
        op = self._recovering.begin(request)
        if op is None:
            return self._inside.handle_request(request)
        given = request.extensions
        try:
            return drive(op, self._attempt, (op, request, given), {})
        except AnsweredError as answered:
            return answered.response
        finally:
            request.extensions = given

    def _attempt(self, op: Sending, request: Any, given: Any) -> Any:
        request.extensions = given
        request.extensions = limits(request, op.limit())
        response = self._inside.handle_request(request)
        body = read(response, whole=tells_failure(response))
        if tells_failure(response) and body is not None:
            raise failure_in(response, body, op.plan.provider, op.plan.runtime.clock.wall())
        return response

    def close(self) -> None:
        self._inside.close()


class AsyncRecoveringTransport(AsyncTransport):
    """The same for async clients: `httpx.AsyncClient(transport=AsyncRecoveringTransport(…))`."""

    def __init__(
        self,
        transport: Any,
        *,
        policy: Policy | None = None,
        name: str | None = None,
        methods: frozenset[str] = IDEMPOTENT,
        runtime: Runtime | None = None,
    ) -> None:
        if not callable(getattr(transport, "handle_async_request", None)):
            raise InvalidError.at("transport", "a transport such as httpx.AsyncHTTPTransport()", transport)
        self._inside = transport
        self._recovering = _Recovering(transport, policy=policy, name=name, methods=methods, runtime=runtime)

    async def handle_async_request(self, request: Any) -> Any:
        """Send a request until an answer is worth handing on."""
        op = self._recovering.begin(request)
        if op is None:
            return await self._inside.handle_async_request(request)
        try:
            return await drive_async(op, self._attempt, (op, request), {})
        except AnsweredError as answered:
            return answered.response

    async def _attempt(self, op: Sending, request: Any) -> Any:
        response = await self._inside.handle_async_request(request)
        body = await read_async(response, whole=tells_failure(response))
        if tells_failure(response) and body is not None:
            raise failure_in(response, body, op.plan.provider, op.plan.runtime.clock.wall())
        return response

    async def aclose(self) -> None:
        await self._inside.aclose()


setattr(RecoveringTransport, RECOVERS, True)
setattr(AsyncRecoveringTransport, RECOVERS, True)
