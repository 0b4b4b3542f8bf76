"""The whole in under a minute, without keys and without a network: `make run`. One part: `python examples/whole lost_network`.

Calls that recover, a session that is killed, a team under kills, a client that loses its network, a task that is split. At the end each
count of Holdfast stands beside the count of the other side: of the servers, the ledger, the network.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import time

from count import Count, show

PARTS = {
    "demo": "Calls that recover",
    "killed_session": "A session whose process is killed twice",
    "team_under_kills": "A team whose processes are killed",
    "lost_network": "A client that loses its network",
    "split_task": "A task that is too large",
}


def demo() -> list[Count]:
    """Run `holdfast demo`, which shows its live lines on stderr."""
    done = subprocess.run([sys.executable, "-m", "holdfast", "demo"], stdout=subprocess.PIPE, text=True, check=True)
    print(done.stdout, end="")
    attempts, requests = map(int, re.findall(r"\d+", done.stdout.splitlines()[-1]))
    return [Count("calls: attempts", attempts, requests, "requests that the servers got")]


def play(part: str) -> list[Count]:
    print(f"\n\033[1m{PARTS[part]}\033[0m" if sys.stdout.isatty() else f"\n{PARTS[part]}", flush=True)
    if part == "demo":
        return demo()
    # Imported only now: the processes of the team import this file, and must not import the SDKs with it.
    counts: list[Count] = importlib.import_module(part).play()
    return counts


def main(parts: list[str]) -> int:
    began = time.monotonic()
    counts = [count for part in parts for count in play(part)]
    print()
    show(counts)
    agree = all(count.agrees for count in counts)
    print(f"{'Every count agrees' if agree else 'THE COUNTS DIFFER'}, after {time.monotonic() - began:.0f} s.")
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(PARTS)))
