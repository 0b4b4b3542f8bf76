"""The transports. They retry after a response that reports a failure. After the last retry the caller gets that response.

Invariant: one attempt is one request to the transport inside. The body of a failed response is closed before the next
attempt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from holdfast import options
from holdfast._steps import finish, finish_async
from holdfast.faults import HoldfastError, InvalidError
from holdfast.integrations.clients.exchange import limit_reads
from holdfast.integrations.httpx.exchange import (
    IDEMPOTENT,
    REPEATS,
    SENT_ONCE,
    AsyncTransport,
    FailedResponse,
    Transport,
    comes_as_events,
    effect_of,
    failure_in,
    is_failure,
    learn_limits,
    limit_body,
    limited_as,
    make_library_error,
    may_repeat,
    read,
    with_limit,
)
from holdfast.integrations.recovery_warnings import RECOVERS, warn, warn_of_sync_hedge, warn_of_transport
from holdfast.policies.target import Target
from holdfast.runtime.operation.drivers import drive, drive_async
from holdfast.runtime.operation.errors import named_end
from holdfast.runtime.operation.operation import Operation
from holdfast.runtime.operation.plan import Plan, PlanCache
from holdfast.runtime.operation.responses import give_up_on

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast._steps import Steps
    from holdfast.policies import Effect, Policy
    from holdfast.runtime.runtime import Runtime

__all__ = ["AsyncRecoveringTransport", "RecoveringTransport"]


class _Recovery:
    """The options of a transport, and the plan for each host that it calls."""

    def __init__(
        self,
        transport: Any,
        *,
        policy: Policy | None,
        name: str | None,
        methods: frozenset[str],
        first_event: bool,
        runtime: Runtime | None,
    ) -> None:
        options.names("transport.methods", methods)
        options.flag("transport.first_event", first_event)
        self._first_event = first_event
        warn_of_transport(transport)
        self.policy = policy
        self.name = name
        self.methods = frozenset(method.upper() for method in methods)
        self.runtime = runtime
        self._plans = PlanCache(self._plan)
        self._warned = False
        # A policy that is not valid must raise here, where the user wrote it, and not at the first request.
        self._plans.get(name or "", None, "")

    def begin(self, request: Any) -> Operation | None:
        """Return the operation of a request; None where recovery is off."""
        self._warn_of_retries(request)
        effect = effect_of(request, self.methods)
        plan = self._plans.get(self.name or _address(request.url), effect, limited_as(request))
        return None if plan.bare else Operation(plan, REPEATS if may_repeat(request, self.methods) else SENT_ONCE)

    def judged(self, response: Any, op: Operation, *, is_sync: bool) -> Steps[Any]:
        """Return a response for the caller; raise `FailedResponse` if it is a failure."""
        if self._hands_over(response, op):
            return response
        body = yield from read(response, whole=is_failure(response), is_sync=is_sync)
        if is_failure(response) and body is not None:
            raise failure_in(response, body, op.plan)
        return response

    def _hands_over(self, response: Any, op: Operation) -> bool:
        """Whether the caller gets a response with its headers, as from the transport inside, and not with its first bytes."""
        if is_failure(response):
            return False
        # A request that is sent once gains nothing from that wait.
        return op.adapter is SENT_ONCE or (comes_as_events(response) and not self._first_event)

    def _plan(self, name: str, effect: Effect | None, limited: str) -> Plan:
        return Plan(
            Target(provider=name),
            self.policy,
            effect=effect,
            through_client=True,
            limited_as=limited,
            runtime=self.runtime,
        )

    def _warn_of_retries(self, request: Any) -> None:
        # The SDKs count their own retries in this header. It is the only sign that they retry around us.
        if self._warned or request.headers.get("x-stainless-retry-count", "0") == "0":
            return
        self._warned = True
        warn("the SDK around this transport retries as well, so attempts multiply: give its client max_retries=0")


def _address(url: Any) -> str:
    """Return the host, with its port if that is not the usual one: another port is another service."""
    return url.host if url.port is None else f"{url.host}:{url.port}"


def _observed(op: Operation, request: Any, send: Callable[[Any], Any]) -> Steps[Any]:
    """Send a plain request and note how it ended. Its body is not read, so only the status and the headers say what failed."""
    op.admit()
    try:
        response = yield send(request)
    except BaseException as error:
        op.failed(error)
        raise
    observation = op.observation
    if observation is not None and is_failure(response):
        # For the HTTP client it is a response like any other; recovery would have taken it for a failure.
        observation.failed(response)
    op.succeeded(response)
    return response


class _Recovering:
    """What both transports take and check."""

    _sends: ClassVar[str]
    """The method that sends a request."""
    _expected: ClassVar[str]

    @options.suggests
    def __init__(
        self,
        transport: Any,
        *,
        policy: Policy | None = None,
        name: str | None = None,
        methods: frozenset[str] = IDEMPOTENT,
        first_event: bool = False,
        runtime: Runtime | None = None,
    ) -> None:
        if not callable(getattr(transport, self._sends, None)):
            raise InvalidError.at("transport", self._expected, transport)
        self._inside = transport
        self._recovery = _Recovery(
            transport, policy=policy, name=name, methods=methods, first_event=first_event, runtime=runtime
        )
        if isinstance(self, Transport):
            warn_of_sync_hedge(policy, type(self).__name__)


class RecoveringTransport(_Recovering, Transport):
    """A transport around another transport. Its requests recover.

        client = httpx.Client(transport=RecoveringTransport(httpx.HTTPTransport()))

    `methods` are the methods that may be sent twice. A request with an `Idempotency-Key` header may be sent twice too.
    `name` is the name of the target in circuits and events; by default each host and port is a target of its own.
    An event stream is handed over with its headers, as the transport inside does it. `first_event=True` waits for its first bytes, and asks
    again if the connection is lost before them.

    A request that failed for good raises the exception of the transport inside, or returns the failed response unchanged.
    `CircuitOpenError` and `DeadlineError` are raised where no request was made. They are errors of the library too:
    `httpx.ConnectError` and `httpx.TimeoutException`, so `except httpx.HTTPError` catches them. The constructor raises `InvalidError` for
    a transport that is not sync.
    """

    _sends, _expected = "handle_request", "a transport such as httpx.HTTPTransport()"

    def handle_request(self, request: Any) -> Any:
        """Send a request, with retries, and return the response. The HTTP client calls this."""
        op = self._recovery.begin(request)
        if op is None:
            return self._inside.handle_request(request)
        if op.plan.off:
            return finish(_observed(op, request, self._inside.handle_request))
        own = request.extensions
        try:
            return drive(op, self._attempt, (op, request, own), {})
        except FailedResponse as failed:
            # The caller of an HTTP client expects a response with a status, not an exception.
            return give_up_on(failed.response)
        except HoldfastError as error:
            make_library_error(error, request)
            raise
        finally:
            # The caller may send the same request again. It must then have its own limit.
            request.extensions = own

    def _attempt(self, op: Operation, request: Any, own: Any) -> Any:
        # A blocking request cannot be cancelled, so the rest of our time limit becomes the HTTP client's own limit.
        request.extensions = own
        request.extensions = with_limit(request, op.limit())
        response = self._inside.handle_request(request)
        learn_limits(response, op)
        if named_end(op) is not None:
            limit_reads(response, op)
        return finish(self._recovery.judged(response, op, is_sync=True))

    def close(self) -> None:
        """Close the transport inside."""
        self._inside.close()


class AsyncRecoveringTransport(_Recovering, AsyncTransport):
    """The same as `RecoveringTransport`, for async clients.

        client = httpx.AsyncClient(transport=AsyncRecoveringTransport(httpx.AsyncHTTPTransport()))

    Options, results and errors are those of `RecoveringTransport`. A wrong option raises `InvalidError`.
    """

    _sends, _expected = "handle_async_request", "a transport such as httpx.AsyncHTTPTransport()"

    async def handle_async_request(self, request: Any) -> Any:
        """Send a request, with retries, and return the response. The HTTP client calls this."""
        op = self._recovery.begin(request)
        if op is None:
            return await self._inside.handle_async_request(request)
        if op.plan.off:
            return await finish_async(_observed(op, request, self._inside.handle_async_request))
        try:
            response = await drive_async(op, self._attempt, (op, request), {})
        except FailedResponse as failed:
            return give_up_on(failed.response)
        except HoldfastError as error:
            make_library_error(error, request)
            raise
        limit_body(response, op, request)
        return response

    async def _attempt(self, op: Operation, request: Any) -> Any:
        response = await self._inside.handle_async_request(request)
        learn_limits(response, op)
        # The request needs no limit of its own: the driver cancels a task that takes too long.
        return await finish_async(self._recovery.judged(response, op, is_sync=False))

    async def aclose(self) -> None:
        """Close the transport inside."""
        await self._inside.aclose()


setattr(RecoveringTransport, RECOVERS, True)
setattr(AsyncRecoveringTransport, RECOVERS, True)
