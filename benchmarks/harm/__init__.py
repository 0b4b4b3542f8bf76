"""Do no harm: worlds drawn from seeds, each played by the plain twin and by Holdfast, and bounds that compare them.

    python -m benchmarks harm --worlds 2000 --first 1 --jobs 2     a table of bounds; exit code 1 if one is broken
    python -m benchmarks harm --seed 17 --shrink                   one world, and the smallest that shows its harm

`world` is the data and its generator, `service` the services in memory, `plays` the two sides, `oracle` the bounds, `shrink` the
smallest world. All of it was written from the docs alone, so that it does not share the blind spots of the code it measures.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.harm.oracle import BOUNDS, compare, harms
from benchmarks.harm.shrink import shrink
from benchmarks.harm.world import draw
from benchmarks.table import show

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from benchmarks.harm.oracle import Compared

SHOWN = 12
"""So many violations are printed; the others only count."""


@dataclass
class Tally:
    """What was compared so far."""

    groups: Counter[tuple[str, str]] = field(default_factory=Counter)
    twin: Counter[tuple[str, str]] = field(default_factory=Counter)
    ours: Counter[tuple[str, str]] = field(default_factory=Counter)
    harmed: Counter[tuple[str, str]] = field(default_factory=Counter)
    worlds: int = 0
    bad: dict[int, list[Compared]] = field(default_factory=dict)

    def add(self, seed: int, compared: Iterable[Compared]) -> None:
        """Count one world."""
        self.worlds += 1
        for one in compared:
            key = one.bound, one.health
            self.groups[key] += 1
            if max(one.twin, one.ours) < float("inf"):
                self.twin[key] += one.twin  # type: ignore[assignment]
                self.ours[key] += one.ours  # type: ignore[assignment]
            self.harmed[key] += one.harmed
            if one.harmed:
                self.bad.setdefault(seed, []).append(one)


def run(
    *, quick: bool, worlds: int = 500, first: int = 1, seed: int | None = None, smallest: bool = False, jobs: int = 1
) -> dict[str, Any]:
    """Play worlds, print the table and the violations; return what `--json` keeps."""
    seeds = [seed] if seed is not None else list(range(first, first + (50 if quick else worlds)))
    tally, began = Tally(), time.perf_counter()
    for number, compared in _played(seeds, jobs):
        tally.add(number, compared)
    took = time.perf_counter() - began
    _print(tally, took)
    _print_violations(tally, smallest=smallest or seed is not None)
    return {
        "worlds": tally.worlds,
        "bad": sorted(tally.bad),
        "harmed": {" ".join(key): count for key, count in tally.harmed.items() if count},
    }


def _played(seeds: list[int], jobs: int) -> Iterator[tuple[int, list[Compared]]]:
    if jobs <= 1:
        yield from map(_one, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(_one, seeds, chunksize=max(1, min(20, len(seeds) // jobs)))


def _one(seed: int) -> tuple[int, list[Compared]]:
    return seed, compare(draw(seed))


def _print(tally: Tally, took: float) -> None:
    rows = []
    for bound in BOUNDS:
        for key in sorted(key for key in tally.groups if key[0] == bound):
            if tally.groups[key]:
                figures = (
                    ("-", "-") if bound in ("p50", "p95") else (f"{tally.twin[key]:,.6g}", f"{tally.ours[key]:,.6g}")
                )
                if bound in ("p50", "p95"):
                    figures = tuple(f"{side[key] / tally.groups[key]:.2f}" for side in (tally.twin, tally.ours))  # type: ignore[assignment]
                rows.append([bound, key[1], str(tally.groups[key]), *figures, str(tally.harmed[key])])
    notes = [
        f"{tally.worlds} worlds in {took:.1f} s; {len(tally.bad)} with a violation",
        "figures: sums; of p50 and p95 the mean over the groups, in seconds, without those that were not answered",
        "the bounds are in benchmarks/harm/oracle.py",
    ]
    show("Harm: Holdfast beside its plain twin", ["bound", "health", "groups", "twin", "Holdfast", "violations"], rows, notes)  # fmt: skip


def _print_violations(tally: Tally, *, smallest: bool) -> None:
    for seed in sorted(tally.bad)[:SHOWN]:
        print(f"\nseed {seed}: python -m benchmarks harm --seed {seed}")
        for one in tally.bad[seed]:
            print(f"  {one}")
        if smallest:
            for bound, health in sorted({(one.bound, one.health) for one in tally.bad[seed]}):
                small = shrink(draw(seed), bound, health=health)
                print(f"  the smallest world that breaks `{bound}` of a service that is {health}:\n    {small!r}")
                for one in harms(small):
                    print(f"      {one}")
    if len(tally.bad) > SHOWN:
        print(f"\nand {len(tally.bad) - SHOWN} more: {', '.join(map(str, sorted(tally.bad)[SHOWN:]))}")
    sys.stdout.flush()
