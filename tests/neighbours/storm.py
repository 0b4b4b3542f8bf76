# ruff: noqa: T201 - a command prints
"""A storm of neighbours: one hostile or unlucky member among fifty ordinary ones, drawn from a seed. Written from the docs alone.

    python -m tests.neighbours.storm --worlds 100 --first 1            play worlds; exit code 1 if a neighbour was harmed
    python -m tests.neighbours.storm --seed 17 --shrink                one world, and the smallest that does the same harm
    python -m tests.neighbours.storm --put-back                        bugs that Holdfast once had, and the world that finds each

storm_world  the data of a world, and how it is drawn
kit       what the rooms share: the work of the neighbours, and what they have of it
rooms     bridge (loopback sockets, with `intruder`), tools, actors, agents (models and keys), sessions (one SQLite store)
storm_play a world and its twin without the hostile member, each in a process of its own
oracle    the bounds: what the neighbours keep, how long they wait, what it costs in memory
storm_shrink the smallest world that does the same harm
storm_bugs bugs that Holdfast once had
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.neighbours.oracle import harms
from tests.neighbours.storm_play import warm
from tests.neighbours.storm_shrink import shrink
from tests.neighbours.storm_world import ACTS, draw


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.neighbours.storm")
    parser.add_argument("--worlds", type=int, default=50)
    parser.add_argument("--first", type=int, default=1, help="the seed of the first world")
    parser.add_argument("--seed", type=int, nargs="*", help="these worlds only")
    parser.add_argument("--rooms", nargs="*", choices=tuple(ACTS), default=list(ACTS))
    parser.add_argument("--acts", nargs="*", default=[], help="only worlds with one of these acts")
    parser.add_argument("--shrink", action="store_true")
    parser.add_argument("--verbose", action="store_true", help="print each world before it is played")
    parser.add_argument("--put-back", nargs="*", metavar="BUG", help="put bugs back, by default each, and hunt them")
    return parser.parse_args()


def main() -> int:
    given = options()
    rooms = tuple(room for room in ACTS if room in given.rooms)
    if given.put_back is not None:
        return _hunts(given)
    warm(rooms)
    begun, played, bad = time.monotonic(), 0, 0
    seeds = given.seed or range(given.first, given.first + given.worlds)
    for seed in seeds:
        world = draw(seed, rooms)
        if given.acts and not {each.kind for each in world.acts} & set(given.acts):
            continue
        played += 1
        if given.verbose:
            print(world, flush=True)
        found = harms(world)
        bad += bool(found)
        if found:
            print(world, *found, sep="\n  ", flush=True)
        if found and given.shrink:
            print("  the smallest that does the same:", shrink(world, found[0].bound), sep="\n    ", flush=True)
    print(f"{played} worlds in {time.monotonic() - begun:.0f} s, {bad} with harm")
    return 1 if bad else 0


def _hunts(given: argparse.Namespace) -> int:
    from tests.neighbours.storm_bugs import BUGS, hunt  # noqa: PLC0415 - it loads every room that had a bug

    missed = 0
    for bug in given.put_back or BUGS:
        begun = time.monotonic()
        found = hunt(bug, range(given.first, given.first + given.worlds))
        missed += not found
        print(f"{bug:12} {time.monotonic() - begun:4.0f} s  {found or 'not found'}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
