"""Plain text tables and the few statistics in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def verdict(value: float, target: float, unit: str) -> str:
    return f"target {target:g} {unit}: {'met' if value <= target else 'missed'}"


def ratio(value: float, ours: float) -> str:
    return f"{value / ours:.2f}x" if ours else "-"


as_markdown = False
"""Whether tables are printed in Markdown, for the pages."""


def show(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str] = ()) -> None:
    """Print one table; the first column is text, the others are figures and stand right."""
    if as_markdown:
        _show_markdown(title, head, rows, notes)
        return
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    print(f"\n{title}\n{'=' * len(title)}")
    for row in [head, ["-" * width for width in widths], *rows]:
        cells = [
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
    for note in notes:
        print(f"    {note.strip()}" if note.startswith(" ") else f"  * {note}")


class Lines:
    """A table of three columns whose lines are printed as soon as they are measured, and not aligned with those that follow."""

    def __init__(self, title: str, notes: Sequence[str]) -> None:
        if as_markdown:
            print(f"\n### {title}\n")
        else:
            print(f"\n{title}\n{'=' * len(title)}")
        for note in notes:
            print(f"- {note}" if as_markdown else f"  * {note}")
        if as_markdown:
            print("\n|  |  |  |\n| --- | ---: | ---: |")

    def add(self, name: str, figure: str, result: str = "") -> None:
        print(
            f"| {name} | {figure} | {result} |" if as_markdown else f"{name}: {figure}{result and f'  ({result})'}",
            flush=True,
        )


def _show_markdown(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str]) -> None:
    print(f"\n### {title}\n")
    for row in [head, ["---", *["---:"] * (len(head) - 1)], *rows]:
        print(f"| {' | '.join(row)} |")
    print()
    for note in notes:
        print(f"- {note.strip()}")
