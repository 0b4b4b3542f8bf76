"""Times of a schedule: five fields of cron in a time zone. Pure: the present time is a parameter.

Invariant: a tick is a minute of the zone's wall clock. A minute that a change of the clocks leaves out is no tick; one that comes twice is one
tick, the first time.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from holdfast.faults import InvalidError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Cron", "zone_of"]

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_NAMED = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}
_FIELDS: tuple[tuple[str, int, int, Sequence[str]], ...] = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day", 1, 31, ()),
    ("month", 1, 12, _MONTHS),
    ("day of the week", 0, 7, _DAYS),
)
_FARTHEST = timedelta(days=366 * 8 + 2)
"""How far the next tick may be: the 29th of February is at most eight years away."""


class Cron(NamedTuple):
    """The minutes that five fields of cron stand for: `Cron.read("30 9 * * mon-fri", "Europe/Berlin")`."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    any_day: bool
    """Whether the field of the day is a star."""
    any_weekday: bool
    zone: ZoneInfo

    @classmethod
    def read(cls, text: str, zone: str = "UTC") -> Cron:
        """Return what a text stands for: five fields, or a name such as @daily. Raise `InvalidError` for another text."""
        fields = _NAMED.get(text.strip().lower(), text).split()
        if len(fields) != len(_FIELDS):
            raise InvalidError.at("schedule.cron", "five fields, such as 30 9 * * mon-fri, or @daily", text)
        minutes, hours, days, months, weekdays = (
            _values(field, *about) for field, about in zip(fields, _FIELDS, strict=True)
        )
        # Both 0 and 7 are Sunday.
        weekdays = frozenset(day % 7 for day in weekdays)
        stars = fields[2].startswith("*"), fields[4].startswith("*")
        cron = cls(minutes, hours, days, months, weekdays, *stars, zone_of(zone))
        try:
            cron.after(0.0)
        except ValueError:
            raise InvalidError.at("schedule.cron", "a time that comes", text) from None
        return cron

    def after(self, at: float) -> float:
        """Return the first tick after a time, both as seconds since the epoch. Raise ValueError if there is none."""
        # Naive times of the zone's wall clock.
        begun = datetime.fromtimestamp(at, self.zone).replace(tzinfo=None, fold=0)
        local = begun.replace(second=0, microsecond=0)
        # One hour before: when the clocks go back, the same minute comes again, and its first time may be over.
        local -= timedelta(hours=2)
        end = local + _FARTHEST
        while local < end:
            if local.month not in self.months or not self._is_day(local):
                local = local.replace(hour=0, minute=0) + timedelta(days=1)
            elif local.hour not in self.hours:
                local = local.replace(minute=0) + timedelta(hours=1)
            elif local.minute not in self.minutes:
                local += timedelta(minutes=1)
            else:
                tick = local.replace(tzinfo=self.zone).timestamp()
                is_there = datetime.fromtimestamp(tick, self.zone).replace(tzinfo=None, fold=0) == local
                if tick > at and is_there:
                    return tick
                local += timedelta(minutes=1)
        raise ValueError

    def _is_day(self, local: datetime) -> bool:
        day, weekday = local.day in self.days, (local.weekday() + 1) % 7 in self.weekdays
        # As cron does: if both are given, either is enough.
        return day and weekday if self.any_day or self.any_weekday else day or weekday


def zone_of(name: str) -> ZoneInfo:
    """Return a time zone by its name; raise `InvalidError` for an unknown one."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidError.at("schedule.zone", "a time zone such as Europe/Berlin", name) from error


def shown(tick: float) -> str:
    """Return a tick as text that sorts as times do: 2026-11-20T03:00:00Z."""
    return datetime.fromtimestamp(tick, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def read_shown(text: str) -> float:
    """Return the tick that a text of `shown` stands for; raise ValueError for another text."""
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()


def _values(field: str, what: str, least: int, most: int, names: Sequence[str]) -> frozenset[int]:
    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, dash, last = span.partition("-")
        if span == "*":
            low, high = least, most
        else:
            low = _number(first, field, what, names)
            high = _number(last, field, what, names) if dash else most if step else low
        size = _number(step, field, what, ()) if "/" in part else 1
        if not (least <= low <= high <= most) or size < 1:
            raise InvalidError.at("schedule.cron", f"a {what} from {least} to {most}", field)
        found.update(range(low, high + 1, size))
    return frozenset(found)


def _number(text: str, field: str, what: str, names: Sequence[str]) -> int:
    if text.lower() in names:
        return names.index(text.lower()) + (1 if names is _MONTHS else 0)
    if not text.isascii() or not text.isdigit():
        raise InvalidError.at("schedule.cron", f"a {what} as numbers, names, lists, ranges and steps", field)
    return int(text)
