"""The fault provider's server, byte by byte, without a client library that hides details."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from holdfast.faults import InvalidError
from holdfast.testing import FaultProvider, serve_in_thread

LIMIT = 2.0
BODY = b'{"model":"gpt-5","messages":[{"role":"user","content":"hi"}]}'


def asking(path=b"/v1/chat/completions", body=BODY, more=b""):
    head = b"POST %b HTTP/1.1\r\nhost: x\r\nauthorization: Bearer k\r\n%bcontent-length: %d\r\n\r\n"
    return head % (path, more, len(body)) + body


def talk(provider, *sent, until=None):
    """Send bytes; return everything until the server closes, or until the given bytes arrive."""
    with socket.create_connection(("127.0.0.1", provider.port), timeout=LIMIT) as connection:
        for data in sent:
            connection.sendall(data)
        came = b""
        while (until is None or until not in came) and (data := connection.recv(65536)):
            came += data
        return came


@pytest.fixture
def provider():
    with serve_in_thread() as provider:
        yield provider


def test_a_connection_is_kept_and_requests_in_one_packet_are_answered_in_order(provider):
    came = talk(provider, asking() * 3 + asking(more=b"connection: close\r\n"))
    assert came.count(b"HTTP/1.1 200 OK\r\n") == 4
    assert [came.find(b"chatcmpl-%024d" % number) for number in (1, 2, 3, 4)] == sorted(
        came.find(b"chatcmpl-%024d" % number) for number in (1, 2, 3, 4)
    )
    assert b"connection: close" in came
    assert (provider.counters.connections, provider.counters.received) == (1, 4)


def test_a_request_that_comes_in_pieces_is_one_request(provider):
    whole = asking(more=b"connection: close\r\n")
    assert talk(provider, *(whole[at : at + 7] for at in range(0, len(whole), 7))).startswith(b"HTTP/1.1 200")
    assert provider.counters.received == 1


def test_a_client_that_expects_100_continue_gets_it(provider):
    head, _, body = asking(more=b"expect: 100-continue\r\n").partition(b"\r\n\r\n")
    with socket.create_connection(("127.0.0.1", provider.port), timeout=LIMIT) as connection:
        connection.sendall(head + b"\r\n\r\n")
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert connection.recv(100).startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET / HTTP/1.0\r\n\r\n", 505),
        (b"banana\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nbanana\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\ncontent-length: 999999999999\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: gzip\r\n\r\n", 501),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nx: " + b"x" * 70_000, 431),
    ],
)
def test_invalid_requests_get_their_status_and_are_not_counted(provider, sent, status):
    assert talk(provider, sent).startswith(b"HTTP/1.1 %d " % status)
    assert provider.counters.received == 0


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000])
def test_a_body_that_is_no_json_object_gets_an_error(provider, body):
    assert talk(provider, asking(body=body), until=b"}").startswith(b"HTTP/1.1 400 ")
    assert provider.counters.refused == 1


def test_malformed_http_has_no_valid_status_line(provider):
    provider.set_script("malformed-http")
    assert talk(provider, asking()) == b"HTTP/9.9 banana\r\n\r\n"


def test_half_a_body_is_half_of_what_was_announced(provider):
    provider.set_script("cut")
    head, _, body = talk(provider, asking()).partition(b"\r\n\r\n")
    announced = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    assert len(body) == announced // 2


def test_a_cut_stream_has_no_last_chunk_and_a_truncated_one_has(provider):
    streaming = asking(body=BODY[:-1] + b',"stream":true}')
    provider.set_script("cut, truncate")
    assert not talk(provider, streaming).endswith(b"0\r\n\r\n")
    assert b"[DONE]" not in talk(provider, streaming, until=b"\r\n0\r\n\r\n")


def test_a_reset_reaches_the_client_as_a_tcp_reset(provider):
    provider.set_script("reset")
    with pytest.raises(ConnectionResetError):
        talk(provider, asking())


def test_tls_is_answered_with_an_alert(provider):
    assert talk(provider, b"\x16\x03\x01\x00\x05hello") == b"\x15\x03\x03\x00\x02\x02\x28"


def test_a_client_that_leaves_early_is_counted(provider):
    provider.set_script("hang")
    with socket.create_connection(("127.0.0.1", provider.port), timeout=LIMIT) as connection:
        connection.sendall(asking())
        talk(provider, asking(more=b"connection: close\r\n"))  # by now the first one hangs
    counted = b""
    for _ in range(100):
        counted = talk(provider, b"GET /_holdfast/counters HTTP/1.1\r\n\r\n", until=b"}")
        if b'"abandoned":1' in counted:
            break
    assert b'"abandoned":1' in counted


def test_the_end_of_the_block_drops_hanging_requests():
    with serve_in_thread("hang, silence") as provider:
        connections = [socket.create_connection(("127.0.0.1", provider.port), timeout=LIMIT) for _ in range(2)]
        for connection in connections:
            connection.sendall(asking())
        talk(provider, asking(more=b"connection: close\r\n"))
        port = provider.port
    for connection in connections:
        with connection:
            try:
                while connection.recv(65536):
                    pass
            except ConnectionResetError:
                pass
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=LIMIT)


def test_a_client_that_does_not_read_is_waited_for():
    """A body larger than all buffers arrives whole."""
    with serve_in_thread("oversize;bytes=8000000, drip;every=0.0001") as provider:
        both = asking() + asking(more=b"connection: close\r\n")
        assert len(talk(provider, both)) > 8_000_000
        assert provider.counters.injected == {"oversize": 1, "drip": 1}


# --- control ---


def test_the_control_interface_reads_resets_and_scripts(provider):
    def control(method, path, body=b""):
        head = b"%b /_holdfast/%b HTTP/1.1\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
        status, _, rest = talk(provider, head % (method, path, len(body)) + body).partition(b"\r\n")
        return int(status.split(b" ")[1]), json.loads(rest.partition(b"\r\n\r\n")[2])

    assert control(b"POST", b"script", b"503, loop")[0] == 200
    assert talk(provider, asking(more=b"connection: close\r\n")).startswith(b"HTTP/1.1 503")
    status, counted = control(b"GET", b"counters")
    assert (status, counted["received"], counted["injected"]) == (200, 1, {"503": 1})
    assert control(b"POST", b"reset") == (200, {**counted, "received": 0, "injected": {}, "connections": 0})
    assert control(b"GET", b"script")[1]["rules"][0]["steps"] == "503"
    status, body = control(b"POST", b"script", b"banana")
    assert status == 400
    assert "expected ok, a status" in body["error"]
    assert control(b"GET", b"script")[1]["rules"][0]["steps"] == "503"  # a bad one changed nothing
    assert control(b"GET", b"banana")[0] == 404


def test_requests_are_kept_as_they_arrived(provider):
    talk(provider, asking(more=b"connection: close\r\n"))
    (request,) = provider.requests
    assert (request.method, request.path, request.model, request.key) == ("POST", "/v1/chat/completions", "gpt-5", "k")
    assert request.body == BODY
    assert "Bearer" not in repr(request)


# --- start and stop ---


def test_a_provider_that_does_not_listen_has_no_address():
    with pytest.raises(InvalidError, match="expected a provider that listens"):
        _ = FaultProvider().url


def test_a_provider_may_listen_again():
    async def main():
        provider = FaultProvider()
        for _ in range(2):
            async with provider:
                assert provider.url.startswith("http://127.0.0.1:")

    asyncio.run(main())


def test_a_bad_script_raises_before_anything_listens():
    with pytest.raises(InvalidError, match="expected ok, a status"), serve_in_thread("banana"):
        pass


def test_a_port_that_is_taken_is_an_error_and_leaves_no_thread_behind():
    with serve_in_thread() as provider, pytest.raises(OSError, match="in use"), serve_in_thread(port=provider.port):
        pass
