"""What to do next, as arithmetic: facts, the time and a random source go in, a decision comes out.

Invariant: nothing here reads a clock, sleeps, locks or calls anybody. Machines hold state and are not thread-safe by
themselves; the runtime holds a lock around each of their calls, and each is short.
"""

from __future__ import annotations
