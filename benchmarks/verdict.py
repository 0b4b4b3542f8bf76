"""Whether we recover better than the peers, kind by kind, and well enough over all kinds: one table.

Invariant: ours is compared with a peer on the same traces. A peer that played fewer seeds is compared on those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from benchmarks.figures import BOUNDED, Figures, pooled
from benchmarks.inside.clients import FURTHER, OURS, PEERS, TENACITY
from benchmarks.inside.traces import FIRST_NINE, LOADED, MIXED
from benchmarks.table import show

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from benchmarks.figures import Sample

    Samples = Mapping[str, Mapping[str, Mapping[int, Sample]]]
    """By kind, contender and seed."""

BEFORE = "holdfast, before"
"""Our default policy in an earlier run. In the first nine kinds it must not have been better."""
MORE, SECONDS = 1.05, 0.3
"""What regret and median may be more than the best peer's."""
MORE_WASTED, REQUESTS = 1.1, 2
POSSIBLE, BEYOND_S, OF_TENACITY = 0.99, 5.0, 0.25
POSSIBLE_LOADED, LIMITED = 0.9, 0.1


class Line(NamedTuple):
    """One comparison: our figure, the one that it must reach, and whose that is."""

    kind: str
    claim: str
    ours: float
    bound: float
    whose: str
    met: bool


def kind_lines(kind: str, by_contender: Mapping[str, Mapping[int, Sample]], peers: Iterable[str] = PEERS) -> list[Line]:
    """Return the comparisons with the peers on one kind, the hardest of each claim."""
    lines: dict[str, list[Line]] = {}
    for peer in peers:
        for line in _compared(kind, by_contender, peer):
            lines.setdefault(line.claim, []).append(line)
    # The hardest: what is missed by most, or met by least.
    return [max(same, key=_missed_by) for same in lines.values()]


def earlier_lines(kind: str, by_contender: Mapping[str, Mapping[int, Sample]]) -> list[Line]:
    """Return the comparisons with ourselves in an earlier run."""
    lines = _compared(kind, by_contender, BEFORE) if kind in FIRST_NINE else []
    return [line._replace(claim=f"{line.claim} before") for line in lines if line.claim in ("answered", "regret")]


def _compared(kind: str, by_contender: Mapping[str, Mapping[int, Sample]], peer: str) -> list[Line]:
    if peer not in by_contender:
        return []
    seeds = [*by_contender[peer]]
    ours, theirs = (pooled([by_contender[who][seed] for seed in seeds]) for who in (OURS, peer))
    p50 = theirs.p50
    if kind in LOADED:
        # Who answers every other call at once and never the rest has a low median. First come, first served has that of the schedule.
        p50 = max(p50, pooled([by_contender[BOUNDED][seed] for seed in seeds]).p50)
    regret, p50 = theirs.regret * MORE + SECONDS, p50 * MORE + SECONDS
    lines = [
        Line(kind, "answered", ours.answered, theirs.answered, peer, ours.answered >= theirs.answered),
        Line(kind, "regret", ours.regret, regret, peer, ours.regret <= regret),
        Line(kind, "p50", ours.p50, p50, peer, ours.p50 <= p50),
    ]
    if theirs.answered >= ours.answered:
        wasted = theirs.wasted * MORE_WASTED + REQUESTS
        lines.append(Line(kind, "wasted", ours.wasted, wasted, peer, ours.wasted <= wasted))
    return lines


def _missed_by(line: Line) -> float:
    return line.bound - line.ours if line.claim == "answered" else line.ours - line.bound


def loaded_lines(kind: str, ours: Figures) -> list[Line]:
    """Return what a limit that depends on the load asks for."""
    needed = POSSIBLE_LOADED * ours.possible
    return [
        Line(kind, "of possible", ours.answered, needed, "the schedule", ours.answered >= needed),
        Line(kind, "429s", ours.limited, LIMITED, "target", ours.limited <= LIMITED),
    ]


def overall_lines(samples: Samples) -> list[Line]:
    """Return the claims over all kinds whose requests meet what their moment brings, over the mixed kinds and over all limits on the load."""
    lines: list[Line] = []
    if mixed := _over(samples, [kind for kind in samples if kind in MIXED], OURS):
        needed = POSSIBLE * mixed.possible
        lines.append(Line("all mixed", "of possible", mixed.answered, needed, "the clairvoyant", mixed.answered >= needed))  # fmt: skip
    samples = {kind: by_contender for kind, by_contender in samples.items() if kind not in MIXED}
    if timed := _over(samples, [kind for kind in samples if kind not in LOADED], OURS):
        needed = POSSIBLE * timed.possible
        lines += [
            Line("all but load", "of possible", timed.answered, needed, "the clairvoyant", timed.answered >= needed),
            Line("all but load", "beyond s", timed.beyond, BEYOND_S, "target", timed.beyond <= BEYOND_S),
        ]
    ours, theirs = (_over(samples, [*samples], who) for who in (OURS, TENACITY))
    if ours and theirs:
        most = OF_TENACITY * theirs.wasted
        lines.append(Line("all kinds", "wasted", ours.wasted, most, f"1/4 of {TENACITY}", ours.wasted <= most))
    if loaded := _over(samples, [kind for kind in samples if kind in LOADED], OURS):
        lines += loaded_lines("all limits on the load", loaded)
    return lines


def _over(samples: Samples, kinds: list[str], who: str) -> Figures | None:
    found = [one for kind in kinds for one in samples[kind].get(who, {}).values()]
    return pooled(found) if found else None


def verdict(samples: Samples) -> list[Line]:
    """Print the table of verdicts; return its lines."""
    columns = ["answered", "regret", "p50", "wasted", "of possible", "429s", "beyond s"]
    columns += ["answered before", "regret before"] if any(BEFORE in by for by in samples.values()) else []
    lines: list[Line] = []
    rows: list[list[str]] = []
    for kind, by_contender in samples.items():
        mine = [*kind_lines(kind, by_contender), *earlier_lines(kind, by_contender)]
        mine += loaded_lines(kind, pooled([*by_contender[OURS].values()])) if kind in LOADED else []
        lines += mine
        rows.append([kind, *(_cell(mine, claim) for claim in columns)])
    overall = overall_lines(samples)
    rows += [[kind, *(_cell([line for line in overall if line.kind == kind], claim) for claim in columns)] for kind in dict.fromkeys(line.kind for line in overall)]  # fmt: skip
    lines += overall
    missed = [line for line in lines if not line.met]
    notes = [
        f"{len(lines) - len(missed)} of {len(lines)} met; each cell: ours, the bound, and ! where it is missed, beside the hardest peer",
        f"answered: at least each peer's; regret, p50: at most the best peer's and {MORE - 1:.0%} and {SECONDS:g} s; wasted: at most that of a peer that answers as many, and {MORE_WASTED - 1:.0%} and {REQUESTS}",
        f"of possible: {POSSIBLE:.0%} of what a clairvoyant with our deadline answers, {POSSIBLE_LOADED:.0%} of what a schedule on the bucket answers; beyond s: regret beyond that clairvoyant's",
        "p50 under a limit on the load: at most the best peer's or the schedule's, which serves first come, first served",
        *_beside_tuned(samples),
        *(f"missed: {line.kind}: {line.claim} {_number(line.ours)} against {_number(line.bound)} ({line.whose})" for line in missed),
    ]  # fmt: skip
    show("Verdict: holdfast beside the best peer of each kind", ["", *columns], rows, notes)
    return lines


def _beside_tuned(samples: Samples) -> list[str]:
    """Return a note on each peer that somebody tuned."""
    notes = []
    for peer in FURTHER:
        lines = [line for kind, by_contender in samples.items() for line in kind_lines(kind, by_contender, [peer])]
        missed = ", ".join(f"{line.kind} ({line.claim} {_number(line.ours)}/{_number(line.bound)})" for line in lines if not line.met)  # fmt: skip
        if lines:
            notes.append(f"beside {peer}, {sum(line.met for line in lines)} of {len(lines)} met{'; missed: ' if missed else ''}{missed}")  # fmt: skip
    return notes


def _cell(lines: list[Line], claim: str) -> str:
    found = [line for line in lines if line.claim == claim]
    return ", ".join(f"{_number(line.ours)}/{_number(line.bound)}{'' if line.met else ' !'}" for line in found) or "-"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.2f}"
