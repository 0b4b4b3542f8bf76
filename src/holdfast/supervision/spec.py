"""What a supervisor knows about a child before it starts: when to restart it, and how to stop it.

Invariant: a spec is checked where it is written. A combination that has no meaning raises `InvalidError`.
"""

from __future__ import annotations

from math import inf
from typing import Any, Literal, TypeAlias, get_args

from holdfast import options
from holdfast.faults import InvalidError
from holdfast.policies import Backoff

__all__ = ["ChildSpec", "Restart", "ShutdownTime", "check_shutdown"]

Restart: TypeAlias = Literal["permanent", "transient", "temporary"]
"""`permanent`: always restarted. `transient`: restarted after a failure. `temporary`: never restarted."""

ShutdownTime: TypeAlias = float | Literal["brutal"]
"""Seconds that a child may take to stop; `math.inf` waits as long as it takes; `"brutal"` does not ask it."""


class ChildSpec(options.Options, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """The terms of one child: `ChildSpec(id="coder", restart="transient")`. Wrong options raise `InvalidError`."""

    id: str
    restart: Restart = "permanent"
    shutdown: ShutdownTime = 5.0
    significant: bool = False
    """Whether its end may end the supervisor (`auto_shutdown`)."""
    backoff: Backoff | None = None
    """The delays before restarts. None: restart at once."""
    reset_after: float | None = None
    """Seconds without a failure after which the delays begin again. None: half of first and longest delay together."""
    supervisor: bool = False
    """Whether the child is a supervisor. It only matters for counts."""

    def __post_init__(self) -> None:
        options.name("child.id", self.id)
        options.one_of("child.restart", self.restart, get_args(Restart))
        check_shutdown("child.shutdown", self.shutdown)
        options.flag("child.significant", self.significant)
        if self.backoff is not None and not isinstance(self.backoff, Backoff):
            raise InvalidError.at("child.backoff", "a Backoff or None", self.backoff)
        options.seconds("child.reset_after", self.reset_after, optional=True)
        if self.significant and self.restart == "permanent":
            raise InvalidError.at("child.restart", "transient or temporary for a significant child", self.restart)


def check_shutdown(path: str, value: Any) -> None:
    """Check the time that a child may take to stop."""
    if value in ("brutal", inf):
        return
    if isinstance(value, str):
        raise InvalidError.at(path, 'a number of seconds ≥ 0, math.inf or "brutal"', value)
    options.seconds(path, value, zero=True)
