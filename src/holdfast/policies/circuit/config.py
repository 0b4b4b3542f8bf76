"""`Circuit`: when to stop calling a service that is down, and when to probe it; and the presets of the documents.

Invariant: a circuit is checked when it is built. A circuit that exists can open and can close again.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, TypedDict, Unpack, get_args

from holdfast import options
from holdfast.faults import InvalidError

Counted: TypeAlias = Literal["consecutive", "window", "either"]
Mode: TypeAlias = Literal["normal", "disabled", "metrics-only", "forced-open"]

SHORTEST_WINDOW_S = 0.001
"""Below this, a part of the window is shorter than the precision of a float that holds a machine's uptime."""


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
    graded: bool
    adaptive: bool
    count_all: bool
    mode: Mode


class Circuit(
    options.Options,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    repr_omit_defaults=True,
    # A mistyped option in a settings file must fail too. Without this, msgspec ignores it.
    forbid_unknown_fields=True,
):
    """When to stop calling a service that is down, and when to probe it again.

    All calls to one target share its circuit. While it is open, calls wait, fail at once with `CircuitOpenError`, or move on to a
    fallback. Wrong options raise `InvalidError`.

        from holdfast import Circuit, Policy

        Policy(circuit=Circuit(failures=3, open_for=10))        # 3 failures in a row open it for 10 s
        Policy(circuit=Circuit(failures=None, rate=0.25))       # only a failure rate of 25 % opens it
        Policy(circuit=None)                                    # no circuit
    """

    failures: int | None = 5
    """This many failures open it. None: only rates do."""
    counted: Counted = "consecutive"
    """Which failures `failures` counts: those in a row, however far apart, or those in the window. `either`: those in the window, or at
    least `volume` in a row."""
    rate: float | None = 0.5
    """The share of failed calls in the window that opens it. None: the share does not matter."""
    window: float = 60.0
    """The length of the window in seconds. Rates are computed from the calls inside it."""
    volume: int = 10
    """Calls that the window must hold before a count or rate of the window may open the circuit."""
    slow: float | None = None
    """A call that takes this many seconds or more is slow, whether it succeeds or fails. None: no call is slow."""
    slow_rate: float | None = None
    """The share of slow calls in the window that opens it. Needs `slow`."""
    open_for: float = 30.0
    """Seconds it stays open before it lets a probe through."""
    reopen_for: float | None = 20.0
    """Seconds from the start of a failed probe to the next probe, at most `open_for`. None: `open_for`."""
    open_growth: float = 1.0
    """Each failed probe multiplies the time to the next probe by this, until the circuit closes."""
    open_cap: float = 600.0
    """The longest open time in seconds."""
    probes: int = 1
    """Probes that may run at the same time while it is half-open."""
    successes: int = 1
    """Successful probes that close it."""
    probe_limit: float = 20.0
    """Seconds after which a probe without an outcome no longer blocks other probes."""
    graded: bool = False
    """Hold back retries and never a first attempt, slow calls down before they are rejected, and bring them back in a ramp.

    Failures of the same second count once, and one good answer sets the count back. Where a service rejects calls because
    there are too many, calls start only as fast as it accepts them. After a good probe the waiting calls return in growing
    numbers.
    """
    adaptive: bool = False
    """Scale the thresholds by the usual failure rate of this target: by 0.5 where failures are rare, up to 2 where they are common."""
    count_all: bool = False
    """Count every failure, including the caller's own mistakes. Cancelled calls never count."""
    mode: Mode = "normal"
    """`disabled` lets all calls through uncounted, `metrics-only` counts and never opens, `forced-open` rejects all calls."""

    def __post_init__(self) -> None:
        self._check_rules()
        self._check_times()
        options.count("circuit.probes", self.probes)
        options.count("circuit.successes", self.successes)
        for name in ("graded", "adaptive", "count_all"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidError.at(f"circuit.{name}", "true or false", getattr(self, name))
        options.one_of("circuit.mode", self.mode, get_args(Mode))
        # A circuit that nothing opens is a mistake: `mode="metrics-only"` exists for circuits that only count.
        if self.mode == "normal" and self.failures is None and self.rate is None and self.slow_rate is None:
            raise InvalidError.at("circuit.failures", "a number, or else a rate or slow_rate: nothing opens it", None)

    def replace(self, **changes: Unpack[CircuitOptions]) -> Circuit:
        """Return a copy with some options changed. It is checked like a new circuit and raises `InvalidError`."""
        return self._replaced(changes)

    def first_reopening(self) -> float:
        """Return the seconds between the first two probes, before `open_growth` applies."""
        return self.open_for if self.reopen_for is None else min(self.reopen_for, self.open_for)

    def _check_rules(self) -> None:
        options.count("circuit.failures", self.failures, optional=True)
        options.one_of("circuit.counted", self.counted, get_args(Counted))
        options.share("circuit.rate", self.rate, optional=True)
        options.count("circuit.volume", self.volume, least=0)
        options.seconds("circuit.slow", self.slow, optional=True)
        options.share("circuit.slow_rate", self.slow_rate, optional=True)
        if self.counted != "consecutive" and self.failures is None:
            raise InvalidError.at(
                "circuit.failures", "a number of failures, since they are counted in the window", None
            )
        # `slow` and `slow_rate` mean nothing without each other. A silent default would hide that one was forgotten.
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


GRADED = Circuit(
    failures=12, rate=None, open_for=1.0, reopen_for=1.0, open_growth=1.6, open_cap=5.0, probe_limit=5.0, graded=True
)
"""The circuit of a policy that names none. It opens after failures in 12 different seconds without a good answer between them.
Then one probe at a time finds out whether the service is back: after 1 s, 1.6 s, 2.6 s and so on, at most every 5 s."""

PROVIDER = Circuit()
"""Document 001, its scenarios: 5 failures in a row, or half of at least 10 calls. A probe after 30 s, then every 20 s; one success closes it."""

BRIDGE = Circuit(rate=None, open_for=60.0, reopen_for=None)
"""Document 000: 5 failures in a row; open for 60 s; one successful probe closes it."""

SPEC016 = Circuit(counted="either", rate=None, reopen_for=None, successes=2)
"""Document 001, its numbers: 5 failures among at least 10 calls in 60 s, or 10 failures in a row; open for 30 s; two successful probes
close it."""

ACTOR = Circuit(rate=None, open_for=60.0, reopen_for=None, successes=2)
"""Document 004: 5 failures in a row; open for 60 s; two successful probes close it."""
