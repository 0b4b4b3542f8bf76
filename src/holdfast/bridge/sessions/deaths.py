"""How often processes died while an agent worked on a turn, and how long that turn rests before it goes on.

Invariant: a message that kills its process (it takes all memory, it crashes an extension) neither kills each process that comes after it at once,
nor is it tried for ever. A death counts only if the agent was at work: not while the turn rested, or waited for a person. What gets done
sets the count to zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from holdfast.clock import Rng

__all__ = ["CONTINUED", "ENTRIES", "MOST", "Deaths", "rest"]

CONTINUED = "turn_continued"
"""The entry that says that the agent works again on a turn in which a process died."""

ENTRIES = frozenset(
    {"turn_started", CONTINUED, "step_ended", "interaction_raised", "interaction_answered", "session_paused"}
)
"""The types of the entries that matter."""

_RESTS_S = (0.0, 1.0, 5.0, 30.0, 120.0, 600.0)
"""How long a turn rests after so many deaths."""
MOST = len(_RESTS_S)
"""After more deaths than this, a turn is given up."""


class Deaths(NamedTuple):
    """What a log says about the deaths in its last turn: `deaths = deaths.after(entry.type, body)` for each entry."""

    in_a_row: int = 0
    """How many processes died in a row while the agent worked on the turn, without anything done in between."""
    is_at_work: bool = False

    def after(self, type_: str, body: dict[str, Any]) -> Deaths:
        """Return what is known after one more entry."""
        match type_:
            case "turn_started" | "interaction_answered":
                return Deaths(is_at_work=True)
            case "step_ended" if body.get("ok"):
                return Deaths(is_at_work=True)
            case "turn_continued":
                return Deaths(self.in_a_row, is_at_work=True)
            case "interaction_raised":
                return Deaths(self.in_a_row)
            case "session_paused":
                died = self.is_at_work and body.get("reason") == "crash"
                return Deaths(self.in_a_row + died)
            case _:
                return self


def rest(deaths: int, rng: Rng) -> float:
    """Return for how many seconds a turn rests after so many deaths.

    Chance makes turns that were cut together go on at different times, so that the next death tells which one it is.
    """
    return _RESTS_S[deaths - 1] * (0.5 + rng.random())
