"""Restart decisions, as values: what to stop and to start when a child ends, and when to give up.

exits      how a child ended
directive  what an actor does after a message failed

Invariant: no code in this room reads a clock, waits, or calls a user's function. `actors/` performs the decisions.
"""

from __future__ import annotations

from holdfast.supervision.directive import Directive, directive_for
from holdfast.supervision.exits import Error, Exit, Killed, Normal, Shutdown, is_clean

__all__ = ["Directive", "Error", "Exit", "Killed", "Normal", "Shutdown", "directive_for", "is_clean"]
