"""What a program meets outside of itself. Everything that happens here is in files of the working directory, and outlives a kill."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from holdfast import NOT_HAPPENED, Happened, call_key
from holdfast.providers import Offers, Reply, ToolCall, User
from holdfast.sessions import IT_DID_NOT_HAPPEN, IT_HAPPENED, Answer

EFFECTS, SAID = "effects.jsonl", "said.jsonl"


def mark(name: str) -> None:
    """A point at which the harness may kill the program. Without the harness nothing happens."""


def written(path: str, folder: str = ".") -> list[dict[str, Any]]:
    file = Path(folder, path)
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def _write(path: str, record: dict[str, Any]) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(file, json.dumps(record).encode() + b"\n")
    os.close(file)


def say(label: str, value: Any) -> None:
    """The program shows a result to its user. From now on it must stay what it is."""
    _write(SAID, {"label": label, "value": value})
    mark("said")


class Bank:
    """Performs what it is asked, and writes it down with the key of the call. With some names something is odd.

    no id: the first answer has no id. reset: the connection breaks after the first payment. refused: the first connection is refused.
    slow: each answer takes a while, after the payment. late: each takes a while before the payment.
    """

    def __init__(self, **odd: str) -> None:
        self._odd = odd

    async def post(self, what: str, who: str, **more: Any) -> dict[str, Any]:
        odd = self._odd.get(who, "")
        if odd == "refused" and not self._was_here(f"refused {who}"):
            raise ConnectionRefusedError(111, "Connection refused")
        if odd == "late":
            await asyncio.sleep(0.02)
        answer = self._perform(what, who, more)
        if odd == "slow":
            await asyncio.sleep(0.02)
        return self._answer(answer, odd)

    def send(self, what: str, who: str) -> dict[str, Any]:
        """The same for a plain function: it blocks for a while first."""
        odd = self._odd.get(who, "")
        if odd == "refused" and not self._was_here(f"refused {who}"):
            raise ConnectionRefusedError(111, "Connection refused")
        time.sleep(random.random() / 20)
        return self._answer(self._perform(what, who, {}), odd)

    @staticmethod
    def _perform(what: str, who: str, more: dict[str, Any]) -> dict[str, Any]:
        mark("before")
        nth = 1 + sum((each["what"], each["who"]) == (what, who) for each in written(EFFECTS))
        answer = {"id": f"{what}-{who}-{nth}"}
        _write(EFFECTS, {"what": what, "who": who, "key": call_key(), **answer, **more})
        mark("after")
        return {**answer, "is_first": nth == 1}

    @staticmethod
    def _answer(answer: dict[str, Any], odd: str) -> dict[str, Any]:
        if not answer.pop("is_first"):
            return answer
        if odd == "reset":
            raise ConnectionResetError(104, "Connection reset by peer")
        return {} if odd == "no id" else answer

    @staticmethod
    def _was_here(name: str) -> bool:
        if Path(name).exists():
            return True
        Path(name).touch()
        return False


def happened(key: str, folder: str = ".", *, exactly: bool = False) -> str | None:
    """Return the id of what was done under a key, or None. This is the truth.

    A `recover` inside of a call has a key below the call's: a person sees that they belong together, and a service does not.
    """
    done = [each for each in written(EFFECTS, folder) if key and f"{each['key']}/".startswith(f"{key}/")]
    ids = [each["id"] for each in done if each["key"] == key or not exactly]
    return ids[-1] if ids else None


def find(key: str, who: str) -> Any:
    """The bank's own answer to the question whether the call of this key has happened."""
    del who
    found = happened(key, exactly=True)
    return NOT_HAPPENED if found is None else Happened(found)


class Person:
    """Somebody at the terminal, who looks things up and tells the truth."""

    def __init__(self) -> None:
        self._call = ""

    async def ask(self, question: Any) -> Answer:
        mark("asked")
        self._call = str(question.details.get("call", self._call))
        match question.kind:
            case "Select" if IT_HAPPENED not in question.choices:
                return Answer(question.choices[0])
            case "Select":
                return Answer(IT_DID_NOT_HAPPEN if happened(self._call) is None else IT_HAPPENED)
            case "Ask" if "account" in question.prompt:
                return Answer("account 7")
            case "Ask":
                return Answer(happened(self._call) or "")
        return Answer(True)


class Model:
    """A model that calls a tool once for each of these names, one after the other or all at once, and then says that it is done.

    Without names it takes those of the prompt. Instead of saying that it is done, it calls the tool `then` for ever.
    """

    name = "scripted/model"
    offers = Offers(streaming=True, tool_calling=True)

    def __init__(
        self,
        tool: str,
        names: list[str] | None = None,
        *,
        at_once: bool = False,
        argument: str = "who",
        remembers: bool = False,
        then: str = "",
    ) -> None:
        self._tool, self._names, self._at_once, self._argument = tool, names, at_once, argument
        self._remembers = remembers
        self._then = then

    async def exchange(self, request: Any) -> Reply:
        mark("model")
        messages = list(request.messages)
        prompts = [number for number, message in enumerate(messages) if isinstance(message, User)]
        asked = prompts[-1]
        given = self._names or re.findall(r"[a-z]{2,}", messages[asked].text.replace("Pay", "").replace(" and ", " "))
        # With `remembers` the names are those of the whole conversation, one for each prompt.
        begun = 0 if self._remembers else asked
        done = sum(type(message).__name__ == "ToolResult" for message in messages[begun:])
        names = given[done:] if self._at_once else given[done : done + 1]
        if self._remembers and done == len(prompts):
            names = []
        if not names and self._then:
            waiting = ToolCall(id=f"wait-{len(messages)}", name=self._then, arguments={})
            return Reply(calls=(waiting,), stop="tools", model="scripted")
        if not names:
            return Reply(text="done", model="scripted")
        calls = tuple(
            ToolCall(id=f"call-{asked}-{done + number}", name=self._tool, arguments={self._argument: who})
            for number, who in enumerate(names)
        )
        return Reply(calls=calls, stop="tools", model="scripted")

    @asynccontextmanager
    async def stream(self, request: Any, *, after_first: str = "raise") -> Any:
        del after_first

        async def parts() -> Any:
            yield await self.exchange(request)

        yield parts()
