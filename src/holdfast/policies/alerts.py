"""When somebody is called (S0-33): rates over a sliding minute against two thresholds.

Invariant: a threshold is crossed by what is above it, never by what equals it; an alert is told once when it begins, when it
gets worse or better, and when it ends. Facts and the time come in, alerts come out.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import msgspec

from holdfast import options
from holdfast.faults import InvalidError
from holdfast.policies.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["SIGNALS", "Alert", "AlertMachine", "Alerts", "Level", "Signal", "Threshold"]

Signal: TypeAlias = Literal["error_rate", "reconnection_failures", "session_drops", "hook_failures"]
"""What is watched."""
SIGNALS: tuple[Signal, ...] = get_args(Signal)
Level: TypeAlias = Literal["ok", "warning", "critical"]
_LEVELS: tuple[Level, ...] = get_args(Level)
_SLICES = 60
_ADDRESS = re.compile(r"https?://[^\s/?#]+\S*")


class Threshold(options.Options, frozen=True, kw_only=True, repr_omit_defaults=True):
    """What a value must exceed."""

    warning: float
    """Somebody should look."""
    critical: float
    """Somebody must look now."""

    def __post_init__(self) -> None:
        options.at_least("threshold.warning", self.warning, 0)
        options.at_least("threshold.critical", self.critical, 0)
        if self.warning > self.critical:
            expected = f"a number no higher than the critical {self.critical:g}"
            raise InvalidError.at("threshold.warning", expected, self.warning)


class Alerts(options.Options, frozen=True, kw_only=True, repr_omit_defaults=True):
    """When to call somebody, and where. The defaults are document 000's."""

    error_rate: Threshold = Threshold(warning=0.05, critical=0.15)
    """The share of operations that were given up."""
    reconnection_failures: Threshold = Threshold(warning=10, critical=50)
    """In the window."""
    session_drops: Threshold = Threshold(warning=5, critical=20)
    """In the window."""
    hook_failures: Threshold = Threshold(warning=20, critical=100)
    """Messages of hooks that were refused, in the window."""
    window: float = 60.0
    """Seconds."""
    min_operations: int = 20
    """With fewer in the window the error rate raises no alert: one failure of three is no rate."""
    clear: float = 0.8
    """An alert ends when the value is no more than this share of its threshold, so that it does not flutter."""
    webhook: str | None = None
    """An address alerts are posted to as JSON. It may hold a token: it is never shown."""
    webhook_timeout: float = 5.0
    """Seconds."""

    def __post_init__(self) -> None:
        options.seconds("alerts.window", self.window)
        options.count("alerts.min_operations", self.min_operations)
        options.share("alerts.clear", self.clear, zero=True)
        options.seconds("alerts.webhook_timeout", self.webhook_timeout)
        _check_address("alerts.webhook", self.webhook)


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """Something crossed a threshold, one way or the other."""

    signal: str
    level: Level
    """`ok`: it is over."""
    before: Level
    value: float
    threshold: float
    """Of the level it is at; of the one it was at where it is over."""

    @property
    def text(self) -> str:
        """What a person reads."""
        if self.level == "ok":
            return f"{self._name} is no longer {self.before}: {self._spelt(self.value)}"
        return f"{self._name} is {self.level}: {self._spelt(self.value)}, above {self._spelt(self.threshold)}"

    @property
    def _name(self) -> str:
        return self.signal.replace("_", " ")

    def _spelt(self, value: float) -> str:
        return f"{value:.1%}" if self.signal == "error_rate" else f"{value:g}"


def _check_address(path: str, value: Any) -> None:
    if value is not None and not (isinstance(value, str) and _ADDRESS.fullmatch(value)):
        # What came is not told: it may hold a token all the same.
        raise InvalidError.saying(path, "an address with http:// or https://, or None", "something else")


class AlertMachine:
    """The counts of the last minute and the alerts that are on. Not safe to use from several threads at once."""

    def __init__(self, alerts: Alerts) -> None:
        self.alerts = alerts
        width = alerts.window / _SLICES
        self._counts = {signal: Tally(width, _SLICES) for signal in SIGNALS}
        """Of the error rate: operations that were given up."""
        self._operations = Tally(width, _SLICES)
        self._levels: dict[Signal, int] = dict.fromkeys(SIGNALS, 0)

    def operation(self, now: float, *, failed: bool) -> list[Alert]:
        """Count an operation that ended; return the alerts that come of it."""
        self._operations.add(now)
        if failed:
            self._counts["error_rate"].add(now)
        elif not self._levels["error_rate"]:
            # A good one raises no alert.
            return []
        return self._judged(("error_rate",), now)

    def count(self, signal: Signal, now: float) -> list[Alert]:
        """Count something else that went wrong; return the alerts that come of it."""
        self._counts[signal].add(now)
        return self._judged((signal,), now)

    def look(self, now: float) -> list[Alert]:
        """Return the alerts that time alone has ended."""
        return self._judged(SIGNALS, now)

    def level(self, signal: Signal) -> Level:
        """Return how it stands, as of the last look."""
        return _LEVELS[self._levels[signal]]

    def value(self, signal: Signal, now: float) -> float:
        """Return the count of the window, or the share of operations that were given up."""
        count = self._counts[signal].total(now)
        if signal != "error_rate":
            return float(count)
        operations = self._operations.total(now)
        return count / operations if operations else 0.0

    def _judged(self, signals: Iterable[Signal], now: float) -> list[Alert]:
        return [alert for signal in signals if (alert := self._judge(signal, now)) is not None]

    def _judge(self, signal: Signal, now: float) -> Alert | None:
        value = self.value(signal, now)
        threshold: Threshold = getattr(self.alerts, signal)
        limits = (0.0, threshold.warning, threshold.critical)
        before = level = self._levels[signal]
        while level and value <= limits[level] * self.alerts.clear:
            level -= 1
        if signal != "error_rate" or self._operations.total(now) >= self.alerts.min_operations:
            level = max(level, 2 if value > limits[2] else 1 if value > limits[1] else 0)
        if level == before:
            return None
        self._levels[signal] = level
        return Alert(
            signal=signal,
            level=_LEVELS[level],
            before=_LEVELS[before],
            value=value,
            threshold=limits[level or before],
        )
