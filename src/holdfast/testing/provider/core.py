"""The provider without a network. It turns a request into a plan. `/_holdfast/` is its control interface.

After calling `Provider.plan` you must perform the plan. Nothing in this module waits or uses a socket.

Invariant: every request is answered, gets a fault, is limited, or is refused by the provider itself. The four counters add up.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Generator
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast import options
from holdfast.faults import InvalidError
from holdfast.runtime.runtime import default_runtime
from holdfast.testing.provider.dialect import JSON, as_json
from holdfast.testing.provider.faults import FaultBody, ProtocolReply, send, send_error
from holdfast.testing.provider.http import Act, Data, Plan, ReplyEnd, ReplyHead
from holdfast.testing.provider.limits import Limit, Limits, LimitVerdict, Standing, read_limit
from holdfast.testing.provider.prompt_cache import PromptCache
from holdfast.testing.provider.replies import reply_to
from holdfast.testing.provider.resources import MissingError, ResourceCall, Storage
from holdfast.testing.provider.routes import dialect_of, locate
from holdfast.testing.provider.script import Playback, Script, read_script

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.clock import Clock
    from holdfast.testing.provider.dialect import ErrorReply
    from holdfast.testing.provider.http import Request
    from holdfast.testing.provider.limits import LimitReason
    from holdfast.testing.provider.resources import Content
    from holdfast.testing.provider.routes import RouteMatch

_KEPT_REQUESTS = 10_000
_MINUTE = 60.0
_CONTROL = "/_holdfast/"
_NO_SUCH_PATH = {
    "error": {
        "message": "there is no such path here",
        "type": "invalid_request_error",
        "code": None,
        "param": None,
    }
}
_NO_WEBSOCKET = {
    "error": {
        "message": "there are no WebSockets here; use HTTP",
        "type": "invalid_request_error",
        "code": "websocket_not_supported",
        "param": None,
    }
}


class Counters:
    """Counts the requests that reached the provider. It proves how many requests a recovery really sent.

    For example:
        assert provider.counters.received == 3
        assert provider.counters.injected["503"] == 2
    """

    def __init__(self) -> None:
        self.received = 0
        """Requests for an answer; requests to the control interface are not counted."""
        self.answered = 0
        """Requests that got a good answer."""
        self.injected: Counter[str] = Counter()
        """Requests that got a fault of the script, by its name."""
        self.limited: Counter[str] = Counter()
        """Requests that a limit rejected, by what it limits: requests, tokens or concurrency."""
        self.refused = 0
        """Requests that the provider itself refused: no key, an unknown path, no JSON, or a conversation that no provider accepts."""
        self.abandoned = 0
        """Requests whose client left before the end of the answer. They are counted above as well."""
        self.connections = 0
        self.tls = 0
        """Connections that spoke TLS. The provider fails every handshake."""

    def document(self) -> dict[str, Any]:
        """Return the counters as the control interface shows them."""
        return {
            "received": self.received,
            "answered": self.answered,
            "injected": dict(self.injected),
            "limited": dict(self.limited),
            "refused": self.refused,
            "abandoned": self.abandoned,
            "connections": self.connections,
            "tls": self.tls,
        }

    def __repr__(self) -> str:
        return f"Counters({', '.join(f'{name}={value}' for name, value in self.document().items() if value)})"


class Provider:
    """Answers requests in the providers' protocols, and fails as its script says.

    It uses the given clock, or the clock of the default runtime, which is virtual if the test's time is virtual. `limit` is the
    number of requests a minute that its headers announce; it is not enforced. `limits` are enforced, besides those of the script, and
    only they are announced then.
    """

    def __init__(
        self,
        script: str | Script = "",
        *,
        seed: int | None = None,
        clock: Clock | None = None,
        limit: int = 4_000,
        limits: Sequence[Limit | str] = (),
    ) -> None:
        options.count("limit", limit)
        options.count("seed", seed, least=0, optional=True)
        self._own = tuple(read_limit(each) if isinstance(each, str) else each for each in limits)
        Limits(self._own)  # raises for a limit that makes no sense
        self._seed = seed
        self._clock = clock
        self._limit = limit
        # Several threads may use the in-memory transport, and the script must play each step once.
        self._lock = threading.Lock()
        self.set_script(script)

    def set_script(self, script: str | Script) -> None:
        """Play another script from its beginning, and reset the counters.

        Raises `InvalidError` for a script that it cannot read. Then the old script continues.
        """
        # Read the script before taking the lock, so that a script that cannot be read changes nothing and delays nobody.
        playback = Playback(read_script(script) if isinstance(script, str) else script, seed=self._seed)
        with self._lock:
            self._playback = playback
            self._restart()

    def reset(self) -> None:
        """Play the script from its beginning, and reset the counters."""
        self.set_script(self._playback.script)

    def _restart(self) -> None:
        self.counters = Counters()
        """How many requests came, and how they were answered."""
        # The number is bounded, because `holdfast faults serve` may run for days.
        self.requests: deque[Request] = deque(maxlen=_KEPT_REQUESTS)
        """The last requests, whole."""
        self._storage = Storage()
        self._prompts = PromptCache()
        self._limits = Limits((*self._own, *self._playback.script.limits))
        self._first: float | None = None
        self._minute = (0.0, 0)

    def plan(self, request: Request) -> Plan:
        """Return the acts to perform on the connection of the request."""
        # Control requests take no step and are not counted, because reading the counters must not change them.
        if request.path.startswith(_CONTROL):
            return _send_json(*self._control(request))
        # HEAD only asks whether somebody is there. It takes no step, and its answer has no body.
        if request.method == "HEAD":
            return _send_head(200)
        with self._lock:
            return self._decide(request)

    def _decide(self, request: Request) -> Plan:
        self.counters.received += 1
        self.requests.append(request)
        # A client that gets this status goes on over plain HTTP at once.
        if request.headers.get("upgrade", "").lower() == "websocket":
            self.counters.refused += 1
            return _send_json(426, _NO_WEBSOCKET)
        if (place := locate(request)) is None:
            self.counters.refused += 1
            return _send_json(404, _NO_SUCH_PATH)
        answer = self._answer(request, place)
        # A client's own mistake takes no step, so it does not shift the script for later requests.
        if (error := _mistake(request, place)) is not None:
            self.counters.refused += 1
            return send_error(answer, error, error.status)
        at = self._seconds_since_first()
        charged = answer.serve is None or (place.route is not None and place.route.charged)
        admission = self._admit(answer, at) if charged else LimitVerdict(None, ())
        answer.limits = place.dialect.limits(admission.standings, answer.wall)
        if admission.rejection is not None:
            self.counters.limited[admission.rejection.kind] += 1
            return _reject(answer, admission.rejection)
        plan = self._play(answer, at)
        return _Held(plan, lambda: self._release(admission)) if admission.held else plan

    def _admit(self, answer: ProtocolReply, at: float) -> LimitVerdict:
        """Ask the limits. Without limits, announce the one that is not enforced."""
        if self._limits.limits:
            request, reply = answer.request, answer.reply
            tokens = reply.input_tokens + reply.output_tokens
            return self._limits.admit(request.key, request.model, tokens=tokens, at=at)
        minute, used = self._minute
        if answer.wall - minute >= _MINUTE:
            minute, used = answer.wall, 0
        self._minute = (minute, used + 1)
        # Never announce that the limit is used up: clients would wait then, and the script does not contain a wait.
        left = max(1, self._limit - used - 1)
        return LimitVerdict(None, (Standing("requests", self._limit, left, minute + _MINUTE - answer.wall),))

    def _play(self, answer: ProtocolReply, at: float) -> Plan:
        step = self._playback.next(answer.request, at)
        if step.plan is None:
            self.counters.answered += 1
            answer.reply = answer.reply._replace(cached=self._prompts.use(answer.request, answer.wall))
            self._remember(answer)
            return send(answer)
        self.counters.injected[step.name] += 1
        return step.plan(answer)

    def _answer(self, request: Request, place: RouteMatch) -> ProtocolReply:
        dialect, replies = place.dialect, self._playback.script.replies
        reply = reply_to(dialect.prompt(request), replies)
        answer = ProtocolReply(request, dialect, reply, number=self.counters.received, wall=self.clock.wall())
        if place.route is not None and place.route.serve is not None:
            call = ResourceCall(request, place.names, dialect, self._storage, replies, dialect_of)
            answer.serve = partial(_serve, place.route.serve, call)
        return answer

    def _remember(self, answer: ProtocolReply) -> None:
        """Keep a response that the client may ask for again."""
        if (
            answer.serve is None
            and answer.dialect.failed is not None
            and answer.request.document.get("store") is not False
        ):
            document = answer.dialect.whole(answer.reply, answer.request, answer.number)
            name = self._storage.add("response", document)
            self._storage.add("response_input", {"id": name, "input": answer.request.document.get("input")})

    def _release(self, admission: LimitVerdict) -> None:
        with self._lock:
            Limits.release(admission)

    def _control(self, request: Request) -> tuple[int, Any]:
        """Perform a request to the control interface; return status and body."""
        command = f"{request.method} {request.path.removeprefix(_CONTROL)}"
        if command == "GET counters":
            return 200, self.counters.document()
        if command == "GET script":
            return 200, msgspec.to_builtins(self.script)
        if command == "POST reset":
            self.reset()
            return 200, self.counters.document()
        if command == "POST script":
            try:
                self.set_script(request.body.decode("utf-8", "replace"))
            except InvalidError as error:
                return 400, {"error": str(error)}
            return 200, msgspec.to_builtins(self.script)
        known = "GET counters, GET script, POST reset or POST script"
        return 404, {"error": f"expected {known} below {_CONTROL}, got {command}"}

    def _seconds_since_first(self) -> float:
        now = self.clock.monotonic()
        # A script's time begins with its first request, so the time that a test takes to start does not matter.
        if self._first is None:
            self._first = now
        return now - self._first

    @property
    def clock(self) -> Clock:
        """The given clock, or the default runtime's."""
        return default_runtime().clock if self._clock is None else self._clock

    @property
    def script(self) -> Script:
        """The script being played."""
        return self._playback.script


def _reject(answer: ProtocolReply, rejection: LimitReason) -> Plan:
    """Send the answer to a request that a limit rejects. It carries the rate limit headers, as real ones do."""
    if rejection.error != "rate-limit":
        error = answer.dialect.errors[rejection.error]
        return send_error(answer, error, error.status)
    error, headers = answer.dialect.limited(rejection, answer.request.model)
    return send_error(answer, error, error.status, (*headers, *answer.limits))


class _Held(Generator[Act, None, None]):
    """A plan that frees its place when it is closed.

    A generator with `finally` cannot do this: one that was never started runs no `finally`.
    """

    def __init__(self, plan: Plan, release: Callable[[], None]) -> None:
        self._plan = plan
        self._release: Callable[[], None] | None = release

    def send(self, value: None) -> Act:
        return self._plan.send(value)

    def throw(self, *error: Any) -> Act:
        return self._plan.throw(*error)

    def close(self) -> None:
        self._plan.close()
        release, self._release = self._release, None
        if release is not None:
            release()


def _mistake(request: Request, place: RouteMatch) -> ErrorReply | None:
    """Return the error for a request that no provider would answer."""
    errors, route = place.dialect.errors, place.route
    if not request.key:
        return errors["auth"]
    if route is None:
        return errors["bad-request"]
    if route.serve is not None:
        return None
    if not request.model:
        return errors["bad-request"]
    message = place.dialect.mistake(request)
    return None if message is None else errors["bad-request"]._replace(message=message)


def _serve(serve: Callable[[ResourceCall], Content], call: ResourceCall) -> FaultBody:
    try:
        content = serve(call)
    except MissingError as error:
        written = call.dialect.errors["not-found"]._replace(message=str(error))
        return FaultBody(as_json(call.dialect.error(written)), JSON, 404)
    return FaultBody(content.data, content.content_type)


def _send_head(status: int) -> Plan:
    yield ReplyHead(status, (), 0)
    yield ReplyEnd.END


def _send_json(status: int, document: Any) -> Plan:
    body = as_json(document)
    yield ReplyHead(status, (("content-type", JSON),), len(body))
    yield Data(body)
    yield ReplyEnd.END
