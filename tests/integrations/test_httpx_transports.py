"""Transports that recover, in httpx and in httpx2, in threads and in tasks."""

from __future__ import annotations

import asyncio
import gzip
import io
import pickle
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import httpx2
import pytest
from clients_kit import Wire, anthropic_on, in_time, message, openai_on, world
from test_clients_named_limits import HOURS, Service

import holdfast.openai
from holdfast import Budget, CircuitOpenError, DeadlineError, Policy
from holdfast.events import AttemptStarted, CircuitState, Failed, Recovered
from holdfast.faults import InvalidError
from holdfast.httpx import AsyncRecoveringTransport, RecoveringTransport, RecoveryWarning

URL = "http://api.test/things"

each_library = pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])
each_world = pytest.mark.parametrize("is_async", [False, True], ids=["threads", "tasks"])


class Side:
    """The other side: answers on script, in either library's words, and keeps what it was sent."""

    def __init__(self, library: Any, *script: Any) -> None:
        self.library = library
        self.script = list(script)
        self.sent: list[tuple[str, bytes]] = []
        self.requests: list[Any] = []

    def __call__(self, request: Any) -> Any:
        self.requests.append(request)
        self.sent.append((request.method, request.read()))
        return self._answer()

    async def asynchronously(self, request: Any) -> Any:
        self.requests.append(request)
        self.sent.append((request.method, await request.aread()))
        return self._answer()

    def _answer(self) -> Any:
        line = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(line, Exception):
            raise line
        if isinstance(line, tuple):
            status, options = line
            return self.library.Response(status, **options)
        return self.library.Response(line)


def ask(side: Side, runtime: Any, *, is_async: bool, method: str = "GET", given: Any = None, **options: Any) -> Any:
    """Make one request through a recovering transport."""
    given = given or {}
    if not is_async:
        inside = side.library.MockTransport(side)
        with side.library.Client(transport=RecoveringTransport(inside, runtime=runtime, **options)) as client:
            return client.request(method, URL, **given)

    async def asking() -> Any:
        inside = side.library.MockTransport(side.asynchronously)
        transport = AsyncRecoveringTransport(inside, runtime=runtime, **options)
        async with side.library.AsyncClient(transport=transport) as client:
            return await client.request(method, URL, **given)

    return in_time(runtime, asking())


@each_library
@each_world
def test_an_outage_passes_unseen_and_one_attempt_is_one_request(library, is_async):
    side, (runtime, heard) = Side(library, 503, library.ConnectError("refused"), (200, {"text": "hi"})), world()
    assert ask(side, runtime, is_async=is_async).text == "hi"
    assert len(side.sent) == len(heard.of(AttemptStarted)) == 3
    assert len(heard.of(Recovered)) == 1


@each_library
@each_world
def test_retry_after_is_respected(library, is_async):
    side, (runtime, _) = Side(library, (429, {"headers": {"retry-after": "17"}}), 200), world()
    assert ask(side, runtime, is_async=is_async).status_code == 200
    assert runtime.clock.monotonic() == 17.0


@each_library
@each_world
def test_when_nothing_helps_the_last_answer_is_handed_on_as_it_came(library, is_async):
    page = {"text": "<h1>down</h1>", "headers": {"x-request-id": "9"}}
    side, (runtime, heard) = Side(library, (503, page)), world()
    answer = ask(side, runtime, is_async=is_async, policy=Policy(attempts=2))
    assert (answer.status_code, answer.text, answer.headers["x-request-id"]) == (503, "<h1>down</h1>", "9")
    assert (len(side.sent), len(heard.of(Failed))) == (2, 1)


@each_library
@each_world
def test_when_nothing_helps_the_librarys_own_error_surfaces(library, is_async):
    side, (runtime, _) = Side(library, library.ConnectError("refused")), world()
    with pytest.raises(library.ConnectError):
        ask(side, runtime, is_async=is_async, policy=Policy(attempts=2))
    assert len(side.sent) == 2


@each_world
@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_what_may_change_something_twice_is_sent_once(method, is_async):
    side, (runtime, _) = Side(httpx2, 503, 200), world()
    assert ask(side, runtime, is_async=is_async, method=method).status_code == 503
    assert len(side.sent) == 1


@each_world
@pytest.mark.parametrize(
    ("options", "headers"),
    [({"methods": frozenset({"post"})}, {}), ({}, {"Idempotency-Key": "order-7"})],
    ids=["methods", "key"],
)
def test_what_may_be_sent_twice_after_all_is_sent_again_with_its_body(options, headers, is_async):
    side, (runtime, _) = Side(httpx2, 503, 200), world()
    given = {"json": {"a": 1}, "headers": headers}
    assert ask(side, runtime, is_async=is_async, method="POST", given=given, **options).status_code == 200
    assert side.sent == [("POST", b'{"a":1}')] * 2


def generated() -> Iterator[bytes]:
    yield b"once"


@each_library
def test_a_body_that_is_generated_is_sent_once(library):
    side, (runtime, _) = Side(library, 503, 200), world()
    assert ask(side, runtime, is_async=False, method="PUT", given={"content": generated()}).status_code == 503
    assert side.sent == [("PUT", b"once")]


@each_library
def test_a_file_is_sent_again_if_it_can_be_rewound(library):
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    for file, sent in ((io.BytesIO(b"text"), 2), (Pipe(b"text"), 1)):
        side, (runtime, _) = Side(library, 503, 200), world()
        ask(side, runtime, is_async=False, method="PUT", given={"files": {"f": file}})
        assert len(side.sent) == sent
        assert all(b"text" in body for _, body in side.sent)


@each_world
@pytest.mark.parametrize("status", [400, 401, 404, 409, 422])
def test_an_answer_that_says_no_is_an_answer(status, is_async):
    side, (runtime, heard) = Side(httpx2, (status, {"text": "no"})), world()
    assert ask(side, runtime, is_async=is_async).text == "no"
    assert (len(side.sent), heard.of(Failed)) == (1, [])


def test_credit_that_is_used_up_is_read_from_the_body_whatever_its_encoding():
    body = gzip.compress(b'{"error": {"code": "insufficient_quota", "message": "You exceeded your current quota"}}')
    packed = {"stream": Pieces(body), "headers": {"content-encoding": "gzip", "content-type": "application/json"}}
    side, (runtime, heard) = Side(httpx2, (429, packed)), world()
    assert ask(side, runtime, is_async=False).json()["error"]["code"] == "insufficient_quota"
    assert [event.fault.code for event in heard.of(Failed)] == ["PROVIDER_BILLING"]
    assert len(side.sent) == 1


class Pieces(httpx.SyncByteStream, httpx.AsyncByteStream, httpx2.SyncByteStream, httpx2.AsyncByteStream):
    """A body in pieces that may break off."""

    def __init__(self, *pieces: bytes | Exception) -> None:
        self.pieces = pieces
        self.given = 0
        self.closed = False

    def __iter__(self) -> Iterator[bytes]:
        for piece in self.pieces:
            if isinstance(piece, Exception):
                raise piece
            self.given += 1
            yield piece

    async def __aiter__(self) -> Any:
        for piece in iter(self):
            yield piece

    def close(self) -> None:
        self.closed = True

    async def aclose(self) -> None:
        self.closed = True


LOST = httpx2.ReadError("connection reset by peer")


@each_world
def test_a_body_that_breaks_before_its_first_byte_is_asked_for_again(is_async):
    broken, whole = Pieces(LOST), Pieces(b"he", b"llo")
    side, (runtime, _) = Side(httpx2, (200, {"stream": broken}), (200, {"stream": whole})), world()
    assert ask(side, runtime, is_async=is_async).text == "hello"
    assert (len(side.sent), broken.closed, whole.closed) == (2, True, True)


@each_world
def test_a_body_that_breaks_after_its_first_byte_is_not_asked_for_again(is_async):
    broken = Pieces(b"he", LOST)
    side, (runtime, _) = Side(httpx2, (200, {"stream": broken})), world()
    with pytest.raises(httpx2.ReadError):
        ask(side, runtime, is_async=is_async)
    assert (len(side.sent), broken.closed) == (1, True)


def test_nothing_is_read_beyond_the_first_bytes_and_leaving_closes_the_body():
    pieces = Pieces(b"", b"first", b"second", b"third")
    side, (runtime, _) = Side(httpx2, (200, {"stream": pieces})), world()
    transport = RecoveringTransport(httpx2.MockTransport(side), runtime=runtime)
    with httpx2.Client(transport=transport) as client, client.stream("GET", URL) as answer:
        assert pieces.given == 2
        assert next(answer.iter_bytes()) == b"first"
        assert pieces.given == 2
    assert pieces.closed


EVENTS = {"headers": {"content-type": "text/event-stream; charset=utf-8"}}


@each_library
@each_world
def test_AK3_an_event_stream_is_handed_over_with_its_headers(is_async, library):
    """Its first event may wait for the caller's next request, as in MCP."""
    pieces = Pieces(b"data: 1\n\n")
    side, (runtime, _) = Side(library, (200, {"stream": pieces, **EVENTS})), world()

    def sync() -> None:
        transport = RecoveringTransport(library.MockTransport(side), runtime=runtime)
        with library.Client(transport=transport) as client, client.stream("GET", URL) as answer:
            assert pieces.given == 0
            assert answer.read() == b"data: 1\n\n"

    async def asynchronous() -> None:
        transport = AsyncRecoveringTransport(library.MockTransport(side.asynchronously), runtime=runtime)
        async with library.AsyncClient(transport=transport) as client, client.stream("GET", URL) as answer:
            assert pieces.given == 0
            assert await answer.aread() == b"data: 1\n\n"

    asyncio.run(asynchronous()) if is_async else sync()


def test_AK3_a_response_to_a_request_that_is_sent_once_is_not_waited_for():
    pieces = Pieces(b"first")
    side, (runtime, _) = Side(httpx2, (200, {"stream": pieces})), world()
    transport = RecoveringTransport(httpx2.MockTransport(side), runtime=runtime)
    with httpx2.Client(transport=transport) as client, client.stream("POST", URL):
        assert pieces.given == 0


@each_world
def test_AK3_who_wants_it_waits_for_the_first_event(is_async):
    broken, whole = Pieces(LOST), Pieces(b"data: 1\n\n")
    side = Side(httpx2, (200, {"stream": broken, **EVENTS}), (200, {"stream": whole, **EVENTS}))
    assert ask(side, world()[0], is_async=is_async, first_event=True).text == "data: 1\n\n"
    assert len(side.sent) == 2


def test_an_error_page_without_end_is_not_read_to_its_end():
    pieces = Pieces(*[b"x" * 300_000] * 50)
    side, (runtime, _) = Side(httpx2, (503, {"stream": pieces})), world()
    transport = RecoveringTransport(httpx2.MockTransport(side), runtime=runtime)
    with httpx2.Client(transport=transport) as client, client.stream("GET", URL) as answer:
        assert answer.status_code == 503
        assert pieces.given < 10
        assert len(answer.read()) == 50 * 300_000
    assert len(side.sent) == 1


def test_each_host_has_its_circuit_and_an_open_one_sends_nothing():
    side, (runtime, _) = Side(httpx2, 503), world()
    impatient = Policy(attempts=1, wait_for_circuit=False)
    transport = RecoveringTransport(httpx2.MockTransport(side), runtime=runtime, policy=impatient)
    with httpx2.Client(transport=transport) as client:
        while runtime.registry.get("provider:api.test")._breaker.recorded_state is CircuitState.CLOSED:
            client.get(URL)
        sent = len(side.sent)
        with pytest.raises(CircuitOpenError):
            client.get(URL)
        assert len(side.sent) == sent
        assert client.get("http://other.test/").status_code == 503


def test_a_request_in_a_thread_has_the_policys_limit_and_keeps_its_own():
    side, (runtime, _) = Side(httpx2, 200), world()
    transport = RecoveringTransport(httpx2.MockTransport(side), runtime=runtime, policy=Policy(timeout=7, deadline=20))
    seen = []
    inside = transport._inside.handle_request
    transport._inside.handle_request = lambda r: (seen.append(dict(r.extensions["timeout"])), inside(r))[1]
    with httpx2.Client(transport=transport, timeout=httpx2.Timeout(30, connect=2)) as client:
        answer = client.get(URL)
    assert seen == [{"connect": 2, "read": 7, "write": 7, "pool": 7}]
    assert answer.request.extensions["timeout"]["read"] == 30


def test_an_async_request_that_hangs_is_cut_and_made_again():
    runtime, _ = world()
    sent = []

    async def hang_once(request):
        sent.append(request)
        if len(sent) == 1:
            await asyncio.sleep(10_000)
        return httpx2.Response(200)

    async def ask_once():
        transport = AsyncRecoveringTransport(
            httpx2.MockTransport(hang_once), runtime=runtime, policy=Policy(timeout=10)
        )
        async with httpx2.AsyncClient(transport=transport, timeout=None) as client:
            return await client.get(URL)

    assert in_time(runtime, ask_once()).status_code == 200
    assert len(sent) == 2


DRIPS, HANGS = [(1.0, b"a")] * 20, [(1.0, b"a"), (HOURS, b"b")]


@each_world
@pytest.mark.parametrize(
    ("body", "policy", "seconds", "ends"),
    [
        (DRIPS, Policy(deadline=4.5), 100, 4.5),
        (HANGS, Policy(deadline=4.5), 100, 4.5),
        (DRIPS, Policy(), 4.5, 4.5),
        (HANGS, Policy(), 4.5, 4.5),
        (HANGS, Policy(timeout=4.5), 100, 5.5),
        (DRIPS, Policy(timeout=4.5), 100, 20),
    ],
)
def test_a_named_limit_holds_for_the_body_that_the_caller_reads(is_async, body, policy, seconds, ends):
    runtime, _ = world()
    service = Service(runtime.clock, (0.0, body))
    came: list[bytes] = []

    async def asking() -> None:
        transport = AsyncRecoveringTransport(service, policy=policy, runtime=runtime)
        async with httpx2.AsyncClient(transport=transport, timeout=None) as client:
            with Budget(seconds=seconds, runtime=runtime):
                async with client.stream("GET", URL) as response:
                    came.extend([part async for part in response.aiter_raw()])

    def ask_in_thread() -> None:
        transport = RecoveringTransport(service, policy=policy, runtime=runtime)
        budget, client = Budget(seconds=seconds, runtime=runtime), httpx2.Client(transport=transport, timeout=None)
        with client, budget, client.stream("GET", URL) as response:
            came.extend(response.iter_raw())

    with nullcontext() if ends == 20 else pytest.raises(httpx2.TimeoutException):
        in_time(runtime, asking()) if is_async else ask_in_thread()
    assert runtime.clock.monotonic() == pytest.approx(ends)
    assert service.requests == 1
    assert (b"".join(came) == b"a" * 20) == (ends == 20)


def test_switched_off_it_is_the_transport_inside(monkeypatch):
    monkeypatch.setenv("HOLDFAST_ENABLED", "false")
    side, (runtime, _) = Side(httpx2, 503, 200), world()
    assert ask(side, runtime, is_async=False).status_code == 503
    assert len(side.sent) == 1


# --- real sockets ---


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Any

    def do_GET(self) -> None:
        self.server.seen += 1
        if self.server.seen == 1:
            # An answer is promised and the connection dropped.
            self.send_response(200)
            self.send_header("content-length", "10")
            self.end_headers()
            self.close_connection = True
            return
        status, body = (503, b"down") if self.server.seen == 2 else (200, b"hello")
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Nothing: the tests' output is for the tests."""


@pytest.fixture
def server() -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.seen = 0
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@each_library
def test_over_real_sockets_a_dropped_connection_and_an_outage_pass_unseen(library, server):
    runtime, heard = world()
    transport = RecoveringTransport(library.HTTPTransport(), runtime=runtime)
    with library.Client(transport=transport, timeout=2) as client:
        assert client.get(f"http://127.0.0.1:{server.server_port}/").text == "hello"
    assert server.seen == len(heard.of(AttemptStarted)) == 3


# --- retries of others, and what cannot be ---


def test_it_warns_of_a_transport_that_connects_again_by_itself():
    with pytest.warns(RecoveryWarning, match="retries=3") as caught:
        RecoveringTransport(httpx2.HTTPTransport(retries=3))
    assert caught[0].filename == __file__


def test_it_warns_once_of_an_sdk_that_retries_around_it():
    runtime, _ = world()
    wire = Wire(httpx2.Response(503), httpx2.Response(503), httpx2.Response(503), message())
    sdk = anthropic_on(wire, max_retries=3)
    sdk = sdk.copy(
        http_client=httpx2.Client(transport=RecoveringTransport(httpx2.MockTransport(wire), runtime=runtime))
    )
    sdk._sleep_for_retry = lambda **_: None
    with pytest.warns(RecoveryWarning, match="max_retries=0") as caught:
        sdk.messages.create(model="m", max_tokens=1, messages=[{"role": "user", "content": "hi"}])
    assert len(caught) == 1


def test_a_recovering_client_warns_of_a_recovering_transport():
    http = httpx2.Client(transport=RecoveringTransport(httpx2.MockTransport(Wire(message()))))
    client = openai_on(Wire()).copy(http_client=http)
    with pytest.warns(RecoveryWarning, match="attempts multiply"):
        holdfast.openai.recovering(client)


@pytest.mark.parametrize("kind", [RecoveringTransport, AsyncRecoveringTransport])
def test_what_is_no_transport_is_invalid(kind):
    with pytest.raises(InvalidError, match="a transport such as"):
        kind(object())
    with pytest.raises(InvalidError, match=r"transport\.methods"):
        kind(httpx2.MockTransport(Side(httpx2, 200)), methods="POST")


@each_library
def test_a_recovering_transport_is_a_transport_of_both_libraries(library):
    assert isinstance(RecoveringTransport(library.HTTPTransport()), library.BaseTransport)
    assert isinstance(AsyncRecoveringTransport(library.AsyncHTTPTransport()), library.AsyncBaseTransport)


# --- errors of ours are errors of the library ---


@each_library
@each_world
def test_FR25_an_open_circuit_is_an_error_of_the_library(library, is_async):
    (runtime, _), side = world(), Side(library, 503)
    policy = Policy(attempts=1, wait_for_circuit=False)
    found = None
    for _ in range(20):
        try:
            ask(side, runtime, is_async=is_async, policy=policy)
        except library.HTTPError as error:
            found = error
            break
    assert isinstance(found, CircuitOpenError)
    assert isinstance(found, library.ConnectError)
    assert found.request.url == URL
    twin = pickle.loads(pickle.dumps(found))
    assert (type(twin), str(twin)) == (type(found), str(found))


@each_library
def test_FR25_a_deadline_is_a_timeout_of_the_library(library):
    runtime, _ = world()

    async def never(_):
        await asyncio.sleep(10_000)

    transport = AsyncRecoveringTransport(
        library.MockTransport(never), policy=Policy(timeout=5, deadline=5), runtime=runtime
    )

    async def get():
        async with library.AsyncClient(transport=transport) as client:
            await client.get(URL)

    with pytest.raises(library.TimeoutException) as caught:
        in_time(runtime, get())
    assert isinstance(caught.value, DeadlineError)
    assert isinstance(caught.value, TimeoutError)
