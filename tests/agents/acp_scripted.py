"""A program that speaks the Agent Client Protocol: the turn of its n-th start does what the n-th list of acts says.

    ["say", TEXT]                     a piece of the answer      ["cost", USD]        what the conversation cost up to now
    ["call", ID, TITLE, KIND, INPUT]  a tool call, made at once  ["ask", …]           the same, if it is allowed
    ["touch", N]                      an effect                  ["raw", TEXT]        any line      ["err", TEXT]  on stderr
    ["hang"]                          until it is cancelled      ["deaf"]             for ever
    ["end", REASON, USAGE]            the turn ends              ["fail", CODE, MESSAGE]            with an error
    ["exit", CODE]                    the program ends           ["die"]              it kills itself
    ["forget"]                        the conversation is lost

The first argument is the folder of the script, with `runs.json`, `options.json` ({"load": true} and the like), and what happened.
Only the standard library is used, so it starts fast. `acp_official.py` does the same with the official package.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

ID = "sess-4711"
DONE = object()


class Folder:
    """The script of a program, and what it did."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self.options = json.loads((self.path / "options.json").read_text())
        self.number = len(list(self.path.glob("start-*.json")))
        runs = json.loads((self.path / "runs.json").read_text())
        self.acts = runs[min(self.number, len(runs) - 1)]
        self.note(f"start-{self.number}.json", {"pid": os.getpid(), "argv": sys.argv[2:]})

    def note(self, name: str, found) -> None:
        # Moved to its name when it is whole: the test may look at any moment.
        (self.path / "writing").write_text(json.dumps(found))
        (self.path / "writing").rename(self.path / name)

    def add(self, name: str, text: str) -> None:
        with (self.path / name).open("a") as file:
            file.write(f"{text}\n")

    def perform(self, act: str, given: list) -> bool:
        """Perform an act that needs no protocol; return whether it was one."""
        match act:
            case "touch":
                self.add("effects", given[0])
            case "raw" | "err":
                print(given[0], file=sys.stdout if act == "raw" else sys.stderr, flush=True)
            case "forget":
                (self.path / ID).unlink()
            case "deaf":
                time.sleep(600)
            case "exit":
                sys.stdout.flush()
                os._exit(given[0])
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case _:
                return False
        return True


OPTIONS = [
    {"optionId": "always", "name": "Always allow", "kind": "allow_always"},
    {"optionId": "yes", "name": "Allow", "kind": "allow_once"},
    {"optionId": "no", "name": "Reject", "kind": "reject_once"},
]


class Program:
    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.requests = 0
        self.cancelled = False

    def write(self, **message) -> None:
        sys.stdout.write(f"{json.dumps({'jsonrpc': '2.0', **message})}\n")
        sys.stdout.flush()

    def update(self, what: str, /, **found) -> None:
        self.write(method="session/update", params={"sessionId": ID, "update": {"sessionUpdate": what, **found}})

    def say(self, kind: str, text: str) -> None:
        self.update(kind, content={"type": "text", "text": text})

    def read(self) -> dict:
        line = sys.stdin.readline()
        if not line:
            sys.exit(0)
        return json.loads(line)

    def request(self, method: str, params: dict) -> dict:
        self.requests += 1
        self.write(id=f"r-{self.requests}", method=method, params=params)
        while (found := self.read()).get("id") != f"r-{self.requests}" or "method" in found:
            self.notice(found)
        return found["result"]

    def notice(self, found: dict) -> None:
        if found.get("method") == "session/cancel":
            self.folder.add("cancelled", found["params"]["sessionId"])
            self.cancelled = True

    def serve(self) -> None:
        while True:
            found = self.read()
            self.notice(found)
            if "id" in found and "method" in found:
                try:
                    result = self.answer(found["method"], found["params"])
                except LookupError as error:
                    self.write(id=found["id"], error={"code": error.args[0], "message": error.args[1]})
                else:
                    self.write(id=found["id"], result=result)

    def answer(self, method: str, params: dict) -> dict:
        options, path = self.folder.options, self.folder.path
        match method:
            case "initialize":
                version = options.get("version", params["protocolVersion"])
                capabilities = {"loadSession": True} if options.get("load") else {}
                if options.get("resume"):
                    capabilities = {"sessionCapabilities": {"resume": {}}}
                return {"protocolVersion": version, "agentCapabilities": capabilities}
            case "session/new":
                if options.get("auth"):
                    raise LookupError(-32000, "Authentication required")
                (path / ID).write_text(params["cwd"])
                self.folder.add("opened", "new")
                return {"sessionId": ID}
            case "session/load" | "session/resume":
                if not (path / params["sessionId"]).exists():
                    raise LookupError(-32002, "Resource not found")
                self.folder.add("opened", method.rpartition("/")[2])
                if method == "session/load":
                    self.say("user_message_chunk", "the old prompt")
                    self.say("agent_message_chunk", "old words")
                    self.update("tool_call", toolCallId="old", title="Old", kind="edit", status="completed")
                return {}
            case "session/prompt":
                self.folder.add("prompts", json.dumps(params["prompt"][0]["text"]))
                return self.turn()
        raise LookupError(-32601, "Method not found")

    def turn(self) -> dict:
        self.cancelled = False
        for act, *given in self.folder.acts:
            if self.folder.perform(act, given):
                continue
            match act:
                case "say":
                    self.say("agent_message_chunk", given[0])
                case "cost":
                    self.update("usage_update", used=1, size=2, cost={"amount": given[0], "currency": "USD"})
                case "call" | "ask":
                    self.call(*given, asks=act == "ask")
                case "hang":
                    while not self.cancelled:
                        self.notice(self.read())
                case "end":
                    return {"stopReason": given[0], **({"usage": given[1]} if given[1:] else {})}
                case "fail":
                    raise LookupError(*given)
            if self.cancelled and not (act == "hang" and self.folder.options.get("asks_after_cancel")):
                return {"stopReason": "cancelled"}
        return {"stopReason": "end_turn"}

    def call(self, id_: str, title: str, kind: str, given: dict, *, asks: bool) -> None:
        self.update("tool_call", toolCallId=id_, title=title, kind=kind, status="pending", rawInput=given)
        if asks:
            params = {
                "sessionId": ID,
                "toolCall": {"toolCallId": id_},
                "options": self.folder.options.get("options", OPTIONS),
            }
            outcome = self.request("session/request_permission", params)["outcome"]
            self.folder.add("outcomes", outcome.get("optionId", outcome["outcome"]))
            if outcome.get("optionId") not in ("yes", "always"):
                self.update("tool_call_update", toolCallId=id_, status="failed")
                return
            self.folder.add("effects", id_)
        content = [{"type": "content", "content": {"type": "text", "text": "done"}}]
        self.update("tool_call_update", toolCallId=id_, status="completed", content=content)


if __name__ == "__main__":
    Program(Folder(sys.argv[1])).serve()
