"""What to do next, as arithmetic: facts, the time and a random source in, a decision out.

Invariant: nothing here reads a clock, sleeps, logs or opens anything. `runtime/` performs what a policy decides.
"""

from __future__ import annotations
