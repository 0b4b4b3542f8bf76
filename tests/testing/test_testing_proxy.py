"""The fault proxy on real sockets, against a plain echo server; long waits pass in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
import struct
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from holdfast import fault_of
from holdfast.faults import InvalidError
from holdfast.testing import VirtualClock, run
from holdfast.testing.proxy import (
    Bandwidth,
    BlackHole,
    Counters,
    FaultProxy,
    HalfOpen,
    Latency,
    Limit,
    Reset,
    Slicing,
)

SOON = 0.2
"""Real seconds after which a missing event counts as missing."""


class Echo:
    """A server that sends back what it gets, and records how each connection ended."""

    def __init__(self) -> None:
        self.endings: list[str] = []
        self._ended = asyncio.Event()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = self._server.sockets[0].getsockname()[:2]
        return self

    async def __aexit__(self, *_):
        self._server.close()

    async def _serve(self, reader, writer):
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
            self.endings.append("closed")
        except ConnectionError:
            self.endings.append("reset")
        finally:
            self._ended.set()
            writer.close()

    async def ended(self) -> str:
        await asyncio.wait_for(self._ended.wait(), SOON * 5)
        return self.endings[0]


@contextlib.asynccontextmanager
async def proxied(*toxics, **options):
    async with Echo() as echo, FaultProxy(echo.address, *toxics, **options) as proxy:
        yield echo, proxy


@contextlib.asynccontextmanager
async def connected(proxy):
    reader, writer = await asyncio.open_connection(proxy.host, proxy.port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def echoed(proxy, data: bytes) -> bytes:
    """Send data, close the sending side, and read to the end."""
    async with connected(proxy) as (reader, writer):
        writer.write(data)
        writer.write_eof()
        return await reader.read()


def in_real_time(scenario):
    return lambda: asyncio.run(asyncio.wait_for(scenario(), 5))


async def nothing_comes(reader) -> bool:
    try:
        await asyncio.wait_for(reader.read(1), SOON)
    except TimeoutError:
        return True
    return False


@in_real_time
async def test_without_toxics_all_bytes_pass():
    async with proxied() as (echo, proxy):
        sent = bytes(range(256)) * 4000
        assert await echoed(proxy, sent) == sent
        assert await echo.ended() == "closed"
        counted = proxy.counters
        assert (counted.connections, counted.bytes_up, counted.bytes_down) == (1, len(sent), len(sent))
        assert (counted.resets, counted.refused) == (0, 0)


@in_real_time
async def test_it_leaves_nothing_behind():
    before = asyncio.all_tasks()
    async with proxied() as (_, proxy), connected(proxy) as (reader, writer):
        writer.write(b"x")
        assert await reader.read(1) == b"x"
        assert proxy.counters.open == 1
    async with asyncio.timeout(1):
        while asyncio.all_tasks() != before:  # noqa: ASYNC110 - the echo server's own task ends a moment later
            await asyncio.sleep(0)
    assert proxy.counters.open == 0


def virtually(*toxics, sent: bytes = b"hello") -> tuple[bytes, float]:
    clock = VirtualClock()

    async def scenario():
        async with proxied(*toxics) as (_, proxy):
            return await echoed(proxy, sent)

    return run(scenario(), clock=clock), clock.monotonic()


def test_latency_holds_for_each_direction_and_costs_no_throughput():
    answer, took = virtually(
        Latency(seconds=1, direction="up"), Latency(seconds=2, direction="down"), sent=b"x" * 300_000
    )
    assert len(answer) == 300_000
    assert took == pytest.approx(3, abs=0.01)


def test_bandwidth_in_virtual_time():
    answer, took = virtually(Bandwidth(rate=100, direction="down"))
    assert (answer, took) == (b"hello", pytest.approx(0.05))


@in_real_time
async def test_slicing_hands_over_pieces():
    async with (
        proxied(Slicing(size=2, pause=0.02, direction="down")) as (_, proxy),
        connected(proxy) as (reader, writer),
    ):
        writer.write(b"hello")
        pieces = [await reader.read(100) for _ in range(3)]
        assert pieces == [b"he", b"ll", b"o"]


@in_real_time
async def test_a_reset_after_some_bytes_reaches_both_sides():
    async with proxied(Reset(after=3, direction="down")) as (echo, proxy), connected(proxy) as (reader, writer):
        writer.write(b"hello")
        with pytest.raises(ConnectionResetError):
            while await reader.read(100):
                pass
        assert await echo.ended() == "reset"
        assert proxy.counters.resets == 1
        assert proxy.counters.bytes_down == 3


@in_real_time
async def test_a_reset_at_once_is_classified_as_a_reset():
    async with proxied("reset") as (_, proxy):
        with pytest.raises(ConnectionResetError) as caught:
            await echoed(proxy, b"hello")
        assert fault_of(caught.value).code == "CONN_RESET"


@in_real_time
async def test_a_limit_closes_normally():
    async with proxied(Limit(after=3, direction="down")) as (_, proxy), connected(proxy) as (reader, writer):
        writer.write(b"hello")
        assert await reader.read() == b"hel"
        assert proxy.counters.resets == 0


@in_real_time
async def test_a_black_hole_loses_what_falls_in_and_lets_later_bytes_pass():
    async with proxied() as (_, proxy), connected(proxy) as (reader, writer):
        with proxy.under(BlackHole(direction="up")):
            writer.write(b"lost")
            assert await nothing_comes(reader)
        writer.write(b"found")
        assert await reader.read(100) == b"found"


@in_real_time
async def test_half_open_disconnects_the_server_and_the_client_does_not_notice():
    async with proxied(HalfOpen(after=5, direction="up")) as (echo, proxy), connected(proxy) as (reader, writer):
        writer.write(b"hello")
        assert await echo.ended()
        writer.write(b"are you there?")
        await writer.drain()
        while not await nothing_comes(reader):
            pass
        assert not reader.at_eof()
        assert proxy.counters.open == 1


@in_real_time
async def test_half_open_disconnects_the_client_and_the_server_does_not_notice():
    async with proxied(HalfOpen(after=2, direction="down")) as (echo, proxy):
        async with connected(proxy) as (reader, writer):
            writer.write(b"hello")
            assert await reader.read() == b"he"
        await asyncio.sleep(0.02)
        assert echo.endings == []
        assert proxy.counters.open == 1


@in_real_time
async def test_toxics_are_switched_while_a_connection_runs():
    slow = Latency(seconds=600)
    async with proxied() as (_, proxy), connected(proxy) as (reader, writer):
        writer.write(b"a")
        assert await reader.read(1) == b"a"
        proxy.add(slow, "jitter=1")
        assert len(proxy.toxics) == 2
        writer.write(b"b")
        assert await nothing_comes(reader)
        proxy.remove(slow)
        proxy.clear()
        assert await echoed(proxy, b"c") == b"c"


@in_real_time
async def test_cut_resets_every_connection():
    async with proxied() as (_, proxy), connected(proxy) as one, connected(proxy) as two:
        for reader, writer in (one, two):
            writer.write(b"x")
            await reader.read(1)
        proxy.cut()
        for reader, _ in (one, two):
            with pytest.raises(ConnectionResetError):
                await reader.read(1)
        assert proxy.counters.resets == 2


@in_real_time
async def test_a_share_of_connections_is_the_same_with_the_same_seed():
    async def affected(seed: int) -> list[bool]:
        async with proxied("limit=0;share=0.5;direction=down", seed=seed) as (_, proxy):
            return [await echoed(proxy, b"x") == b"" for _ in range(20)]

    first = await affected(1)
    assert first == await affected(1)
    assert first != await affected(2)
    assert 0 < sum(first) < 20


@in_real_time
async def test_a_missing_server_causes_a_reset_and_is_counted():
    async with Echo() as echo:
        gone = echo.address
    async with FaultProxy(gone) as proxy:
        with pytest.raises(ConnectionResetError):
            await echoed(proxy, b"x")
        assert proxy.counters.refused == 1


def test_bad_options_raise_invalid_error():
    with pytest.raises(InvalidError, match="upstream: expected HOST:PORT"):
        FaultProxy("nowhere")
    with pytest.raises(InvalidError, match="listen: expected HOST:PORT"):
        FaultProxy("h:1", listen="here")
    with pytest.raises(InvalidError, match="seed: expected a whole number ≥ 0, got -1"):
        FaultProxy("h:1", seed=-1)
    with pytest.raises(InvalidError, match="toxics: expected a toxic such as"):
        FaultProxy("h:1", 7)
    proxy = FaultProxy("h:1")
    with pytest.raises(InvalidError, match="remove: expected a toxic that is on, got Reset"):
        proxy.remove(Reset())
    with pytest.raises(InvalidError, match="proxy: expected a proxy that runs"):
        _ = proxy.address
    assert proxy.counters == Counters()


@in_real_time
async def test_a_proxy_to_a_url_has_the_url_for_its_clients():
    async with Echo() as echo:
        host, port = echo.address
        async with FaultProxy(f"ws://{host}:{port}/ws?a=1") as proxy, connected(proxy) as (reader, writer):
            assert proxy.url == f"ws://{proxy.address}/ws?a=1"
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
    with pytest.raises(InvalidError, match=r"proxy\.url: expected a proxy to a URL"):
        _ = FaultProxy("h:1").url


# --- for blocking tests ---


class Pages(BaseHTTPRequestHandler):
    def do_GET(self):
        body = b"x" * 1000
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def pages():
    with HTTPServer(("127.0.0.1", 0), Pages) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_address[:2]
        server.shutdown()
        thread.join()


def get(proxy) -> bytes:
    connection = http.client.HTTPConnection(proxy.host, proxy.port, timeout=SOON)
    try:
        connection.request("GET", "/")
        return connection.getresponse().read()
    finally:
        connection.close()


def test_in_a_thread_an_http_client_meets_real_faults(pages):
    with FaultProxy(pages) as proxy:
        assert len(get(proxy)) == 1000
        with proxy.under(Limit(after=400, direction="down")), pytest.raises(http.client.IncompleteRead):
            get(proxy)
        with proxy.under("reset=400;direction=down"), pytest.raises(ConnectionResetError):
            get(proxy)
        with proxy.under("black-hole;direction=down"), pytest.raises(TimeoutError):
            get(proxy)
        assert len(get(proxy)) == 1000
        assert (proxy.counters.connections, proxy.counters.resets) == (5, 1)
        port = proxy.port
    assert not [thread for thread in threading.enumerate() if thread.name == "holdfast fault proxy"]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=SOON)


def test_a_proxy_that_cannot_listen_leaves_no_thread():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="address already in use"), FaultProxy("h:1", listen=taken.getsockname()):
            pass
    assert not [thread for thread in threading.enumerate() if thread.name == "holdfast fault proxy"]


def test_the_fixture_opens_proxies_that_close_with_the_test(slow_pages):
    proxy = slow_pages
    began = time.monotonic()
    assert len(get(proxy)) == 1000
    assert time.monotonic() - began >= 0.02


@pytest.fixture
def slow_pages(fault_proxy, pages):
    return fault_proxy(pages, "latency=0.02", seed=3)


@in_real_time
async def test_the_end_for_a_side_that_was_reset_meanwhile_is_no_error():
    """The proxy reads nothing from the client, because the way up is full. So it does not know of the client's reset when the server ends."""
    ends, unhandled, served = asyncio.Event(), [], []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))

    async def serve(_, writer):
        served.append(writer)
        await ends.wait()
        writer.write_eof()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, FaultProxy(server.sockets[0].getsockname()[:2], Bandwidth(rate=1, direction="up")) as proxy:
        client = socket.create_connection((proxy.host, proxy.port))
        client.setblocking(False)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        full = 0
        while full < 20:
            try:
                client.send(bytes(1_000_000))
                full = 0
            except BlockingIOError:
                full += 1
                await asyncio.sleep(0.01)
        client.close()
        ends.set()
        while proxy.counters.open:  # noqa: ASYNC110 - a link that has ended sets no event
            await asyncio.sleep(0.001)
        for writer in served:
            writer.close()
    assert unhandled == []
