"""The program of `acp_scripted.py`, written with the official package: it checks every message that we send against its schema."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import acp
from acp import schema
from acp_scripted import ID, OPTIONS, Folder


class Program:
    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.cancelled = asyncio.Event()

    def on_connect(self, conn: acp.Client) -> None:
        self.client = conn

    async def update(self, update: Any) -> None:
        await self.client.session_update(session_id=ID, update=update)

    async def initialize(self, protocol_version: int, **_: Any) -> acp.InitializeResponse:
        options = self.folder.options
        offered = schema.SessionCapabilities(
            resume=schema.SessionResumeCapabilities() if options.get("resume") else None
        )
        capabilities = schema.AgentCapabilities(load_session=bool(options.get("load")), session_capabilities=offered)
        version = options.get("version", protocol_version)
        return acp.InitializeResponse(protocol_version=version, agent_capabilities=capabilities)

    async def new_session(self, cwd: str, **_: Any) -> acp.NewSessionResponse:
        if self.folder.options.get("auth"):
            raise acp.RequestError.auth_required()
        (self.folder.path / ID).write_text(cwd)
        self.folder.add("opened", "new")
        return acp.NewSessionResponse(session_id=ID)

    def _open(self, session_id: str, how: str) -> None:
        if not (self.folder.path / session_id).exists():
            raise acp.RequestError.resource_not_found(session_id)
        self.folder.add("opened", how)

    async def load_session(self, cwd: str, session_id: str, **_: Any) -> acp.LoadSessionResponse:
        self._open(session_id, "load")
        await self.update(acp.update_user_message_text("the old prompt"))
        await self.update(acp.update_agent_message_text("old words"))
        await self.update(acp.start_tool_call("old", "Old", kind="edit", status="completed"))
        return acp.LoadSessionResponse()

    async def resume_session(self, session_id: str, cwd: str, **_: Any) -> schema.ResumeSessionResponse:
        self._open(session_id, "resume")
        return schema.ResumeSessionResponse()

    async def cancel(self, session_id: str, **_: Any) -> None:
        self.folder.add("cancelled", session_id)
        self.cancelled.set()

    async def prompt(self, session_id: str, prompt: list[Any], **_: Any) -> acp.PromptResponse:
        self.folder.add("prompts", json.dumps(prompt[0].text))
        self.cancelled.clear()
        for act, *given in self.folder.acts:
            if self.folder.perform(act, given):
                continue
            match act:
                case "say":
                    await self.update(acp.update_agent_message_text(given[0]))
                case "cost":
                    cost = schema.Cost(amount=given[0], currency="USD")
                    await self.update(schema.UsageUpdate(session_update="usage_update", used=1, size=2, cost=cost))
                case "call" | "ask":
                    await self.call(*given, asks=act == "ask")
                case "hang":
                    await self.cancelled.wait()
                case "end":
                    usage = schema.Usage(**given[1]) if given[1:] else None
                    return acp.PromptResponse(stop_reason=given[0], usage=usage)
                case "fail":
                    raise acp.RequestError(*given)
            if self.cancelled.is_set():
                return acp.PromptResponse(stop_reason="cancelled")
        return acp.PromptResponse(stop_reason="end_turn")

    async def call(self, id_: str, title: str, kind: Any, given: dict, *, asks: bool) -> None:
        await self.update(acp.start_tool_call(id_, title, kind=kind, status="pending", raw_input=given))
        if asks:
            options = [schema.PermissionOption(**one) for one in self.folder.options.get("options", OPTIONS)]
            response = await self.client.request_permission(
                session_id=ID, tool_call=schema.ToolCallUpdate(tool_call_id=id_), options=options
            )
            chosen = getattr(response.outcome, "option_id", response.outcome.outcome)
            self.folder.add("outcomes", chosen)
            if chosen not in ("yes", "always"):
                await self.update(acp.update_tool_call(id_, status="failed"))
                return
            self.folder.add("effects", id_)
        content = [acp.tool_content(acp.text_block("done"))]
        await self.update(acp.update_tool_call(id_, status="completed", content=content))


if __name__ == "__main__":
    program: Any = Program(Folder(sys.argv[1]))
    asyncio.run(acp.run_agent(program, use_unstable_protocol=True))
