"""How many restarts are too many: `Rules` of a supervisor, and the sliding window that counts its restarts.

Invariant: the window slides. A restart counts for exactly `window` seconds of monotonic time, whenever it happened.
"""

from __future__ import annotations

from collections import deque
from typing import Literal, TypeAlias, get_args

from holdfast import options
from holdfast.faults import InvalidError

__all__ = ["AutoShutdown", "BudgetScope", "OnExhausted", "RestartWindow", "Rules", "Strategy"]

Strategy: TypeAlias = Literal["one_for_one", "one_for_all", "rest_for_one", "simple_one_for_one"]
"""Which children restart together: only the one that ended; all; it and those started after it; copies of one template."""

BudgetScope: TypeAlias = Literal["supervisor", "child"]
"""Whether the children share one restart budget, or each has its own."""

OnExhausted: TypeAlias = Literal["give_up", "stop_child"]
"""What happens when the budget is spent: the supervisor gives up, or only that child is removed."""

AutoShutdown: TypeAlias = Literal["never", "any_significant", "all_significant"]
"""Whether the supervisor ends when a significant child, or the last of them, has ended by itself."""


class Rules(options.Options, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """How a supervisor restarts: `Rules(strategy="rest_for_one", max_restarts=5)`. Wrong options raise `InvalidError`."""

    strategy: Strategy = "one_for_one"
    max_restarts: int | None = 3
    """Restarts within `window`; one more ends it. None: no limit."""
    window: float = 60.0
    scope: BudgetScope = "supervisor"
    on_exhausted: OnExhausted | None = None
    """None: give up if the budget is the supervisor's, remove the child if it is the child's."""
    auto_shutdown: AutoShutdown = "never"
    max_children: int | None = None
    """How many children may be listed; None: no limit."""

    def __post_init__(self) -> None:
        options.one_of("supervisor.strategy", self.strategy, get_args(Strategy))
        options.count("supervisor.max_restarts", self.max_restarts, least=0, optional=True)
        options.seconds("supervisor.window", self.window)
        options.count("supervisor.max_children", self.max_children, optional=True)
        options.one_of("supervisor.scope", self.scope, get_args(BudgetScope))
        if self.on_exhausted is not None:
            options.one_of("supervisor.on_exhausted", self.on_exhausted, get_args(OnExhausted))
        options.one_of("supervisor.auto_shutdown", self.auto_shutdown, get_args(AutoShutdown))
        if self.is_dynamic and self.auto_shutdown != "never":
            raise InvalidError.at(
                "supervisor.auto_shutdown", "never with the strategy simple_one_for_one", self.auto_shutdown
            )

    @property
    def is_dynamic(self) -> bool:
        """Whether all children are copies of one template."""
        return self.strategy == "simple_one_for_one"

    @property
    def gives_up(self) -> bool:
        """Whether a spent budget ends the supervisor."""
        return (self.on_exhausted or ("give_up" if self.scope == "supervisor" else "stop_child")) == "give_up"


class RestartWindow:
    """Counts restarts in a sliding window. It holds at most as many times as restarts are allowed."""

    __slots__ = ("_times",)

    def __init__(self) -> None:
        self._times: deque[float] = deque()

    def add(self, now: float, rules: Rules) -> bool:
        """Count a restart at `now`. Returns False, and counts nothing, if the budget is spent."""
        if rules.max_restarts is None:
            return True
        self.prune(now, rules)
        if len(self._times) >= rules.max_restarts:
            return False
        self._times.append(now)
        return True

    def prune(self, now: float, rules: Rules) -> None:
        """Forget the restarts that are older than the window."""
        while self._times and self._times[0] < now - rules.window:
            self._times.popleft()

    def left(self, now: float, rules: Rules) -> int | None:
        """Return how many restarts are still allowed at `now`; None: any number."""
        if rules.max_restarts is None:
            return None
        return rules.max_restarts - sum(at >= now - rules.window for at in self._times)

    def __len__(self) -> int:
        return len(self._times)
