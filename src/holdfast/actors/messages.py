"""Actors that take messages and return Responses, and their supervisor, which never raises.

    class Notes(MessageActor):
        async def on_get(self, payload):
            return self.text

    supervisor = MessageSupervisor(max_restarts=3, window_ms=60_000)
    await supervisor.supervise(lambda: Notes("notes-1"))
    response = await supervisor.send("notes-1", Message(id="m-1", type="get"))

A Response is a dict: `{"success": True, "data": …}`, or `{"success": False, "error": {type, code, message, retryable, context}}`.
An expected failure is returned. An unexpected one is raised, and then the supervisor makes a new actor with the factory.

Invariants: `send` raises nothing but `CancelledError`. Each actor has a restart budget of its own, and works on one message at a time.
A message over which an actor crashed is lost.
"""

from __future__ import annotations

import asyncio
import inspect
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Required, TypeAlias, TypedDict, cast, get_args

import msgspec

from holdfast import options
from holdfast.actors.crash import crash_of, log_traceback
from holdfast.actors.errors import StartError
from holdfast.events import ChildExited, ChildRestarting, GaveUp
from holdfast.faults import Err, Fault, InvalidError, Ok
from holdfast.policies.profiles import ACTOR
from holdfast.runtime.runtime import default_runtime
from holdfast.supervision.exits import Error
from holdfast.views import response as view
from holdfast.views.response import ActorError, Errors, ErrorType

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Self

    from holdfast.runtime.runtime import Runtime
    from holdfast.supervision.directive import On

__all__ = [
    "AKKA_SAMPLE",
    "ActorError",
    "ActorKilledError",
    "Errors",
    "Message",
    "MessageActor",
    "MessageSupervisor",
    "Response",
    "SupervisorConfig",
    "UnexpectedFailure",
    "ValidationError",
    "create_message",
]

Strategy: TypeAlias = Literal["one-for-one", "one-for-all"]
Supervision: TypeAlias = Literal["ignore", "restart", "fail_parent"]
_RESTARTS = int(ACTOR.limits["restarts"])
_WINDOW_MS = ACTOR.limits["restart_window_s"] * 1000
_STOP_S = 5.0
"""Seconds that the hook `stop` of an actor may take before the actor is abandoned."""


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What is sent to an actor: `Message(id="m-1", type="get", payload={"key": "plan"})`."""

    id: str
    type: str
    """What the actor is to do: one of its supported types."""
    payload: Any = None
    correlation_id: str | None = None
    """Set by the sender to connect several messages."""


def create_message(type: str, payload: Any = None) -> Message:  # noqa: A002 - the word of the specification
    """Return a message with an id of its own: `await bash.send(create_message("exec", "sleep 10"))`."""
    return Message(id=f"m-{uuid.uuid4().hex[:12]}", type=type, payload=payload)


class ErrorDocument(TypedDict, total=False):
    """The `error` of a Response: `response["error"]["code"]`."""

    type: Required[ErrorType]
    code: Required[str]
    message: Required[str]
    retryable: Required[bool]
    context: dict[str, Any]


class Response(TypedDict, total=False):
    """What an actor returns: `if response["success"]: print(response["data"])`."""

    success: Required[bool]
    data: Any
    error: ErrorDocument
    metadata: dict[str, Any]


class ValidationError(msgspec.Struct, frozen=True, kw_only=True, tag="validation_error", tag_field="type"):
    """Part of an actor's protocol: return it for a wrong message. No supervisor acts on it.

    return ValidationError(field="path", message="must be relative")
    """

    field: str
    message: str


class UnexpectedFailure(Exception):  # noqa: N818 - the name that the specification has
    """Raise it for a failure that is the supervisor's business: `raise UnexpectedFailure("database", "connection lost")`."""

    def __init__(self, cause: Literal["network", "database", "timeout", "unknown"], message: str) -> None:
        options.one_of("failure.cause", cause, ("network", "database", "timeout", "unknown"))
        super().__init__(cause, message)
        self.cause, self.message = cause, message

    def __str__(self) -> str:
        return self.message

    @property
    def document(self) -> dict[str, str]:
        """The failure as JSON: `{"type": "failure", "cause": …, "message": …}`."""
        return {"type": "failure", "cause": self.cause, "message": self.message}


class ActorKilledError(Exception):
    """Raise it in an actor to end it for good: in a `MessageSupervisor`, and under directives that say so, such as `AKKA_SAMPLE`.

    raise ActorKilledError("the account was closed")
    """


AKKA_SAMPLE: On = {
    ArithmeticError: "resume",
    # What Java calls a NullPointerException is one of these in Python: an attribute of None, or None where a value is needed.
    AttributeError: "restart",
    TypeError: "restart",
    ValueError: "stop",
    ActorKilledError: "stop",
    # The class that is missing will still be missing after a restart.
    ImportError: "escalate",
    Exception: "escalate",
}
"""Akka's sample strategy as directives: `await team.start(Coder, on=AKKA_SAMPLE)`. A failed start is always tried again, within the
restart budget."""


class MessageActor:
    """An actor that takes messages. A method `on_get(payload)` handles messages of the type `get`; override `send` to do it all.

        class Task(MessageActor):
            async def on_update(self, payload):
                if "goal" not in payload:
                    return Errors.validation("GOAL_MISSING", "payload.goal is missing")
                self.goal = payload["goal"]
                return {"goal": self.goal}

    What a handler returns is the `data` of a successful Response. An `ActorError`, a `ValidationError` or an `Err` becomes a failed one.
    What it raises is a crash. A type that no method handles is a failed Response, not a crash.

    `start` and `stop` are hooks of the supervisor: a new instance is started before its first message, and stopped at the end.
    """

    type: ClassVar[Literal["deterministic", "agent"]] = "deterministic"

    def __init__(self, id: str) -> None:  # noqa: A002 - the word of the specification
        self.id = id

    @classmethod
    def supported_types(cls) -> list[str]:
        """Return the types of messages that it handles, sorted."""
        return sorted(name.removeprefix("on_") for name in dir(cls) if name.startswith("on_"))

    async def start(self) -> None:
        """Hook: called before the first message."""

    async def stop(self) -> None:
        """Hook: called when the supervisor stops."""

    async def send(self, message: Message) -> Response:
        """Return the Response to a message: `response = await notes.send(create_message("get"))`."""
        handle = getattr(self, f"on_{message.type}", None)
        if handle is None:
            return self._unknown(message.type)
        value = handle(message.payload)
        return _response(await value if inspect.isawaitable(value) else value)

    def _unknown(self, received: str) -> Response:
        supported = self.supported_types()
        text = f"{type(self).__name__} does not support message type: {received}"
        fault = Fault.of("PROTO_UNKNOWN_TYPE", text, context={"supported": supported, "received": received})
        return _failed(fault)


class _Child:
    __slots__ = ("actor", "factory", "has_ended", "limit", "lock", "made", "restarts", "supervision", "task")

    def __init__(self, factory: Callable[[], Any], actor: Any, supervision: Supervision) -> None:
        self.factory = factory
        self.supervision = supervision
        self.actor = actor
        self.lock = asyncio.Lock()
        self.restarts: list[float] = []
        """When it was restarted, inside the window."""
        self.made = 1
        """How many instances there were."""
        self.limit: asyncio.Timeout | None = None
        """The time limit of the message that it works on."""
        self.task: asyncio.Task[Any] | None = None
        """The task that works on the message."""
        self.has_ended = False

    async def work(self, answer: Awaitable[Any], limit: asyncio.Timeout) -> Any:
        """Return what the actor returns, within a limit."""
        self.limit, self.task = limit, asyncio.current_task()
        try:
            async with limit:
                return await answer
        finally:
            self.limit = self.task = None

    async def end_message(self) -> None:
        """End the message that it works on, and wait for that. One that ignores it is left behind."""
        if self.task is asyncio.current_task():
            # The actor stops its own supervisor: it ends after this message.
            return
        if self.limit is not None and not self.limit.expired():
            self.limit.reschedule(asyncio.get_running_loop().time())
        with suppress(TimeoutError):  # the wait is bounded; what still runs was told to stop
            async with asyncio.timeout(_STOP_S), self.lock:
                pass


class SupervisorConfig(TypedDict, total=False):
    """The options of a `MessageSupervisor` as one value: `MessageSupervisor(**config)`."""

    max_restarts: int
    window_ms: float
    strategy: Strategy


class MessageSupervisor:
    """Passes messages to actors and restarts those that crash. `send` never raises.

        async with MessageSupervisor(max_restarts=3, window_ms=60_000, strategy="one-for-one") as supervisor:
            await supervisor.supervise(lambda: Notes("notes-1"))
            response = await supervisor.send("notes-1", Message(id="m-1", type="get"))

    max_restarts, window_ms: how often each actor is restarted within the window. At the next crash it is removed. One that raises
    `ActorKilledError` is removed at once. In a phase without supervision (`phase = 2` in the settings) a crash is returned, and the
    actor stays as it is.
    strategy: `one-for-one` restarts the actor that crashed, `one-for-all` restarts all of them.
    timeout_ms: the most time that a message may take; by default there is no limit.
    name: its name in events and in the log.
    Wrong options raise `InvalidError`.
    """

    @options.suggests
    def __init__(
        self,
        *,
        max_restarts: int = _RESTARTS,
        window_ms: float = _WINDOW_MS,
        strategy: Strategy = "one-for-one",
        timeout_ms: float | None = None,
        name: str = "supervisor",
        runtime: Runtime | None = None,
    ) -> None:
        options.name("supervisor.name", name)
        options.count("supervisor.max_restarts", max_restarts, least=0)
        options.seconds("supervisor.window_ms", window_ms)
        options.seconds("supervisor.timeout_ms", timeout_ms, optional=True)
        options.one_of("supervisor.strategy", strategy, ("one-for-one", "one-for-all"))
        self._max_restarts, self._window_ms, self._strategy = max_restarts, window_ms, strategy
        self.name = name
        self._timeout = None if timeout_ms is None else timeout_ms / 1000
        self._runtime = default_runtime() if runtime is None else runtime
        self._children: dict[str, _Child] = {}

    async def supervise(self, factory: Callable[[], Any], supervision: Supervision = "restart") -> str:
        """Make an actor with `factory`, start it, and return its id. The factory makes its successors too.

        supervision: what a crash does. `restart`: a new instance takes its place. `ignore`: it stays as it is. `fail_parent`: the
        supervisor stops, with all its actors.

        Raises what the factory or the hook `start` raises, and `InvalidError` for an id that is taken, or for an actor
        instead of a factory: an instance that crashed cannot be made again. With the profile `actor` a start that fails is tried
        again within the budget of restarts, and then raises `StartError` (ACTOR_START_FAILED) with what failed as its cause.

            await supervisor.supervise(lambda: Notes("notes-1"))
        """
        if not callable(factory):
            raise InvalidError.at(
                "supervise", "a function that makes an actor, such as lambda: Notes('notes-1')", factory
            )
        options.one_of("supervise.supervision", supervision, get_args(Supervision))
        child = _Child(factory, None, supervision)
        child.actor = await self._started(child)
        name = child.actor.id
        if name in self._children:
            raise InvalidError.saying("supervise", "an id that no other actor has", repr(name))
        self._children[name] = child
        return str(name)

    async def _started(self, child: _Child) -> Any:
        """Make the first instance of an actor. The profile says whether one that cannot be made is tried again."""
        restarts = self._runtime.profile.name == "actor" and self._runtime.supervises and child.supervision == "restart"
        # It has no id yet.
        name = getattr(child.factory, "__name__", type(child.factory).__name__)
        while True:
            try:
                return await _made(child.factory)
            except Exception as error:
                if not restarts or isinstance(error, (InvalidError, ActorKilledError)):
                    raise
                self._report_crash(name, child, error)
                if not self._may_restart(child):
                    window = self._window_ms / 1000
                    self._report(GaveUp, name, error, restarts=self._max_restarts, window=window, child_only=True)
                    context = {"actor": name, "reason": str(error) or type(error).__name__}
                    raise StartError(Fault.of("ACTOR_START_FAILED", context=context)) from error
                self._report(ChildRestarting, name, error, attempt=len(child.restarts), delay=0.0)

    @property
    def ids(self) -> list[str]:
        """The ids of the actors that take messages."""
        return list(self._children)

    def get(self, id: str) -> Any:  # noqa: A002 - the word of the specification
        """Return the present instance of an actor; None if there is none of this id."""
        child = self._children.get(id)
        return None if child is None else child.actor

    async def send(self, id: str, message: Message) -> Response:  # noqa: A002 - the word of the specification
        """Pass a message to an actor and return its Response. Raises only `CancelledError`.

        If the actor crashes: ACTOR_CRASHED with `restartCount`, or MAX_RESTARTS_EXCEEDED with `originalError`. An id that is
        not known: ACTOR_NOT_FOUND.

            response = await supervisor.send("notes-1", Message(id="m-1", type="get"))
        """
        child = self._children.get(id)
        if child is None:
            return _failed(Fault.of("ACTOR_NOT_FOUND", context={"actor": id}))
        if not isinstance(message, Message):
            return _failed(Fault.of("PROTO_INVALID_MESSAGE", context={"actor": id}))
        async with child.lock:
            if self._children.get(id) is not child:
                # It was removed while this message waited for its turn.
                return _failed(Fault.of("ACTOR_NOT_FOUND", context={"actor": id}))
            return await self._pass_on(id, child, message)

    async def stop(self) -> None:
        """Stop all actors, the last one first, and what they work on. What their hooks raise is reported as an event.

        The sender of a message that is being worked on gets a Response: that of the actor if its hook `stop` ends the work, as the hook
        of a `BashActor` does, else ACTOR_STOPPED.
        """
        for name in reversed(self.ids):
            child = self._children.pop(name)
            child.has_ended = True
            await self._stop(child.actor)
            await child.end_message()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _pass_on(self, name: str, child: _Child, message: Message) -> Response:
        began = time.perf_counter()
        response = await self._answer(name, child, message)
        return _with_duration(response, (time.perf_counter() - began) * 1000)

    async def _answer(self, name: str, child: _Child, message: Message) -> Response:
        actor, limit = child.actor, asyncio.timeout(self._timeout)
        try:
            return _response(await child.work(actor.send(message), limit))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # an actor never takes its supervisor with it
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            if isinstance(error, TimeoutError) and limit.expired():
                stopped = Fault.of("ACTOR_STOPPED", maybe_executed=True, context={"actor": name})
                return _failed(stopped if child.has_ended else self._timed_out(message))
            return await self._crashed(name, child, actor, error)

    async def _crashed(self, name: str, child: _Child, actor: Any, error: BaseException) -> Response:
        """Restart the actor within its budget, or remove it."""
        reason = str(error) or type(error).__name__
        self._report_crash(name, child, error)
        is_kept = child.has_ended or not self._runtime.supervises or child.supervision == "ignore"
        if is_kept or child.actor is not actor:
            # If it was replaced with a sibling while it worked on this message, it is restarted already.
            return _crash(name, reason, len(child.restarts))
        while child.supervision == "restart" and not isinstance(error, ActorKilledError) and self._may_restart(child):
            count = len(child.restarts)
            self._report(ChildRestarting, name, error, attempt=count, delay=0.0)
            try:
                await self._restart(name, child)
            except Exception as again:  # noqa: BLE001 - a factory that fails counts as another crash
                error, reason = again, str(again) or type(again).__name__
                continue
            return _crash(name, reason, count)
        self._children.pop(name, None)
        window = self._window_ms / 1000
        if child.supervision == "fail_parent":
            self._report(GaveUp, name, error, restarts=0, window=window)
            await self._stop(actor)
            await self.stop()
            return _crash(name, reason, len(child.restarts))
        if isinstance(error, ActorKilledError):
            # It has asked for its end. Nobody gave up.
            await self._stop(actor)
            return _crash(name, reason, len(child.restarts))
        self._report(GaveUp, name, error, restarts=self._max_restarts, window=window, child_only=True)
        context = {"actor": name, "restarts": self._max_restarts, "window_s": window, "original_error": reason}
        return _failed(Fault.of("ACTOR_MAX_RESTARTS", context=context))

    def _report_crash(self, name: str, child: _Child, error: BaseException) -> None:
        log_traceback(error, f"{self.name}/{name}", self._runtime)
        self._report(ChildExited, name, error, incarnation=child.made, reason=str(Error(error)))

    def _report(self, kind: Any, name: str, error: BaseException, **facts: Any) -> None:
        """Emit the event of a child, as a `Supervisor` does, with the fault that it failed with."""
        if self._runtime.bus.wants(kind):
            fault = crash_of(error, self._runtime.fault_of(error), f"{self.name}/{name}")
            at = self._runtime.clock.wall()
            self._runtime.bus.emit(kind(at=at, supervisor=self.name, child=name, fault=fault, **facts))

    def _may_restart(self, child: _Child) -> bool:
        """Count a restart, unless the budget is used up."""
        now = self._runtime.clock.monotonic() * 1000
        child.restarts = [at for at in child.restarts if now - at < self._window_ms]
        if len(child.restarts) >= self._max_restarts:
            return False
        child.restarts.append(now)
        return True

    async def _restart(self, name: str, child: _Child) -> None:
        child.actor = await _made(child.factory)
        child.made += 1
        if self._strategy == "one-for-one":
            return
        for other in self.ids:
            if other != name and (sibling := self._children.get(other)) is not None:
                await self._replace(sibling)

    async def _replace(self, sibling: _Child) -> None:
        """Make a new instance of an actor that did not crash. The old one may finish the message that it works on."""
        # Not under the lock of the sibling: two that crash at once would wait for each other.
        old, sibling.actor = sibling.actor, await _made(sibling.factory)
        sibling.made += 1
        await self._stop(old)

    async def _stop(self, actor: Any) -> None:
        stop = getattr(actor, "stop", None)
        if stop is None:
            return
        try:
            async with asyncio.timeout(_STOP_S):
                await _awaited(stop())
        except Exception as error:  # noqa: BLE001 - one actor that does not stop must not keep the others
            at = self._runtime.clock.wall()
            self._runtime.bus.hook_raised(stop, f"the hook stop of {type(actor).__name__}", error, at=at)

    def _timed_out(self, message: Message) -> Fault:
        context = {"timeout_s": self._timeout, "operation": message.type}
        return Fault.of("TOOL_TIMEOUT", maybe_executed=True, context=context)


async def _made(factory: Callable[[], Any]) -> Any:
    """Return a new actor, started."""
    actor = await _awaited(factory())
    if not (isinstance(getattr(actor, "id", None), str) and callable(getattr(actor, "send", None))):
        raise InvalidError.at("supervise", "a factory of actors, with `id` and `send`", actor)
    start = getattr(actor, "start", None)
    if start is not None:
        await _awaited(start())
    return actor


async def _awaited(value: Awaitable[Any] | Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def _response(value: Any) -> Response:
    """Return what a handler returned as a Response."""
    match value:
        case {"success": bool()}:
            return cast("Response", view.plain(value))
        case ActorError():
            return cast("Response", view.failed(value))
        case ValidationError(field=field, message=message):
            return cast("Response", view.failed(Errors.validation("VALIDATION_ERROR", message, {"field": field})))
        case Err():
            return _failed(value.fault)
        case Ok():
            value = value.value
    return {"success": True} if value is None else {"success": True, "data": value}


def rejected(payload: Any = None, *known: str) -> Response:
    """Return the Response to a payload that is invalid. known: the keys that it may have; it names another one."""
    fault = Fault.of("PROTO_INVALID_MESSAGE")
    unknown = next((key for key in payload if key not in known), None) if isinstance(payload, dict) else None
    if unknown is None:
        return _failed(fault)
    text = f"Message payload is invalid: unknown key {unknown!r} (it may have {', '.join(known)})"
    return cast("Response", view.failed(Errors.validation("INVALID_MESSAGE", text)))


def _crash(name: str, reason: str, count: int) -> Response:
    context = {"actor": name, "reason": reason, "restart_count": count}
    return _failed(Fault.of("ACTOR_CRASHED", maybe_executed=True, context=context))


def _failed(fault: Fault) -> Response:
    return cast("Response", view.write(fault, literal=fault.code != "PROTO_UNKNOWN_TYPE"))


def _with_duration(response: Response, milliseconds: float) -> Response:
    metadata = {"durationMs": round(milliseconds, 3), **(response.get("metadata") or {})}
    return {**response, "metadata": metadata}
