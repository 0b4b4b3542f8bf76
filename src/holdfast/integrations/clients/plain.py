"""The plain call of an SDK client whose recovery is off: the SDK's own `request` with the SDK's own retries.

Invariant: what is sent, when, and what is returned or raised is what the client does that was given to `recovering`. In observe
mode its requests are watched; nothing is read that the SDK does not read.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from holdfast.integrations.clients.exchange import Exchange
from holdfast.integrations.clients.pool import SENDING, learn_limits
from holdfast.integrations.clients.streams import observe, observe_async
from holdfast.runtime.operation.operation import Operation

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast._steps import Steps
    from holdfast.integrations.clients.pool import KeyChoice
    from holdfast.runtime.operation.observation import Observation
    from holdfast.runtime.streams.flow import StreamDialect

__all__ = ["PlainCall", "with_own_retries"]

_RETRY = "x-stainless-retry-count"
"""The header in which both SDKs count their own retries."""
_FAILED = 400


def with_own_retries(options: Any, retries: int) -> Any:
    """Return the request with as many retries of the SDK as its client was given, unless the caller gave this request a number."""
    if isinstance(options.max_retries, int):
        return options
    options = copy.copy(options)
    options.max_retries = retries
    return options


class PlainCall:
    """One plain call, and in observe mode each of its requests."""

    def __init__(self, keys: KeyChoice, dialect: StreamDialect, cast_to: Any, options: Any) -> None:
        self._member = keys.member
        self._request = (cast_to, with_own_retries(options, keys.member.retries))
        self._dialect = dialect
        self._exchange = Exchange(keys.pool.sdk, keys.member.client, *self._request)
        self._plan = keys.plan()
        self._retry = 0
        """The number of the SDK's retry that is under way."""
        self._since = 0.0
        self._response: Any = None
        """The failed response to the latest request; None if there was no response yet."""
        keys.observes = True
        self._op = None if self._plan.bare else Operation(self._plan, keys)

    def steps(self, *, is_sync: bool, **how: Any) -> Steps[Any]:
        """Make the call and return what it returns, an SDK's stream or an answer."""
        if self._op is None:
            return (yield self._member.send(*self._request, **how))
        self._begin(_note_request if is_sync else _note_request_async)
        token = SENDING.set(self)
        try:
            answer = yield self._member.send(*self._request, **how)
        except BaseException as error:
            self._op.failed(error)
            raise
        finally:
            SENDING.reset(token)
        self._end(answer, observe if is_sync else observe_async)
        return answer

    def _begin(self, hook: Callable[[Any], Any]) -> None:
        assert self._op is not None
        hooks = self._member.client._client.event_hooks["request"]  # noqa: SLF001 - the client's HTTP client has no public name
        if hook not in hooks:
            hooks.append(hook)
        self._op.admit()
        self._begin_request()

    def _begin_request(self) -> None:
        self._since = self._plan.monotonic()
        self.watched.would_limit()

    @property
    def watched(self) -> Observation:
        """What watches the call."""
        assert self._op is not None
        assert self._op.observation is not None
        return self._op.observation

    def sends(self, request: Any) -> None:
        """A request is sent, the first one or a retry of the SDK's own."""
        number = int(request.headers.get(_RETRY) or 0)
        # Also a redirect is a request, and no retry.
        if number <= self._retry:
            return
        self._retry, observation = number, self.watched
        failure, self._response = self._response, None
        observation.repeats(ConnectionResetError("no response") if failure is None else failure)
        observation.begins()
        self._begin_request()

    def learn(self, response: Any) -> None:
        """A response has arrived; its body is not read yet."""
        observation = self.watched
        self._response = response if response.status_code >= _FAILED else None
        observation.beside(lambda: learn_limits(response, observation.shadow, self._since))

    def _end(self, answer: Any, watch: Callable[[Any, Operation, StreamDialect], bool]) -> None:
        op, observation = self._op, self.watched
        assert op is not None

        def settle() -> None:
            if watch(answer, op, self._dialect):
                return
            failure = self._exchange.failure_in(answer)
            if failure is not None:
                observation.failed(failure, "answered")
            op.succeeded(answer)

        observation.beside(settle)


def _note_request(request: Any) -> None:
    """Notice a request that the SDK sends again by itself. It is a request hook of the HTTP clients."""
    if isinstance(sending := SENDING.get(), PlainCall):
        sending.watched.beside(lambda: sending.sends(request))


async def _note_request_async(request: Any) -> None:
    """The same as `_note_request`, for async clients."""
    _note_request(request)
