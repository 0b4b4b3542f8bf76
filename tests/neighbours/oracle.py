"""The bounds: an ordinary member has with a hostile one beside it what it has without."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec
from tests.neighbours.kit import LOCKED_OUT_S, Played
from tests.neighbours.storm_play import play

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.neighbours.storm_world import World

KEPT_ALONE = 0.97
"""Of what the neighbours begin, this much ends well without any member."""
KEPT = 0.99
"""The share of what the neighbours have without the hostile member that they keep with it."""
MEMORY_MB = {"bridge": 150, "tools": 700, "actors": 150, "agents": 250, "sessions": 250}
"""The most that the hostile member may add to the memory of the process, by room. Its own tools and results live in
that process, and what its sessions store in a store in memory, too."""
CONNECTIONS_MB = 250
"""The most that half of all connections of a server may add: those that one token may have."""


class Harm(msgspec.Struct):
    """One bound that is broken. kept, locked-out, wrong, memory, left, ended."""

    bound: str
    what: str

    def __str__(self) -> str:
        return f"{self.bound}: {self.what}"


def harms(world: World, patch: Callable[..., None] | None = None) -> list[Harm]:
    """Play a world and its twin; return what is broken. A twin that is broken itself says so."""
    twin = play(world, alone=True, patch=patch)
    # What happens to its own agents is a neighbour's own job, so a bug may show itself without any member.
    if twin.ended or sum(each.how == "well" for each in twin.done) < KEPT_ALONE * len(twin.done):
        return [Harm("twin", twin.ended or _most(twin))]
    return compare(world, twin, play(world, patch=patch))


def compare(world: World, twin: Played, storm: Played) -> list[Harm]:
    """Return the bounds that the play with the hostile member breaks, beside the one without."""
    if storm.ended:
        return [Harm("ended", storm.ended)]
    found = []
    had = sum(each.how == "well" for each in twin.done)
    has = sum(each.how == "well" for each in storm.done)
    if has < KEPT * had:
        found.append(Harm("kept", f"{has} of {had}: {_most(storm)}"))
    limit = LOCKED_OUT_S + max(each.took for each in twin.done)
    slow = [each for each in storm.done if each.took > limit]
    if slow:
        worst = max(slow, key=lambda each: each.took)
        found.append(Harm("locked-out", f"{len(slow)} jobs, one for {worst.took:.1f} s ({worst.job} {worst.why})"))
    wrong = [each for each in storm.done if each.how == "wrong"]
    if wrong and not any(each.how == "wrong" for each in twin.done):
        found.append(Harm("wrong", f"{len(wrong)}, {wrong[0].job}: {wrong[0].why}"))
    more = CONNECTIONS_MB if any(each.kind == "connections" for each in world.acts) else 0
    if storm.peak_mb > twin.peak_mb + MEMORY_MB[world.room] + more:
        found.append(Harm("memory", f"{storm.peak_mb:.0f} MB, alone {twin.peak_mb:.0f} MB"))
    if len(storm.left) > len(twin.left):
        found.append(Harm("left", "; ".join(storm.left)[:500]))
    return found


def _most(played: Played) -> str:
    bad = Counter((each.job, each.how, each.why) for each in played.done if each.how != "well")
    return "; ".join(f"{count}x {job} {how} {why}" for (job, how, why), count in bad.most_common(3))
