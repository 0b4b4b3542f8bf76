"""`Child`: what to start and how to supervise it, as a value.

Invariant: a child holds a factory and its arguments, never an instance. An instance could not be started a second time.
"""

from __future__ import annotations

from math import inf
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TypedDict

from holdfast import options
from holdfast.actors.arguments import check_call
from holdfast.supervision.directive import check_on
from holdfast.supervision.spec import ChildSpec
from holdfast.tools.process import Run, run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.actors.host import Host, Place
    from holdfast.policies import Backoff
    from holdfast.supervision.directive import On
    from holdfast.supervision.spec import Restart, ShutdownTime

__all__ = ["Child", "ChildOptions"]

_DEFAULTS: dict[str, Any] = {
    "id": None,
    "restart": "permanent",
    "shutdown": None,
    "significant": False,
    "backoff": None,
    "reset_after": None,
    "on": None,
    "ready": False,
    "start_timeout": 30.0,
    "host": None,
}
_WORKER_SHUTDOWN_S = 5.0


class ChildOptions(TypedDict, total=False):
    """The options of `Child`, and of `Supervisor.start`, without `host`."""

    id: str | None
    restart: Restart
    shutdown: ShutdownTime | None
    significant: bool
    backoff: Backoff | None
    reset_after: float | None
    on: On | None
    ready: bool
    start_timeout: float | None


class Child:
    """A factory, its arguments, and how to supervise what it makes.

        from holdfast.actors import Child, Supervisor

        tree = Supervisor("team", children=[Child(poll, "inbox"), Child(Coder, "haiku", restart="transient")])

    factory: a coroutine function, an `Actor` class, a `Supervisor`, or a command: `["redis-server"]`, or `run([…], cwd=…)` of
        `holdfast.tools`, which is run anew each time.
    id: the child's name in its supervisor. By default the factory's name, with a number if that is taken.
    restart: `permanent` (always), `transient` (after a failure) or `temporary` (never).
    shutdown: seconds that it may take to stop, `math.inf`, or `"brutal"`. By default 5; for a supervisor `math.inf`.
    significant: its end may end the supervisor; see `auto_shutdown`.
    backoff, reset_after: the delays before restarts; after `reset_after` seconds without a failure they begin again.
    on: an actor's directives by code, kind or exception class: `{"AUTH_FAILED": "escalate"}`.
    ready: the coroutine function calls `ready()` once it has started, and its supervisor waits for that.
    start_timeout: the most seconds that a start may take.
    host: makes the host that runs the child; by default the factory's kind decides.

    Wrong options raise `InvalidError`.
    """

    __slots__ = (
        "args", "backoff", "factory", "host", "id", "on", "ready", "reset_after", "restart", "shutdown", "significant",
        "start_timeout",
    )  # fmt: skip

    factory: Any
    args: tuple[Any, ...]

    @options.suggests
    def __init__(
        self,
        factory: Callable[..., Any] | Run | Sequence[str],
        *args: Any,
        id: str | None = None,  # noqa: A002 - the word that supervisors use
        restart: Restart = "permanent",
        shutdown: ShutdownTime | None = None,
        significant: bool = False,
        backoff: Backoff | None = None,
        reset_after: float | None = None,
        on: On | None = None,
        ready: bool = False,
        start_timeout: float | None = 30.0,
        host: Callable[[Child, Place], Host] | None = None,
    ) -> None:
        if isinstance(factory, (list, tuple)):
            # A program that runs for days may print any amount.
            factory = run(factory, output_cap=None)
        if not (callable(factory) or isinstance(factory, Run) or hasattr(factory, "__holdfast_host__")):
            expected = "a coroutine function, an Actor class, a Supervisor or a command, never an instance"
            options.function("child.factory", factory, "start(f, …)", expected)
        options.flag("child.ready", ready)
        options.seconds("child.start_timeout", start_timeout, optional=True)
        check_on("child.on", on)
        given: dict[str, Any] = {
            "factory": factory,
            "args": args,
            "id": id,
            "restart": restart,
            "shutdown": shutdown,
            "significant": significant,
            "backoff": backoff,
            "reset_after": reset_after,
            "on": on,
            "ready": ready,
            "start_timeout": start_timeout,
            "host": host,
        }
        for name, value in given.items():
            object.__setattr__(self, name, value)
        # The spec checks what the rules are about, here and not at the first start.
        self.spec(id if id is not None else "child")

    if TYPE_CHECKING:
        id: str | None
        restart: Restart
        shutdown: ShutdownTime | None
        significant: bool
        backoff: Backoff | None
        reset_after: float | None
        on: On | None
        ready: bool
        start_timeout: float | None
        host: Callable[[Child, Place], Host] | None

    @property
    def name(self) -> str:
        """The child's id, or the name of its factory."""
        if self.id is not None:
            return self.id
        if isinstance(self.factory, Run):
            return PurePath(self.factory.command.argv[0]).name
        factory = getattr(self.factory, "func", self.factory)  # functools.partial
        # A supervisor names itself.
        return getattr(factory, "__name__", None) or getattr(factory, "name", None) or type(factory).__name__

    @property
    def is_supervisor(self) -> bool:
        """Whether the factory makes a supervisor."""
        factory = getattr(self.factory, "func", self.factory)  # functools.partial
        return bool(getattr(factory, "__holdfast_supervisor__", False))

    def spec(self, id: str) -> ChildSpec:  # noqa: A002 - the word that supervisors use
        """Return the terms of this child under the name `id`."""
        shutdown = self.shutdown if self.shutdown is not None else self._usual_shutdown()
        return ChildSpec(
            id=id,
            restart=self.restart,
            shutdown=shutdown,
            significant=self.significant,
            backoff=self.backoff,
            reset_after=self.reset_after,
            supervisor=self.is_supervisor,
        )

    def check_arguments(self) -> None:
        """Raise `InvalidError` if the factory cannot be called with the arguments; else every start would fail.

        >>> Child(poll).check_arguments()
        InvalidError: child poll: expected arguments that fit poll(inbox), got none
        """
        # A host of its own may call the factory in another way.
        if self.host is None and callable(self.factory):
            check_call(f"child {self.name}", self.factory, self.args)

    def _usual_shutdown(self) -> float:
        if self.is_supervisor:
            return inf
        if isinstance(self.factory, Run):
            # Its processes are first requested to end and then killed; both must fit in.
            return self.factory.command.grace + _WORKER_SHUTDOWN_S
        return _WORKER_SHUTDOWN_S

    def replace(self, *args: Any, **changes: Any) -> Child:
        """Return a copy with other options, and with `args` after its own: `template.replace("url", restart="temporary")`."""
        known = {name: getattr(self, name) for name in _DEFAULTS}
        return Child(self.factory, *self.args, *args, **{**known, **changes})

    def __setattr__(self, name: str, value: object) -> None:
        message = f"a Child does not change: use child.replace({name}=…)"
        raise AttributeError(message)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Child) and all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    def __hash__(self) -> int:
        return hash((self.factory, self.name))

    def __repr__(self) -> str:
        parts = [getattr(self.factory, "__qualname__", repr(self.factory)), *map(repr, self.args)]
        parts += [
            f"{name}={getattr(self, name)!r}" for name, usual in _DEFAULTS.items() if getattr(self, name) != usual
        ]
        return f"Child({', '.join(parts)})"
