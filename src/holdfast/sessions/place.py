"""Where the running code is in a session: inside of which step, and of which part with its own key, such as a tool call of an agent.

Invariant: steps and questions inside of a step or a part are counted apart from all others of the session. So one that is left out, because
its result is stored, takes nothing from another one.
"""

from __future__ import annotations

import asyncio
import inspect
import weakref
from collections import deque
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from holdfast.once.identity import function_name, within
from holdfast.once.place import entered, in_part, in_step, in_task, whom_of
from holdfast.sessions import codec
from holdfast.sessions.callee import MAIN, imported_name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from types import TracebackType

    from holdfast.once.identity import Identity
    from holdfast.once.replay import Use
    from holdfast.sessions.journal import Journal

__all__ = [
    "Here",
    "around_here",
    "enter_root",
    "gate",
    "here",
    "innermost",
    "inside",
    "is_inside",
    "known_as",
    "known_before",
    "may_be_left_out",
    "outer_places",
    "part",
    "places_of",
    "same_place",
    "task_here",
    "task_name",
    "tasks_around",
    "uses_around",
    "whom_alive",
]


class Here:
    """A block of the program that is a place of its own. `with here:` is the block."""

    __slots__ = (
        "_places",
        "_token",
        "around",
        "entered",
        "is_handled",
        "journal",
        "open",
        "part",
        "task",
        "task_name",
        "use",
    )

    def __init__(
        self,
        journal: Journal,
        places: tuple[str, ...] | None,
        part: str,
        use: Use | None,
        task_name: str = "",
        *,
        entered: str = "",
    ) -> None:
        self.open: dict[str, Callable[[], Awaitable[Exception | None]]] | None = None
        """What is open inside: see `open_ends`."""
        self.is_handled = False
        """Whether that is for this block alone: see `open_ends.handled`."""
        self.journal = journal
        self._places = places
        """None: they are found when they are needed, because most steps call no other one."""
        self.entered = None if places is None else entered
        """The place that it is, see `once.place.entered`; None: the step is; empty: it is in the place around it."""
        self.part = part
        """The key of the innermost part; empty if there is none."""
        self.use = use
        """The use of the step whose function this is, if it is one."""
        self.around = _HERE.get()
        self.task = task_here()
        """Returns the task that began the block, if it is there."""
        self.task_name = task_name
        """What that task is known by, seen from the place."""

    @property
    def places(self) -> tuple[str, ...]:
        """The places around the running code, the innermost last; empty in no step or part."""
        if self._places is None:
            assert self.use is not None
            around = self.around
            while around is not None and around.journal is not self.journal:
                around = around.around
            self._places = (*places_of(around), in_step(self.use.name))
        return self._places

    @property
    def place(self) -> str:
        """What the place is known by; empty in no step or part."""
        return self.places[-1] if self.places else ""

    def __enter__(self) -> Self:
        self._token = _HERE.set(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        # Not `suppress`: each step comes here.
        try:
            _HERE.reset(self._token)
        except ValueError:  # the session is left in another task than it was entered in
            return


_HERE: ContextVar[Here | None] = ContextVar("holdfast_here", default=None)


def here(journal: Journal) -> Here | None:
    """Return where the running code is in the session of this journal; None in a task that was not begun in the session's block."""
    around = _HERE.get()
    while around is not None and around.journal is not journal:
        around = around.around
    return around


def innermost() -> Here | None:
    """Return where the running code is, in whatever session."""
    return _HERE.get()


def may_be_left_out() -> bool:
    """Whether the running code is inside of a step or a part: the next run of the program leaves it out if that has ended."""
    around = _HERE.get()
    return around is not None and bool(around.places)


def uses_around() -> set[Use]:
    """Return the uses of all steps that the running code is inside of, in whatever session."""
    found, around = set(), _HERE.get()
    while around is not None:
        if around.use is not None:
            found.add(around.use)
        around = around.around
    return found


async def gate(opened: asyncio.Event) -> None:
    """Hold a step back while its worker stops. One inside of another step belongs to that one, which is let end."""
    if not uses_around():
        await opened.wait()


def enter_root(journal: Journal) -> Here:
    """Enter the block of a session, and return it."""
    root = Here(journal, (), "", None)
    root.__enter__()
    return root


def same_place(journal: Journal) -> Here:
    """Return a block of its own in the place of the running code."""
    around, task = here(journal), task_name(journal, asyncio.current_task())
    return Here(journal, places_of(around), "" if around is None else around.part, None, task)


def inside(journal: Journal, use: Use) -> Here:
    """Return the block of a step's function."""
    around = here(journal)
    return Here(journal, None, "" if around is None else around.part, use)


@contextmanager
def part(journal: Journal, key: str, task: str = "", earlier: str = "", *, is_named: bool = True) -> Iterator[None]:
    """A part with its own key: see `Session.part`. `is_named`: the program chose the key, and says with it what is meant."""
    name, place, by = in_task("", "", [task]) if task else "", in_part(key), task_name(journal, asyncio.current_task())
    # A part in itself is no other place for what the program may have moved.
    is_named = is_named and place not in places_of(here(journal))
    journal.parts.add(place)
    around = entered(place, by, is_named=is_named)
    with Here(journal, (*places_of(here(journal)), place), earlier or key, None, name, entered=around):
        yield


def places_of(around: Here | None) -> tuple[str, ...]:
    """Return the places around the running code."""
    return () if around is None else around.places


def outer_places(journal: Journal) -> tuple[str, ...]:
    """Return the places around the running code without the innermost one."""
    return places_of(here(journal))[:-1]


def around_here(journal: Journal) -> str:
    """Return the places around the running code as the log has them."""
    found: list[str] = []
    around = here(journal)
    while around is not None:
        if around.journal is journal and around.entered is None:
            assert around.use is not None
            use = around.use
            found.append(entered(in_step(use.name), use.task or "", is_named=bool(use.of and use.of.key)))
        elif around.journal is journal and around.entered:
            found.append(around.entered)
        around = around.around
    return " ".join(reversed(found))


# --- tasks ---


def task_here() -> Callable[[], asyncio.Task[Any] | None]:
    """Return what returns the running task as long as it is there."""
    task = asyncio.current_task()
    return _no_task if task is None else weakref.ref(task)


def _no_task() -> None:
    return None


def tasks_around(journal: Journal) -> set[asyncio.Task[Any] | None]:
    """Return the running task and those that began it, as far as they are known."""
    found, around = {asyncio.current_task()}, here(journal)
    while around is not None:
        found.add(around.task())
        around = around.around
    return found


def task_name(journal: Journal, task: asyncio.Task[Any] | None) -> str:
    """Return what the running task is known by in its place; empty for the task that began the place, and for one nothing is known of."""
    around = here(journal)
    if around is None or task is None:
        return ""
    if around.task() is task:
        return around.task_name
    known = _described(task.get_coro())
    name = around.task_name
    if known is not None:
        name = in_task(name, known.fn, known.args, takes_work=known.takes_work)
    # The task has a context of its own, so this is known until it ends, and in the tasks that it begins.
    _HERE.set(Here(journal, around.places, around.part, around.use, name))
    return name


def whom_alive(journal: Journal) -> set[str]:
    """Return who the tasks work for that are there, as the tasks know them that began the running one."""
    around, names = here(journal), set[str]()
    while around is not None:
        names.add(around.task_name)
        around = around.around
    known = [_described(each.get_coro()) for each in asyncio.all_tasks()]
    return {
        whom_of(in_task(name, each.fn, each.args, takes_work=each.takes_work))
        for each in known
        if each is not None
        for name in names
    }


class _Described(NamedTuple):
    """What a task runs."""

    fn: str
    args: list[str]
    """Its arguments that can be compared after a restart."""
    takes_work: bool
    """Whether it may take what it does from something that other tasks take from, too, such as a queue."""


def _described(coroutine: Any) -> _Described | None:
    """Return what a coroutine runs; None if it is only a wrapper."""
    frame = getattr(coroutine, "cr_frame", None)
    if frame is None:
        return None
    code, values = coroutine.cr_code, frame.f_locals
    module = str(frame.f_globals.get("__name__", ""))
    many = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    names = [name for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + many] if name in values]
    if module.partition(".")[0] in _WRAPPERS:
        inner = [values[name] for name in names if inspect.iscoroutine(values[name])]
        return _described(inner[0]) if len(inner) == 1 else None
    fn = function_name(imported_name(frame.f_globals) if module in MAIN else module, code.co_qualname)
    used = [values[name] for name in (*names, *code.co_freevars) if name in values]
    used += [frame.f_globals[name] for name in code.co_names if name in frame.f_globals]
    takes_work = any(_gives_work(value, code.co_names) for value in used)
    return _Described(fn, [f"{name} {given}" for name in names if (given := _compared(values[name]))], takes_work)


def _gives_work(value: Any, names: tuple[str, ...], *, inside: bool = True) -> bool:
    """Whether a function that uses these names may take its work from a value: a queue, a stream, an iterator, or what has one."""
    kind = type(value)
    if any(hasattr(kind, method) for method in ("get_nowait", "receive_nowait", "__next__", "__anext__")):
        return True
    if isinstance(value, deque | list | set | dict):
        return not {"pop", "popleft", "popitem"}.isdisjoint(names)
    held = getattr(value, "__dict__", None)
    if not inside or not isinstance(held, dict) or isinstance(value, type | ModuleType) or callable(value):
        return False
    return any(_gives_work(each, names, inside=False) for each in tuple(held.values()))


def _compared(value: Any) -> str:
    try:
        return codec.arguments_hash((value,), {}, "task")
    except Exception:  # noqa: BLE001 - a session, a queue or a client: the task is known by its other arguments
        return ""


_WRAPPERS = ("asyncio", "anyio", "holdfast")
"""Packages whose coroutines only run those of others."""


def is_inside(task: asyncio.Task[Any], journal: Journal) -> bool:
    """Whether a task may call steps of this session. Before Python 3.12 nobody can tell."""
    context = getattr(task, "get_context", None)
    if context is None:
        return True
    around = context().get(_HERE)
    while around is not None and around.journal is not journal:
        around = around.around
    return around is not None


def known_as(journal: Journal, identity: Identity) -> Identity:
    """Return what a question of this journal, or work with steps of its own, is known by here: by the innermost step or part around it, too."""
    around = here(journal)
    if around is None or not around.place or around.place in journal.parts:
        return known_before(journal, identity)
    return within(identity, around.place)


def known_before(journal: Journal, identity: Identity) -> Identity:
    """Return what earlier versions knew a call by: by the innermost part alone."""
    around = here(journal)
    return identity if around is None or not around.part or identity.key else within(identity, around.part)
