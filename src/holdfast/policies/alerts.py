"""When an operator is alerted: rates over a sliding window are compared with two thresholds.

Invariant: only a value above a threshold crosses it, never an equal one. An alert is raised once when it begins, when its
level changes, and when it ends.
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
"""A rate or count that is watched."""
SIGNALS: tuple[Signal, ...] = get_args(Signal)
Level: TypeAlias = Literal["ok", "warning", "critical"]
_LEVELS: tuple[Level, ...] = get_args(Level)
# A slice is a sixtieth of the window, so by default an alert comes at most a second late.
_SLICES = 60
_ADDRESS = re.compile(r"https?://[^\s/?#]+\S*")


class Threshold(options.Options, frozen=True, kw_only=True, repr_omit_defaults=True):
    """The two values that a signal must exceed.

    Wrong options raise `InvalidError`.

        Threshold(warning=0.05, critical=0.15)
    """

    warning: float
    """Above this, an operator should look soon."""
    critical: float
    """Above this, an operator must look now."""

    def __post_init__(self) -> None:
        options.at_least("threshold.warning", self.warning, 0)
        options.at_least("threshold.critical", self.critical, 0)
        if self.warning > self.critical:
            expected = f"a number no higher than the critical {self.critical:g}"
            raise InvalidError.at("threshold.warning", expected, self.warning)


class Alerts(options.Options, frozen=True, kw_only=True, repr_omit_defaults=True):
    """When to alert an operator, and where to.

    Wrong options raise `InvalidError`.

        from holdfast.policies import Alerts, Threshold

        Alerts(error_rate=Threshold(warning=0.01, critical=0.1), webhook="https://ops.example/alerts")
    """

    error_rate: Threshold = Threshold(warning=0.05, critical=0.15)
    """The share of operations that failed for good."""
    reconnection_failures: Threshold = Threshold(warning=10, critical=50)
    """The number of failed reconnections in the window."""
    session_drops: Threshold = Threshold(warning=5, critical=20)
    """The number of dropped sessions in the window."""
    hook_failures: Threshold = Threshold(warning=20, critical=100)
    """The number of hook messages that were rejected in the window."""
    window: float = 60.0
    """The length of the window in seconds."""
    min_operations: int = 20
    """With fewer operations in the window, the error rate raises no alert: one failure of three is not a rate."""
    clear: float = 0.8
    """An alert ends when the value falls to this share of its threshold. So it does not start and end all the time."""
    webhook: str | None = None
    """The address that alerts are posted to as JSON. It may hold a token, so it is never shown."""
    webhook_timeout: float = 5.0
    """Seconds for one post to the webhook."""

    def __post_init__(self) -> None:
        options.seconds("alerts.window", self.window)
        options.count("alerts.min_operations", self.min_operations)
        options.share("alerts.clear", self.clear, zero=True)
        options.seconds("alerts.webhook_timeout", self.webhook_timeout)
        _check_address("alerts.webhook", self.webhook)


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """A signal crossed a threshold, upwards or downwards."""

    signal: str
    level: Level
    """`ok`: the alert has ended."""
    before: Level
    value: float
    threshold: float
    """The threshold of `level`; for `ok`, the threshold of `before`."""

    @property
    def text(self) -> str:
        """The alert as a sentence."""
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
        # The message does not show the value: a wrong address may hold a token too.
        raise InvalidError.saying(path, "an address with http:// or https://, or None", "something else")


class AlertMachine:
    """The counts of the window and the alerts that are on. It is not thread-safe."""

    def __init__(self, alerts: Alerts) -> None:
        self.alerts = alerts
        width = alerts.window / _SLICES
        # For `error_rate`: operations that failed for good.
        self._counts = {signal: Tally(width, _SLICES) for signal in SIGNALS}
        self._operations = Tally(width, _SLICES)
        self._levels: dict[Signal, int] = dict.fromkeys(SIGNALS, 0)

    def operation(self, now: float, *, failed: bool) -> list[Alert]:
        """Count an operation that ended; return the alerts that this raises or ends."""
        self._operations.add(now)
        if failed:
            self._counts["error_rate"].add(now)
        elif not self._levels["error_rate"]:
            # A success can end an alert but not raise one, and no alert is on.
            return []
        return self._judged(("error_rate",), now)

    def count(self, signal: Signal, now: float) -> list[Alert]:
        """Count one event of another signal; return the alerts that this raises."""
        self._counts[signal].add(now)
        return self._judged((signal,), now)

    def look(self, now: float) -> list[Alert]:
        """Return the alerts that ended because old events have left the window."""
        return self._judged(SIGNALS, now)

    def level(self, signal: Signal) -> Level:
        """Return the level of a signal after the last count or look."""
        return _LEVELS[self._levels[signal]]

    def value(self, signal: Signal, now: float) -> float:
        """Return the count of the window; for `error_rate`, the share of operations that failed for good."""
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
        # A level falls only below its threshold times `clear`: a value that hovers around the threshold must not flood the
        # operator with alerts.
        while level and value <= limits[level] * self.alerts.clear:
            level -= 1
        # Too few operations raise no alert. They may still end one, so this guards only the way up.
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
