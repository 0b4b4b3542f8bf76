"""`Setup`: what an agent is made of, checked where the agent is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import msgspec

from holdfast import options
from holdfast.agents.approval import Approval
from holdfast.agents.approver import Granting, Terms
from holdfast.agents.compaction import Compact
from holdfast.agents.decide import LEAST_OUTPUT, Bounds, Completion
from holdfast.agents.hooks import Hooks
from holdfast.agents.kind import AnyAgent
from holdfast.agents.output import Output
from holdfast.agents.usage_limit import OnLimit
from holdfast.faults import InvalidError
from holdfast.policies.models.capabilities import Needs
from holdfast.providers.messages import Effort, Request, ToolSpec
from holdfast.providers.model import Model
from holdfast.runtime.runtime import Runtime
from holdfast.tools.toolbox import Toolbox

__all__ = ["RequestOptions", "Setup"]


class RequestOptions(msgspec.Struct, frozen=True):
    """What each request of an agent asks for, besides an answer."""

    temperature: float | None = None
    thinking: Effort | int | None = None
    tool_choice: str = "auto"
    server_tools: tuple[Mapping[str, Any], ...] = ()
    caching: bool = True

    def least_output(self, most: int | None) -> int:
        """Return the tokens that the first answer may have: the given limit, or the usual one, which does not count thinking."""
        return most or LEAST_OUTPUT + (self.thinking if isinstance(self.thinking, int) else 0)

    def fields(self, *, has_called: bool) -> dict[str, Any]:
        """Return the fields of a request. `has_called`: the run has called a tool."""
        # A model that had to call a tool in each answer would never end.
        choice = "auto" if has_called and self.tool_choice != "none" else self.tool_choice
        return {
            "temperature": self.temperature,
            "thinking": self.thinking,
            "tool_choice": choice,
            "server_tools": tuple(map(dict, self.server_tools)),
            "needs": _CACHED if self.caching else Needs(),
        }


# Each request repeats the conversation, so most of its prompt can come from the provider's cache at a tenth of the price.
_CACHED = Needs(levels={"promptCaching": "probed"})


class Setup(msgspec.Struct, frozen=True):
    """What an agent is made of. It does not change."""

    name: str
    model: Model
    alternatives: tuple[Model, ...]
    toolbox: Toolbox
    agents: Mapping[str, AnyAgent]
    """The agents among the tools, by name."""
    specs: tuple[ToolSpec, ...]
    system: str
    bounds: Bounds
    output: Output | None
    compact: Compact
    hooks: tuple[Hooks, ...]
    concurrency: int
    max_output: int | None
    """None: the usual limit, which is raised for an answer that reaches it."""
    runtime: Runtime
    asked: RequestOptions = RequestOptions()
    on_limit: OnLimit = "auto"
    approval: Approval | None = None
    grant: Granting | None = None
    expires: float | None = None
    envelope: frozenset[str] | None = None
    """The tools that the present stage allows; None: all."""
    completion: Completion | None = None
    """The tool that ends the run, in a stage that has one."""
    detail: Literal["typed", "full"] = "typed"
    """What the model gets of a failed tool call."""

    @property
    def terms(self) -> Terms:
        """What decides about its tool calls."""
        return Terms(self.approval, self.grant, self.expires, self.envelope)

    def under_caller(self) -> Setup:
        """Return it as it holds where the agent runs: it is allowed no more than the agent that it works for, if there is one."""
        terms = self.terms.under_caller()
        if terms == self.terms:
            return self
        done = None if self.completion is None else self.completion.tool
        allowed = terms.envelope
        specs = [each for each in self.specs if allowed is None or each.name in allowed or each.name == done]
        return msgspec.structs.replace(self, **terms._asdict(), specs=tuple(specs))

    def __post_init__(self) -> None:
        options.tool_name("agent.name", self.name)
        options.count("agent.concurrency", self.concurrency)
        options.count("agent.max_output", self.max_output, optional=True)
        # A mistake in what requests ask for is reported here, and not with the first request.
        most = self.asked.least_output(self.max_output)
        Request(messages=(), tools=self.specs, max_output=most, **self.asked.fields(has_called=False))
        options.seconds("agent.expires", self.expires, optional=True)
        if self.approval is not None and not isinstance(self.approval, Approval):
            raise InvalidError.at("agent.approval", "an Approval", self.approval)
        if self.grant is not None and not callable(self.grant):
            raise InvalidError.at("agent.grant", "a function of the call", self.grant)
        options.one_of("agent.on_limit", self.on_limit, get_args(OnLimit))
        if not isinstance(self.system, str):
            raise InvalidError.at("agent.instructions", "a text", self.system)
        if not callable(self.compact) and self.compact is not None:
            options.one_of("agent.compact", self.compact, ("drop", "summarise"))
