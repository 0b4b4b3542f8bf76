"""Agents: a model with tools in a loop, command-line agents, functions, and roles with their understudies.

agent          `Agent`: a model with tools in a loop; loop, decide, once: how it works and how it decides
reply, parts   what agents return, at once or in parts
kind           what every kind of agent can do
command        command-line agents: `CommandAgent(["claude", …])`
models         models by name: `model_of("claude-sonnet")`
usage_limit    usage limits that say when they end: the run waits for that, also in another process
function       any function as an agent
role, roles    an agent with understudies; the roles of a program by name
tool_calls     the tool calls of one reply, run side by side
approval       which of them may run: envelope, grant, mode; approver asks a person where none of them decides
"""

from __future__ import annotations

from holdfast._lazy import loader

# Type checkers assume that a variable of this name is true.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.agents.agent import Agent
    from holdfast.agents.approval import Approval
    from holdfast.agents.call_result import CallResult
    from holdfast.agents.command import CommandAgent
    from holdfast.agents.command_actor import ClaudeActor, CommandActor
    from holdfast.agents.command_faults import CommandError, CommandTimeoutError
    from holdfast.agents.function import FunctionAgent
    from holdfast.agents.hooks import Hooks
    from holdfast.agents.kind import AnyAgent
    from holdfast.agents.models import model_of, opened
    from holdfast.agents.parts import (
        AgentPart,
        Asking,
        Compacted,
        Done,
        FellBack,
        Parked,
        Retrying,
        Text,
        ToolCalled,
        ToolReturned,
    )
    from holdfast.agents.reply import AgentReply
    from holdfast.agents.role import Role
    from holdfast.agents.roles import Roles
    from holdfast.agents.signals import stop_on_signals
    from holdfast.agents.tool_calls import ToolCalls
    from holdfast.agents.usage_limit import OnLimit, ParkedError, Parking
    from holdfast.agents.validators import Checked, Validator

__all__ = [
    "Agent",
    "AgentPart",
    "AgentReply",
    "AnyAgent",
    "Approval",
    "Asking",
    "CallResult",
    "Checked",
    "ClaudeActor",
    "CommandActor",
    "CommandAgent",
    "CommandError",
    "CommandTimeoutError",
    "Compacted",
    "Done",
    "FellBack",
    "FunctionAgent",
    "Hooks",
    "OnLimit",
    "Parked",
    "ParkedError",
    "Parking",
    "Retrying",
    "Role",
    "Roles",
    "Text",
    "ToolCalled",
    "ToolCalls",
    "ToolReturned",
    "Validator",
    "model_of",
    "opened",
    "stop_on_signals",
]

_HOMES = dict.fromkeys(__all__, "holdfast.agents.parts") | {
    "Agent": "holdfast.agents.agent",
    "AgentReply": "holdfast.agents.reply",
    "AnyAgent": "holdfast.agents.kind",
    "ClaudeActor": "holdfast.agents.command_actor",
    "CommandActor": "holdfast.agents.command_actor",
    "CommandAgent": "holdfast.agents.command",
    "CommandError": "holdfast.agents.command_faults",
    "CommandTimeoutError": "holdfast.agents.command_faults",
    "FunctionAgent": "holdfast.agents.function",
    "Hooks": "holdfast.agents.hooks",
    "OnLimit": "holdfast.agents.usage_limit",
    "ParkedError": "holdfast.agents.usage_limit",
    "Parking": "holdfast.agents.usage_limit",
    "Role": "holdfast.agents.role",
    "Roles": "holdfast.agents.roles",
    "Approval": "holdfast.agents.approval",
    "CallResult": "holdfast.agents.call_result",
    "Checked": "holdfast.agents.validators",
    "Validator": "holdfast.agents.validators",
    "ToolCalls": "holdfast.agents.tool_calls",
    "model_of": "holdfast.agents.models",
    "opened": "holdfast.agents.models",
    "stop_on_signals": "holdfast.agents.signals",
}

__getattr__ = loader(__name__, globals(), _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
