"""`Circuit`: when to stop calling what is down and when to try again, as one frozen value, and the documents' presets.

Invariant: a circuit is checked when it is made. Whatever survives construction can open and can close again.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, TypedDict, Unpack, get_args

from holdfast import options
from holdfast.faults import InvalidError

__all__ = ["ACTOR", "BRIDGE", "PROVIDER", "SPEC016", "Circuit", "CircuitOptions", "Counted", "Mode"]

Counted: TypeAlias = Literal["consecutive", "window"]
Mode: TypeAlias = Literal["normal", "disabled", "metrics-only", "forced-open"]

SHORTEST_WINDOW_S = 0.001
"""Below this a part of the window is too short for a float that holds a machine's uptime."""


class CircuitOptions(TypedDict, total=False):
    """The options of `Circuit`, for `Circuit.replace`."""

    failures: int | None
    counted: Counted
    rate: float | None
    window: float
    volume: int
    slow: float | None
    slow_rate: float | None
    open_for: float
    reopen_for: float | None
    open_growth: float
    open_cap: float
    probes: int
    successes: int
    probe_limit: float
    adaptive: bool
    count_all: bool
    mode: Mode


class Circuit(
    options.Options,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    repr_omit_defaults=True,
    forbid_unknown_fields=True,
):
    """When to stop calling what is down. `Circuit()` is `PROVIDER`."""

    failures: int | None = 5
    """How many failures open it. None: their number does not matter."""
    counted: Counted = "consecutive"
    """Which failures `failures` counts: those in a row, however slowly they come, or those in the window."""
    rate: float | None = 0.5
    """The share of failed calls in the window that opens it (at this share, not above). None: shares do not matter."""
    window: float = 60.0
    """Seconds that the window looks back."""
    volume: int = 10
    """Calls the window must hold before anything that is counted in it may open the circuit."""
    slow: float | None = None
    """Seconds from which on a call is slow, good or not."""
    slow_rate: float | None = None
    """The share of slow calls in the window that opens it."""
    open_for: float = 30.0
    """Seconds it stays open before it lets a probe through."""
    reopen_for: float | None = 20.0
    """Seconds from a bad probe's start to the next probe, at most `open_for`. None: `open_for`."""
    open_growth: float = 1.0
    """Each bad probe multiplies the time to the next by this, until the circuit closes."""
    open_cap: float = 600.0
    """The open time never grows beyond this."""
    probes: int = 1
    """Calls it lets through at once while half-open."""
    successes: int = 1
    """Good probes that close it."""
    probe_limit: float = 20.0
    """Seconds after which a probe that has not come back no longer keeps others from probing."""
    adaptive: bool = False
    """Scale the thresholds, between half and double, by what share of failures is usual here."""
    count_all: bool = False
    """Every failure counts, also the caller's own mistakes (cancelled calls never do)."""
    mode: Mode = "normal"
    """`disabled` lets everything through uncounted, `metrics-only` counts and never opens, `forced-open` refuses all."""

    def __post_init__(self) -> None:
        self._check_rules()
        self._check_times()
        options.count("circuit.probes", self.probes)
        options.count("circuit.successes", self.successes)
        for name in ("adaptive", "count_all"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidError.at(f"circuit.{name}", "true or false", getattr(self, name))
        options.one_of("circuit.mode", self.mode, get_args(Mode))
        if self.mode == "normal" and self.failures is None and self.rate is None and self.slow_rate is None:
            raise InvalidError.at("circuit.failures", "a number, or else a rate or slow_rate: nothing opens it", None)

    def replace(self, **changes: Unpack[CircuitOptions]) -> Circuit:
        """Return this circuit with some options changed, checked again."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in self.__struct_fields__}
        return Circuit(**{**fields, **changes})

    def first_reopening(self) -> float:
        """Return the seconds between probes before they grow."""
        return self.open_for if self.reopen_for is None else min(self.reopen_for, self.open_for)

    def _check_rules(self) -> None:
        options.count("circuit.failures", self.failures, optional=True)
        options.one_of("circuit.counted", self.counted, get_args(Counted))
        options.share("circuit.rate", self.rate, optional=True)
        options.count("circuit.volume", self.volume, least=0)
        options.seconds("circuit.slow", self.slow, optional=True)
        options.share("circuit.slow_rate", self.slow_rate, optional=True)
        if self.counted == "window" and self.failures is None:
            raise InvalidError.at(
                "circuit.failures", "a number of failures, since they are counted in the window", None
            )
        if self.slow is None and self.slow_rate is not None:
            raise InvalidError.at("circuit.slow", "the seconds that make a call slow, since slow_rate is set", None)
        if self.slow is not None and self.slow_rate is None:
            raise InvalidError.at("circuit.slow_rate", "the share of slow calls that opens it, since slow is set", None)

    def _check_times(self) -> None:
        options.at_least("circuit.window", self.window, SHORTEST_WINDOW_S)
        options.seconds("circuit.open_for", self.open_for)
        options.seconds("circuit.reopen_for", self.reopen_for, optional=True)
        options.at_least("circuit.open_growth", self.open_growth, 1)
        options.seconds("circuit.open_cap", self.open_cap)
        options.seconds("circuit.probe_limit", self.probe_limit)
        if self.open_cap < self.open_for:
            raise InvalidError.at("circuit.open_cap", f"at least circuit.open_for ({self.open_for:g})", self.open_cap)


PROVIDER = Circuit()
"""Document 001's scenarios: 5 failures in a row or half of at least 10 calls; 30 s, then a probe every 20 s; the first good one closes."""

BRIDGE = Circuit(rate=None, open_for=60.0, reopen_for=None)
"""Document 000: 5 failures in a row; 60 s; one good probe."""

SPEC016 = Circuit(counted="window", rate=None, reopen_for=None, successes=2)
"""Document 001's numbers: 5 failures in 60 s once 10 calls were seen; 30 s; two good probes."""

ACTOR = Circuit(rate=None, open_for=60.0, reopen_for=None, successes=2)
"""Document 004: 5 failures in a row; 60 s; two good probes."""
