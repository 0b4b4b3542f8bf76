"""An agent's tools: a loop over a model's calls, with a tool that hangs, one that is called wrongly, and one that must not run twice.

    python examples/tools.py

It needs no key: the model's calls are written down here.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from holdfast import Happened, Verdict, tool
from holdfast.tools import Toolbox, bash, edit_file, read_file, search

PAID: dict[str, int] = {}


def look_up(_key: str, amount: int) -> Verdict:
    """Ask the bank whether the payment happened: a call that was cut is not repeated, it is looked up."""
    return Happened(f"payment of {amount}, found at the bank")


@tool(effect="unsafe", verify=look_up)
async def pay(amount: int) -> str:
    """Pay a bill."""
    PAID["bill"] = PAID.get("bill", 0) + amount
    raise ConnectionResetError(104, "the connection was lost after the request was sent")


CALLS = [
    ("search", {"pattern": "TODO"}),
    ("read_file", {"file": "notes.txt"}),
    ("read_file", {"path": "../../etc/passwd"}),
    ("edit_file", {"path": "notes.txt", "old": "TODO", "new": "DONE"}),
    ("bash", {"command": "echo working…; sleep 60"}),
    ("pay", {"amount": 20}),
]


async def main(project: str) -> None:
    toolbox = Toolbox([read_file(project), edit_file(project), search(project), bash(project, timeout=1), pay])
    for name, arguments in CALLS:
        answer = await toolbox.answer(name, arguments)
        print(f"{name} {arguments}\n  {'failed' if answer.is_error else 'ok'}: {answer.content.strip()}\n")
    assert PAID == {"bill": 20}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "notes.txt").write_text("TODO: pay the bill\n", encoding="utf-8")
        asyncio.run(main(folder))
