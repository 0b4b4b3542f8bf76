"""A program that stands for Claude Code under the SDK: its n-th start does what the n-th list of acts says.

    {…}            print a message         ["err", TEXT]  print on stderr       ["text", LINE]  print a line that is no JSON
    ["effect", N]  an effect of a tool     ["exit", CODE] end                   ["die"]         kill itself     ["hang"]

What it was started with, and its effects, are kept in the directory of the script.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path


def main() -> None:
    folder = Path(sys.argv[1])
    number = len(list(folder.glob("start-*.json")))
    runs = json.loads((folder / "runs.json").read_text())
    acts = runs[min(number, len(runs) - 1)]
    started = {"argv": sys.argv[2:], "pid": os.getpid()}
    (folder / f"start-{number}.json").write_text(json.dumps(started))
    if acts and acts[0] == ["refuse"]:
        # Before the SDK's first request is answered.
        perform(["err", "error: unknown option"], folder)
        sys.exit(1)
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["type"] == "control_request":
            done = {"subtype": "success", "request_id": asked["request_id"], "response": {}}
            say({"type": "control_response", "response": done})
        elif asked["type"] == "user":
            started["prompt"] = asked["message"]["content"]
            (folder / f"start-{number}.json").write_text(json.dumps(started))
            for act in acts:
                perform(act, folder)


def say(message: dict) -> None:
    print(json.dumps(message), flush=True)  # noqa: T201


def perform(act: dict | list, folder: Path) -> None:
    match act:
        case dict():
            say(act)
        case ["err", text]:
            print(text, file=sys.stderr, flush=True)  # noqa: T201
        case ["text", text]:
            print(text, flush=True)  # noqa: T201
        case ["effect", name]:
            with (folder / "effects").open("a") as file:
                file.write(f"{name}\n")
        case ["exit", code]:
            sys.exit(code)
        case ["die"]:
            os.kill(os.getpid(), signal.SIGKILL)
        case ["hang"]:
            # The SDK closes the input of a program that it stops.
            sys.stdin.read()
            sys.exit(0)


if __name__ == "__main__":
    main()
