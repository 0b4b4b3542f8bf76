"""Which recorded step a call of this run of the program is, and which recorded steps the program has not called yet."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, count, islice
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import msgspec

from holdfast.once.identity import Identity, identity_of, is_earlier_form, is_within, numbered, step_name
from holdfast.once.place import (
    entered,
    in_step,
    may_have_moved,
    parting,
    place_entered,
    task_of,
    waits_for_its_task,
    whom_of,
    work_for_others,
)
from holdfast.once.records import StepEnded, StepStarted, is_doubtful, may_have_happened

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from holdfast.once.identity import Recorded

__all__ = ["Attempts", "Calling", "Signal", "Use", "Uses", "is_later"]

Attempts: TypeAlias = dict[str, int]
"""The operations (`recover`) around a call, by their run, each with the number of its present attempt."""


class Signal(Protocol):
    """What a call waits for: an `asyncio.Event`."""

    def set(self) -> None:
        """Wake it."""
        ...

    async def wait(self) -> object:
        """Wait until it is set."""
        ...


def is_later(attempts: Attempts, before: Attempts) -> bool:
    """Whether one of the operations around makes a later attempt than it did before."""
    return any(before.get(run, attempt) < attempt for run, attempt in attempts.items())


class Use(msgspec.Struct, eq=False):
    """One use of a function with certain arguments, in this run of the program. `with use:` is the block of a call."""

    name: str
    of: Identity | None = None
    """The call that it is, if an earlier version recorded it; None: no call of this run has taken it yet."""
    task: str | None = None
    """What the task is known by that called it, as it is recorded or in this run; None: it is not known."""
    owner: Callable[[], Any] | None = None
    """Returns the task that called it last in this run, if it is there."""
    seen: Attempts | None = None
    """Where the program called it last; None: not yet in this run."""
    taken: bool = False
    """A call has returned from it. The next call with the same arguments is another use."""
    busy: bool = False
    """A call is in it now."""
    refused: Exception | None = None
    """What a call in it raises that has not begun yet: an equal call came that nothing tells from it."""
    ended: Signal | None = None
    """Set when that call ends. It is made by the first one that waits for it."""
    left: tuple[Any, ...] = ()
    """What a cancelled call has left under way: writes, or a function in a thread. The next call waits for it."""
    waits_for: tuple[Use, ...] = ()
    """The uses that the calls inside of it wait for."""
    around: str = ""
    """The places around it, as an earlier run recorded them."""

    def path(self) -> list[str]:
        """Return the places around it, and the call itself as the last one."""
        return [*self.around.split(), entered("", self.task or "", is_named=False)]

    def __enter__(self) -> None:
        self.busy = True

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # If the call fails or is cancelled, the next call with these arguments is the same use, not a second one.
        self.busy, self.taken, self.refused = False, kind is None, None
        if self.ended is not None:
            self.ended.set()
            self.ended = None

    def needs(self, uses: set[Use]) -> bool:
        """Whether it is one of these uses, or cannot end before one of them has ended."""
        waiting, seen = [self], set[Use]()
        for use in waiting:
            if use in uses:
                return True
            seen.add(use)
            waiting += [other for other in use.waits_for if other not in seen]
        return False

    def is_free(self, attempts: Attempts) -> bool:
        """Whether a call is this use: nobody has taken it, or an earlier attempt of an operation around the call has."""
        # Most calls have no operation around: there may be thousands of equal ones to look through.
        return not (self.busy or self.taken) or (bool(attempts) and self._is_earlier(attempts))

    def fits(self, task: str, loose: set[str]) -> bool:
        """Whether a call of this task may be it: nothing says that an earlier run made it in another task."""
        return self.seen is not None or self.task is None or task_of(self.task) == task_of(task) or self.task in loose

    def is_seen(self, attempts: Attempts) -> bool:
        """Whether the program has called it in this run, and in the present attempts of the operations around."""
        return self.seen is not None and not self._is_earlier(attempts)

    def _is_earlier(self, attempts: Attempts) -> bool:
        # `recover` calls the whole function again. What the function did in its last attempt are the same uses, not further ones.
        return is_later(attempts, self.seen or {})


class Calling(msgspec.Struct, frozen=True, gc=False):
    """A call that looks for its use."""

    identity: Identity
    attempts: Attempts
    earlier: Callable[[], Identity] | None = None
    """Returns what an earlier version knew it by."""
    places: tuple[str, ...] = ()
    """The places around it."""
    task: str = ""
    owner: Callable[[], Any] | None = None
    """As in a use."""

    def is_of_other(self, use: Use) -> bool:
        """Whether a use of an earlier run is certainly a call of another task: it is never handed over then."""
        return use.seen is None and not self.identity.key and work_for_others(self.task, use.task or "")


_GAP = 16
"""So many equal calls in a row that an earlier run did not record are the last ones."""
_FEW = 8
"""So many equal uses are looked through each time. Most calls have no equal one."""


class _Spent:
    """The first of some equal uses that calls have returned from: a further call is none of them, so it need not look through them."""

    __slots__ = ("by", "count")

    def __init__(self) -> None:
        self.count = 0
        self.by: dict[tuple[str | None, int], Use] = {}
        """One of them for each task that made them."""

    def follow(self, uses: Sequence[Use]) -> None:
        """Count those that were taken meanwhile."""
        while self.count < len(uses) and uses[self.count].taken and not uses[self.count].busy:
            use = uses[self.count]
            self.by[use.task, id(use.owner)] = use
            self.count += 1


class Uses:
    """The uses of the steps (or questions) of one turn, or of a session outside of turns, in this run of the program."""

    def __init__(
        self,
        recorded: Mapping[str, Recorded],
        *,
        called: frozenset[str] = frozenset(),
        parts: AbstractSet[str] = frozenset(),
    ) -> None:
        self._called = called
        """Those that this run of the program called in an earlier opening of the session."""
        self._parts = parts
        """The places of the parts that this run of the program has entered."""
        self._by_identity: dict[Identity, list[Use]] = {}
        self._spent: dict[Identity, _Spent] = {}
        self._by_function: dict[tuple[str, str], list[Use]] = {}
        """By function and place."""
        self._waiting: dict[tuple[str, str], dict[str, Use]] = {}
        """Those of them that the program may not have called yet in this run. A long run does not look through all of them at each call."""
        self.by_place: dict[str, list[Use]] = {}
        """Those that were called in this run inside of a place."""
        self._in_places: dict[tuple[str, str], list[Use]] = {}
        """Unsafe ones that an earlier run called inside of a place, by function and arguments."""
        self._left_out: set[str] = set()
        """Those of them that this run need not call, because it has begun with what is around them."""
        self._by_step: dict[str, Use] = {}
        """By the place that the step is."""
        self._new: list[Use] = []
        """Those that are not in it yet: it is filled when it is needed."""
        self._names: set[str] = set()
        self._numbers: dict[str, int] = {}
        """The numbers of the last uses, by the name of the first one."""
        self.loose: set[str] = set()
        """Tasks whose calls other tasks make in this run: workers that take what comes."""
        self.has_earlier = False
        """Whether a step is recorded as an earlier version wrote it."""
        for name, entry in _in_order(recorded):
            identity = identity_of(entry)
            self.has_earlier = self.has_earlier or is_earlier_form(identity)
            use = self._add(identity, name)
            self._await(use, identity)
            if isinstance(entry, StepStarted | StepEnded) and not is_earlier_form(identity):
                use.task = entry.task
                if entry.around:
                    use.around = entry.around
                    self._in_places.setdefault((identity.fn, identity.args), []).append(use)

    def take(self, call: Calling, *, of_any_task: bool = False) -> Use | None:
        """Return the use that a call is: the first one that no other call has taken, recorded ones first.

        Return None if all of those were made by other tasks in an earlier run: one of these may still be on its way to it.
        """
        is_any = of_any_task or bool(call.identity.key)
        fitting, others = None, False
        for use in self._unspent(call):
            if call.identity.key or (use.is_free(call.attempts) and not call.is_of_other(use)):
                others = True
                if is_any or use.fits(call.task, self.loose):
                    fitting = fitting or use
                    if not of_any_task or not whom_of(call.task):
                        break
                    if use.seen is None and whom_of(use.task or "") == whom_of(call.task):
                        # Its own one, and not the first one that is free.
                        fitting = use
                        break
        if fitting is None and others:
            return None
        use = fitting or self._add(call.identity, self._next_name(call.identity))
        if use.taken:
            # It may be free again after this call.
            self._spent.pop(call.identity, None)
        use.seen, use.of, use.task, use.owner = call.attempts, call.identity, call.task, call.owner
        for place in call.places:
            self.by_place.setdefault(place, []).append(use)
        return use

    def expect(self, identity: Identity, whom: Callable[[str], str | None]) -> None:
        """An earlier run may have made this call for some tasks: `whom` says for whom it was that made the call with a name."""
        if identity in self._by_identity:
            return
        names, missing = list[str](), 0
        while missing < _GAP:
            names.append(step_name(identity, len(names) + 1))
            missing = missing + 1 if whom(names[-1]) is None else 0
        for name in names[: len(names) - _GAP]:
            self._add(identity, name).task = f".{whom(name) or ''}"

    def rivals(self, call: Calling) -> list[Use]:
        """Return the equal calls of this run that nothing tells from this one, if it is none that is known."""
        if call.identity.key:
            return []
        equal = self._unspent(call)
        if not (equal or call.identity in self._spent) or any(
            use.is_free(call.attempts) and not call.is_of_other(use) for use in equal
        ):
            return []
        spent = self._spent.get(call.identity)
        before = () if spent is None else spent.by.values()
        return [use for use in (*before, *equal) if use.task == call.task]

    def tasks_of(self, call: Calling) -> set[str]:
        """Return what the tasks are known by that made this call in an earlier run."""
        return {
            use.task for use in self._equal(call.identity, call.earlier) if use.task is not None and use.seen is None
        }

    def _next_name(self, identity: Identity) -> str:
        first = step_name(identity, 1)
        number = self._numbers.get(first, 1)
        while (name := numbered(first, number) if number > 1 else first) in self._names:
            number += 1
        self._numbers[first] = number
        return name

    def begin(self, place: str) -> None:
        """The program begins with a place, or begins anew: what it called there before are the same uses, not further ones."""
        for use in self.by_place.pop(place, ()):
            self.release(use)
            use.seen = None
            assert use.of is not None
            self._await(use, use.of)

    def _await(self, use: Use, identity: Identity) -> None:
        if not identity.key and not is_within(identity):
            self._waiting.setdefault((identity.fn, identity.place), {})[use.name] = use

    def release(self, use: Use) -> None:
        """The next call with the same arguments may be this use again."""
        use.taken = False
        if use.of is not None:
            self._spent.pop(use.of, None)

    def before(self, identity: Identity, name: str, earlier: Callable[[], Identity]) -> list[str]:
        """Return the names of the uses of a call that come before the one with this name."""
        names = [use.name for use in self._equal(identity, earlier)]
        return names[: names.index(name)]

    def without_those_of(self, alive: set[str], task: str, names: list[str]) -> list[str]:
        """Return these steps without those of other tasks that are there in this run: each of them comes to its own."""
        tasks = {use.name: use.task or "" for uses in self._by_identity.values() for use in uses}
        return [name for name in names if not (work_for_others(tasks[name], task) and whom_of(tasks[name]) in alive)]

    def not_replayed(
        self, identity: Identity, attempts: Attempts, earlier: Callable[[], Identity], places: tuple[str, ...] = ()
    ) -> list[str]:
        """Return the names of the known steps of a call's function that the program has not called yet in this run.

        `places` are those around the call without the innermost one.
        """
        uses = self._perhaps_not_called(identity.fn, identity.place, attempts)
        if self.has_earlier:
            uses = [*self._perhaps_not_called(earlier().fn, "", attempts), *uses]
        if identity.place:
            # An equal call that stood outside, before the program was changed.
            for place in ("", *places):
                uses = [*uses, *self._by_identity.get(msgspec.structs.replace(identity, place=place), ())]
        return [use.name for use in uses if not use.is_seen(attempts) and use.name not in self._called]

    def elsewhere(self, identity: Identity) -> list[Use]:
        """Return the equal calls in other places that this run of the program has not made, and whose places it has not begun with."""
        found = self._in_places.get((identity.fn, identity.args))
        if not found:
            return []
        left = [use for use in found if use.seen is None and use.name not in self._called]
        missing = [use for use in left if not self._is_begun(use.around.split()[-1:])]
        self._left_out.update(use.name for use in left if use not in missing)
        # A batch may have thousands of equal calls, so each of those that were left out is looked at once.
        self._in_places[identity.fn, identity.args] = missing
        return missing

    def moved(self, call: Use, others: list[Use], alive: AbstractSet[str], coming: AbstractSet[str]) -> list[str]:
        """Return the names of those of these calls in other places that a call may be after a change of the program.

        `alive` says who the tasks of this run work for. `coming` are the steps that it is still to begin with.
        """
        now, places = call.path(), {in_step(name) for name in coming}
        return [
            other.name
            for other in others
            if other.around != call.around
            and may_have_moved(before := other.path(), now)
            and not waits_for_its_task(before, now, alive)
            and not self._is_begun(before[parting(before, now) :], places)
        ]

    def _is_begun(self, path: list[str], coming: AbstractSet[str] = frozenset()) -> bool:
        """Whether this run of the program has begun with one of these places: what is inside may be left out, or is still to come."""
        for use in self._new:
            self._by_step[in_step(use.name)] = use
        self._new.clear()
        return any(
            place in self._parts or place in coming or self._has_step(place) for place in map(place_entered, path)
        )

    def _has_step(self, place: str) -> bool:
        step = self._by_step.get(place)
        return step is not None and step.seen is not None

    def next_of(self, calls: Mapping[Identity, int], attempts: Attempts) -> Iterator[str]:
        """Yield the names of the steps that so many calls of each kind, which are still to come, will be."""
        for identity, number in calls.items():
            known = self._by_identity.get(identity, ())
            free = (use.name for use in known if use.is_free(attempts))
            # A step that is safe to repeat is not known before it has ended, but what was called inside of it may be.
            new = (step_name(identity, use) for use in count(len(known) + 1))
            yield from islice(chain(free, new), number)

    def ended(self, identity: Identity, attempts: Attempts) -> list[str]:
        """Return the names of the calls of this function that the program has made in this run, and that have ended, however they did."""
        uses = self._by_function.get((identity.fn, identity.place), ())
        return [use.name for use in uses if use.is_seen(attempts) and not use.busy]

    def _perhaps_not_called(self, fn: str, place: str, attempts: Attempts) -> list[Use]:
        if attempts:
            # In a later attempt of a recovery, what an earlier one called is not called yet.
            return self._by_function.get((fn, place), [])
        waiting = {
            name: use
            for name, use in self._waiting.get((fn, place), {}).items()
            if use.seen is None and name not in self._called
        }
        self._waiting[fn, place] = waiting
        return list(waiting.values())

    def not_called(self) -> list[str]:
        """Return the names of recorded steps that this run of the program has not called, and that nothing around them leaves out."""
        return [
            use.name
            for (_, place), uses in self._by_function.items()
            for use in uses
            if not place and use.seen is None and use.task is not None and use.name not in self._called
        ]

    def called(self) -> frozenset[str]:
        """Return the names of the steps that this run of the program has called, also in earlier openings of the session."""
        return self._called.union(
            self._left_out,
            (use.name for uses in self._by_identity.values() for use in uses if use.seen is not None),
            (use.name for uses in self._in_places.values() for use in uses if self._is_begun(use.path())),
        )

    def _equal(self, identity: Identity, earlier: Callable[[], Identity] | None) -> Sequence[Use]:
        """Return the uses that a call may be, those first that earlier versions recorded. They may have been calls of several functions."""
        uses = self._by_identity.get(identity, ())
        if not self.has_earlier or earlier is None or identity.key:
            return uses
        old = [use for use in self._by_identity.get(earlier(), ()) if use.of is None or use.of == identity]
        return (*old, *uses)

    def _unspent(self, call: Calling) -> Sequence[Use]:
        """Return the uses that a call may be, or that tell it from others, without most of those that others have taken."""
        if call.identity.key or call.attempts or self.has_earlier:
            self._spent.pop(call.identity, None)
            return self._equal(call.identity, call.earlier)
        uses = self._by_identity.get(call.identity, ())
        if len(uses) < _FEW:
            return uses
        spent = self._spent.setdefault(call.identity, _Spent())
        spent.follow(uses)
        return uses[spent.count :]

    def replay(self, name: str, attempts: Attempts) -> None:
        """A call takes the place of this step: the program need not call it any more."""
        for uses in self._by_identity.values():
            for use in uses:
                if use.name == name:
                    use.seen, use.taken = attempts, True

    def forget(self, names: set[str]) -> None:
        """These steps run again: the next calls of them are the same uses."""
        for uses in self._by_identity.values():
            for use in uses:
                if use.name in names:
                    self.release(use)

    def busy(self) -> set[str]:
        """Return the names of the steps that run now."""
        return {use.name for uses in self._by_identity.values() for use in uses if use.busy}

    def _add(self, identity: Identity, name: str) -> Use:
        use = Use(name)
        self._names.add(name)
        self._new.append(use)
        self._by_identity.setdefault(identity, []).append(use)
        # Earlier versions did not say which part a step was called in. The part may be left out: nothing has drifted then.
        if not identity.key and not is_within(identity):
            self._by_function.setdefault((identity.fn, identity.place), []).append(use)
        return use


def _in_order(recorded: Mapping[str, Recorded]) -> list[tuple[str, Recorded]]:
    """Return the recorded steps, those first that a call must find first.

    Version 1 began a new turn with each start of a program, and so has the same use several times. A step that may have happened
    comes first, then the newest that happened.
    """
    steps = list(recorded.items())
    if not any(name != entry.step for name, entry in steps):
        return steps

    def rank(step: tuple[str, Recorded]) -> tuple[bool, bool, int]:
        _, entry = step
        if not isinstance(entry, StepStarted | StepEnded):
            return True, True, -entry.turn
        return not is_doubtful(entry), not may_have_happened(entry), -entry.turn

    return sorted(steps, key=rank)
