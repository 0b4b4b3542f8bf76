"""`holdfast serve`: an agent for phones, browsers and other terminals.

    holdfast serve                      # an agent with tools for the files and the shell here, on 127.0.0.1:3000
    holdfast serve app:agent --port 4000

Invariant: a token is shown once, when it is made. The first Ctrl-C or SIGTERM ends everything in order: clients are sent away with a code that
lets them come back, and a turn that runs goes on at the next start.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
import threading
from contextlib import ExitStack
from inspect import Parameter, isasyncgenfunction, iscoroutinefunction, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.bridge.access.lockout import Lockout
from holdfast.bridge.access.tls import TlsFiles, facts_of
from holdfast.bridge.access.tokens import Tokens
from holdfast.bridge.host.link import AgentProcess, end_hosts
from holdfast.bridge.http.descriptors import raise_limit
from holdfast.bridge.server import Bridge
from holdfast.bridge.sessions.agent_runner import agent_name, check_agent
from holdfast.bridge.settings import BridgeSettings
from holdfast.cli.bridge.address import BridgeAddress
from holdfast.cli.exits import Exit
from holdfast.cli.output import narrate, show_json
from holdfast.cli.programs.agent import REHEARSAL, default_agent, imported, needs_keys, rehearsal
from holdfast.cli.store.sessions import person
from holdfast.config import load
from holdfast.faults import InvalidError
from holdfast.options import one_of
from holdfast.runtime.runtime import default_runtime

if TYPE_CHECKING:
    from holdfast.bridge.access.identity import TokenKind
    from holdfast.cli.bridge.flags import ServeFlags

_FOR: dict[TokenKind, str] = {"device": "clients", "hook": "hooks"}
"""What the tokens are for that a server on loopback makes by itself."""
_ATTACH_URL = "ws://127.0.0.1:3000/ws"
"""Where `holdfast attach` looks without `--url`."""
_SETTINGS = (
    "host",
    "port",
    "project_root",
    "tls_cert",
    "tls_key",
    "allowed_hosts",
    "allowed_origins",
    "trusted_proxies",
    "grace",
    "insecure",
)
"""The flags that are settings of the bridge."""
_LAST_S = 2.0
"""How long after its end the process may take to let go of threads and tasks."""
_DETACHED = (
    "ended; the agents go on, and end by themselves after their work (holdfast serve --end-agents ends them now)"
)


def serve(*, flags: ServeFlags) -> int:
    """Serve until a signal comes, and return the exit code."""
    if flags.end_agents:
        return _end_agents(flags.home)
    if flags.profile is not None:
        one_of("--profile", flags.profile, ("bridge",))
        # Before the program of the agent is imported. A process that only runs agents inherits it.
        os.environ["HOLDFAST_PROFILE"] = flags.profile
    models = tuple(flags.model or ())
    agent = served_agent(flags.agent, models)
    settings = _settings_of(flags)
    tokens = Tokens(settings.tokens_path, given=settings.given_tokens, lockout=Lockout(settings.lockout))
    warnings = settings.check_start(tokens.kinds)
    with ExitStack() as stack:
        if needs_keys(agent):
            stack.enter_context(rehearsal())
            warnings.append(REHEARSAL)
        agents = AgentProcess(agent=flags.agent, models=models, home=flags.home) if flags.detach_agents else None
        bridge = Bridge(agent, store=flags.store, tokens=tokens, settings=settings, agents=agents)
        return asyncio.run(_run(bridge, tokens, flags, warnings))


async def _run(bridge: Bridge, tokens: Tokens, flags: ServeFlags, warnings: list[str]) -> int:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    raise_limit()
    async with bridge.serving():
        # Not before it listens: if the port is taken, nobody would ever see a token that was made, and the error would stand below all this.
        for warning in warnings:
            narrate(warning)
        made = _made_tokens(bridge.settings, tokens)
        cert = bridge.settings.tls_cert
        address = BridgeAddress(bridge.url, None if cert is None else str(cert))
        _announce(bridge, made, address, as_json=flags.as_json)
        address.write(flags.home)
        await stopping.wait()
        address.remove(flags.home)
        narrate("ending in order")
    narrate(_DETACHED if bridge.agents is not None else "ended; turns that were cut go on at the next start")
    exit_soon()
    return Exit.OK


def exit_soon() -> None:
    """Exit although an agent has left a call in a thread, or a task that ignores its cancellation. All that has to be stored is stored."""
    last = threading.Timer(_LAST_S, os._exit, (Exit.OK,))
    last.daemon = True
    last.start()


def _end_agents(home: Path) -> int:
    ended = asyncio.run(end_hosts(home))
    narrate(
        "no agents run without a server here"
        if not ended
        else "the agents have ended; their turns go on at the next start"
    )
    return Exit.OK


def _announce(bridge: Bridge, made: dict[TokenKind, str], address: BridgeAddress, *, as_json: bool) -> None:
    if as_json:
        # Tokens are masked in JSON, as everything that looks like one. They are written to stderr, for the person who starts it.
        show_json({"schema": "holdfast.serve/1", "url": bridge.url, "ws_url": bridge.ws_url, "agent": agent_name(bridge.agent)})  # fmt: skip
    else:
        sys.stdout.write(f"{bridge.url}\n")
    sys.stdout.flush()
    narrate(f"{agent_name(bridge.agent)} is served to WebSocket clients at {bridge.ws_url}; Ctrl-C ends it")
    for kind, token in made.items():
        # `narrate` masks what looks like a secret. This is the only time that a person may see it.
        sys.stderr.write(f"the token for {_FOR[kind]}, shown once: {token}\n")
    sys.stderr.write(f"in another terminal: {_attach_command(address, made.get('device', '…'))}\n")
    sys.stderr.flush()


def _attach_command(address: BridgeAddress, token: str) -> str:
    """Return what to type in another terminal of this machine."""
    url = f"ws{address.at(address.host).removeprefix('http')}/ws"
    words = [] if url == _ATTACH_URL else ["--url", url]
    if address.cert is not None:
        facts = facts_of(Path(address.cert))
        words += ["--pin", facts.pin] if facts.is_self_signed else []
    return f"BRIDGE_TOKEN={token} holdfast attach SESSION --create {shlex.join(words)}".rstrip()


def _made_tokens(settings: BridgeSettings, tokens: Tokens) -> dict[TokenKind, str]:
    """Make the tokens that are missing, if only this machine can reach the server."""
    if not settings.is_loopback:
        return {}
    missing: list[TokenKind] = [kind for kind in _FOR if kind not in tokens.kinds]
    # The name is what people read who ask who has approved a call: the person that starts the server, and holds the token.
    names: dict[TokenKind, str] = {"device": person(), "hook": f"hooks of {person()}"}
    return {kind: tokens.create(names[kind], kind=kind).text for kind in missing}


def _settings_of(flags: ServeFlags) -> BridgeSettings:
    named = {name: getattr(flags, name) for name in _SETTINGS}
    given: dict[str, Any] = {"tokens_file": flags.home / "tokens.json"}
    for name, value in named.items():
        if not (value is None or value is False or value == []):
            given[name] = tuple(value) if isinstance(value, list) else value
    settings = BridgeSettings.from_env(file=load().bridge, profile=default_runtime().profile.name, **given)
    files = TlsFiles(flags.home / "tls")
    if settings.has_tls or not files.cert.exists():
        return settings
    if settings.is_loopback or settings.insecure:
        why = "only this machine can reach the bridge" if settings.is_loopback else "of --insecure"
        narrate(f"The certificate of `holdfast tls` is not used, because {why}. --tls-cert {files.cert} --tls-key {files.key} uses it.")  # fmt: skip
        return settings
    return settings.replace(tls_cert=files.cert, tls_key=files.key)


def served_agent(name: str | None, models: tuple[str, ...]) -> Any:
    """Return the agent `module:name`; without a name, one with tools for the files and the shell here."""
    if name is None:
        return default_agent(models)
    if models:
        raise InvalidError.saying("--model", "no --model beside an agent, whose models its program names", "both")
    found = imported(name, "MODULE:NAME")
    is_made = iscoroutinefunction(found) or isasyncgenfunction(found) or hasattr(found, "stream")
    # A plain function makes the agent. An async one is the agent.
    if callable(found) and not is_made:
        if _needs_arguments(found):
            expected = (
                "an agent, a function `async def agent(turn)`, or a function without arguments that makes an agent"
            )
            raise InvalidError.saying("MODULE:NAME", expected, f"{name}, a function that is not async")
        found = found()
    check_agent(found)
    return found


def _needs_arguments(function: Any) -> bool:
    try:
        parameters = signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    kinds = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    return any(each.default is Parameter.empty and each.kind not in kinds for each in parameters)
