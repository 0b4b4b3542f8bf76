"""`holdfast serve`: the real command, its tokens, and how it ends."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import create_server
from typing import Any
from uuid import uuid4

import pytest
from cli_runs import environment, holdfast, running
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from holdfast.bridge.access.tls import TlsFiles
from holdfast.bridge.access.tokens import Tokens
from holdfast.bridge.settings import BridgeSettings
from holdfast.cli.bridge.serve import _made_tokens
from holdfast.cli.store.sessions import person

_LIMIT = 20.0


@contextmanager
def served(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """Start the command; yield the process, the address for clients, and the token that it showed."""
    env = environment(HOLDFAST_BRIDGE_HOME=str(folder / "home"), HOLDFAST_STORE=f"sqlite:{folder / 'work.db'}")
    command = [sys.executable, "-m", "holdfast", "serve", "--port", "0", *arguments]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with running(command, cwd=folder, env=env, **pipes) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        url = process.stdout.readline().strip()
        lines = [process.stderr.readline()]
        while "is served to" not in lines[-1]:
            lines.append(process.stderr.readline())
        shown = process.stderr.readline() if not (folder / "known").exists() else ""
        token = re.search(r"hf_device_\S+", shown)
        (folder / "known").touch()
        yield process, f"{url.replace('http', 'ws', 1)}/ws", token[0] if token else ""


async def send(socket: ClientConnection, type_: str, payload: dict[str, Any]) -> None:
    stamp = "2026-11-15T01:02:03Z"
    await socket.send(json.dumps({"type": type_, "id": str(uuid4()), "timestamp": stamp, "payload": payload}))


async def until(socket: ClientConnection, *types: str) -> dict[str, Any]:
    async with asyncio.timeout(_LIMIT):
        while True:
            message: dict[str, Any] = json.loads(await socket.recv())
            if message["type"] in types:
                return message


async def talk(url: str, token: str) -> str:
    """Say hello in a session, and return the first words of the answer."""
    async with connect(url) as socket:
        await send(socket, "auth", {"token": token, "protocol": [2]})
        await until(socket, "connection_ack")
        await send(socket, "session_start", {"session_id": "s"})
        await until(socket, "session_ready")
        await send(socket, "message", {"text": "hello"})
        return str((await until(socket, "stream_chunk"))["payload"]["text"])


def test_without_keys_a_small_agent_answers_on_the_fault_provider(tmp_path: Path) -> None:
    """It says so, shows its retry, asks before it changes something, and ends in order after SIGTERM."""

    async def talk(url: str, token: str, process: subprocess.Popen[str]) -> tuple[list[str], int]:
        seen = list[str]()
        async with connect(url) as socket:
            await send(socket, "auth", {"token": token, "protocol": [2]})
            assert (await until(socket, "connection_ack"))["payload"]["supported_agents"] == ["agent"]
            await send(socket, "session_create", {"session_id": "s"})
            await until(socket, "session_joined")
            await send(socket, "session_message", {"content": "look around"})
            while "stream_end" not in seen:
                message = await until(socket, "recovery", "tool_call", "tool_result", "tool_error", "stream_end", "ack")
                seen.append(message["type"])
            process.send_signal(signal.SIGTERM)
            try:
                await until(socket, "never")
            except ConnectionClosed as closed:
                return seen, 0 if closed.rcvd is None else closed.rcvd.code
        raise AssertionError

    with served(tmp_path) as (process, url, token):
        seen, code = asyncio.run(talk(url, token, process))
        assert process.wait(_LIMIT) == 0
    # The first thing that somebody sees of it is a tool that works.
    assert {"ack", "recovery", "tool_call", "tool_result"} <= set(seen)
    assert "tool_error" not in seen
    assert code == 4000
    assert oct((tmp_path / "home" / "tokens.json").stat().st_mode & 0o777) == "0o600"
    assert token not in (tmp_path / "home" / "tokens.json").read_text()


def test_a_function_of_yours_is_served_and_its_token_is_kept(tmp_path: Path) -> None:
    program = "async def agent(turn):\n    return f'you wrote {turn.text}'\n"
    (tmp_path / "app.py").write_text(program)

    with served(tmp_path, "app:agent") as (process, url, token):
        assert asyncio.run(talk(url, token)) == "you wrote hello"
        process.send_signal(signal.SIGINT)
        assert process.wait(_LIMIT) == 0
    with served(tmp_path, "app:agent") as (process, url, shown):
        assert not shown
        assert asyncio.run(talk(url, token)) == "you wrote hello"


@pytest.mark.parametrize("work", ["await asyncio.to_thread(time.sleep, 60)", "stubborn = asyncio.create_task(stay())"])
def test_it_ends_although_a_thread_or_a_task_of_the_agent_does_not(tmp_path: Path, work: str) -> None:
    program = f"""import asyncio, time

async def stay():
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass

async def agent(turn):
    await turn.say("working")
    {work}
    await asyncio.sleep(60)
"""
    (tmp_path / "app.py").write_text(program)

    with served(tmp_path, "app:agent") as (process, url, token):
        assert asyncio.run(talk(url, token)) == "working"
        process.send_signal(signal.SIGTERM)
        assert process.wait(_LIMIT) == 0


def test_with_the_profile_of_the_document_its_agents_keep_to_it_too(tmp_path: Path) -> None:
    program = "from holdfast.runtime import default_runtime\n\n\nasync def agent(turn):\n    return default_runtime().profile.name\n"
    (tmp_path / "app.py").write_text(program)

    with served(tmp_path, "app:agent", "--profile", "bridge") as (_, url, token):
        assert asyncio.run(talk(url, token)) == "bridge"


def test_it_prints_the_command_that_attaches_and_the_address_for_pairing(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("async def agent(turn):\n    return f'you wrote {turn.text}'\n")
    home = tmp_path / "home"
    TlsFiles(home / "tls").create(["192.168.1.5"])
    env = environment(HOLDFAST_BRIDGE_HOME=str(home), HOLDFAST_STORE=f"sqlite:{tmp_path / 'work.db'}")
    command = [sys.executable, "-m", "holdfast", "serve", "--port", "0", "app:agent"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with running(command, cwd=tmp_path, env=env, **pipes) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        url = process.stdout.readline().strip()
        lines = list[str]()
        while not lines or "in another terminal: " not in lines[-1]:
            lines.append(process.stderr.readline())
        assert "is not used, because only this machine can reach the bridge" in "".join(lines)
        typed = lines[-1].partition("in another terminal: ")[2].strip()
        script = f"echo hello | {typed.replace('holdfast', f'{sys.executable} -m holdfast', 1)}"
        done = subprocess.run(["sh", "-c", script], env=env, capture_output=True, text=True, timeout=_LIMIT, check=True)
        assert done.stdout == "you wrote hello\n"
        # The certificate that it does not use says nothing about where it is.
        paired = holdfast("pair", "--home", str(home), "--json")
        assert (json.loads(paired.stdout)["url"], json.loads(paired.stdout)["pins"]) == (url, [])
        assert "Only this machine can reach" in paired.stderr
        process.send_signal(signal.SIGTERM)
        assert process.wait(_LIMIT) == 0
    assert "No bridge runs" in holdfast("pair", "--home", str(home), "--json").stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--host", "0.0.0.0"), "there is no TLS"),
        (("nothing",), "MODULE:NAME"),
        (("json:loads",), "async def agent(turn)"),
        (("--profile", "other"), "--profile"),
        (("--tls-cert", "cert.pem"), "tls_key"),
    ],
)
def test_B90_it_does_not_start_with_settings_that_make_no_sense(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    env = {"HOLDFAST_BRIDGE_HOME": str(tmp_path / "home")}
    result = holdfast("serve", *arguments, env=env)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_port_that_is_taken_is_all_that_it_says_and_no_token_is_made_that_nobody_sees(tmp_path: Path) -> None:
    with create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        env = {"HOLDFAST_BRIDGE_HOME": str(tmp_path / "home"), "HOLDFAST_STORE": f"sqlite:{tmp_path / 'work.db'}"}
        result = holdfast("serve", "--port", port, env=env)
    assert result.exit_code != 0
    assert result.stderr.startswith("holdfast: CONN_MISCONFIGURED"), result.stderr
    assert f"cannot listen on 127.0.0.1:{port}" in result.stderr
    assert "key" not in result.stderr
    assert "hf_" not in result.stderr
    with served(tmp_path) as (_, _, token):
        assert token.startswith("hf_device_"), "the token of the first start was made, and shown to nobody"


def test_XB11_a_token_that_serve_makes_names_the_person(tmp_path: Path) -> None:
    """People read "Approved by ann@laptop", the name of the token that somebody answered with."""
    tokens = Tokens(tmp_path / "tokens.json")
    made = _made_tokens(BridgeSettings(), tokens)
    assert tokens.identify(made["device"], peer="127.0.0.1").name == person()
    assert tokens.identify(made["hook"], peer="127.0.0.1").name == f"hooks of {person()}"
