"""`ObservedTotals`: what recovery would have changed about many plain calls, from the `Observed` events of observe mode.

Invariant: nothing is claimed that the plain calls do not show. Whether a second attempt would have been answered is unknown,
so a gain is a number of calls that would have been tried again. A harm is counted wherever an answered call could have been
worse off.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.events.records import Observed

_NOTICED_S = 0.1
"""A shorter wait before a call is no harm: it is what the bounds of the project allow."""
_ENOUGH = 100
"""With fewer calls there is no verdict."""


class ObservedTotals:
    """The sums of `Observed` events: `totals.add(event)` for each of them, then `totals.verdict`."""

    def __init__(self) -> None:
        self.since = self.until = 0.0
        self.calls = self.answered = self.failed = self.left = 0
        self.requests = 0
        """Requests that the client's own retries added."""
        self.unwanted = 0
        """Of these, the ones that recovery would not have sent."""
        self.saved = 0.0
        """Seconds of plain calls after recovery would have given them up."""
        self.would: Counter[str] = Counter()
        """What would have been done about the calls that failed."""
        self.hidden = 0
        """Answers that recovery would have recognised as failures."""
        self.rejected = self.stopped = self.given_up = self.delayed = self.unaccepted = 0
        """Answered calls that would have been worse off, by how."""
        self.delay = 0.0
        """Seconds that answered calls would have waited, at least."""
        self.codes: Counter[str] = Counter()
        self.unjudged: Counter[str] = Counter()
        """What would have held for calls and could not be worked out, with the number of these calls."""

    def add(self, event: Observed) -> None:
        """Add a call."""
        self.since = min(self.since, event.at) if self.calls else event.at
        self.until = max(self.until, event.at)
        self.calls += 1
        self.requests += event.requests - 1
        self.unwanted += event.unwanted
        self.unjudged.update(event.unjudged)
        if event.fault is not None:
            self.codes[event.fault.code] += 1
        if event.outcome == "left":
            self.left += 1
        elif event.outcome == "failed":
            self.failed += 1
            self.would[event.would] += 1
            self.saved += event.saved
        else:
            self.answered += 1
            self._add_answer(event)

    def _add_answer(self, event: Observed) -> None:
        if event.fault is not None:
            # No harm: what came is not the answer that the caller wanted.
            self.hidden += 1
            return
        self.delay += event.waits
        # One call counts once, by the worst that would have happened to it.
        if event.would == "reject":
            self.rejected += 1
        elif not event.accepted:
            self.unaccepted += 1
        elif event.unwanted:
            self.given_up += 1
        elif event.stops is not None:
            self.stopped += 1
        elif event.waits >= _NOTICED_S:
            self.delayed += 1

    @property
    def seconds(self) -> float:
        """Seconds from the first call to the last one."""
        return max(0.0, self.until - self.since)

    @property
    def harmed(self) -> int:
        """Answered calls that would have been worse off."""
        return self.rejected + self.unaccepted + self.given_up + self.stopped + self.delayed

    @property
    def tried_again(self) -> int:
        """Failed calls that would have had another attempt: by a retry, a repair or a fallback."""
        return sum(self.would[word] for word in ("retry", "repair", "fall-back"))

    @property
    def brief(self) -> str:
        """The sums in one line, for a log."""
        parts = [f"{self.calls} calls", f"{self.answered} answered", f"{self.failed} failed"]
        if self.failed:
            parts.append(f"{self.tried_again} would have been tried again")
        parts.append(f"{self.harmed} answered calls would have been worse off")
        return ", ".join(parts)

    @property
    def verdict(self) -> str:
        """What the sums say, in plain words."""
        if self.harmed:
            return f"{self.harmed} of {self._answers} would have been worse off: {self._harms}.{self._not_judged}"
        few = f" These are few: observe {_ENOUGH} calls or more." if self.calls < _ENOUGH else ""
        kept = f"None of {self._answers} would have been worse off.{self._not_judged}"
        if not self.failed and not self.hidden:
            return f"{kept} No call failed, so recovery would have had nothing to do.{few}"
        hidden = f" {self.hidden} answers were failures that the client did not recognise." if self.hidden else ""
        return f"{kept} {self.tried_again} of {self.failed} failed calls would have been tried again.{hidden}{few}"

    @property
    def _answers(self) -> str:
        return f"{self.answered} answered call{'' if self.answered == 1 else 's'}"

    @property
    def _not_judged(self) -> str:
        names = ", ".join(f"{name} ({count} calls)" for name, count in self.unjudged.most_common())
        return f" Not judged: {names}." if names else ""

    @property
    def _harms(self) -> str:
        harms = [
            (self.rejected, "rejected"),
            (self.unaccepted, "answered with something that `accept` rejects"),
            (self.given_up, "given up before the client's own retry answered"),
            (self.stopped, "stopped as too slow"),
            (self.delayed, f"delayed, by {self.delay:.1f} s in all at least"),
        ]
        return ", ".join(f"{count} {how}" for count, how in harms if count)

    def document(self) -> dict[str, Any]:
        """Return the sums as plain values."""
        return {
            "calls": self.calls,
            "answered": self.answered,
            "failed": self.failed,
            "left": self.left,
            "failed_would_have": {word: self.would[word] for word in sorted(self.would)},
            "answers_that_were_failures": self.hidden,
            "own_retries": self.requests,
            "own_retries_unwanted": self.unwanted,
            "saved_s": round(self.saved, 3),
            "answered_would_have_been": {
                "rejected": self.rejected,
                "not_accepted": self.unaccepted,
                "given_up": self.given_up,
                "stopped": self.stopped,
                "delayed": self.delayed,
                "delayed_s": round(self.delay, 3),
            },
            "harmed": self.harmed,
            "not_judged": dict(self.unjudged.most_common()),
            "codes": dict(self.codes.most_common()),
            "verdict": self.verdict,
        }
