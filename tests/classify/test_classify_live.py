"""Real exceptions, really raised by real libraries against servers on loopback.

What a library's exception looks like changes with its version; these tests notice. No retries of the SDKs' own, no
mocks, every wait bounded to fractions of a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
import warnings
from collections.abc import Awaitable, Callable, Iterator
from concurrent import futures
from pathlib import Path
from types import ModuleType
from typing import Any

import aiohttp
import anthropic
import anyio
import botocore.exceptions
import botocore.parsers
import botocore.session
import grpc
import httpx
import httpx2
import jsonschema
import msgspec
import openai
import pydantic
import pytest
import requests
import trio
import urllib3
import websockets.sync.client
import websockets.sync.server
from botocore.config import Config
from classify_loopback import (
    HOST,
    Answer,
    answering,
    behaving,
    closed_port,
    cut_body,
    cut_chunks,
    full_backlog,
    gibberish,
    hang,
    hang_up,
    reset,
)

from holdfast.classify import from_exception
from holdfast.faults import Fault

SOON = 0.05
"""Seconds: how long a client waits for a server that will never answer."""
PATIENTLY = 5.0
"""Seconds: how long it waits for one that will."""

NETWORK = {"CONN_RESET", "PROVIDER_STREAM_CUT", "CONN_WEBSOCKET_CLOSED"}
"""A connection that was lost after something was sent. Libraries disagree on which of these it was; all are retryable
and leave it open whether the request took effect."""


def failure(call: Callable[[], Any]) -> BaseException:
    """The exception that the call raises."""
    try:
        call()
    except BaseException as error:
        return error
    pytest.fail("nothing was raised")


def time_for(behave: Callable[[socket.socket], None]) -> float:
    return SOON if behave is hang else PATIENTLY


def async_failure(call: Callable[[], Awaitable[Any]]) -> BaseException:
    async def run() -> BaseException:
        try:
            await call()
        except BaseException as error:
            return error
        pytest.fail("nothing was raised")

    return asyncio.run(run())


def classified(error: BaseException, **options: Any) -> Fault:
    """The fault, after checking what holds for every live exception: warns nobody, can be stored, keeps the original."""
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        fault = from_exception(error, **options)
    assert [str(one.message) for one in raised] == [], "classifying must not touch what is deprecated"
    assert not fault.rule.startswith("classifier-failed"), fault
    assert msgspec.json.encode(fault)
    assert fault.cause is not None
    assert fault.cause.type.endswith(type(error).__qualname__)
    return fault


# httpx, and httpx2 which is the same by another name

both_httpx = pytest.mark.parametrize("lib", [httpx, httpx2], ids=["httpx", "httpx2"])


@both_httpx
@pytest.mark.parametrize(
    ("behave", "codes"),
    [(hang, {"PROVIDER_TIMEOUT"}), (hang_up, NETWORK), (reset, NETWORK), (cut_body, {"PROVIDER_STREAM_CUT"}), (cut_chunks, {"PROVIDER_STREAM_CUT"}), (gibberish, NETWORK)],
    ids=["hang", "hang up", "reset", "cut body", "cut chunks", "gibberish"],
)  # fmt: skip
def test_httpx_a_connection_that_fails_after_sending(lib: Any, behave: Any, codes: set[str]):
    with behaving(behave) as port, lib.Client(timeout=time_for(behave), trust_env=False) as client:
        error = failure(lambda: client.post(f"http://{HOST}:{port}/", json={}))
    fault = classified(error)
    assert fault.code in codes, fault
    assert fault.retryable
    assert fault.maybe_executed


@both_httpx
def test_httpx_refused(lib: Any):
    with lib.Client(trust_env=False) as client:
        error = failure(lambda: client.get(f"http://{HOST}:{closed_port()}/"))
    fault = classified(error)
    assert (fault.code, fault.retryable, fault.maybe_executed) == ("CONN_REFUSED", True, False)


@both_httpx
def test_httpx_connect_timeout(lib: Any):
    with full_backlog() as port, lib.Client(timeout=SOON, trust_env=False) as client:
        error = failure(lambda: client.get(f"http://{HOST}:{port}/"))
    assert isinstance(error, lib.ConnectTimeout)
    fault = classified(error)
    assert (fault.code, fault.maybe_executed) == ("CONN_TIMEOUT", False)


@both_httpx
def test_httpx_pool_timeout_is_the_clients_own_fault(lib: Any):
    limits = lib.Limits(max_connections=1)
    with (
        behaving(cut_chunks) as port,
        lib.Client(limits=limits, timeout=lib.Timeout(PATIENTLY, pool=SOON), trust_env=False) as client,
        client.stream("GET", f"http://{HOST}:{port}/"),
    ):
        error = failure(lambda: client.get(f"http://{HOST}:{port}/"))
    fault = classified(error)
    assert (fault.code, fault.scope.value) == ("PROVIDER_POOL_TIMEOUT", "process")


@both_httpx
@pytest.mark.parametrize(
    ("answer", "code", "wait"),
    [
        (Answer(429, "slow down", {"retry-after": "7"}), "PROVIDER_RATE_LIMITED", 7),
        (Answer(402), "PROVIDER_BILLING", None),
        (Answer(400, '{"error": {"code": "context_length_exceeded"}}'), "PROVIDER_CONTEXT_OVERFLOW", None),
        (Answer(502, "<html><title>502 Bad Gateway</title></html>"), "PROVIDER_UNAVAILABLE", None),
    ],
)
def test_httpx_raise_for_status(lib: Any, answer: Answer, code: str, wait: float | None):
    with answering(answer) as url, lib.Client(trust_env=False) as client:
        error = failure(lambda: client.get(url).raise_for_status())
    fault = classified(error)
    assert (fault.code, fault.retry_after, fault.context["status"]) == (code, wait, answer.status)


BARE = {
    500: ("PROVIDER_INTERNAL_ERROR", True),
    501: ("PROVIDER_CAPABILITY_MISSING", False),
    502: ("PROVIDER_UNAVAILABLE", True),
    503: ("PROVIDER_UNAVAILABLE", True),
    504: ("PROVIDER_GATEWAY_TIMEOUT", True),
    507: ("PROVIDER_OUT_OF_MEMORY", None),
    520: ("PROVIDER_UNAVAILABLE", True),
    524: ("PROVIDER_GATEWAY_TIMEOUT", True),
    529: ("PROVIDER_OVERLOADED", True),
    401: ("AUTH_FAILED", False),
    404: ("PROVIDER_ENDPOINT_NOT_FOUND", False),
    408: ("PROVIDER_TIMEOUT", True),
    413: ("PROVIDER_REQUEST_TOO_LARGE", False),
}


def _session() -> requests.Session:
    one = requests.Session()
    one.trust_env = False
    return one


CLIENTS: dict[str, Callable[[], Any]] = {
    "httpx": lambda: httpx.Client(trust_env=False),
    "httpx2": lambda: httpx2.Client(trust_env=False),
    "requests": _session,
}


@pytest.mark.parametrize("library", CLIENTS)
@pytest.mark.parametrize("status", BARE)
def test_a_status_without_a_body_beats_the_words_a_library_puts_around_it(library: str, status: int):
    """`Server error '501 Not Implemented' for url …` is the library's sentence, not the server's."""
    with answering(Answer(status)) as url, CLIENTS[library]() as client:
        fault = classified(failure(client.get(url).raise_for_status))
    code, retryable = BARE[status]
    assert fault.code == code, fault
    assert retryable is None or fault.retryable is retryable


@both_httpx
def test_httpx_an_unread_stream_stays_unread(lib: Any):
    """No I/O while classifying: the body belongs to whoever opened the stream."""
    body = '{"error": {"code": "insufficient_quota"}}'
    with (
        answering(Answer(429, body, {"retry-after": "7"})) as url,
        lib.Client(trust_env=False) as client,
        client.stream("GET", url) as response,
    ):
        fault = classified(failure(response.raise_for_status))
        assert (fault.code, fault.retry_after) == ("PROVIDER_RATE_LIMITED", 7)
        assert not response.is_stream_consumed
        assert response.num_bytes_downloaded == 0
        assert response.read().decode() == body
        assert classified(failure(response.raise_for_status)).code == "PROVIDER_BILLING"


@both_httpx
@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda client, _: client.get("ftp://127.0.0.1/"), "PROVIDER_BAD_REQUEST"),
        (lambda client, _: client.get("http://[::1"), "PROVIDER_BAD_REQUEST"),
        (lambda client, url: client.get(url), "PROVIDER_MALFORMED_RESPONSE"),
    ],
    ids=["protocol", "url", "gzip"],
)
def test_httpx_requests_that_never_worked_and_answers_that_cannot_be_read(lib: Any, call: Any, code: str):
    with answering(Answer(200, b"no gzip", {"content-encoding": "gzip"})) as url, lib.Client(trust_env=False) as client:
        assert classified(failure(lambda: call(client, url))).code == code


@both_httpx
def test_httpx_misuse_is_a_defect(lib: Any):
    with answering(Answer(200, "{}")) as url:
        client = lib.Client(trust_env=False)
        client.close()
        assert classified(failure(lambda: client.get(url))).code == "SYS_PROGRAMMING_ERROR"
        with lib.Client(trust_env=False) as live, live.stream("GET", url) as response:
            assert classified(failure(lambda: response.text)).code == "SYS_PROGRAMMING_ERROR"


# requests, urllib3, urllib


@pytest.fixture
def session() -> Iterator[requests.Session]:
    with _session() as one:
        yield one


@pytest.mark.parametrize(
    ("behave", "codes"),
    [(hang, {"PROVIDER_TIMEOUT"}), (hang_up, NETWORK), (reset, NETWORK), (cut_body, {"PROVIDER_STREAM_CUT"}), (cut_chunks, {"PROVIDER_STREAM_CUT"})],
    ids=["hang", "hang up", "reset", "cut body", "cut chunks"],
)  # fmt: skip
def test_requests_a_connection_that_fails_after_sending(session: requests.Session, behave: Any, codes: set[str]):
    with behaving(behave) as port:
        fault = classified(failure(lambda: session.post(f"http://{HOST}:{port}/", json={}, timeout=time_for(behave))))
    assert fault.code in codes, fault
    assert fault.retryable


def test_requests_refused_and_connect_timeout(session: requests.Session):
    fault = classified(failure(lambda: session.get(f"http://{HOST}:{closed_port()}/")))
    assert (fault.code, fault.retryable) == ("CONN_REFUSED", True)
    with full_backlog() as port:
        assert classified(failure(lambda: session.get(f"http://{HOST}:{port}/", timeout=SOON))).code == "CONN_TIMEOUT"


@pytest.mark.parametrize(
    ("url", "code"),
    [("ftp://x/", "PROVIDER_BAD_REQUEST"), ("no-scheme", "PROVIDER_BAD_REQUEST"), ("http://", "PROVIDER_BAD_REQUEST")],
)
def test_requests_urls_that_never_worked(session: requests.Session, url: str, code: str):
    assert classified(failure(lambda: session.get(url))).code == code


def test_requests_raise_for_status_json_and_redirects(session: requests.Session):
    with answering(Answer(429, '{"error": {"code": "insufficient_quota"}}')) as url:
        assert classified(failure(session.get(url).raise_for_status)).code == "PROVIDER_BILLING"
    with answering(Answer(200, "<html>login</html>")) as url:
        assert classified(failure(session.get(url).json)).code == "PROVIDER_MALFORMED_RESPONSE"
    with answering(Answer(302, "", {"location": "/"})) as url:
        assert classified(failure(lambda: session.get(url))).code == "PROVIDER_BAD_REQUEST"


def test_requests_an_unread_stream_stays_unread(session: requests.Session):
    with answering(Answer(503, "later", {"retry-after": "3"})) as url, session.get(url, stream=True) as response:
        fault = classified(failure(response.raise_for_status))
        assert (fault.code, fault.retry_after) == ("PROVIDER_UNAVAILABLE", 3)
        assert response.raw.read() == b"later"


@pytest.mark.parametrize(
    ("behave", "codes"),
    [(hang, {"PROVIDER_TIMEOUT"}), (hang_up, NETWORK), (reset, NETWORK), (cut_body, NETWORK), (cut_chunks, NETWORK)],
    ids=["hang", "hang up", "reset", "cut body", "cut chunks"],
)
@pytest.mark.parametrize("retries", [False, 0], ids=["bare", "max retries"])
def test_urllib3_is_never_read_as_a_rate_limit(behave: Any, codes: set[str], retries: Any):
    """`Max retries exceeded with url` is urllib3's own sentence."""
    with behaving(behave) as port, urllib3.PoolManager() as pool:
        error = failure(
            lambda: pool.request("GET", f"http://{HOST}:{port}/", timeout=time_for(behave), retries=retries)
        )
    fault = classified(error)
    assert fault.code in codes, fault


def test_urllib3_refused():
    with urllib3.PoolManager() as pool:
        error = failure(lambda: pool.request("GET", f"http://{HOST}:{closed_port()}/", retries=1))
    assert isinstance(error, urllib3.exceptions.MaxRetryError)
    assert classified(error).code == "CONN_REFUSED"


def open_url(url: str, timeout: float = PATIENTLY) -> Any:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return opener.open(url, timeout=timeout)


def test_urllib_refused_and_hang_up():
    assert classified(failure(lambda: open_url(f"http://{HOST}:{closed_port()}/"))).code == "CONN_REFUSED"
    with behaving(hang_up) as port:
        assert classified(failure(lambda: open_url(f"http://{HOST}:{port}/"))).code in NETWORK
    with behaving(hang) as port:
        assert classified(failure(lambda: open_url(f"http://{HOST}:{port}/", SOON))).category.value == "timeout"


def test_urllib_an_unread_answer_stays_unread():
    with answering(Answer(429, "the body", {"retry-after": "9"})) as url:
        error = failure(lambda: open_url(url))
        assert isinstance(error, urllib.error.HTTPError)
        with error:
            fault = classified(error)
            assert (fault.code, fault.retry_after, fault.context["status"]) == ("PROVIDER_RATE_LIMITED", 9, 429)
            assert error.read() == b"the body"


# aiohttp


def aiohttp_failure(
    url: str, *, then: Callable[[aiohttp.ClientResponse], Any] | None = None, **timeouts: float
) -> BaseException:
    async def call() -> None:
        timeout = aiohttp.ClientTimeout(**timeouts) if timeouts else aiohttp.ClientTimeout(total=PATIENTLY)
        async with aiohttp.ClientSession(timeout=timeout) as client, client.get(url) as response:
            found = then(response) if then is not None else response.read()
            if asyncio.iscoroutine(found):
                await found

    return async_failure(call)


@pytest.mark.parametrize(
    ("behave", "codes"),
    [(hang_up, NETWORK), (reset, NETWORK), (cut_body, {"PROVIDER_STREAM_CUT"}), (cut_chunks, {"PROVIDER_STREAM_CUT"})],
    ids=["hang up", "reset", "cut body", "cut chunks"],
)
def test_aiohttp_a_connection_that_fails_after_sending(behave: Any, codes: set[str]):
    with behaving(behave) as port:
        fault = classified(aiohttp_failure(f"http://{HOST}:{port}/"))
    assert fault.code in codes, fault
    assert fault.retryable


def test_aiohttp_refused():
    fault = classified(aiohttp_failure(f"http://{HOST}:{closed_port()}/"))
    assert (fault.code, fault.retryable) == ("CONN_REFUSED", True)


@pytest.mark.parametrize("limit", ["total", "sock_read"])
def test_aiohttp_timeouts(limit: str):
    with behaving(hang) as port:
        fault = classified(aiohttp_failure(f"http://{HOST}:{port}/", **{limit: SOON}))
    assert fault.category.value == "timeout", fault
    assert fault.retryable


def test_aiohttp_connect_timeout():
    with full_backlog() as port:
        assert classified(aiohttp_failure(f"http://{HOST}:{port}/", sock_connect=SOON)).code == "CONN_TIMEOUT"


def test_aiohttp_raise_for_status():
    with answering(Answer(429, "", {"retry-after": "11"})) as url:
        error = aiohttp_failure(url, then=lambda response: response.raise_for_status())
    fault = from_exception(error)
    assert (fault.code, fault.retry_after) == ("PROVIDER_RATE_LIMITED", 11)


def test_aiohttp_what_is_deprecated_is_not_touched():
    """`ClientResponseError.code` warns whoever reads it; that would be our user."""
    with answering(Answer(429)) as url:
        classified(aiohttp_failure(url, then=lambda response: response.raise_for_status()))


def test_aiohttp_a_page_where_json_belongs():
    with answering(Answer(200, "<html></html>", {"content-type": "text/html"})) as url:
        error = aiohttp_failure(url, then=lambda response: response.json())
    assert from_exception(error).code == "PROVIDER_MALFORMED_RESPONSE"


def test_aiohttp_a_url_that_never_worked():
    assert classified(aiohttp_failure("no-scheme")).code == "PROVIDER_BAD_REQUEST"


# asyncio streams


def test_asyncio_a_stream_that_ends_too_early_and_a_line_that_never_ends():
    async def read(port: int, how: Callable[[asyncio.StreamReader], Awaitable[Any]]) -> Any:
        reader, writer = await asyncio.open_connection(HOST, port, limit=16)
        try:
            writer.write(b"hello")
            return await how(reader)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    with behaving(gibberish) as port:
        cut = async_failure(lambda: read(port, lambda reader: reader.readexactly(1000)))
        long = async_failure(lambda: read(port, lambda reader: reader.readuntil(b"never")))
    assert isinstance(cut, asyncio.IncompleteReadError)
    assert classified(cut).code == "PROVIDER_STREAM_CUT"
    assert isinstance(long, asyncio.LimitOverrunError)
    assert classified(long).code == "TOOL_OUTPUT_TOO_LARGE"


def test_asyncio_refused():
    assert classified(async_failure(lambda: asyncio.open_connection(HOST, closed_port()))).code == "CONN_REFUSED"


# TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for loopback, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: no certificate can be made")
    folder = tmp_path_factory.mktemp("tls")
    made, key = folder / "cert.pem", folder / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", f"subjectAltName=IP:{HOST}"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-keyout", key, "-out", made]
    subprocess.run([*command, *subject], check=True, capture_output=True, timeout=30)
    return made, key


@pytest.fixture
def tls_port(certificate: tuple[Path, Path]) -> Iterator[int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    with behaving(hang_up, wrap=lambda raw: context.wrap_socket(raw, server_side=True)) as port:
        yield port


def tls_handshake(port: int, context: ssl.SSLContext, name: str = HOST) -> None:
    with socket.create_connection((HOST, port), 5) as raw, context.wrap_socket(raw, server_hostname=name):
        pass


def assert_tls(fault: Fault) -> None:
    assert (fault.code, fault.retryable, fault.maybe_executed) == ("CONN_TLS_HANDSHAKE_FAILED", False, False), fault


def test_tls_a_self_signed_certificate_is_refused_by_every_client(tls_port: int, session: requests.Session):
    url = f"https://{HOST}:{tls_port}/"
    context = ssl.create_default_context()
    assert_tls(classified(failure(lambda: tls_handshake(tls_port, context))))
    assert_tls(classified(failure(lambda: session.get(url, timeout=5))))
    assert_tls(classified(failure(lambda: open_url(url))))
    for lib in (httpx, httpx2):
        with lib.Client(trust_env=False, verify=context) as client:
            assert_tls(classified(failure(lambda c=client: c.get(url))))
    with urllib3.PoolManager(retries=0) as pool:
        assert_tls(classified(failure(lambda: pool.request("GET", url))))
    assert_tls(classified(aiohttp_failure(url)))


def test_tls_a_certificate_for_another_name(tls_port: int, certificate: tuple[Path, Path]):
    context = ssl.create_default_context(cafile=certificate[0])
    assert_tls(classified(failure(lambda: tls_handshake(tls_port, context, "elsewhere.example"))))


def test_tls_spoken_to_a_server_that_does_not():
    with behaving(gibberish) as port:
        assert_tls(classified(failure(lambda: tls_handshake(port, ssl.create_default_context()))))


def test_tls_a_connection_cut_under_tls_is_a_reset_and_heals():
    with behaving(hang_up) as port:
        fault = classified(failure(lambda: tls_handshake(port, ssl.create_default_context())))
    assert (fault.code, fault.retryable) == ("CONN_RESET", True)


# Sockets and files


def test_socket_refused_reset_timeout_and_unknown_name():
    assert classified(failure(lambda: socket.create_connection((HOST, closed_port())))).code == "CONN_REFUSED"
    with behaving(reset) as port, socket.create_connection((HOST, port), 5) as connection:
        connection.sendall(b"x")
        assert classified(failure(lambda: connection.recv(1))).code == "CONN_RESET"
    with behaving(hang) as port, socket.create_connection((HOST, port), SOON) as connection:
        fault = classified(failure(lambda: connection.recv(1)))
        assert (fault.category.value, fault.retryable) == ("timeout", True)
    error = failure(lambda: socket.getaddrinfo("no.numeric.host", 80, flags=socket.AI_NUMERICHOST))
    assert isinstance(error, socket.gaierror)
    fault = classified(error)
    assert (fault.code, fault.scope.value) == ("CONN_DNS_FAILED", "process")


@pytest.mark.parametrize(
    ("path", "mode", "code"),
    [
        ("missing/file", "r", "TOOL_FILE_NOT_FOUND"),
        (".", "r", "TOOL_EXECUTION_FAILED"),
        ("file/below", "r", "TOOL_EXECUTION_FAILED"),
        ("file", "x", "TOOL_EXECUTION_FAILED"),
        ("n" * 5000, "r", "TOOL_INPUT_INVALID"),
    ],
)
def test_files_that_cannot_be_opened(tmp_path: Path, path: str, mode: str, code: str):
    (tmp_path / "file").write_text("")
    fault = classified(failure(lambda: (tmp_path / path).open(mode)))
    assert (fault.code, fault.retryable) == (code, False)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk():
    def write() -> None:
        with Path("/dev/full").open("wb", buffering=0) as device:
            device.write(b"x")

    assert classified(failure(write)).code == "SYS_RESOURCE_EXHAUSTED"


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs POSIX users")
def test_a_file_that_belongs_to_somebody_else_is_the_tools_and_not_the_providers(tmp_path: Path):
    """`Permission denied` on a path is no failure of a key. Root may open everything, so another user tries."""
    hidden = tmp_path / "hidden"
    hidden.write_text("")
    hidden.chmod(0)
    program = (
        "import os, sys\n"
        "from holdfast.classify import from_exception\n"
        "if os.geteuid() == 0: os.setuid(65534)\n"
        "try: open(sys.argv[1])\n"
        "except OSError as error: print(type(error).__name__, from_exception(error).code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, hidden], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout.split() == ["PermissionError", "TOOL_FORBIDDEN"]


# Processes


def run(program: str, **options: Any) -> Callable[[], Any]:
    command = [sys.executable, "-c", program]
    return lambda: subprocess.run(command, check=True, capture_output=True, timeout=options.get("timeout", 30))


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("raise SystemExit(1)", "TOOL_EXECUTION_FAILED"),
        (f"import os; os.kill(os.getpid(), {signal.SIGKILL.value})", "TOOL_KILLED"),
        (f"import os; os.kill(os.getpid(), {signal.SIGTERM.value})", "TOOL_KILLED"),
        (f"import os; os.kill(os.getpid(), {signal.SIGSEGV.value})", "TOOL_CRASHED"),
        ("raise SystemExit(127)", "TOOL_COMMAND_NOT_FOUND"),
        ("raise SystemExit(124)", "TOOL_TIMEOUT"),
    ],
    ids=["exit 1", "SIGKILL", "SIGTERM", "SIGSEGV", "exit 127", "exit 124"],
)
def test_subprocess_exits_and_signals(program: str, code: str):
    error = failure(run(program))
    assert isinstance(error, subprocess.CalledProcessError)
    fault = classified(error)
    assert (fault.code, fault.context["exit_code"]) == (code, error.returncode)


def test_subprocess_timeout_and_missing_command():
    assert classified(failure(run("while True: pass", timeout=SOON))).code == "TOOL_TIMEOUT"
    fault = classified(failure(lambda: subprocess.run(["/no/such/program"], check=True)))
    assert fault.code in ("TOOL_FILE_NOT_FOUND", "TOOL_COMMAND_NOT_FOUND")
    assert not fault.retryable


def test_a_broken_process_pool():
    with futures.ProcessPoolExecutor(1) as pool:
        broken = failure(pool.submit(os._exit, 1).result)
    assert classified(broken).code == "TOOL_CRASHED"


# gRPC


@contextlib.contextmanager
def grpc_server(status: grpc.StatusCode, details: str) -> Iterator[str]:
    def refuse(_: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(status, details)
        raise AssertionError

    handler = grpc.method_handlers_generic_handler("demo.Demo", {"Do": grpc.unary_unary_rpc_method_handler(refuse)})
    server = grpc.server(futures.ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port(f"{HOST}:0")
    server.start()
    try:
        yield f"{HOST}:{port}"
    finally:
        server.stop(0).wait(5)


def grpc_failure(target: str, timeout: float = 5) -> BaseException:
    with grpc.insecure_channel(target) as channel:
        call = channel.unary_unary("/demo.Demo/Do")
        return failure(lambda: call(b"", timeout=timeout))


@pytest.mark.parametrize(
    ("status", "details", "code"),
    [
        (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "Quota exceeded for GenerateRequestsPerDayPerProject",
            "PROVIDER_DAILY_LIMIT",
        ),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "slow down", "PROVIDER_RATE_LIMITED"),
        (grpc.StatusCode.UNAUTHENTICATED, "bad key", "AUTH_FAILED"),
        (grpc.StatusCode.PERMISSION_DENIED, "no", "AUTH_FORBIDDEN"),
        (grpc.StatusCode.INVALID_ARGUMENT, "temperature", "PROVIDER_BAD_REQUEST"),
        (grpc.StatusCode.INTERNAL, "oops", "PROVIDER_INTERNAL_ERROR"),
        (grpc.StatusCode.UNIMPLEMENTED, "no such method", "PROVIDER_CAPABILITY_MISSING"),
    ],
)
def test_grpc_statuses_of_a_live_call(status: grpc.StatusCode, details: str, code: str):
    with grpc_server(status, details) as target:
        fault = classified(grpc_failure(target))
    assert fault.code == code, fault
    assert details in fault.message


def test_grpc_nobody_listens():
    fault = classified(grpc_failure(f"{HOST}:{closed_port()}"))
    assert fault.code in ("PROVIDER_UNAVAILABLE", "CONN_REFUSED"), fault
    assert fault.retryable


def test_grpc_deadline():
    with behaving(hang) as port:
        fault = classified(grpc_failure(f"{HOST}:{port}", timeout=SOON))
    assert (fault.category.value, fault.retryable) == ("timeout", True), fault


def test_grpc_aio():
    async def call() -> None:
        async with grpc.aio.insecure_channel(f"{HOST}:{closed_port()}") as channel:
            await channel.unary_unary("/demo.Demo/Do")(b"", timeout=5)

    assert classified(async_failure(call)).retryable


# botocore


@pytest.fixture(scope="module")
def aws() -> botocore.session.Session:
    session = botocore.session.Session()
    session.set_credentials("AKIAIOSFODNN7EXAMPLE", "not-a-secret-not-a-secret")
    return session


def bedrock_failure(aws: botocore.session.Session, url: str, timeout: float = PATIENTLY) -> BaseException:
    config = Config(retries={"total_max_attempts": 1}, connect_timeout=PATIENTLY, read_timeout=timeout, proxies={})
    client = aws.create_client("bedrock-runtime", region_name="us-east-1", endpoint_url=url, config=config)
    messages = [{"role": "user", "content": [{"text": "hi"}]}]
    try:
        return failure(lambda: client.converse(modelId="demo", messages=messages))
    finally:
        client.close()


@pytest.mark.parametrize(
    ("status", "kind", "message", "code", "retryable"),
    [
        (
            429,
            "ThrottlingException",
            "Too many tokens, please wait before trying again.",
            "PROVIDER_RATE_LIMITED",
            True,
        ),
        (400, "ValidationException", "Input is too long for requested model.", "PROVIDER_CONTEXT_OVERFLOW", False),
        (403, "AccessDeniedException", "You don't have access to the model", "AUTH_FORBIDDEN", False),
        (
            403,
            "ExpiredTokenException",
            "The security token included in the request is expired",
            "AUTH_TOKEN_EXPIRED",
            False,
        ),
        (404, "ResourceNotFoundException", "no such model", "PROVIDER_MODEL_NOT_FOUND", False),
        (408, "ModelTimeoutException", "took too long", "PROVIDER_TIMEOUT", True),
        (500, "InternalServerException", "oops", "PROVIDER_INTERNAL_ERROR", True),
        (503, "ServiceUnavailableException", "busy", "PROVIDER_UNAVAILABLE", True),
    ],
)
def test_botocore_client_errors_of_a_live_call(
    aws: Any, status: int, kind: str, message: str, code: str, retryable: bool
):
    answer = Answer(status, json.dumps({"message": message}), {"x-amzn-errortype": f"{kind}:http://internal/"})
    with answering(answer) as url:
        error = bedrock_failure(aws, url)
    assert isinstance(error, botocore.exceptions.ClientError)
    fault = classified(error)
    assert (fault.code, fault.retryable) == (code, retryable), fault


def test_botocore_a_client_error_built_by_its_own_parser():
    raw = {
        "status_code": 400,
        "headers": {"x-amzn-requestid": "r-1"},
        "body": b'{"__type": "ThrottlingException", "message": "slow"}',
    }
    parsed = botocore.parsers.create_parser("json").parse(raw, None)
    fault = classified(botocore.exceptions.ClientError(parsed, "Converse"))
    assert (fault.code, fault.context["request_id"]) == ("PROVIDER_RATE_LIMITED", "r-1")


def test_botocore_refused_and_timeout(aws: Any):
    error = bedrock_failure(aws, f"http://{HOST}:{closed_port()}")
    assert isinstance(error, botocore.exceptions.EndpointConnectionError)
    fault = classified(error)
    assert (fault.code, fault.retryable) == ("CONN_REFUSED", True), fault
    with behaving(hang) as port:
        fault = classified(bedrock_failure(aws, f"http://{HOST}:{port}", SOON))
    assert (fault.code, fault.retryable) == ("PROVIDER_TIMEOUT", True), fault


def test_botocore_parameters_that_never_worked_and_missing_credentials(aws: Any):
    client = aws.create_client(
        "bedrock-runtime", region_name="us-east-1", endpoint_url=f"http://{HOST}:{closed_port()}"
    )
    assert classified(failure(lambda: client.converse(modelId=7))).code == "PROVIDER_BAD_REQUEST"
    client.close()
    assert classified(botocore.exceptions.NoCredentialsError()).code == "AUTH_FAILED"


# The Anthropic and OpenAI SDKs


def anthropic_failure(url: str, **options: Any) -> BaseException:
    def call() -> None:
        with anthropic.Anthropic(
            base_url=url, api_key="sk-ant-canary-0123456789", max_retries=0, timeout=options.pop("timeout", 5)
        ) as client:
            stream = options.get("stream", False)
            answer = client.messages.create(
                model="m", max_tokens=8, messages=[{"role": "user", "content": "hi"}], stream=stream
            )
            if stream:
                with answer:
                    list(answer)

    return failure(call)  # fmt: skip


def openai_failure(url: str, **options: Any) -> BaseException:
    def call() -> None:
        with openai.OpenAI(
            base_url=url, api_key="sk-canary-0123456789", max_retries=0, timeout=options.pop("timeout", 5)
        ) as client:
            stream = options.get("stream", False)
            answer = client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "hi"}], stream=stream
            )
            if stream:
                with answer:
                    list(answer)

    return failure(call)  # fmt: skip


SDKS = pytest.mark.parametrize(
    ("sdk", "call"), [(anthropic, anthropic_failure), (openai, openai_failure)], ids=["anthropic", "openai"]
)


def anthropic_body(kind: str, message: str) -> str:
    return json.dumps({"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"})


def openai_body(message: str, **fields: Any) -> str:
    return json.dumps({"error": {"message": message, "type": None, "param": None, "code": None, **fields}})


@pytest.mark.parametrize(
    ("answer", "code", "retryable", "wait"),
    [
        (Answer(429, anthropic_body("rate_limit_error", "exceeded your rate limit"), {"retry-after": "12"}), "PROVIDER_RATE_LIMITED", True, 12),
        (Answer(429, anthropic_body("rate_limit_error", "x"), {"retry-after": "5000"}), "PROVIDER_RATE_LIMITED", False, 5000),
        (Answer(529, anthropic_body("overloaded_error", "Overloaded"), {"x-should-retry": "true"}), "PROVIDER_OVERLOADED", True, None),
        (Answer(500, anthropic_body("api_error", "Internal server error"), {"x-should-retry": "false"}), "PROVIDER_INTERNAL_ERROR", False, None),
        (Answer(401, anthropic_body("authentication_error", "invalid x-api-key")), "AUTH_FAILED", False, None),
        (Answer(403, anthropic_body("permission_error", "no")), "AUTH_FORBIDDEN", False, None),
        (Answer(400, anthropic_body("invalid_request_error", "Your credit balance is too low to access the API")), "PROVIDER_BILLING", False, None),
        (Answer(400, anthropic_body("invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum")), "PROVIDER_CONTEXT_OVERFLOW", False, None),
        (Answer(400, anthropic_body("invalid_request_error", "messages.1: `tool_use` ids were found without `tool_result` blocks")), "PROVIDER_HISTORY_INVALID", False, None),
        (Answer(404, anthropic_body("not_found_error", "model: claude-nope")), None, False, None),
        (Answer(413, anthropic_body("request_too_large", "Request exceeds the maximum size")), "PROVIDER_REQUEST_TOO_LARGE", False, None),
        (Answer(503, "<html><title>503</title></html>", {"content-type": "text/html"}), "PROVIDER_UNAVAILABLE", True, None),
        (Answer(502, ""), "PROVIDER_UNAVAILABLE", True, None),
    ],
)  # fmt: skip
def test_anthropic_answers(answer: Answer, code: str | None, retryable: bool, wait: float | None):
    with answering(answer) as url:
        error = anthropic_failure(url)
    assert isinstance(error, anthropic.APIStatusError)
    fault = classified(error)
    assert code is None or fault.code == code, fault
    assert (fault.retryable, fault.retry_after, fault.context["provider"]) == (retryable, wait, "anthropic")


@pytest.mark.parametrize(
    ("answer", "code", "retryable", "wait"),
    [
        (Answer(429, openai_body("Rate limit reached for gpt-x: tokens per min (TPM). Please try again in 6.5s.", code="rate_limit_exceeded")), "PROVIDER_RATE_LIMITED", True, 6.5),
        (Answer(429, openai_body("x"), {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "7m12s"}), "PROVIDER_RATE_LIMITED", True, 432),
        (Answer(429, openai_body("You exceeded your current quota", code="insufficient_quota"), {"retry-after": "1"}), "PROVIDER_BILLING", False, None),
        (Answer(401, openai_body("Incorrect API key provided", code="invalid_api_key")), "AUTH_FAILED", False, None),
        (Answer(400, openai_body("too long", code="context_length_exceeded")), "PROVIDER_CONTEXT_OVERFLOW", False, None),
        (Answer(400, openai_body("flagged", code="content_policy_violation")), "PROVIDER_CONTENT_POLICY", False, None),
        (Answer(404, openai_body("The model does not exist", code="model_not_found")), "PROVIDER_MODEL_NOT_FOUND", False, None),
        (Answer(403, openai_body("Country, region, or territory not supported", code="unsupported_country_region_territory")), "AUTH_REGION_BLOCKED", False, None),
        (Answer(500, openai_body("The server had an error", type="server_error")), "PROVIDER_INTERNAL_ERROR", True, None),
        (Answer(503, openai_body("The engine is currently overloaded")), "PROVIDER_OVERLOADED", True, None),
        (Answer(409, "{}", {"x-should-retry": "true"}), "PROVIDER_UNAVAILABLE", True, None),
    ],
)  # fmt: skip
def test_openai_answers(answer: Answer, code: str, retryable: bool, wait: float | None):
    with answering(answer) as url:
        error = openai_failure(url)
    assert isinstance(error, openai.APIStatusError)
    fault = classified(error)
    assert (fault.code, fault.retryable, fault.retry_after) == (code, retryable, wait), fault
    assert fault.context["provider"] == "openai"


@SDKS
def test_R22_an_sdk_names_connection_and_its_cause_names_the_failure(sdk: ModuleType, call: Any):
    error = call(f"http://{HOST}:{closed_port()}")
    assert isinstance(error, sdk.APIConnectionError)
    fault = classified(error)
    assert (fault.code, fault.category.value, fault.retryable) == ("CONN_REFUSED", "network", True)
    with behaving(hang_up) as port:
        assert classified(call(f"http://{HOST}:{port}")).code in NETWORK


@SDKS
def test_sdk_timeouts(sdk: ModuleType, call: Any):
    with behaving(hang) as port:
        error = call(f"http://{HOST}:{port}", timeout=SOON)
    assert isinstance(error, sdk.APITimeoutError)
    fault = classified(error)
    assert (fault.code, fault.retryable, fault.maybe_executed) == ("PROVIDER_TIMEOUT", True, True)


@SDKS
def test_an_sdks_pool_timeout_does_not_count_against_the_provider(sdk: ModuleType, call: Any):
    """It surfaces as APITimeoutError (anthropic-sdk-python#552); only the cause tells."""
    lib = sys.modules[sdk.DefaultHttpxClient.__mro__[1].__module__.partition(".")[0]]
    transport = sdk.DefaultHttpxClient(limits=lib.Limits(max_connections=1), timeout=lib.Timeout(PATIENTLY, pool=SOON))
    with behaving(cut_chunks) as port, transport, transport.stream("GET", f"http://{HOST}:{port}/"):
        name = "Anthropic" if sdk is anthropic else "OpenAI"
        client = getattr(sdk, name)(
            base_url=f"http://{HOST}:{port}",
            api_key="k",
            max_retries=0,
            http_client=transport,
            timeout=transport.timeout,
        )
        error = failure(client.models.list)
    assert isinstance(error, sdk.APITimeoutError)
    assert classified(error).code == "PROVIDER_POOL_TIMEOUT"


@SDKS
def test_a_page_where_json_belongs(sdk: ModuleType, call: Any):
    with answering(Answer(200, "not json at all", {"content-type": "application/json"})) as url:
        fault = classified(call(url))
    assert (fault.category.value, fault.retryable) in (("validation", True), ("unavailable", True)), fault


SSE = {"content-type": "text/event-stream"}
ANTHROPIC_START = (
    'event: message_start\ndata: {"type":"message_start","message":{"id":"m","type":"message","role":"assistant","content":[],'
    '"model":"m","stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":1,"output_tokens":1}}}\n\n'
)


@pytest.mark.parametrize(
    ("kind", "message", "code"),
    [
        ("overloaded_error", "Overloaded", "PROVIDER_OVERLOADED"),
        ("api_error", "Internal server error", "PROVIDER_INTERNAL_ERROR"),
    ],
)
def test_R81_anthropic_an_error_event_inside_a_200_stream(kind: str, message: str, code: str):
    events = ANTHROPIC_START + f"event: error\ndata: {anthropic_body(kind, message)}\n\n"
    with answering(Answer(200, events, SSE)) as url:
        fault = classified(anthropic_failure(url, stream=True))
    assert (fault.code, fault.retryable) == (code, True), fault


@pytest.mark.parametrize(
    ("fields", "code", "retryable"),
    [
        ({"code": "server_is_overloaded", "message": "busy"}, "PROVIDER_OVERLOADED", True),
        ({"code": "insufficient_quota", "message": "check your plan"}, "PROVIDER_BILLING", False),
        ({"code": "context_length_exceeded", "message": "too long"}, "PROVIDER_CONTEXT_OVERFLOW", False),
    ],
)
def test_R81_openai_an_error_event_inside_a_200_stream(fields: dict[str, str], code: str, retryable: bool):
    with answering(Answer(200, f"data: {json.dumps({'error': fields})}\n\n", SSE)) as url:
        fault = classified(openai_failure(url, stream=True))
    assert (fault.code, fault.retryable) == (code, retryable), fault


@SDKS
def test_a_stream_that_is_cut(sdk: ModuleType, call: Any):
    def cut(connection: socket.socket) -> None:
        connection.recv(65_536)
        connection.sendall(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n2\r\n: \r\n"
        )

    with behaving(cut) as port:
        fault = classified(call(f"http://{HOST}:{port}", stream=True))
    assert fault.code in NETWORK, fault


def test_the_sdks_own_refusals_before_anything_is_sent(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert classified(failure(openai.OpenAI)).code == "AUTH_FAILED"
    with anthropic.Anthropic(api_key="k") as client:
        error = failure(lambda: client.messages.create(model="claude-opus-4-20250514", max_tokens=900_000, messages=[]))
    fault = classified(error)
    assert (fault.code, fault.retryable) == ("PROVIDER_MISSING_STREAMING", False)


@pytest.mark.parametrize(
    ("finish", "code", "retryable"),
    [("length", "PROVIDER_OUTPUT_INVALID", False), ("content_filter", "PROVIDER_CONTENT_POLICY", False)],
)
def test_openai_a_parsed_answer_that_was_cut_or_filtered(finish: str, code: str, retryable: bool):
    class Shape(pydantic.BaseModel):
        x: int

    message = {"role": "assistant", "content": '{"x": 1'}
    body = {"id": "1", "object": "chat.completion", "created": 1, "model": "m"}
    body |= {"choices": [{"index": 0, "finish_reason": finish, "message": message}]}
    with (
        answering(Answer(200, json.dumps(body))) as url,
        openai.OpenAI(base_url=url, api_key="k", max_retries=0) as client,
    ):
        error = failure(lambda: client.chat.completions.parse(model="m", messages=[], response_format=Shape))
    fault = classified(error)
    assert (fault.code, fault.retryable) == (code, retryable), fault


# Validation


def test_validation_of_three_libraries_is_the_models_to_repair():
    class Shape(pydantic.BaseModel):
        x: int

    class Struct(msgspec.Struct):
        x: int

    for call in (
        lambda: Shape.model_validate({"x": "rate limit exceeded"}),
        lambda: Shape.model_validate_json('{"x": "timeout"}'),
        lambda: msgspec.json.decode(b'{"x": "connection refused"}', type=Struct),
        lambda: jsonschema.validate({"x": "invalid api key"}, {"properties": {"x": {"type": "integer"}}}),
    ):
        fault = classified(failure(call))
        assert (fault.code, fault.category.value, fault.retryable) == ("PROVIDER_OUTPUT_INVALID", "validation", True), (
            fault
        )


def test_json_that_cannot_be_decoded():
    assert classified(failure(lambda: json.loads(""))).code == "PROVIDER_MALFORMED_RESPONSE"
    assert classified(failure(lambda: json.loads('{"a": 1,}'))).code == "PROVIDER_OUTPUT_INVALID"
    assert classified(failure(lambda: msgspec.json.decode(b'{"a": '))).category.value in ("validation", "unavailable")


# WebSockets


@contextlib.contextmanager
def closing_websocket(code: int, reason: str) -> Iterator[str]:
    def close(connection: websockets.sync.server.ServerConnection) -> None:
        if code == 1006:
            connection.socket.shutdown(socket.SHUT_RDWR)
        else:
            connection.close(code, reason)

    with websockets.sync.server.serve(close, HOST, 0) as server:
        serving = futures.ThreadPoolExecutor(1)
        serving.submit(server.serve_forever)
        try:
            yield f"ws://{HOST}:{server.socket.getsockname()[1]}"
        finally:
            server.shutdown()
            serving.shutdown()


@pytest.mark.parametrize(
    ("code", "reason", "expected", "retryable"),
    [
        (1000, "", None, True),
        (1001, "going away", None, True),
        (1006, "", "CONN_WEBSOCKET_CLOSED", True),
        (1008, "invalid token", "AUTH_FAILED", False),
        (1008, "bad message order", "PROVIDER_BAD_REQUEST", False),
        (1009, "frame too big", "PROVIDER_REQUEST_TOO_LARGE", False),
        (1011, "internal error", "CONN_WEBSOCKET_CLOSED", True),
        (1012, "restart", "CONN_WEBSOCKET_CLOSED", True),
        (1013, "try again later", "CONN_WEBSOCKET_CLOSED", True),
    ],
)
def test_websocket_close_codes(code: int, reason: str, expected: str | None, retryable: bool):
    with closing_websocket(code, reason) as url, websockets.sync.client.connect(url, proxy=None) as client:
        error = failure(lambda: client.recv(5))
    assert isinstance(error, websockets.ConnectionClosed)
    fault = from_exception(error)
    assert expected is None or fault.code == expected, fault
    assert fault.retryable is retryable


def test_websocket_what_is_deprecated_is_not_touched():
    """`ConnectionClosed.code` and `.reason` warn whoever reads them; that would be our user."""
    with closing_websocket(1011, "internal error") as url, websockets.sync.client.connect(url, proxy=None) as client:
        classified(failure(lambda: client.recv(5)))


@pytest.mark.parametrize(
    ("status", "code"), [(401, "AUTH_FAILED"), (429, "PROVIDER_RATE_LIMITED"), (503, "PROVIDER_UNAVAILABLE")]
)
def test_websocket_handshake_refused_by_status(status: int, code: str):
    with answering(Answer(status, "no")) as url:
        error = failure(lambda: websockets.sync.client.connect(url.replace("http", "ws"), proxy=None))
    assert isinstance(error, websockets.InvalidStatus)
    assert classified(error).code == code


# trio and anyio


def test_trio_cancellation_and_timeouts():
    found: list[BaseException] = []

    async def main() -> None:
        with trio.move_on_after(0):
            try:
                await trio.sleep_forever()
            except trio.Cancelled as error:
                found.append(error)
                raise
        try:
            with trio.fail_after(0):
                await trio.sleep_forever()
        except trio.TooSlowError as error:
            found.append(error)

    trio.run(main)
    cancelled, slow = (classified(error) for error in found)
    assert (cancelled.code, cancelled.retryable) == ("SYS_CANCELLED", False)
    assert (slow.code, slow.retryable) == ("SYS_TIMEOUT", True)


def test_trio_a_nursery_with_a_failed_child_and_cancelled_siblings():
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            nursery.start_soon(trio.open_tcp_stream, HOST, closed_port())

    fault = classified(failure(lambda: trio.run(main)))
    assert (fault.code, fault.retryable) == ("CONN_REFUSED", True), fault


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_anyio_cancellation_timeouts_and_streams(backend: str):
    found: dict[str, BaseException] = {}

    async def main() -> None:
        with anyio.move_on_after(0):
            try:
                await anyio.sleep_forever()
            except anyio.get_cancelled_exc_class() as error:
                found["cancelled"] = error
                raise
        try:
            with anyio.fail_after(0):
                await anyio.sleep_forever()
        except TimeoutError as error:
            found["timeout"] = error
        try:
            await anyio.connect_tcp(HOST, closed_port())
        except OSError as error:
            found["refused"] = error
        send, receive = anyio.create_memory_object_stream[int](1)
        send.close()
        try:
            await receive.receive()
        except anyio.EndOfStream as error:
            found["end"] = error
        receive.close()
        try:
            await receive.receive()
        except anyio.ClosedResourceError as error:
            found["closed"] = error

    anyio.run(main, backend=backend)
    codes = {name: classified(error).code for name, error in found.items()}
    assert codes["cancelled"] == "SYS_CANCELLED"
    assert codes["timeout"] == "SYS_TIMEOUT"
    assert codes["refused"] == "CONN_REFUSED"
    assert codes["end"] == "PROVIDER_STREAM_CUT"
    assert set(codes) == {"cancelled", "timeout", "refused", "end", "closed"}


# Nothing is imported to recognise it

LIBRARIES = [
    "httpx",
    "httpx2",
    "requests",
    "urllib3",
    "aiohttp",
    "grpc",
    "botocore",
    "anthropic",
    "openai",
    "pydantic",
    "jsonschema",
    "websockets",
    "trio",
    "anyio",
]


def test_classifying_imports_no_optional_library():
    """A fresh interpreter classifies these libraries' exceptions by name, and loads none of them to do it."""
    named = [
        ("httpx", "ConnectError", "[Errno 111] Connection refused"),
        ("httpx2", "ReadTimeout", ""),
        ("requests.exceptions", "ConnectionError", "Max retries exceeded with url: /"),
        ("urllib3.exceptions", "MaxRetryError", "Max retries exceeded"),
        ("aiohttp.client_exceptions", "ServerDisconnectedError", "Server disconnected"),
        ("grpc._channel", "_InactiveRpcError", "StatusCode.UNAVAILABLE"),
        (
            "botocore.exceptions",
            "ClientError",
            "An error occurred (ThrottlingException) when calling the Converse operation",
        ),
        ("anthropic", "RateLimitError", "Error code: 429"),
        ("openai", "APIConnectionError", "Connection error."),
        ("pydantic_core._pydantic_core", "ValidationError", "1 validation error"),
        ("jsonschema.exceptions", "ValidationError", "is not of type"),
        ("websockets.exceptions", "ConnectionClosedError", "received 1011 (internal error)"),
        ("trio", "TooSlowError", ""),
        ("anyio", "EndOfStream", ""),
    ]
    program = f"""
import sys
from holdfast.classify import from_exception, from_http, from_text
for module, name, message in {named!r}:
    live = type(name, (Exception,), {{"__module__": module}})(message)
    assert from_exception(live).rule != "nothing-matched", name
    assert from_text(f"{{module}}.{{name}}: {{message}}").rule != "nothing-matched", name
from_http(429, {{"retry-after": "3"}}, '{{"error": {{"message": "slow down"}}}}')
loaded = {{module.partition(".")[0] for module in sys.modules}}
print(sorted(loaded & {set(LIBRARIES)!r}), sorted(loaded & {{"asyncio", "logging", "email", "socket", "ssl"}}))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[] []"
