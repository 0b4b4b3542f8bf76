"""What to do next: facts, the time and a random source in, a decision out."""

from __future__ import annotations
