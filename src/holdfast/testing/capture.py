"""`Capture`: the events of a test, and assertions on them.

Invariant: a failing assertion shows every captured event, in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, TypeAlias, TypeVar

import msgspec

from holdfast.events import Cancelled, Event, Failed, Recovered
from holdfast.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.faults import Code

E = TypeVar("E", bound=Event)

_Ending: TypeAlias = Recovered | Failed | Cancelled


class Capture:
    """An event handler that keeps all events. It may be called from any thread.

    For example:
        capture = Capture()
        with runtime.on(capture):
            fetch()
        capture.assert_recovered(attempts=3)
    """

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def __len__(self) -> int:
        return len(self.events)

    def clear(self) -> None:
        """Remove all events."""
        self.events.clear()

    def of(self, kind: type[E]) -> list[E]:
        """Return the events of one type: `capture.of(Retry)`."""
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def types(self) -> list[str]:
        """The types in order, by their names on the wire: `["retry", "recovered"]`."""
        return [_tag(event) for event in self.events]

    def assert_recovered(self, *, attempts: int | None = None, operation: str | None = None) -> Recovered:
        """Return the `Recovered` event of the operation that ended last.

        Raises `AssertionError` if it did not recover, or not in this number of attempts.

        For example:
            capture.assert_recovered(attempts=2, operation="claude")
        """
        # This makes pytest leave out this frame, so that the report ends at the line of the test.
        __tracebackhide__ = True
        wanted = "a recovery" if attempts is None else f"a recovery after {attempts} attempts"
        ending = self._last_ending(operation)
        if not isinstance(ending, Recovered) or attempts not in (None, ending.attempts):
            self._fail(wanted, ending, operation)
        return ending

    def assert_gave_up(self, *, code: Code | None = None, operation: str | None = None) -> Failed:
        """Return the `Failed` event of the operation that ended last.

        Raises `AssertionError` if it did not fail, or not with this code.

        For example:
            capture.assert_gave_up(code="PROVIDER_BILLING")
        """
        __tracebackhide__ = True
        wanted = "giving up" if code is None else f"giving up because of {code}"
        ending = self._last_ending(operation)
        if not isinstance(ending, Failed) or code not in (None, ending.fault.code):
            self._fail(wanted, ending, operation)
        return ending

    def timeline(self) -> str:
        """Return one line per event: seconds since the first event, type, fields."""
        return "\n".join(f"+{event.at - self.events[0].at:.3f}  {_line(event)}" for event in self.events)

    def _last_ending(self, operation: str | None) -> _Ending | None:
        """Return the event that ended an operation last, or None. A call that succeeds at once sends no such event."""
        # Take the last such event, because nested operations end before the operation around them.
        for event in reversed(self.events):
            if isinstance(event, _Ending) and operation in (None, event.operation):
                return event
        return None

    def _fail(self, wanted: str, ending: _Ending | None, operation: str | None) -> NoReturn:
        __tracebackhide__ = True
        of_what = "" if operation is None else f" of {operation!r}"
        got = "no end of a recovery" if ending is None else _line(ending)
        seen = self.timeline() if self.events else "no events at all"
        raise AssertionError(f"expected {wanted}{of_what}, got {got}; seen:\n{seen}")


def _tag(event: Event) -> str:
    return str(type(event).__struct_config__.tag)


def _line(event: Event) -> str:
    """Return the event in one line. A fault is shown by its code. Fields that all events have are left out."""
    left_out = ("at", "v", "run") if event.session else ("at", "v", "run", "session", "turn", "step")
    facts = {name: value for name, value in msgspec.structs.asdict(event).items() if name not in left_out}
    shown = (
        f"{name.rstrip('_')}={value.code if isinstance(value, Fault) else value}"
        for name, value in facts.items()
        if value not in ("", None)
    )
    return " ".join((_tag(event), *shown))
