"""Sentences that a specification gives and that more than one room writes."""

from __future__ import annotations


def operation_timed_out(milliseconds: int) -> str:
    """Return the message of an operation that exceeded its time limit, as SPEC-016 words it."""
    return f"Operation timed out after {milliseconds}ms"
