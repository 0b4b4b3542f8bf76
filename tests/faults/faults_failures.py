"""Real failures, made on purpose: loopback servers that misbehave, SDKs that are answered so, processes that die."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import httpx2
import openai

from holdfast.classify import from_exception
from holdfast.faults import Fault

__all__ = [
    "anthropic_answers",
    "backlog_full",
    "ended",
    "openai_answers",
    "python_exit",
    "raised_by",
    "reset",
    "serving",
    "silent",
    "unused_port",
]

BOUND_S = 5.0
"""No helper waits longer than this."""


def raised_by(call: Callable[[], object]) -> Fault:
    """The fault of what `call` raises."""
    try:
        call()
    except BaseException as error:
        return from_exception(error)
    raise AssertionError("nothing failed")


@contextlib.contextmanager
def serving(behave: Callable[[socket.socket], object]) -> Iterator[int]:
    """A loopback server that treats its one client as `behave` says; the port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(BOUND_S)

        def accept() -> None:
            with contextlib.suppress(OSError):
                client, _ = server.accept()
                with client:
                    client.settimeout(BOUND_S)
                    behave(client)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield server.getsockname()[1]
    thread.join(BOUND_S)


def silent(client: socket.socket) -> None:
    """Take the request and say nothing until the client gives up."""
    while client.recv(65_536):
        pass


def reset(client: socket.socket) -> None:
    """Take the request and drop the connection with a reset."""
    client.recv(65_536)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


def unused_port() -> int:
    """A loopback port nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@contextlib.contextmanager
def backlog_full() -> Iterator[int]:
    """A loopback port whose queue is full, so that a connection is neither taken nor refused."""
    with socket.socket() as server, contextlib.ExitStack() as waiting:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(4):
            client = waiting.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        yield server.getsockname()[1]


def ended(*command: str) -> subprocess.CompletedProcess[str]:
    """A process that really ran and ended."""
    return subprocess.run(command, capture_output=True, text=True, timeout=BOUND_S, check=False)


def python_exit(program: str) -> subprocess.CompletedProcess[str]:
    """A Python process that ran `program` and ended."""
    return ended(sys.executable, "-I", "-S", "-c", program)


def anthropic_answers(status: int, error: dict[str, Any], **headers: str) -> Fault:
    """The fault of what Anthropic's SDK raises on this answer."""
    with httpx2.Client(transport=_always(status, {"type": "error", "error": error}, headers)) as http:
        client = anthropic.Anthropic(api_key="test", max_retries=0, http_client=http)
        hello: Any = [{"role": "user", "content": "hello"}]
        return raised_by(lambda: client.messages.create(model="claude-test", max_tokens=9, messages=hello))


def openai_answers(status: int, error: dict[str, Any], **headers: str) -> Fault:
    """The fault of what OpenAI's SDK raises on this answer."""
    with httpx2.Client(transport=_always(status, {"error": error}, headers)) as http:
        client = openai.OpenAI(api_key="test", max_retries=0, http_client=http)
        hello: Any = [{"role": "user", "content": "hello"}]
        return raised_by(lambda: client.chat.completions.create(model="gpt-test", messages=hello))


def _always(status: int, body: dict[str, Any], headers: dict[str, str]) -> httpx2.MockTransport:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx2.MockTransport(lambda _: httpx2.Response(status, json=body, headers=named))
