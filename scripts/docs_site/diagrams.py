"""Diagrams of the pages."""

from __future__ import annotations


def draw(source: str) -> str:
    """Return a diagram as HTML."""
    return f"```text\n{source}```"
