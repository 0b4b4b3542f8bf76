"""Run the benchmarks and print them; see the package's docstring."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

from benchmarks import (
    accuracy,
    actors,
    agents,
    bridge,
    circuits,
    classify,
    day,
    durable,
    fleet,
    harm,
    imports,
    memory,
    peers,
    provider,
    recover,
    recovery,
    table,
    tasks,
    tools,
    work,
    workflow,
)

PARTS = {
    "classify": classify.run,
    "import": imports.run,
    "accuracy": accuracy.run,
    "recover": recover.run,
    "recovery": recovery.run,
    "circuits": circuits.run,
    "memory": memory.run,
    "provider": provider.run,
    "day": day.run,
    "durable": durable.run,
    "harm": harm.run,
    "fleet": fleet.run,
    "tools": tools.run,
    "actors": actors.run,
    "agents": agents.run,
    "bridge": bridge.run,
    "workflow": workflow.run,
    "tasks": tasks.run,
    "work": work.run,
}
ALONE = {"provider", "day", "harm", "fleet", "tools", "agents", "bridge", "workflow", "tasks"}
"""Parts without peers, or whose peers the tests need, too: for them no environment is built."""

PEERS = (
    *("litellm", "openai", "anthropic", "msgspec", "opentelemetry-sdk"),
    *("tenacity", "stamina", "backoff", "pyresilience", "nopanic", "redress", "hyx"),
    *("pybreaker", "aiobreaker", "circuitbreaker"),
    *("pykka", "ray", "langgraph-checkpoint-sqlite", "langgraph-checkpoint-postgres", "dbos"),
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="|".join(PARTS), help="the parts to run; all of them by default")
    parser.add_argument("--quick", action="store_true", help="few rounds: rough figures, not a measurement")
    parser.add_argument("--calls", type=int, default=memory.CALLS, help="how many calls `memory` makes")
    parser.add_argument("--seed", type=int, help="the seed of `day`, 1 by default; the one world that `harm` plays")
    parser.add_argument("--markdown", action="store_true", help="print the tables in Markdown")
    group = parser.add_argument_group("recovery")
    group.add_argument(
        "--seeds",
        type=recovery.seeds,
        metavar="N",
        help="how many seeds each kind is drawn from, 10 by default; or which: 201-203",
    )
    group.add_argument("--tune", action="store_true", help="play the seeds for tuning, which are never reported")
    group.add_argument(
        "--kinds",
        default="",
        metavar="A,B",
        help="only kinds whose names contain one of these; also for the parts of `durable`",
    )
    group.add_argument(
        "--only", default="", metavar="A,B", help="only these contenders, by name or part of it; `none` plays nothing"
    )
    group.add_argument("--algorithms", action="store_true", help="known algorithms, too, written by us")
    group.add_argument("--brief", action="store_true", help="no table for each kind, only those of all and the verdict")
    group.add_argument(
        "--beside",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="take the contenders that are not played from an earlier --json, and ours as it was then",
    )
    group = parser.add_argument_group("harm")
    group.add_argument("--worlds", type=int, default=500, metavar="N", help="how many worlds are played")
    group.add_argument("--first", type=int, default=1, metavar="SEED", help="the seed of the first")
    group.add_argument("--shrink", action="store_true", help="print the smallest world of each violation")
    group.add_argument("--jobs", type=int, default=1, metavar="N", help="processes that play")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result here")
    options = parser.parse_args()
    table.as_markdown = options.markdown
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    parts = options.parts or list(PARTS)
    missing = peers.ready() if set(parts) - ALONE else {}
    machine = f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start"
    if set(parts) - ALONE:
        print(f"beside {peers.versions(*PEERS)}; certifi is older than litellm requires")
    print(machine + (", --quick: few rounds, rough figures" if options.quick else ""))
    for name, why in missing.items():
        print(f"not installed: {name}: {why}")
    result = {"machine": machine, "quick": options.quick, "not_installed": missing}
    more_of = {
        "memory": {"calls": options.calls},
        "day": {"seed": 1 if options.seed is None else options.seed},
        "durable": {"kinds": options.kinds},
        "harm": {
            "worlds": options.worlds,
            "first": options.first,
            "seed": options.seed,
            "smallest": options.shrink,
            "jobs": options.jobs,
        },
        "recovery": {
            name: getattr(options, name) for name in ("seeds", "tune", "kinds", "only", "algorithms", "brief", "beside")
        },
    }
    # A part may take minutes, and its output may go to a file.
    sys.stdout.reconfigure(line_buffering=True)
    for part in parts:
        more: dict[str, Any] = more_of.get(part, {})
        result[part] = PARTS[part](quick=options.quick, **more)
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    if result.get("harm", {}).get("bad"):
        sys.exit(1)


if __name__ == "__main__":
    main()
