"""`holdfast agent run`: work on a prompt with an agent, in a session that survives a crash.

    holdfast agent run "Which tests are slow?"
    holdfast agent run "release 4.2" --agent app:releaser --session release-42
    holdfast agent run --session release-42                 # go on where it was cut

Invariant: only the answer goes to stdout; progress, questions and the cost go to stderr or to the terminal. A run that fails or is
interrupted leaves a session that can be gone on with, and the last line says how.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.agents import (
    Agent,
    Asking,
    Compacted,
    Done,
    Parked,
    Retrying,
    Text,
    ToolCalled,
    ToolReturned,
    model_of,
    stop_on_signals,
)
from holdfast.agents.kind import is_agent
from holdfast.cli.exits import Exit
from holdfast.cli.live import live
from holdfast.cli.output import counted, fail, narrate, show_json
from holdfast.cli.store.access import existing_store, time_of
from holdfast.cli.store.history import command
from holdfast.faults import AbortedError, HoldfastError, InvalidError
from holdfast.options import suggestion
from holdfast.runtime.runtime import default_runtime
from holdfast.sessions import Session, TerminalInteractor
from holdfast.sessions.admin import find
from holdfast.sessions.manifest import decode_manifest
from holdfast.sessions.questions.question import answer_word
from holdfast.stores import open_store
from holdfast.tools import bash, edit_file, read_file, search

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from holdfast.agents import AgentPart, AgentReply, AnyAgent
    from holdfast.cli.app import AgentFlags
    from holdfast.cli.live import LiveView
    from holdfast.faults import Fault

_KEYS = {
    "anthropic": ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
    "openai": ("OPENAI_API_KEY",),
    "xai": ("XAI_API_KEY",),
}
"""The variables that hold the key of a provider."""
_MODELS = {"anthropic": "claude-sonnet", "openai": "gpt-5", "xai": "xai/grok-4"}
"""The model of each provider, if none is named. The first one with a key is used."""
_INSTRUCTIONS = "You work in the user's current directory with the tools that you have. Be brief."
REHEARSAL = "No key is set, so the fault provider answers: it fails once, calls the agent's first tool, and says what came back. `holdfast faults serve --script FILE` plays a conversation of yours. Set ANTHROPIC_API_KEY, OPENAI_API_KEY or XAI_API_KEY for a real model."
_SHOWN = 200
"""Characters of a call's arguments that a line of progress shows."""


def agent_run(*, flags: AgentFlags) -> int:
    """Run an agent, and return the exit code."""
    if not flags.prompt and not flags.session:
        raise InvalidError.saying("holdfast agent run", "a prompt, or --session with a run to go on with", "neither")
    agent = _agent_of(flags)
    with ExitStack() as stack:
        provider = ""
        if needs_keys(agent):
            stack.enter_context(rehearsal())
            provider = "fault provider"
            narrate(REHEARSAL)
        # Questions are answered at the terminal, so the live lines must not read keys from it.
        no_keys = stack.enter_context(open(os.devnull, encoding="utf-8"))  # noqa: PTH123 - it is no path of ours
        view = stack.enter_context(live(default_runtime(), keys=no_keys))
        return asyncio.run(_Run(flags, agent, view, provider).run())


class _Run:
    """One run: what is shown while it goes on, and at its end."""

    def __init__(self, flags: AgentFlags, agent: AnyAgent, view: LiveView, provider: str) -> None:
        self._flags = flags
        self._agent = agent
        self._view = view
        self._provider = provider
        self._id = flags.session or f"agent-{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"
        self._streams_text = sys.stdout.isatty() and not flags.as_json
        self._line = ""
        """The last line of the answer, as far as it is there."""

    async def run(self) -> int:
        session: Session | None = None
        # A stop by a service manager is like Ctrl-C: the session is left in order.
        with stop_on_signals():
            try:
                async with await self._session() as session:
                    reply = await self._reply(session)
            except asyncio.CancelledError:
                self._say(f"interrupted; go on with: {self._flags.again(self._id)}")
                raise
            except Exception as error:
                if session is None and isinstance(error, HoldfastError):
                    # It could not be opened: nothing has begun that one could go on with.
                    raise
                return self._failed(error, session)
        return self._answered(reply, session)

    async def _session(self) -> Session:
        flags = self._flags
        mode, allowed = flags.mode, tuple(flags.allow or ()) or None
        if flags.session is not None and not flags.prompt:
            # There is nothing to go on with in a session that does not exist: it must not be made.
            async with existing_store(flags.store) as store:
                self._id = await find(store, flags.session)
        if mode is None and flags.session is not None:
            mode = await self._stored_mode()
        mode = mode or ("allowlist" if allowed else "ask")
        interactors = []
        # Without a terminal nobody can be asked here: questions are kept, and a later run or another client answers them.
        with suppress(HoldfastError):
            interactors.append(TerminalInteractor(around=self._view.paused))
        return Session.open(
            self._id,
            store=flags.store,
            mode=mode,
            allowed_tools=allowed,
            agent_type=self._agent.name,
            on_drift="accept",
            interactors=interactors,
        )

    async def _stored_mode(self) -> str | None:
        """Return the mode that the session was started with; None for a new session."""
        async with open_store(self._flags.store) as store:
            try:
                record = await store.session(self._id)
            except HoldfastError as error:
                if error.fault.code != "SESS_NOT_FOUND":
                    raise
                return None
            return decode_manifest(self._id, bytes(record.manifest)).mode

    async def _reply(self, session: Session) -> AgentReply:
        prompt = self._flags.prompt
        if session.in_flight is not None:
            self._say(f"goes on with turn {session.in_flight} of session {self._id}")
        if prompt:
            # Each prompt is a turn: the same words for a second time are a second turn.
            async with session.turn(prompt, again=True):
                return await self._work(prompt, session)
        if session.in_flight is None:
            raise InvalidError.saying("PROMPT", f"a prompt, because nothing was cut in session {self._id}", "none")
        async with session.turn(unfinished="continue") as turn:
            return await self._work(str(turn.input), session)

    async def _work(self, prompt: str, session: Session) -> AgentReply:
        async with self._agent.stream(prompt, session=session) as parts:
            return await self._follow(parts)

    async def _follow(self, parts: AsyncIterator[AgentPart]) -> AgentReply:
        async for part in parts:
            if isinstance(part, Done):
                self._end_line()
                return part.reply
            self._show(part)
        raise AssertionError

    def _show(self, part: AgentPart) -> None:
        match part:
            case Text(text=text):
                self._show_text(text)
            case ToolCalled(name=name, arguments=arguments):
                self._end_line()
                self._say(f"→ {name}({_short(arguments)})")
            case ToolReturned(name=name, content=content, fault=fault):
                how = counted(len(content.encode()), "byte") if fault is None else fault.code
                self._say(f"← {name}: {how}")
            case Retrying(restarts_text=True):
                self._end_line()
                self._say("the answer was cut off and begins anew")
            case Compacted(before=before, after=after):
                self._say(f"the conversation was shortened from {before} to {after} messages")
            case Parked(until=until, fault=fault):
                self._say(f"{fault.for_user()} It goes on at {time_of(until)}")
            case Asking(prompt=prompt) if not sys.stderr.isatty():
                self._say(f"asks: {prompt}")
            case _:
                # Retries and fallbacks are what the live lines show.
                pass

    def _show_text(self, text: str) -> None:
        """Show the answer line by line, as it comes. Only a person wants to see it before it is whole."""
        if not self._streams_text:
            return
        *lines, self._line = (self._line + text).split("\n")
        if lines:
            self._write_answer("".join(f"{line}\n" for line in lines))

    def _end_line(self) -> None:
        line, self._line = self._line, ""
        if line:
            self._write_answer(f"{line}\n")

    def _write_answer(self, text: str) -> None:
        with self._view.paused():
            sys.stdout.write(text)
            sys.stdout.flush()

    def _say(self, text: str) -> None:
        self._view.say(text, "dim")

    def _answered(self, reply: AgentReply, session: Session) -> int:
        if self._flags.as_json:
            shown = {"schema": "holdfast.agent-run/1", "ok": True, "provider": self._provider}
            show_json(shown | msgspec.to_builtins(reply) | {"session": self._id})
        elif not self._streams_text:
            sys.stdout.write(f"{reply.text}\n")
        usage = "" if reply.usage is None else f", {counted(reply.usage.total, 'token')}"
        cost = "cost unknown" if reply.usd is None else f"{reply.usd:.4f} USD"
        # A number that is shown is true: the fault provider costs nothing.
        cost = f"nothing was paid ({cost} at list prices)" if self._provider else cost
        what = f"{counted(reply.turns, 'turn')}, {counted(reply.tool_calls, 'tool call')}{usage}, {cost}"
        self._say(f"done: {what} · {reply.model or reply.agent} · session {self._id}")
        return ended_in_doubt(session, self._flags.store)

    def _failed(self, error: Exception, session: Session | None) -> int:
        fault = default_runtime().fault_of(error)
        self._end_line()
        pending = () if session is None else session.pending
        if self._flags.as_json:
            questions = [{"id": each.id, "kind": each.kind, "prompt": each.prompt} for each in pending]
            shown = {"schema": "holdfast.agent-run/1", "ok": False, "provider": self._provider, "session": self._id}
            show_json(shown | {"fault": fault.for_audit()["fault"], "pending": questions})
        hints = [command(self._flags.store, "answer", self._id, each.id, answer_word(each.kind)) for each in pending]
        if not isinstance(error, AbortedError):
            hints.append(f"go on with: {self._flags.again(self._id)}")
        fail(f"{fault.code}  {fault.message}", *hints, *_spent(fault), f"holdfast explain {fault.code}")
        return Exit(fault.entry.exit_code)


def ended_in_doubt(session: Session, url: str | None) -> Exit:
    """Return how a run ended whose session may have open doubts: the answer does not show that nobody knows what happened."""
    if not session.unknown:
        return Exit.OK
    steps = counted(len(session.unknown), "unsafe step")
    fail(f"TOOL_OUTCOME_UNKNOWN  {steps} may have happened, and nobody knows", command(url, "show", session.id))
    return Exit.REFUSED


def _spent(fault: Fault) -> list[str]:
    """Return a line with what a run that failed has cost, where that is known."""
    payload = None if fault.partial is None else fault.partial.payload
    usd = payload.get("usd") if isinstance(payload, dict) else getattr(payload, "usd", None)
    return [f"it has cost {usd:.4f} USD so far"] if isinstance(usd, float) and usd else []


def _short(arguments: Any) -> str:
    text = msgspec.json.encode(arguments, enc_hook=str).decode()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


# --- agents and models ---


def _agent_of(flags: AgentFlags) -> AnyAgent:
    if flags.agent is None:
        return default_agent(tuple(flags.model or ()))
    if flags.model:
        raise InvalidError.saying("--model", "no --model beside --agent, whose models its program names", "both")
    found: Any = imported(flags.agent)
    if not is_agent(found) and callable(found):
        found = found()
    if not is_agent(found):
        raise InvalidError.at("--agent", "an agent, or a function that returns one", found)
    agent: AnyAgent = found
    return agent


def default_agent(models: Sequence[str] = ()) -> Agent:
    """Return the agent that works if none is named: with tools for the files and the shell here."""
    # The fault provider calls the first tool with arguments of its own. A search succeeds everywhere; reading a file that it names would not.
    tools = [search("."), read_file("."), edit_file("."), bash(".")]
    return Agent("agent", models or (_model_with_key(),), tools, instructions=_INSTRUCTIONS)


def imported(name: str, option: str = "--agent") -> Any:
    """Return what `module:name` names. `option` is how errors call it."""
    module_name, colon, path = name.partition(":")
    if not colon or not module_name or not path:
        raise InvalidError.at(option, "MODULE:NAME, such as app:agent", name)
    # As `python -m` does: the modules of the current directory are found first.
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise InvalidError.saying(option, "a module that can be imported from here", f"{name}: there is no {error.name}") from error  # fmt: skip
    found: Any = module
    for part in path.split("."):
        if not hasattr(found, part):
            agents = [key for key, value in vars(module).items() if is_agent(value)]
            hint = suggestion(part, agents) if agents else "it has no agents"
            raise InvalidError.saying(option, f"an agent in {module_name}", f"{part!r}; {hint}")
        found = getattr(found, part)
    return found


def _has_key(provider: str) -> bool:
    return any(os.environ.get(variable) for variable in _KEYS[provider])


def _model_with_key() -> str:
    return next((model for provider, model in _MODELS.items() if _has_key(provider)), _MODELS["anthropic"])


def needs_keys(agent: AnyAgent) -> bool:
    """Whether the agent's models are named, and no key for any of them is set."""
    if not isinstance(agent, Agent):
        return False
    models = getattr(agent.model, "models", (agent.model,))
    named = [model.name.partition("/")[0] for model in models if type(model) is type(model_of("claude-sonnet"))]
    return len(named) == len(models) and not any(map(_has_key, named))


@contextmanager
def rehearsal() -> Iterator[None]:
    """Let the models by name talk to the fault provider."""
    # Only a run without keys needs it, and it takes as long to load as the rest.
    from holdfast.testing.provider import Rule, Script, serve_in_thread

    before = dict(os.environ)
    with serve_in_thread(Script(replies="tools", rules=(Rule(steps="529"),))) as provider:
        os.environ.update(provider.environment)
        os.environ.update({"XAI_BASE_URL": provider.openai_url, "XAI_API_KEY": "test"})
        try:
            yield
        finally:
            for name in set(os.environ) - set(before):
                del os.environ[name]
            os.environ.update(before)
