"""How often and when to try again: the numbers behind a schedule's name.

Invariant: attempts count calls. Three attempts are three calls with two waits between them, and none after the last.
"""

from __future__ import annotations

import msgspec

from holdfast import options
from holdfast.faults import InvalidError
from holdfast.policies.backoff import Backoff

__all__ = ["NEVER", "Tries"]


class Tries(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """At most this many calls, this far apart."""

    attempts: int = 3
    """Calls in all, the first included (C5)."""
    backoff: Backoff = Backoff()

    def __post_init__(self) -> None:
        options.count("tries.attempts", self.attempts)
        if not isinstance(self.backoff, Backoff):
            raise InvalidError.at("tries.backoff", "a Backoff", self.backoff)


NEVER = Tries(attempts=1)
"""One call."""
