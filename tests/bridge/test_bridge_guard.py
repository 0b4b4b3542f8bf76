"""The guard and the listener on real sockets: who is let in, how much may come, and how long it may take."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import logging

import pytest
import websockets
from http_server import serving
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Route, WebSocketRoute

from holdfast.bridge.access.guard import Guard
from holdfast.bridge.access.rates import AddressRates
from holdfast.bridge.http.responses import EXCEPTION_HANDLERS
from holdfast.bridge.settings import PROFILE_BRIDGE, BridgeSettings
from holdfast.faults import HoldfastError

SECURITY = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "x-frame-options": "DENY",
}


async def echo(request):
    return JSONResponse(
        {"size": len(await request.body()), "client": request.client.host, "scheme": request.url.scheme}
    )


async def crash(_request):
    raise RuntimeError("secret of the house")


async def ignore(_request):
    return PlainTextResponse("not read")


async def flood(_request):
    async def parts():
        while True:
            yield b"x" * 65_536
            await asyncio.sleep(0)

    return StreamingResponse(parts())


async def socket_(websocket):
    await websocket.accept()
    await websocket.send_text("hello")
    await websocket.close()


def guarded(**settings):
    routes = [
        Route("/echo", echo, methods=["GET", "POST"]),
        Route("/health", echo),
        Route("/crash", crash),
        Route("/ignore", ignore, methods=["POST"]),
        Route("/flood", flood),
        WebSocketRoute("/ws", socket_),
    ]
    reported = []
    app = Guard(
        Starlette(routes=routes, exception_handlers=EXCEPTION_HANDLERS),
        BridgeSettings(**settings),
        report=lambda fault, _: reported.append(fault.code),
    )
    app.reported = reported
    return app


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 20))


def test_a_request_that_is_right_passes_and_its_answer_has_the_security_headers():
    async def scenario():
        async with serving(guarded()) as served, served.client() as http:
            answer = await http.post("/echo", content=b"12345")
            assert answer.json()["size"] == 5
            assert SECURITY.items() <= dict(answer.headers).items()
            assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
            assert "server" not in answer.headers
            assert len(answer.headers["x-request-id"]) == 16

    run(scenario())


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "127.0.0.1@evil.example", "[::2]", ""]
)
def test_B83_a_foreign_host_is_forbidden_over_http_and_websocket(host):
    async def scenario():
        app = guarded()
        async with serving(app) as served:
            answer = await served.exchange(f"GET /echo HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            assert (answer.status, answer.json()["code"]) == (403, "AUTH_FORBIDDEN")
            assert SECURITY.items() <= answer.headers.items()
            upgrade = (
                f"GET /ws HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
            )
            assert (await served.exchange(upgrade.encode())).status == 403
        assert app.reported == ["AUTH_FORBIDDEN", "AUTH_FORBIDDEN"]

    run(scenario())


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "http://localhost.evil.com",
        "null",
        "http://127.0.0.1",
        "https://127.0.0.1:{port}",
        "http://127.0.0.1:{port}.evil.com",
        "http://evil@127.0.0.1:{port}",
        "http://localhost:{port}",
    ],
)
def test_B83_a_foreign_origin_is_forbidden_before_the_upgrade_also_on_loopback(origin):
    async def scenario():
        async with serving(guarded()) as served:
            given = origin.format(port=served.port)
            with pytest.raises(websockets.exceptions.InvalidStatus) as caught:
                await websockets.connect(f"ws://{served.host}/ws", origin=given, proxy=None)
            assert caught.value.response.status_code == 403
            async with served.client() as http:
                answer = await http.post("/echo", headers={"origin": given})
                assert (answer.status_code, answer.json()["error"]) == (403, "Forbidden")
                assert "access-control-allow-origin" not in answer.headers

    run(scenario())


def test_the_bridge_s_own_page_and_programs_without_an_origin_are_let_in():
    async def scenario():
        async with serving(guarded()) as served:
            for origin in (None, f"http://{served.host}"):
                async with websockets.connect(f"ws://{served.host}/ws", origin=origin, proxy=None) as connection:
                    assert await connection.recv() == "hello"

    run(scenario())


def test_B91_a_preflight_gets_no_permission_unless_its_origin_is_listed():
    async def scenario():
        listed = "https://page.example"
        async with serving(guarded(allowed_origins=(listed,))) as served, served.client() as http:
            asks = {"access-control-request-method": "POST"}
            refused = await http.options("/echo", headers={"origin": "https://evil.example", **asks})
            assert refused.status_code == 403
            assert not [name for name in refused.headers if name.startswith("access-control")]
            allowed = await http.options("/echo", headers={"origin": listed, **asks})
            assert (allowed.status_code, allowed.headers["access-control-allow-origin"]) == (204, listed)
            assert (await http.get("/echo", headers={"origin": listed})).headers["vary"] == "origin"

    run(scenario())


def test_an_unknown_path_and_an_unknown_method_are_errors_of_our_form():
    async def scenario():
        async with serving(guarded()) as served, served.client() as http:
            unknown = await http.get("/nope")
            assert (unknown.status_code, unknown.json()["error"]) == (404, "NotFound")
            wrong = await http.get("/ignore")
            assert (wrong.status_code, wrong.json()["error"], wrong.headers["allow"]) == (
                405,
                "MethodNotAllowed",
                "POST",
            )

    run(scenario())


def test_a_request_that_another_site_caused_is_forbidden_and_a_link_is_not():
    async def scenario():
        async with serving(guarded()) as served, served.client() as http:
            for site in ("cross-site", "same-site"):
                assert (await http.get("/echo", headers={"sec-fetch-site": site})).status_code == 403
            link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
            assert (await http.get("/echo", headers=link)).status_code == 200
            assert (await http.post("/echo", headers=link)).status_code == 403
            assert (await http.get("/echo", headers={"sec-fetch-site": "same-origin"})).status_code == 200

    run(scenario())


def test_a_header_that_decides_must_not_come_twice():
    async def scenario():
        async with serving(guarded()) as served:
            twice = f"GET /echo HTTP/1.1\r\nHost: {served.host}\r\nHost: evil.example\r\n\r\n".encode()
            assert (await served.exchange(twice)).status == 400

    run(scenario())


def test_forwarded_headers_are_believed_of_listed_proxies_only():
    claims = {"x-forwarded-for": "6.6.6.6, 203.0.113.7, 127.0.0.1", "x-forwarded-proto": "https"}

    async def scenario():
        async with serving(guarded()) as served, served.client() as http:
            seen = (await http.get("/echo", headers=claims)).json()
            assert (seen["client"], seen["scheme"]) == ("127.0.0.1", "http")
        async with serving(guarded(trusted_proxies=("127.0.0.0/8",))) as served, served.client() as http:
            seen = (await http.get("/echo", headers=claims)).json()
            assert (seen["client"], seen["scheme"]) == ("203.0.113.7", "https")

    run(scenario())


def test_B77_a_body_over_the_limit_is_413_by_its_length_and_by_what_comes():
    async def scenario():
        async with serving(guarded(max_body=10_000)) as served, served.client() as http:
            assert (await http.post("/echo", content=b"x" * 10_000)).json()["size"] == 10_000
            answer = await http.post("/echo", content=b"x" * 10_485_760)
            assert (answer.status_code, answer.json()["code"]) == (413, "PROTO_MESSAGE_TOO_LARGE")
            assert answer.json()["error"] == "ContentTooLarge"

            async def pieces():
                for _ in range(20):
                    yield b"x" * 1_000

            assert (await http.post("/echo", content=pieces())).status_code == 413
            assert (await http.post("/ignore", content=pieces())).status_code == 200

    run(scenario())


def test_B77_a_gzip_bomb_is_413_and_a_small_gzip_body_is_read():
    async def scenario():
        async with serving(guarded()) as served, served.client() as http:
            zipped = {"content-encoding": "gzip"}
            assert (await http.post("/echo", content=gzip.compress(b"x" * 999), headers=zipped)).json()["size"] == 999
            bomb = gzip.compress(bytes(20_000_000), 1)
            assert len(bomb) < 100_000
            answer = await http.post("/echo", content=bomb, headers=zipped)
            assert (answer.status_code, answer.json()["code"]) == (413, "PROTO_MESSAGE_TOO_LARGE")
            assert (await http.post("/echo", content=b"no gzip", headers=zipped)).status_code == 400
            brotli = await http.post("/echo", content=b"x", headers={"content-encoding": "br"})
            assert (brotli.status_code, brotli.json()["error"]) == (415, "UnsupportedMediaType")

    run(scenario())


def test_B77_a_chunked_body_without_end_is_answered_and_closed_after_its_time():
    async def scenario():
        async with serving(guarded(body_timeout=0.1)) as served:
            head = f"POST /echo HTTP/1.1\r\nHost: {served.host}\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
            answer = await served.exchange(head.encode())
            assert (answer.status, answer.headers["connection"]) == (408, "close")
            assert answer.json()["error"] == "RequestTimeout"

    run(scenario())


def test_a_get_with_a_body_is_400():
    async def scenario():
        async with serving(guarded()) as served:
            request = f"GET /echo HTTP/1.1\r\nHost: {served.host}\r\nContent-Length: 5\r\n\r\nhello"
            assert (await served.exchange(request.encode())).status == 400

    run(scenario())


def test_N0_15_requests_beyond_the_rate_are_429_with_the_time_to_wait():
    now = [0.0]

    async def scenario():
        app = guarded(info_per_minute=3)
        app._monotonic = lambda: now[0]
        async with serving(app) as served, served.client() as http:
            statuses = [(await http.get("/health")).status_code for _ in range(4)]
            assert statuses == [200] * 3 + [429]
            answer = await http.get("/api/v1/health")
            assert (answer.status_code, answer.headers["retry-after"]) == (429, "20")
            assert {"code": "CONN_RATE_LIMITED", "retry_after": 20.0}.items() <= answer.json().items()
            assert (await http.get("/echo")).status_code == 200
            now[0] = 20.0
            assert (await http.get("/health")).status_code == 200

    run(scenario())


@pytest.mark.parametrize(
    ("path", "most"),
    [
        ("/health", 60),
        ("/info", 60),
        ("/hooks/event", 120),
        ("/hooks/batch", 10),
        ("/sessions/s-1", 30),
        ("/files/a/b", 60),
    ],
)
def test_N0_15_the_rates_of_profile_bridge(path, most):
    guard = Guard(None, BridgeSettings(**PROFILE_BRIDGE), monotonic=lambda: 0.0)
    scope = {"type": "http", "method": "GET", "path": path, "scheme": "http", "client": ("10.1.1.1", 1)}
    scope["headers"] = [(b"host", b"localhost")]
    for _ in range(most):
        guard._admitted(scope)
    with pytest.raises(HoldfastError) as caught:
        guard._admitted(scope)
    assert (caught.value.fault.code, caught.value.fault.retry_after) == ("CONN_RATE_LIMITED", 60 / most)


def test_rates_are_by_address_bounded_and_by_network_for_ipv6():
    rates = AddressRates({"": 1}, most=3)
    assert [rates.wait("", address, 0.0) for address in ("10.0.0.1", "10.0.0.2", "2001:db8::1")] == [0, 0, 0]
    assert rates.wait("", "2001:db8::ffff", 0.0) == 60.0
    # The table is full: newcomers share one limit, and those that are known keep theirs.
    assert rates.wait("", "10.0.0.4", 0.0) == 0
    assert rates.wait("", "10.0.0.5", 0.0) == 60.0
    assert rates.wait("", "10.0.0.1", 59.0) == 1.0
    assert rates.wait("", "10.0.0.6", 60.0) == 0
    assert rates.wait("unknown", "10.0.0.1", 0.0) == 0


def test_a_crash_is_a_500_with_an_id_and_without_the_reason(caplog):
    async def scenario():
        app = guarded()
        with caplog.at_level(logging.CRITICAL, "uvicorn.error"):
            async with serving(app) as served, served.client() as http:
                answer = await http.get("/crash")
        assert answer.status_code == 500
        assert (answer.json()["error"], answer.json()["code"]) == ("InternalServerError", "SYS_INTERNAL_ERROR")
        assert answer.json()["request_id"] == answer.headers["x-request-id"]
        assert "secret" not in answer.text
        assert app.reported == ["SYS_INTERNAL_ERROR"]

    run(scenario())


def test_B82_half_a_request_is_closed_after_the_header_time_also_byte_by_byte():
    async def scenario():
        async with serving(guarded(), BridgeSettings(header_timeout=0.2)) as served:
            assert (await served.exchange(b"GET /ec")).status == 408
            assert (await served.exchange(b"")).status == 408
            assert (await served.exchange(b"\r\n\r\n")).status == 408
            reader, writer = await served.connect()
            started = asyncio.get_running_loop().time()

            async def drip():
                for byte in b"GET /echo HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: " + b"a" * 1000:
                    writer.write(bytes([byte]))
                    await asyncio.sleep(0.01)

            task = asyncio.create_task(drip())
            # The client still sends, so it may see a reset in place of the answer.
            with contextlib.suppress(ConnectionResetError):
                assert b" 408 " in await asyncio.wait_for(reader.read(), 5)
            assert asyncio.get_running_loop().time() - started < 2
            task.cancel()
            writer.close()

    run(scenario())


def test_B82_the_header_time_runs_again_for_the_next_request_of_a_connection():
    async def scenario():
        async with serving(guarded(), BridgeSettings(header_timeout=0.2, idle_timeout=60)) as served:
            whole = f"GET /echo HTTP/1.1\r\nHost: {served.host}\r\n\r\n".encode()
            raw = await served.exchange(whole + b"GET /ec")
            assert raw.status == 200
            assert b" 408 " in raw.body

    run(scenario())


def test_B82_200_half_open_connections_do_not_keep_out_a_new_client():
    async def scenario():
        async with serving(guarded(), BridgeSettings(header_timeout=5, max_unauthenticated_per_address=16)) as served:
            opened = [await served.connect() for _ in range(200)]
            for _, writer in opened:
                writer.write(b"GET /ec")
            async with served.client() as http:
                assert (await http.get("/echo")).status_code == 200
            # The oldest ones were closed at once, long before their time was over.
            assert b" 408 " in await asyncio.wait_for(opened[0][0].read(), 2)
            half_open = served.server.config.http_protocol_class.half_open
            assert len(half_open) <= 16
            for _, writer in opened:
                writer.close()

    run(scenario())


def test_headers_that_are_too_many_or_too_large_are_refused():
    async def scenario():
        async with serving(guarded(), BridgeSettings(max_header_bytes=4_096)) as served:
            start = f"GET /echo HTTP/1.1\r\nHost: {served.host}\r\n"
            assert (await served.exchange(f"{start}X-Long: {'a' * 8_192}".encode())).status == 431
            many = "".join(f"X-{n}: 1\r\n" for n in range(150))
            answer = await served.exchange(f"{start}{many}\r\n".encode())
            assert (answer.status, answer.json()["code"]) == (400, "PROTO_INVALID_MESSAGE")
            assert (await served.exchange(b"\x16\x03\x01 not http\r\n\r\n")).status == 400

    run(scenario())


def test_a_client_that_does_not_read_is_cut_off():
    async def scenario():
        async with serving(guarded(), BridgeSettings(send_timeout=0.1)) as served:
            _reader, writer = await served.connect()
            writer.transport.pause_reading()
            writer.write(f"GET /flood HTTP/1.1\r\nHost: {served.host}\r\n\r\n".encode())
            state = served.server.server_state
            await until(lambda: bool(state.tasks))
            await until(lambda: not state.connections)
            writer.transport.abort()

    run(scenario())


async def until(condition):
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - the server's own state has no event
            await asyncio.sleep(0.005)
