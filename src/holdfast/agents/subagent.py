"""Agents as tools of another agent: how one is shown to a model, and what the model gets back.

Invariant: an agent that failed is a failed call, with the reason and what there was. It never looks like an answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.agents.call_result import CallResult
from holdfast.agents.tool_calls import ends_run
from holdfast.faults import Err, Fault, InvalidError, Partial
from holdfast.policies.models.usage import Usage
from holdfast.runtime.secrets import process_redactor
from holdfast.runtime.tool import ToolContract
from holdfast.tools.toolbox import Answer, Tool

if TYPE_CHECKING:
    from holdfast.agents.kind import AnyAgent
    from holdfast.agents.reply import AgentReply
    from holdfast.faults import Outcome
    from holdfast.providers.messages import ToolCall
    from holdfast.sessions.session import Session

__all__ = ["answer_of_agent", "tool_of"]


def tool_of(agent: AnyAgent) -> Tool:
    """Return the tool that a model calls to let an agent work."""

    async def work(prompt: str) -> str:
        return (await agent.run(prompt)).text

    description = getattr(agent, "description", "") or (
        f"Let the agent {agent.name} work on a task. It does not know this conversation: the prompt must say everything that it needs."
    )
    # It may be repeated: in a session its own requests and calls are steps, which are not made twice.
    return Tool(work, ToolContract(effect="idempotent", name=agent.name, description=description))


async def answer_of_agent(agent: AnyAgent, tool: Tool, call: ToolCall, session: Session | None) -> CallResult:
    """Let an agent work, and return what the model that called it gets."""
    try:
        prompt = str(tool.arguments.read(call.arguments)["prompt"])
    except InvalidError as error:
        return _failed(error.fault)
    # Each call begins a new conversation: the agents of several calls may work at the same time.
    run = getattr(agent, "outcome_anew", agent.outcome)
    ended: Outcome[AgentReply] = await run(prompt, session=session)
    if isinstance(ended, Err):
        if ends_run(ended.fault) and isinstance(ended.error, Exception):
            raise ended.error
        return _failed(_subtask_failed(agent.name, ended.fault), *_spend(ended.fault))
    reply = ended.value
    text = reply.text if reply.data is None else _json(reply.data)
    return CallResult(content=text, usage=reply.usage, usd=reply.usd, is_agent=True)


def _subtask_failed(name: str, fault: Fault) -> Fault:
    """Return the failure as the calling model sees it: why, and the text so far. The agent's own messages stay with it."""
    payload = None if fault.partial is None else fault.partial.payload
    text = payload.get("text") if isinstance(payload, dict) else payload
    # The model may see this text: an error of a provider may name hosts and accounts.
    reason = f"{fault.code}: {fault.for_model(redactor=process_redactor())['context']['message']}"
    return Fault.of(
        "TASK_SUBTASK_FAILED",
        f"The agent {name} failed: {reason}",
        context={"subtask": name, "reason": reason, "code": fault.code},
        partial=Partial(payload=text) if text else None,
        cause=fault.cause,
    )


def _spend(fault: Fault) -> tuple[Usage | None, float | None]:
    payload = None if fault.partial is None else fault.partial.payload
    if not isinstance(payload, dict):
        return None, None
    usage = payload.get("usage")
    return None if usage is None else msgspec.convert(usage, Usage), payload.get("usd")


def _failed(fault: Fault, usage: Usage | None = None, usd: float | None = None) -> CallResult:
    content = Answer.failed(fault).content
    return CallResult(content=content, is_error=True, fault=fault, usage=usage, usd=usd, is_agent=True)


def _json(value: Any) -> str:
    return value.model_dump_json() if hasattr(value, "model_dump_json") else msgspec.json.encode(value).decode()
