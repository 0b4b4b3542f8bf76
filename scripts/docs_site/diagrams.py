"""The diagrams of the pages, drawn when the site is built. A code host draws the same Mermaid source itself.

A sequence becomes a picture in the colours of the page. Of states and flows, a table of the transitions is easier to read, also on a
phone.
"""

from __future__ import annotations

import re
from html import escape
from itertools import pairwise
from typing import NamedTuple

_CHARACTER, _MARGIN, _ROW, _TOP = 6.8, 16.0, 34.0, 30.0
_MESSAGE = re.compile(r"(\w+)(-->>|->>|--x)(\w+): (.+)")


def draw(source: str) -> str:
    """Return a diagram as Markdown or HTML. Raises `ValueError` for a kind that nobody has needed so far."""
    kind, *lines = [line.strip() for line in source.strip().splitlines()]
    if kind == "sequenceDiagram":
        return _Sequence(lines).svg()
    if kind == "stateDiagram-v2":
        return _table(("from", "when", "to"), _transitions(lines))
    if kind.startswith("flowchart"):
        return _table(("from", "by", "to"), _edges(lines))
    if kind == "xychart-beta":
        return _table(*_chart(lines))
    message = f"the site cannot draw {kind}"
    raise ValueError(message)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows))


def _transitions(lines: list[str]) -> list[tuple[str, ...]]:
    about = {found[1]: found[2] for line in lines if (found := re.fullmatch(r"(\w+): (.+)", line))}

    def shown(state: str, end: str) -> str:
        name = state.replace("_", "-")
        return end if state == "[*]" else f"**{name}**" + (f" ({about.pop(state)})" if state in about else "")

    found = [re.fullmatch(r"(\S+) --> ([^:\s]+)(?:: (.+))?", line) for line in lines]
    return [(shown(one[1], "start"), one[3] or "", shown(one[2], "end")) for one in found if one]


def _edges(lines: list[str]) -> list[tuple[str, ...]]:
    labels: dict[str, str] = {}
    rows = []
    for line in lines:
        parts = re.split(r"\s*(?:-- (.+?) -->|-->\|(.+?)\||-->)\s*", line)
        nodes = []
        for node in parts[::3]:
            found = re.fullmatch(r'(\w+)(?:\["?(.+?)"?\])?', node)
            assert found, node
            labels.setdefault(found[1], found[2] or found[1])
            nodes.append(labels[found[1]])
        by = [first or second or "" for first, second in zip(parts[1::3], parts[2::3], strict=True)]
        rows += [(start, label, end) for (start, end), label in zip(pairwise(nodes), by, strict=True)]
    return rows


def _chart(lines: list[str]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    series = [re.fullmatch(r'(?:x-axis|line) "(.+?)" \[(.+)\]', line) for line in lines]
    columns = [(found[1], *found[2].split(", ")) for found in series if found]
    head, *rows = zip(*columns, strict=True)
    return head, rows


class _Step(NamedTuple):
    kind: str
    first: int = 0
    last: int = 0
    text: str = ""


class _Sequence:
    """A sequence: who takes part, from left to right, and what happens, from top to bottom."""

    def __init__(self, lines: list[str]) -> None:
        people = [re.fullmatch(r"participant (\w+)(?: as (.+))?", line) for line in lines]
        names = {found[1]: found[2] or found[1] for found in people if found}
        self._labels = list(names.values())
        order = {name: number for number, name in enumerate(names)}
        self._steps: list[_Step] = []
        for line in lines:
            if found := _MESSAGE.fullmatch(line):
                self._steps.append(_Step(found[2], order[found[1]], order[found[3]], found[4]))
            elif found := re.fullmatch(r"Note over (\w+): (.+)", line):
                self._steps.append(_Step("note", order[found[1]], order[found[1]], found[2]))
            elif found := re.fullmatch(r"(alt|else|end) ?(.*)", line):
                self._steps.append(_Step(found[1], text=found[2]))
        self._places = self._columns()

    def _columns(self) -> list[float]:
        """Return where each line of life is: as close as the texts between them allow."""
        halves = [len(label) * _CHARACTER / 2 + _MARGIN for label in self._labels]
        places = [halves[0]]
        for number in range(1, len(halves)):
            place = places[-1] + halves[number - 1] + halves[number] + _MARGIN
            for step in self._steps:
                low, high = sorted((step.first, step.last))
                if high == number and low < high:
                    place = max(place, places[low] + len(step.text) * _CHARACTER + 2 * _MARGIN)
                elif low == high == number - 1 and step.text:
                    share = 2 if step.kind == "note" else 1
                    place = max(place, places[low] + len(step.text) * _CHARACTER / share + 3 * _MARGIN)
            places.append(place)
        notes = [
            len(step.text) * _CHARACTER / 2 + _MARGIN - places[0]
            for step in self._steps
            if step.kind == "note" and not step.first
        ]
        shift = max(0.0, *notes, 0.0) + _MARGIN
        return [place + shift for place in places]

    def svg(self) -> str:
        rows = sum(step.kind != "end" for step in self._steps)
        height = 2 * _TOP + rows * _ROW + _MARGIN
        last = [step for step in self._steps if step.last == len(self._labels) - 1 and step.first == step.last]
        spare = max((len(step.text) * _CHARACTER / (2 if step.kind == "note" else 1) for step in last), default=0)
        width = self._places[-1] + max(len(self._labels[-1]) * _CHARACTER / 2, spare) + 3 * _MARGIN
        spoken = "; ".join(step.text for step in self._steps if step.text)
        parts = [
            f'<div class="diagram"><svg role="img" aria-label="{escape(spoken)}" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}">',
            *(self._life(label, place, height) for label, place in zip(self._labels, self._places, strict=True)),
        ]
        y = 2 * _TOP
        for step in self._steps:
            if step.kind != "end":
                parts.append(self._step(step, y, width))
                y += _ROW
        return "\n".join([*parts, "</svg></div>"])

    @staticmethod
    def _life(label: str, x: float, height: float) -> str:
        half = len(label) * _CHARACTER / 2 + _MARGIN / 2
        return (
            f'<path class="life" d="M{x:.0f} {_TOP}V{height:.0f}"/>'
            f'<rect x="{x - half:.0f}" y="4" width="{2 * half:.0f}" height="26" rx="4"/>'
            f'<text class="who" x="{x:.0f}" y="22">{escape(label)}</text>'
        )

    def _step(self, step: _Step, y: float, width: float) -> str:
        text = escape(step.text)
        start, end = self._places[step.first], self._places[step.last]
        if step.kind in {"alt", "else"}:
            return f'<path class="split" d="M8 {y - 8:.0f}H{width - 8:.0f}"/><text class="case" x="12" y="{y + 8:.0f}">{text}</text>'
        if step.kind == "note":
            half = len(step.text) * _CHARACTER / 2 + _MARGIN / 2
            return (
                f'<rect class="note" x="{start - half:.0f}" y="{y - 12:.0f}" width="{2 * half:.0f}" height="24" rx="4"/>'
                f'<text x="{start:.0f}" y="{y + 4:.0f}">{text}</text>'
            )
        style = "answer" if step.kind != "->>" else "message"
        if start == end:
            loop = f"M{start:.0f} {y - 6:.0f}h24v14H{start + 2:.0f}l7 -4m-7 4l7 4"
            return f'<path class="{style}" d="{loop}"/><text class="case" x="{start + 32:.0f}" y="{y + 5:.0f}">{text}</text>'
        side = 1 if end > start else -1
        tip = (
            f"M{end - 5:.0f} {y - 1:.0f}l10 10m0 -10l-10 10"
            if step.kind == "--x"
            else f"M{end - 8 * side:.0f} {y:.0f}L{end - side:.0f} {y + 4:.0f}L{end - 8 * side:.0f} {y + 8:.0f}"
        )
        return (
            f'<path class="{style}" d="M{start:.0f} {y + 4:.0f}H{end:.0f}"/><path class="message" d="{tip}"/>'
            f'<text x="{(start + end) / 2:.0f}" y="{y - 3:.0f}">{text}</text>'
        )
