"""`CommandAgent`: a command-line agent such as Claude Code or Codex, in a process with limits, resumed where it was cut.

    from holdfast import CommandAgent

    claude = CommandAgent(["claude", "-p", "--output-format", "stream-json", "--verbose"], idle=120)
    reply = await claude.run("fix the tests")

Invariant: when `run`, `outcome` or a `stream` block ends, no process of the program is alive. A program that may have done something is
started again only if it goes on with its own conversation.
"""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, get_args

import msgspec

from holdfast import options
from holdfast.agents.command_lines import FORMS, form_of
from holdfast.agents.command_run import CommandRun
from holdfast.agents.feed import parts_of
from holdfast.agents.parts import Done
from holdfast.agents.usage_limit import OnLimit
from holdfast.faults import Err, InvalidError, Ok
from holdfast.faults.redaction import whole_characters
from holdfast.policies.circuit import BRIDGE
from holdfast.policies.policy import INTERACTIVE, Policy
from holdfast.policies.profiles import ACTOR, PROFILES
from holdfast.policies.target import Target
from holdfast.runtime.fault_of import fault_of
from holdfast.runtime.runtime import default_runtime
from holdfast.tools.command import Command

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Hashable, Mapping, Sequence

    from holdfast.agents.approval import Approval
    from holdfast.agents.approver import Granting
    from holdfast.agents.command_lines import Form, Report
    from holdfast.agents.feed import Feed
    from holdfast.agents.parts import AgentPart
    from holdfast.agents.reply import AgentReply
    from holdfast.faults import Outcome
    from holdfast.runtime.runtime import Runtime
    from holdfast.sessions.session import Session
    from holdfast.tools.command import RunOptions

__all__ = ["CommandAgent"]

Resume: TypeAlias = "Literal['auto'] | Sequence[str] | None"

_PROMPT, _SESSION = "{prompt}", "{session}"
USUAL_TOTAL = 3600.0
"""The usual limit for everything, known by identity: `total=3600.0` names one."""
_OUTPUT_CAP = 1_073_741_824
_SERVICES = {"claude": "agent-sdk", "codex": "codex"}
"""What the programs of a form depend on. Nobody knows what two others have in common, such as two scripts of one interpreter."""

# Document 004: one more attempt, after 2 s, at most 5 s. Its limits are the agent's own, not the policy's.
DEFAULT_POLICY = Policy(
    attempts=ACTOR.tries["claude-send"].attempts,
    backoff=ACTOR.tries["claude-send"].backoff,
    patience=None,
    circuit=BRIDGE,
    wait_for_circuit=False,
)


class CommandAgent:
    """A program that works on a prompt: Claude Code, Codex, or one of your own.

        claude = CommandAgent(["claude", "-p", "--output-format", "stream-json", "--verbose"])
        codex = CommandAgent(["codex", "exec", "--json"], cwd="repo")

        async with Session.open("fix-42") as session:
            reply = await claude.run("fix the tests", session=session)
            print(reply.text, reply.usd, reply.session)

    command: the program and its arguments. The prompt is written to its standard input; `"{prompt}"` as one of the arguments passes it
        there instead, where every user of the machine can read it in the list of processes.
    name: its name in circuits, events and messages; by default the program's, and each command has a circuit of its own.
    start, idle, total: seconds until the first output (30), between two outputs (300), and for everything, retries included (3600; with
        the profile `actor` 120, of a stream 300).
    form: what the program prints: `"claude"` (stream-json), `"codex"` (exec --json), `"acp"` (the Agent Client Protocol) or `"plain"`;
        `"auto"` finds it out.
    resume: arguments that let the program go on with a conversation of its own, such as `["--resume", "{session}"]`. `"auto"`: as the
        form does it. None: never, and a program that may have done something is not started a second time. A program that speaks the
        Agent Client Protocol says itself whether it can.
    if_lost: what happens if the program was cut and does not know its conversation any more: `OutcomeUnknownError` is raised, or with
        `"restart"` it begins anew, with a prompt that tells it to look first at what is done.
    policy: attempts and delays; by default two attempts, as a person waits.
    cwd, env, pass_secrets: as for `run`. The keys that Claude Code and Codex need are passed on.
    grace: seconds between SIGTERM and SIGKILL when it is stopped (5).
    on_limit: what happens at a usage limit of a plan that says when it ends. In a session the run is parked, and goes on with the program's
        conversation after that time. `"wait"` waits, `"raise"` raises, `"auto"` waits only if it ends before the deadline of the budget.
    approval, grant, expires: as for `Agent`, for the tool calls that a program asks about with the Agent Client Protocol. By default the
        mode of the session decides; without a session every call runs. The names of the tools are the protocol's kinds: read, edit,
        delete, move, search, execute, think, fetch, switch_mode, other.

    Wrong options raise `InvalidError`.
    """

    _usual: ClassVar[Policy] = DEFAULT_POLICY
    """The policy of its runs where nothing is configured. Its profile has the limits where that of the program has none."""
    _tries: ClassVar[str] = "claude-send"
    """What the profiles call its attempts and delays."""

    @options.suggests
    def __init__(
        self,
        command: Sequence[str | os.PathLike[str]],
        *,
        name: str | None = None,
        start: float | None = 30.0,
        idle: float | None = 300.0,
        total: float | None = USUAL_TOTAL,
        form: Literal["auto", "claude", "codex", "acp", "plain"] = "auto",
        resume: Resume = "auto",
        if_lost: Literal["raise", "restart"] = "raise",
        policy: Policy | None = None,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        pass_secrets: Collection[str] = (),
        grace: float = 5.0,
        on_limit: OnLimit = "auto",
        approval: Approval | None = None,
        grant: Granting | None = None,
        expires: float | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        self._argv = _argv(command)
        for option, seconds in (("start", start), ("idle", idle), ("total", total)):
            options.seconds(f"command_agent.{option}", seconds, optional=True)
        options.one_of("command_agent.form", form, ("auto", *FORMS))
        options.name("command_agent.name", name, optional=True)
        options.one_of("command_agent.if_lost", if_lost, ("raise", "restart"))
        self.if_lost = if_lost
        options.one_of("command_agent.on_limit", on_limit, get_args(OnLimit))
        self.name = name or PurePath(self._argv[0]).stem
        """Its name in circuits, events and messages."""
        self._total = total
        self.on_limit: OnLimit = on_limit
        options.seconds("command_agent.expires", expires, optional=True)
        self.approval, self.grant, self.expires = approval, grant, expires
        self.form: Form | None = form_of(self._argv) if form == "auto" else FORMS[form]
        """What the program prints; None: its first line shows it."""
        self._resume = _resume(resume, self.form)
        self.runtime = default_runtime() if runtime is None else runtime
        self.target = Target(agent=self.name, service=_SERVICES.get("" if self.form is None else self.form.name, ""))
        """What its settings are found by."""
        alone = sha256("\0".join((*self._argv, str(cwd))).encode("utf-8", "surrogatepass")).hexdigest()[:6]
        self.counted = self.target if name else msgspec.structs.replace(self.target, agent=f"{self.name}@{alone}")
        """Whose circuits count its runs."""
        self._policy = policy
        secrets = () if self.form is None else self.form.secrets
        self._options: RunOptions = {
            "start": start,
            "idle": idle,
            "grace": grace,
            "cwd": cwd,
            "env": env,
            "pass_secrets": (*pass_secrets, *secrets),
        }
        # A wrong option is found here, not when the first prompt comes.
        self.command(self._argv, "", total)

    def total(self, *, is_stream: bool) -> float | None:
        """Return the seconds for everything: as given, or as the profile of its policy has them for such agents."""
        if self._total is not USUAL_TOTAL:
            return self._total
        chosen = self._policy or self.runtime.policy_for(self.target)
        kind = "stream" if is_stream else "claude"
        limits = PROFILES[chosen.profile].timeouts
        if kind not in limits:
            return PROFILES[self._usual.profile].timeouts.get(kind, USUAL_TOTAL)
        if self._policy is None and chosen.timeout is None:
            # The first phase of a gradual introduction has no time limits yet.
            return USUAL_TOTAL
        return limits[kind]

    @property
    def policy(self) -> Policy:
        """The policy of its runs: as given, as configured for its name, or two attempts."""
        if self._policy is not None:
            return self._policy
        chosen = self.runtime.policy_for(self.target)
        if chosen is INTERACTIVE:
            return self._usual
        tries = PROFILES[chosen.profile].tries.get(self._tries)
        if tries is None or chosen.attempts is not None or chosen.backoff is not None:
            return chosen
        # The profile has numbers for such agents, and their time limits are their own.
        return chosen.replace(
            attempts=tries.attempts,
            backoff=tries.backoff,
            timeout=None,
            deadline=None,
            patience=None,
            wait_for_circuit=False,
        )

    async def run(self, prompt: str, *, session: Session | None = None) -> AgentReply:
        """Let the program work on the prompt and return its answer.

            reply = await claude.run("fix the tests")

        In a session the run is done once. If this process dies, the next call goes on with the program's own conversation, whose id is
        stored as soon as the program prints it. Without an id `OutcomeUnknownError` is raised.

        Raises `CommandError`, with the fault and all that arrived, if the program fails, answers nothing or is stopped; after a limit
        it is a `TimeoutError` too.
        """
        return await CommandRun(self, _prompt(prompt), session, None).reply()

    async def outcome(self, prompt: str, *, session: Session | None = None) -> Outcome[AgentReply]:
        """Do the same as `run`, and return `Ok` or `Err`. It raises only cancellations.

        match await claude.outcome("fix the tests"):
            case Ok(value=reply): ...
            case Err(fault=fault): print(fault.for_user())
        """
        try:
            return Ok(await self.run(prompt, session=session))
        except Exception as error:  # noqa: BLE001 - any failure is the outcome
            return Err(fault_of(error), error)

    @asynccontextmanager
    async def stream(self, prompt: str, *, session: Session | None = None) -> AsyncIterator[AsyncIterator[AgentPart]]:
        """Return the work in parts, as the program prints it. The last part is `Done`; reading raises what `run` raises.

            async with claude.stream("fix the tests") as parts:
                async for part in parts:
                    print(part)

        Leaving the block ends the program.
        """
        text = _prompt(prompt)

        async def work(feed: Feed) -> None:
            for part in feed.masked(Done(reply=await CommandRun(self, text, session, feed).reply())):
                await feed.put(part)

        async with parts_of(self.runtime, work, session) as parts:
            yield parts

    # --- for `CommandRun` ---

    @property
    def made_of(self) -> Hashable:
        """What tells it from another agent of the same name in a session."""
        return "command", self._argv

    def argv(self, prompt: str) -> tuple[str, ...]:
        """Return the command for a prompt."""
        return tuple(prompt if part == _PROMPT else part for part in self._argv)

    def resume_arguments(self, form: Form | None) -> tuple[str, ...]:
        """Return the arguments that resume a conversation; empty if it cannot be resumed."""
        if self._resume is not None:
            return self._resume
        return () if form is None else form.resume

    def can_resume(self, form: Form, report: Report) -> bool:
        """Whether the program can go on with its conversation."""
        if form.talks:
            return report.can_resume and self._resume is None
        return bool(self.resume_arguments(form))

    @property
    def folder(self) -> str:
        """The directory that the program works in, as an absolute path."""
        return os.path.abspath(self._options["cwd"] or ".")  # noqa: PTH100 - a text, and no look at the disk

    def argv_to_resume(self, form: Form | None, session: str, prompt: str) -> tuple[str, ...]:
        """Return the command that goes on with a conversation."""
        more = self.resume_arguments(form)
        base = self._argv
        if "-" in more or _PROMPT in more:
            # The added arguments say where the prompt comes from, so the first ones must not.
            base = tuple(part for part in base if part not in (_PROMPT, "-"))
        filled = {_PROMPT: prompt, _SESSION: session}
        return tuple(filled.get(part, part) for part in (*base, *more))

    def command(
        self, argv: tuple[str, ...], prompt: str | None, total: float | None, *, talks: bool = False
    ) -> Command:
        """Return the command as `run` starts it. `talks`: more than the prompt is written to it, while it runs."""
        # Without the guard, a program whose owner is killed would work on while the next owner resumes its conversation.
        given: RunOptions = {**self._options, "timeout": total, "output_cap": _OUTPUT_CAP}
        if talks:
            given["stdin"] = "pipe"
        elif prompt is not None:
            given["input"] = prompt
        return Command.of(argv, given)

    def __repr__(self) -> str:
        return f"CommandAgent({list(self._argv)!r}, name={self.name!r})"


def _argv(command: Any) -> tuple[str, ...]:
    if isinstance(command, (str, bytes)) or not command:
        raise InvalidError.at("command_agent.command", "a list such as ['claude', '-p']", command)
    if not all(isinstance(part, (str, os.PathLike)) for part in command):
        raise InvalidError.at("command_agent.command", "a list of texts", command)
    return tuple(os.fspath(part) for part in command)


def _resume(resume: Any, form: Form | None) -> tuple[str, ...] | None:
    """Return the arguments that the user gave; None: as the form does it."""
    if form is not None and form.talks and resume not in ("auto", None):
        raise InvalidError.at("command_agent.resume", f'"auto" or None with form="{form.name}"', resume)
    if resume == "auto":
        return None
    if resume is None:
        return ()
    if isinstance(resume, (str, bytes)) or not all(isinstance(part, str) for part in resume) or _SESSION not in resume:
        expected = 'arguments with the id, such as ["--resume", "{session}"], "auto" or None'
        raise InvalidError.at("command_agent.resume", expected, resume)
    return tuple(resume)


def _prompt(prompt: Any) -> str:
    if not isinstance(prompt, str) or not prompt.strip():
        raise InvalidError.at("command_agent.prompt", "a text that is not empty", prompt)
    return whole_characters(prompt)
