"""Extensions by entry point: rules, sinks and providers of other packages, found, started in order, stopped in reverse.

    with Extensions() as extensions:
        extensions.skipped      # what was left out, and why
        extensions.providers    # models that other packages brought, by id

An entry point of one of the groups names an object (a class is called, a module will do) with an `id`, a `contract`, what
it `requires`, and `start(runtime)`; what that returns is what the extension adds. `stop()` may be there.

Invariant: whatever an extension does, the others and the program go on (N2-14).
"""

from __future__ import annotations

import functools
import inspect
import threading
from functools import partial
from importlib.metadata import distributions, entry_points
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias

import msgspec

from holdfast import options
from holdfast.classify import Verdict
from holdfast.events import SuppressedError
from holdfast.extensions.order import Described, Skipped, left_out, plan
from holdfast.faults import CATALOG, REDACTOR, Fault, InvalidError
from holdfast.runtime.fault_of import fault_of
from holdfast.runtime.rules import IN_USE
from holdfast.runtime.runtime import default_runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from importlib.metadata import EntryPoint

    from holdfast.classify import Evidence, Rule
    from holdfast.runtime.runtime import Runtime

__all__ = ["GROUPS", "Extension", "Extensions"]

_LIMIT = 10.0
_MODEL = ("name", "offers", "exchange", "stream")
"""What a provider's model must have; `holdfast.providers` says it in types."""


class Extension(Protocol):
    """What an entry point names. `requires` (ids) and `stop()` may be left out."""

    id: str
    contract: int

    def start(self, runtime: Runtime) -> Any:
        """Begin, and return what is added: rules, a sink's subscription, or a provider's model."""
        ...


class _Loaded(msgspec.Struct, frozen=True):
    described: Described
    extension: Any


class _Started(msgspec.Struct, frozen=True):
    described: Described
    extension: Any
    undo: Any


class Extensions:
    """The extensions of this process. `limit` is what each step of one may take, in seconds; `without` leaves ids out."""

    def __init__(
        self, *, runtime: Runtime | None = None, limit: float = _LIMIT, without: Collection[str] = frozenset()
    ) -> None:
        options.seconds("extensions.limit", limit)
        options.names("extensions.without", frozenset(without) if isinstance(without, (list, tuple)) else without)
        self._runtime = default_runtime() if runtime is None else runtime
        self._limit = limit
        self._without = frozenset(without)
        self._started: list[_Started] = []
        self.skipped: tuple[Skipped, ...] = ()
        """What was left out, and why."""
        self.providers: dict[str, Any] = {}
        """What the started providers have brought, by id."""

    @property
    def started(self) -> tuple[Described, ...]:
        """What runs, in the order it was started."""
        return tuple(one.described for one in self._started)

    @property
    def document(self) -> dict[str, Any]:
        """What runs and what was left out: `{started: [id], skipped: [{extId, reason, code}]}`."""
        return {
            "started": [one.id for one in self.started],
            "skipped": [one.document for one in self.skipped],
        }

    def start(self) -> None:
        """Find all there are and start them; what cannot be started is left out and told."""
        if self._started:
            raise InvalidError.saying("extensions", "to be started once", "started again without a stop")
        found, unread = _found()
        loaded, absent = self._load(found, unread)
        by_id: dict[str, _Loaded] = {}
        for one in loaded:
            by_id.setdefault(one.described.id, one)
        planned = plan((one.described for one in loaded), absent=absent)
        failed: dict[str, Fault] = {}
        for described in planned.order:
            fault = left_out(described, failed, by_id) or self._begin(by_id[described.id])
            if fault is not None:
                failed[described.id] = fault
        self.skipped = (*planned.skipped, *(Skipped(id=name, fault=fault) for name, fault in failed.items()))
        for skipped in self.skipped:
            self._tell(skipped.fault, f"extension {skipped.id} was left out")

    def stop(self) -> None:
        """Stop what runs, the last started first. What fails to stop is told, and the rest is stopped."""
        while self._started:
            one = self._started.pop()
            self.providers.pop(one.described.id, None)
            _, fault = self._try(one.described.id, "stop", partial(_end, one.extension, one.undo))
            if fault is not None:
                self._tell(fault, f"extension {one.described.id} did not stop well")

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            # Somebody interrupts the start: nobody else would stop what runs already.
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- one extension ---

    def _load(self, found: Iterable[EntryPoint], unread: Mapping[str, Fault]) -> tuple[list[_Loaded], dict[str, Fault]]:
        loaded: list[_Loaded] = []
        absent = dict(unread)
        for point in found:
            name = f"{point.name} in {point.group}" if point.name in absent else point.name
            if point.name in self._without:
                absent[name] = _switched_off(name)
                continue
            one, fault = self._try(name, "load", partial(_described, point))
            if fault is not None:
                absent[name] = fault
            elif one.described.id in self._without:
                absent[one.described.id] = _switched_off(one.described.id)
            else:
                loaded.append(one)
        return loaded, absent

    def _begin(self, one: _Loaded) -> Fault | None:
        name, end = one.described.id, partial(_end, one.extension)
        added, fault = self._try(name, "start", lambda: one.extension.start(self._runtime), late=end)
        if fault is not None:
            return fault
        # In place only now, and here: what was left behind must add nothing later.
        try:
            undo = _ADDING[one.described.group](self, name, added)
        except Exception as error:  # noqa: BLE001 - what it adds is a foreign object
            self._try(name, "stop", end)
            return _failed(name, "start", error)
        self._started.append(_Started(one.described, one.extension, undo))
        return None

    def _try(
        self, name: str, phase: str, do: Callable[[], Any], late: Callable[[], None] | None = None
    ) -> tuple[Any, Fault | None]:
        """Do one step in a thread of its own, no longer than the limit; return its value or its fault."""
        step = _Step(do, late)
        if not step.done_within(self._limit):
            return None, _failure(name, phase, f"it did not finish within {self._limit:g} s and was left behind")
        return (step.value, None) if step.error is None else (None, _failed(name, phase, step.error))

    def _tell(self, fault: Fault, reason: str) -> None:
        runtime = self._runtime
        runtime.bus.emit(SuppressedError.of(fault, reason, at=runtime.clock.wall()))

    # --- what extensions add ---

    def _add_rules(self, name: str, added: Any) -> Callable[[], None]:
        rules = (added,) if callable(added) else added
        if not isinstance(rules, (list, tuple)) or not rules or not all(callable(rule) for rule in rules):
            raise InvalidError.at(f"extension {name}: start()", "a rule or a list of rules", added)
        return IN_USE.add(tuple(_guarded(rule, self._rule_raised) for rule in rules))

    def _rule_raised(self, rule: Any, error: Exception) -> None:
        runtime = self._runtime
        runtime.bus.hook_raised(rule, f"rule {getattr(rule, '__qualname__', rule)}", error, at=runtime.clock.wall())

    def _add_sink(self, name: str, added: Any) -> Callable[[], None]:
        cancel = getattr(added, "cancel", None)
        if not callable(cancel):
            raise InvalidError.at(f"extension {name}: start()", "a subscription, as runtime.on(…) returns", added)

        def undo() -> None:
            cancel()

        return undo

    def _add_provider(self, name: str, added: Any) -> Callable[[], None]:
        missing = [part for part in _MODEL if not hasattr(added, part)]
        if missing:
            expected = f"a model, with {', '.join(_MODEL)}"
            raise InvalidError.saying(f"extension {name}: start()", expected, f"one without {', '.join(missing)}")
        self.providers[name] = added
        return _nothing


class _Step:
    """One step of an extension in a thread of its own, which may have to be left behind."""

    def __init__(self, do: Callable[[], Any], late: Callable[[], None] | None) -> None:
        self.value: Any = None
        self.error: BaseException | None = None
        self._do = do
        self._late = late
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._left_behind = False

    def done_within(self, limit: float) -> bool:
        threading.Thread(target=self._run_apart, name="holdfast-extension", daemon=True).start()
        if self._over.wait(limit):
            return True
        with self._lock:
            self._left_behind = not self._over.is_set()
        return not self._left_behind

    def _run_apart(self) -> None:
        self._run(self._do)
        with self._lock:
            self._over.set()
            left_behind = self._left_behind
        if left_behind and self._late is not None and self.error is None:
            self._run(self._late)

    def _run(self, do: Callable[[], Any]) -> None:
        try:
            self.value = do()
        except BaseException as error:  # noqa: BLE001 - also a SystemExit at import is only the extension's own end
            self.error = error


def _found() -> tuple[list[EntryPoint], dict[str, Fault]]:
    """Return the entry points of all groups, in an order that does not depend on the path, and what cannot be read."""
    unread: dict[str, Fault] = {}
    try:
        points: list[EntryPoint] = [point for group in GROUPS for point in entry_points(group=group)]
    except Exception:  # noqa: BLE001 - one package with a broken list must not hide those of the others
        points, unread = _found_one_by_one()
    return sorted(points, key=lambda point: (point.name, point.group)), unread


def _found_one_by_one() -> tuple[list[EntryPoint], dict[str, Fault]]:
    points: list[EntryPoint] = []
    unread: dict[str, Fault] = {}
    seen: set[str] = set()
    for package in distributions():
        # The first of a name on the path is the one that is imported.
        name = str(package.metadata["Name"])
        if name in seen:
            continue
        seen.add(name)
        try:
            points += [point for point in package.entry_points if point.group in GROUPS]
        except Exception as error:  # noqa: BLE001 - ditto
            unread[name] = _failed(name, "load", error)
    return points, unread


def _described(point: EntryPoint) -> _Loaded:
    extension = point.load()
    if inspect.isclass(extension):
        extension = extension()
    where = f"extension {point.name}"
    if not callable(getattr(extension, "start", None)):
        raise InvalidError.at(f"{where}: start", "a function of the runtime", getattr(extension, "start", None))
    said = {
        "id": getattr(extension, "id", None),
        "contract": getattr(extension, "contract", None),
        "requires": getattr(extension, "requires", ()),
        "group": point.group,
    }
    try:
        return _Loaded(msgspec.convert(said, Described), extension)
    except msgspec.ValidationError as error:
        raise InvalidError.from_msgspec(error) from error


def _end(extension: Any, undo: Callable[[], None] | None = None) -> None:
    try:
        if undo is not None:
            undo()
    finally:
        stop = getattr(extension, "stop", None)
        if callable(stop):
            stop()


def _failed(name: str, phase: str, error: BaseException) -> Fault:
    fault = _failure(name, phase, REDACTOR.text(f"{type(error).__name__}: {error}"))
    return msgspec.structs.replace(fault, cause=fault_of(error).cause)


def _failure(name: str, phase: str, reason: str) -> Fault:
    return Fault.of("SYS_LIFECYCLE_FAILURE", context={"name": name, "phase": phase, "reason": reason})


def _switched_off(name: str) -> Fault:
    return Fault.of("SYS_LIFECYCLE_FAILURE", f"Extension {name} is switched off", context={"name": name})


def _guarded(rule: Rule, tell: Callable[[Rule, Exception], None]) -> Rule:
    """Return `rule` so that whatever it raises, or gives in place of a verdict, is told and means nothing."""

    @functools.wraps(rule)
    def asked(evidence: Evidence) -> Verdict | None:
        try:
            verdict: object = rule(evidence)
            if verdict is None or (isinstance(verdict, Verdict) and verdict.code in CATALOG):
                return verdict
            raise InvalidError.at("what a rule returned", "a Verdict with a code of the catalog, or None", verdict)  # noqa: TRY301 - told like what it raises
        except Exception as error:  # noqa: BLE001 - classifying a failure must never be a second failure
            tell(rule, error)
            return None

    return asked


def _nothing() -> None:
    pass


_Adding: TypeAlias = "Callable[[Extensions, str, Any], Callable[[], None]]"
_ADDING: dict[str, _Adding] = {
    "holdfast.providers": Extensions._add_provider,  # noqa: SLF001 - the table of this very class
    "holdfast.rules": Extensions._add_rules,  # noqa: SLF001
    "holdfast.sinks": Extensions._add_sink,  # noqa: SLF001
}

GROUPS = tuple(_ADDING)
"""The groups of entry points that are looked into."""
