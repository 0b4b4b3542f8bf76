"""Which run of a program an earlier run of the process has begun: the work of `Session.numbered`, which has steps of its own.

The log has no entry for such a run. What it has says which run it is of: the steps inside know the places around them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.once.identity import Identity, step_name, suffix
from holdfast.once.place import in_part, place_entered, whom_of
from holdfast.once.replay import Uses
from holdfast.sessions.place import known_as, known_before

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.once.records import StepEntry
    from holdfast.sessions.journal import Journal

__all__ = ["Runs"]


class Runs:
    """The runs of one turn, or of a session outside of turns."""

    def __init__(self, journal: Journal, turn: int, steps: Mapping[str, StepEntry]) -> None:
        self.uses = Uses({})
        self._journal = journal
        self._turn = turn
        self._steps = steps
        """What the log has about the steps of the turn."""
        self._entered: dict[str, str] | None = None
        """For whom the tasks worked that entered a place in an earlier run. They are read when they are needed."""

    def identity(self, name: str, args: str, *, has_earlier: bool) -> Identity:
        """Return what a run is known by here. `has_earlier`: an earlier version wrote steps of the turn."""
        identity = Identity(name, args)
        known, before = known_as(self._journal, identity), known_before(self._journal, identity)
        if known != before and (has_earlier or self._was_begun(before)):
            known = before
        self.uses.expect(known, self._entered_for)
        return known

    def _entered_for(self, run: str) -> str | None:
        """Return for whom the task worked that was in the run with this name earlier, as far as the log knows; None if it knows no such run."""
        if self._entered is None:
            arounds = {entry.around: None for entry in self._steps.values()}
            places = [place for around in arounds for place in around.split()]
            # A run may enter its own part once more: the outermost entry says who it is for.
            self._entered = {place_entered(place): whom_of(place) for place in reversed(places)}
        return self._entered.get(in_part(suffix(self._turn, run)))

    def _was_begun(self, run: Identity) -> bool:
        """Whether an earlier version began this run, whatever step it was in. It did not write where its steps were called."""
        begun = step_name(Identity("", "", f"{suffix(self._turn, step_name(run, 1))}/"), 1)
        return any(
            name.startswith(begun) and entry.effect == "unsafe" and not entry.around
            for name, entry in self._steps.items()
        )
