"""Two counts of the same thing: by Holdfast, and by the other side."""

from __future__ import annotations

from typing import NamedTuple


class Count(NamedTuple):
    what: str
    ours: int
    theirs: int
    theirs_is: str

    @property
    def agrees(self) -> bool:
        return self.ours == self.theirs


def show(counts: list[Count]) -> None:
    """Print the counts as a table."""
    rows = [
        ("", "Holdfast", "", "the other side"),
        *((count.what, str(count.ours), str(count.theirs), count.theirs_is) for count in counts),
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for what, ours, theirs, whose in rows:
        print(f"{what:<{widths[0]}}  {ours:>{widths[1]}}  {theirs:>{widths[2]}}  {whose}".rstrip())
