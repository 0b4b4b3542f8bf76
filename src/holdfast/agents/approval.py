"""Whether a tool call may run: the allowed tools of a stage decide first, then a grant, then the mode of the session.

    the call ─▶ envelope ─▶ grant ─▶ mode ─▶ run | ask | deny

Invariant: nothing here does I/O, and the same call gets the same decision. Whoever comes first in this order wins: a mode never allows
what the envelope denies.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import msgspec

from holdfast import options
from holdfast.faults import Fault, InvalidError
from holdfast.faults.redaction import cap

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from holdfast.faults.redaction import Redactor
    from holdfast.policies.decide import Effect
    from holdfast.sessions.session import Session

__all__ = ["Approval", "Grant", "Mode", "Permission", "ProposedCall", "denied", "propose", "unknown_names"]

Mode: TypeAlias = Literal["ask", "allowlist", "yolo"]
"""What a session does with tool calls that nothing else decides: `Session.open(mode=…)`."""
Grant: TypeAlias = Literal["approve", "deny", "defer"]
"""The decision of a token for one call. `defer` denies, too: the call may be proposed again later."""
Verdict: TypeAlias = Literal["run", "ask", "deny"]

_MODES: tuple[Mode, ...] = ("ask", "allowlist", "yolo")
_PROMPT_BYTES = 16_384
"""How much of the arguments stands in the sentence of a question. Its details have them whole."""
_MOST_BYTES = 500_000
"""The most bytes of arguments that a person can be asked about: a question is one message of the bridge."""


class Permission(msgspec.Struct, frozen=True):
    """Whether a call runs, and who decided that: the `envelope`, a `grant`, or the `mode`."""

    verdict: Verdict
    by: Literal["envelope", "grant", "mode"]
    reason: str = ""
    """Why not, for the model and the audit trail."""


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """Which tool calls of an agent run, which are asked about, and which are denied.

        Approval(mode="allowlist", allowed=["read_file", "search"]).decide("bash", "unsafe").verdict    # 'deny'

    mode: `ask` asks about unsafe tools and lets the others run; `allowlist` lets the tools in `allowed` run and denies the others;
        `yolo` lets all run.
    envelope: the tools that the stage of a workflow allows; None: all. It wins over grants and over the mode.

    Wrong options raise `InvalidError`.
    """

    mode: Mode = "ask"
    allowed: AbstractSet[str] | None = None
    envelope: AbstractSet[str] | None = None

    def __post_init__(self) -> None:
        options.one_of("approval.mode", self.mode, _MODES)
        for name in ("allowed", "envelope"):
            given = getattr(self, name)
            if given is not None:
                if isinstance(given, str):
                    raise InvalidError.at(f"approval.{name}", "names of tools", given)
                msgspec.structs.force_setattr(self, name, frozenset(given))
        if (self.mode == "allowlist") != (self.allowed is not None):
            expected = 'the names of the tools with mode="allowlist", and nothing with the other modes'
            raise InvalidError.at("approval.allowed", expected, self.allowed)

    @classmethod
    def of(cls, session: Session | None, *, envelope: Iterable[str] | None = None) -> Approval:
        """Return what the mode of a session says. Without a session nobody can be asked, so every call runs."""
        within = None if envelope is None else frozenset(envelope)
        if session is None:
            return cls(mode="yolo", envelope=within)
        return cls(
            mode=msgspec.convert(session.mode, Mode),
            allowed=session.allowed_tools,
            envelope=within,
        )

    def admits(self, tool: str) -> bool:
        """Whether the envelope lets the tool be called at all. Look for a grant only then: a grant is used up by looking."""
        return self.envelope is None or tool in self.envelope

    def decide(self, tool: str, effect: Effect, grant: Grant | None = None) -> Permission:
        """Decide about a call of a tool with this effect. `grant` is the decision of a token for this call, if there is one."""
        if not self.admits(tool):
            return Permission("deny", "envelope", "the present stage does not allow this tool")
        if grant is not None:
            if grant == "approve":
                return Permission("run", "grant")
            return Permission("deny", "grant", "the grant for this call was denied" if grant == "deny" else "not now")
        if self.mode == "yolo":
            return Permission("run", "mode")
        if self.allowed is not None:
            if tool in self.allowed:
                return Permission("run", "mode")
            return Permission("deny", "mode", "the session allows only the tools of its list")
        return Permission("ask" if effect == "unsafe" else "run", "mode")


def unknown_names(allowed: Iterable[str], known: Collection[str]) -> str:
    """Return the names of a list that no tool has, each with the tool that may be meant; empty if there are none."""
    wrong = sorted(set(allowed) - set(known))
    names = sorted(known)
    return "; ".join(f"`{name}` ({options.suggestion(name, names) if names else 'it has no tools'})" for name in wrong)


class ProposedCall(NamedTuple):
    """A call as a person is asked about it. An answer holds for exactly these arguments."""

    prompt: str
    details: dict[str, Any]
    """What is stored with the question: tool, arguments, and their digest."""
    arguments: dict[str, Any]
    """A copy of the arguments. This copy runs, so nobody can change them after the question."""

    can_be_shown: bool
    """Whether the details have the arguments whole. Nobody may approve what nobody was shown."""

    @property
    def digest(self) -> str:
        """Identifies the arguments."""
        return str(self.details["digest"])


def propose(tool: str, arguments: Any, place: str, redactor: Redactor, effect: Effect | None = None) -> ProposedCall:
    """Return the question about a call. `place` tells equal calls apart, so that one answer does not count for two of them.

    effect: what the tool declares. It is shown, and is no part of what identifies the question.
    """
    written = msgspec.json.encode(arguments, order="deterministic", enc_hook=str)
    # Masked before it is cut: half a secret would not be recognised.
    whole = redactor.uncut().text(written.decode())
    shown = cap(whole, _MOST_BYTES)
    details = {"tool": tool, "arguments": shown, "digest": sha256(written).hexdigest()[:32], "call": place}
    if effect is not None:
        details["effect"] = effect
    prompt = f"Run {tool}({cap(whole, _PROMPT_BYTES)})?"
    return ProposedCall(prompt, details, msgspec.json.decode(written), shown == whole)


def denied(tool: str, reason: str) -> Fault:
    """Return the fault of a call that may not run, as the model gets it."""
    message = f"{tool} was not run: {reason}" if reason else f"{tool} was not run: the user did not allow it"
    return Fault.of("TOOL_APPROVAL_DENIED", message, context={"tool": tool, "reason": reason})
