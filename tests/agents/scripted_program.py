"""A program that stands for a command-line agent: its n-th start does what the n-th list of acts says.

    ["out", TEXT]  print a line       ["err", TEXT]  the same on stderr      ["child"]       start a child that never ends
    ["touch", N]   an effect          ["hang"]       print nothing any more  ["exit", CODE]  end      ["die"]  kill itself

What it was started with, and its effects, are kept in the directory of the script.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path


def main() -> None:
    folder = Path(sys.argv[1])
    prompt = sys.stdin.read()
    number = len(list(folder.glob("start-*.json")))
    started = {"argv": sys.argv[2:], "prompt": prompt, "pid": os.getpid()}
    # Moved to its name when it is whole: the test may look at any moment.
    (folder / "starting").write_text(json.dumps(started))
    (folder / "starting").rename(folder / f"start-{number}.json")
    runs = json.loads((folder / "runs.json").read_text())
    for act, *given in runs[min(number, len(runs) - 1)]:
        perform(act, given, folder)


def perform(act: str, given: list, folder: Path) -> None:
    match act:
        case "out" | "err":
            print(given[0], file=sys.stdout if act == "out" else sys.stderr, flush=True)
        case "child":
            if not os.fork():
                os.setsid()
                os.execvp("sleep", ["sleep", "600"])
        case "touch":
            with (folder / "effects").open("a") as file:
                file.write(f"{given[0]}\n")
        case "hang":
            time.sleep(600)
        case "exit":
            sys.exit(given[0])
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
