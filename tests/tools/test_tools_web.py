"""`web_fetch` and `http_tool`: where they connect to, what they send, and how the answers are read."""

from __future__ import annotations

import asyncio
import gzip
import json
import shutil
import socket
import ssl
import subprocess
import threading
import time
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import Backoff, Happened, InvalidError, OutcomeUnknownError, Policy, Tries
from holdfast.tools import Toolbox, http_tool, web, web_fetch
from holdfast.tools.web import _is_public, _without_tags

AT_ONCE = Backoff(initial=0)


def finish(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 20))


class Site:
    """A server on loopback that answers as the test says, and remembers what it was asked."""

    def __init__(self, secure: ssl.SSLContext | None = None) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        site = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                site.asked.append((self.command, self.path, dict(self.headers), body))
                found = site.answers[self.path.partition("?")[0]]
                if isinstance(found, list):
                    found = found.pop(0)
                if callable(found):
                    found(self)
                    return
                status, headers, content = found
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PUT = answer  # noqa: N815 - the standard library's names

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if secure is not None:
            self._server.socket = secure.wrap_socket(self._server.socket, server_side=True)
        self._server.block_on_close = False
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def site() -> Iterator[Site]:
    served = Site()
    yield served
    served.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for site.example, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: no certificate can be made")
    folder = tmp_path_factory.mktemp("tls")
    made, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-keyout", key, "-out", made]
    subject = ["-subj", "/CN=site.example", "-addext", "subjectAltName=DNS:site.example"]
    subprocess.run([*command, *subject], check=True, capture_output=True, timeout=30)
    return made, key


@pytest.fixture
def both(site: Site, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Site, Site]]:
    """The servers of http://site.example/ and https://site.example/, at their default ports."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    secure = Site(context)
    ports = {80: site.port, 443: secure.port}
    resolve = socket.getaddrinfo

    def local(host: str, port: int, **options: Any) -> Any:
        assert host == "site.example"
        return resolve("127.0.0.1", ports.get(port, port), **options)

    monkeypatch.setattr(socket, "getaddrinfo", local)
    yield site, secure
    secure.close()


# --- where web_fetch connects to ---


@pytest.mark.parametrize(
    ("hosts", "host", "allowed"),
    [
        (["127.0.0.1"], "127.0.0.1", True),
        (["127.0.0.0/8"], "127.0.0.1", True),
        (["localhost"], "localhost", True),
        (["*"], "127.0.0.1", False),
        (["*"], "localhost", False),
        (["*"], "127.1", False),
        (["*"], "0x7f000001", False),
        (["*"], "0", False),
        (["*"], "[::ffff:127.0.0.1]", False),
        (["example.org"], "127.0.0.1", False),
        (["localhost"], "127.0.0.1", False),
    ],
)
def test_this_machine_is_reached_only_if_its_address_is_listed(site, hosts, host, allowed):
    site.answers["/"] = (200, {"Content-Type": "text/plain"}, b"hello")
    ended = finish(Toolbox([web_fetch(hosts)]).outcome("web_fetch", {"url": site.url("/", host)}))
    if allowed:
        assert ended.value == "hello"
    else:
        assert ended.fault.code in ("TOOL_FORBIDDEN", "CONN_DNS_FAILED")
        assert site.asked == []


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True), ("2606:2800:220:1::1", True), ("10.0.0.1", False), ("192.168.1.1", False), ("172.16.0.1", False),
        ("169.254.169.254", False), ("100.64.0.1", False), ("0.0.0.0", False), ("::1", False), ("fe80::1%eth0", False), ("fc00::1", False),
        ("::ffff:10.0.0.1", False), ("64:ff9b::7f00:1", False), ("2002:7f00:1::", False), ("224.0.0.1", False), ("255.255.255.255", False),
        ("::127.0.0.1", False), ("::8.8.8.8", False), ("fec0::1", False),
    ],
)  # fmt: skip
def test_what_is_a_public_address(address, public):
    assert _is_public(address) is public


def test_a_name_is_resolved_once_and_the_connection_goes_to_that_address(site, monkeypatch):
    """A name that means a harmless address for the check and this machine for the connection."""
    answers = [["93.184.216.34"], ["127.0.0.1"]]
    connected = []

    def resolve(host, port, **_):
        (address,) = answers.pop(0)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    def connect(_, address):
        connected.append(address[0])
        raise ConnectionRefusedError(111, "refused")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(socket.socket, "connect", connect)
    box = Toolbox([web_fetch(["*"])], policy=Policy(attempts=1))
    assert finish(box.outcome("web_fetch", {"url": "http://rebinding.example/"})).fault.code == "CONN_REFUSED"
    assert connected == ["93.184.216.34"]


@pytest.mark.parametrize(
    "target", ["http://10.0.0.1/", "http://localhost:{port}/", "file:///etc/passwd", "http://other.example/"]
)
def test_every_redirect_is_checked(site, target):
    site.answers["/"] = (302, {"Location": target.format(port=site.port)}, b"")
    ended = finish(Toolbox([web_fetch(["127.0.0.1"])]).outcome("web_fetch", {"url": site.url("/")}))
    assert ended.fault.code in ("TOOL_FORBIDDEN", "TOOL_INPUT_INVALID")
    assert len(site.asked) == 1


def test_a_redirect_from_https_to_http_is_refused_unless_it_is_listed(both):
    plain, secure = both
    secure.answers["/"] = (302, {"Location": "http://site.example/plain"}, b"")
    plain.answers["/plain"] = (200, {"Content-Type": "text/plain"}, b"there")
    url = {"url": "https://site.example/"}
    ended = finish(Toolbox([web_fetch(["site.example", "127.0.0.1"])]).outcome("web_fetch", url))
    assert ended.fault.code == "TOOL_FORBIDDEN"
    assert ended.fault.message == (
        "https://site.example/ redirects to http://site.example/plain, which is not encrypted; "
        "list 'http://site.example' to allow that"
    )
    assert plain.asked == []
    listed = Toolbox([web_fetch(["site.example", "http://site.example", "127.0.0.1"])])
    assert finish(listed.call("web_fetch", url)) == "there"
    alone = Toolbox([web_fetch(["http://site.example", "127.0.0.1"])])
    assert finish(alone.call("web_fetch", url)) == "there"


def test_a_redirect_from_http_to_https_is_followed_and_the_host_header_has_no_default_port(both):
    plain, secure = both
    plain.answers["/"] = (302, {"Location": "https://site.example/"}, b"")
    secure.answers["/"] = (200, {"Content-Type": "text/plain"}, b"there")
    box = Toolbox([web_fetch(["site.example", "127.0.0.1"])])
    assert finish(box.call("web_fetch", {"url": "http://site.example/"})) == "there"
    assert [headers["Host"] for _, _, headers, _ in plain.asked + secure.asked] == ["site.example"] * 2
    plain.answers["/port"] = (200, {"Content-Type": "text/plain"}, b"there")
    finish(box.call("web_fetch", {"url": f"http://site.example:{plain.port}/port"}))
    assert plain.asked[-1][2]["Host"] == f"site.example:{plain.port}"


@pytest.mark.parametrize("host", ["https://site.example", "http://", "http://site.example/path", "http://me@x.example"])
def test_a_host_is_a_name_or_http_and_a_name(host):
    with pytest.raises(InvalidError, match=r"web_fetch\.hosts"):
        web_fetch([host])


def test_redirects_are_followed_and_do_not_go_on_for_ever(site):
    site.answers["/a"] = (301, {"Location": "/b"}, b"")
    site.answers["/b"] = (200, {"Content-Type": "text/plain"}, b"there")
    site.answers["/loop"] = (302, {"Location": "/loop"}, b"")
    box = Toolbox([web_fetch(["127.0.0.1"])])
    assert finish(box.call("web_fetch", {"url": site.url("/a")})) == "there"
    assert "redirects" in finish(box.outcome("web_fetch", {"url": site.url("/loop")})).fault.message


@pytest.mark.parametrize(
    "url", ["ftp://example.org/", "nonsense", "http://", "http://me:pw@example.org/", "http://a b/", "http://x:99999/"]
)
def test_addresses_that_are_none_are_the_models_to_fix(url):
    ended = finish(Toolbox([web_fetch(["*"])]).outcome("web_fetch", {"url": url}))
    assert ended.fault.code == "TOOL_INPUT_INVALID"
    assert "pw" not in ended.fault.message


def test_hosts_must_be_a_list():
    for hosts in ("example.org", [], [""], ["127.0.0.1:8000"], ["example.org/docs"], ["ann@example.org"]):
        with pytest.raises(InvalidError, match=r"web_fetch\.hosts"):
            web_fetch(hosts)


# --- what web_fetch returns ---


def test_a_page_is_returned_as_text(site):
    page = b"<html><head><title>T</title><style>x{}</style><script>evil()</script></head><body><h1>Hi</h1><p>a  b</p></body></html>"
    site.answers["/"] = (200, {"Content-Type": "text/html; charset=utf-8"}, page)
    assert finish(Toolbox([web_fetch(["127.0.0.1"])]).call("web_fetch", {"url": site.url("/")})) == "T\nHi\na b"


HOSTILE = ("<!--", "<a ", "<a b='", '<a b="', "<a b=", "<a =", "<a/", "<", "</", "</a ", "<?", "<![CDATA[", "<!-- -- ", "<script></", "<style>",
           "<template>", "&", "&#9", "&am", "<a b='>\"", "<p ' = \" ")  # fmt: skip


@pytest.mark.parametrize("part", HOSTILE)
def test_no_page_takes_a_long_time(part):
    began = time.thread_time()
    _without_tags((part * 1_000_000)[:1_000_000])
    # Python's own parser takes over an hour for some of them.
    assert time.thread_time() - began < 3.0


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("a<!-- b --> c<!-->d<!--->e<!-- f", "a cde"),
        ("<a title=\"x > y\" href='>'>link</a>, 1 < 2 &lt;b&gt; &#228;", "link, 1 < 2 <b> ä"),
        ("<a title=it's>its</a><A\nhref=x>big</A>", "itsbig"),
        ("<SCRIPT>if (a </b) '<p>'</Script >after<style>p > q</style>.", "after."),
        ("<template><p>never</p></template>shown<noscript>never</noscript></noscript>!", "shown!"),
        ("<!DOCTYPE html><?xml?>x</>y<br>z<p\n>w", "xy\nz\nw"),
        (f"<p>&#{'9' * 5_000};&amp;", f"&#{'9' * 5_000};&amp;"),
        ("cut <a href='x", "cut"),
    ],
)
def test_the_text_of_a_page_is_what_a_person_would_read(page, text):
    assert _without_tags(page) == text


def test_a_page_is_read_beside_the_event_loop(site, monkeypatch):
    site.answers["/"] = (200, {"Content-Type": "text/html"}, b"<p>Hi")
    threads = []
    monkeypatch.setattr(web, "_without_tags", lambda page: threads.append(threading.current_thread()) or page)
    finish(Toolbox([web_fetch(["127.0.0.1"])]).call("web_fetch", {"url": site.url("/")}))
    assert threads != [threading.main_thread()]


@pytest.mark.parametrize(
    ("kind", "page", "shown"),
    [
        ("text/html", '<html><meta charset="shift_jis"><p>日本', "日本"),
        ("text/html", "<meta http-equiv=Content-Type content='text/html; charset=euc-jp'><p>日本", "日本"),
        ("text/html; charset=utf-8", '<meta charset="shift_jis"><p>日本', "日本"),
        ("text/html", '<meta charset="none"><p>日本', "日本"),
    ],
)
def test_a_page_may_name_its_own_charset(site, kind, page, shown):
    encoding = "shift_jis" if kind == "text/html" and "shift" in page else "euc-jp" if "euc" in page else "utf-8"
    site.answers["/"] = (200, {"Content-Type": kind}, page.encode(encoding))
    assert finish(Toolbox([web_fetch(["127.0.0.1"])]).call("web_fetch", {"url": site.url("/")})).strip() == shown


@pytest.mark.parametrize("charset", ["punycode", "idna", "undefined", "base64", "no such thing"])
def test_a_charset_that_is_none_for_texts_is_taken_for_utf_8(site, charset):
    content = "ä ".encode() * 200_000
    site.answers["/"] = (200, {"Content-Type": f"text/plain; charset={charset}"}, content)
    text = finish(Toolbox([web_fetch(["127.0.0.1"])]).call("web_fetch", {"url": site.url("/")}))
    assert text == content.decode()


def test_a_long_page_is_cut_and_a_picture_is_no_text(site):
    site.answers["/long"] = (200, {"Content-Type": "text/plain"}, b"x" * 100_000)
    site.answers["/picture"] = (200, {"Content-Type": "image/png"}, b"\x89PNG")
    box = Toolbox([web_fetch(["127.0.0.1"], cap=1_000)])
    assert finish(box.call("web_fetch", {"url": site.url("/long")})) == "x" * 1_000 + "\n…[cut at 1000 bytes]"
    assert "image/png" in finish(box.outcome("web_fetch", {"url": site.url("/picture")})).fault.message


def test_S1_20_a_page_that_does_not_come_is_given_up_and_its_thread_ends(site):
    release = threading.Event()
    site.answers["/"] = lambda _: release.wait(10)
    began = time.monotonic()
    ended = finish(Toolbox([web_fetch(["127.0.0.1"], timeout=0.3)]).outcome("web_fetch", {"url": site.url("/")}))
    release.set()
    assert ended.fault.code == "TOOL_TIMEOUT"
    assert time.monotonic() - began < 3


def test_a_cancelled_fetch_closes_its_connection(site):
    gone = threading.Event()

    def until_closed(handler: BaseHTTPRequestHandler) -> None:
        handler.connection.settimeout(5)
        if handler.connection.recv(1) == b"":
            gone.set()

    site.answers["/"] = until_closed

    async def main():
        task = asyncio.create_task(Toolbox([web_fetch(["127.0.0.1"])]).call("web_fetch", {"url": site.url("/")}))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    finish(main())
    assert gone.wait(5)


def test_a_cancelled_fetch_does_not_stay_in_a_handshake():
    with socket.create_server(("127.0.0.1", 0)) as server:

        async def main():
            url = f"https://127.0.0.1:{server.getsockname()[1]}/"
            task = asyncio.create_task(Toolbox([web_fetch(["127.0.0.1"])]).call("web_fetch", {"url": url}))
            connection, _ = await asyncio.to_thread(server.accept)
            with connection:
                connection.settimeout(5)
                assert await asyncio.to_thread(connection.recv, 65_536)  # its hello, which nobody answers
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert await asyncio.to_thread(connection.recv, 1) == b""

        finish(main())


def test_letters_beyond_ascii_in_an_address_are_quoted(site):
    site.answers["/K%C3%B6ln"] = (200, {"Content-Type": "text/plain"}, b"found")
    box = Toolbox([web_fetch(["127.0.0.1"])])
    assert finish(box.call("web_fetch", {"url": site.url("/Köln?q=ü%20x")})) == "found"
    assert site.asked[0][1] == "/K%C3%B6ln?q=%C3%BC%20x"


def test_an_answer_that_is_shorter_than_announced_is_a_failure(site):
    def cut(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 1000\r\n\r\nshort")
        handler.close_connection = True

    site.answers["/cut"] = cut
    box = Toolbox([web_fetch(["127.0.0.1"])], policy=Policy(attempts=1))
    assert finish(box.outcome("web_fetch", {"url": site.url("/cut")})).fault.code == "CONN_RESET"


# --- http_tool ---


@pytest.mark.parametrize(
    "given",
    ["..", ".", "", "../..", "a/../../b", "..\\x", "%2e%2e", "%2E.", "%252e%252e", "..;x", "a/..;b=c/d", "..%2f", "%2e%2e%5c", "..\0", " .. "],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/cities/{city}", "/cities/{city}/weather", "/{city}"])
def test_an_argument_stays_in_its_place_of_the_path(site, path, given):
    box = Toolbox([http_tool("weather", site.url(path))])
    ended = finish(box.outcome("weather", {"city": given}))
    assert (ended.fault.code, ended.fault.context["field"]) == ("TOOL_INPUT_INVALID", "city")
    assert not ended.fault.maybe_executed
    assert site.asked == []


@pytest.mark.parametrize(
    ("given", "path"),
    [("a/b", "/cities/a%2Fb"), ("...", "/cities/..."), ("a..b", "/cities/a..b"), (".env", "/cities/.env"), ("100%", "/cities/100%25"),
     ("?x=1#y", "/cities/%3Fx%3D1%23y")],
)  # fmt: skip
def test_an_argument_may_hold_what_does_not_lead_out_of_its_place(site, given, path):
    site.answers = {path: (200, {}, b"sunny")}
    assert (
        finish(Toolbox([http_tool("weather", site.url("/cities/{city}"))]).call("weather", {"city": given})) == "sunny"
    )


def test_an_argument_in_the_query_may_be_anything(site):
    site.answers = {"/find": (200, {}, b"found")}
    box = Toolbox([http_tool("find", site.url("/find?q={q}&r=../x"))])
    for given in ("..", "", "."):
        assert finish(box.call("find", {"q": given})) == "found"


def _compressed(text: bytes, name: str) -> bytes:
    return gzip.compress(text) if name != "deflate" else zlib.compress(text)


@pytest.mark.parametrize("name", ["gzip", "x-gzip", "deflate", "GZIP", "identity, gzip"])
def test_a_page_that_is_compressed_although_nobody_asked_is_read(site, name):
    site.answers = {"/": (200, {"Content-Type": "text/plain", "Content-Encoding": name}, _compressed(b"hello", name))}
    assert finish(Toolbox([web_fetch(["127.0.0.1"])]).call("web_fetch", {"url": site.url("/")})) == "hello"


def test_a_page_that_is_small_when_compressed_is_cut_like_any_other(site):
    bomb = gzip.compress(b"x" * 50_000_000)
    site.answers = {"/": (200, {"Content-Type": "text/plain", "Content-Encoding": "gzip"}, bomb)}
    text = finish(Toolbox([web_fetch(["127.0.0.1"], cap=1_000)]).call("web_fetch", {"url": site.url("/")}))
    assert len(text) < 1_100
    whole = finish(Toolbox([web_fetch(["127.0.0.1"], cap=100_000)]).call("web_fetch", {"url": site.url("/")}))
    assert "cut at 100000 bytes" in whole


@pytest.mark.parametrize(("name", "body"), [("gzip", b"not gzip at all"), ("br", b"x"), ("zstd", b"x")])
def test_a_compression_that_cannot_be_read_is_a_fault_and_no_garbage(site, name, body):
    site.answers = {"/": (200, {"Content-Type": "text/plain", "Content-Encoding": name}, body)}
    ended = finish(Toolbox([web_fetch(["127.0.0.1"])]).outcome("web_fetch", {"url": site.url("/")}))
    assert ended.fault.code == "TOOL_OUTPUT_MALFORMED"


@pytest.mark.parametrize(
    "target", ["http://[", "http://[::1", "http://a:99999999/", "ftp://x/", "http://" + "a" * 70 + ".example/"]
)
def test_a_redirect_to_what_is_no_address_is_a_fault(site, target):
    site.answers = {"/": (302, {"Location": target}, b"")}
    ended = finish(Toolbox([web_fetch(["*", "127.0.0.1"])]).outcome("web_fetch", {"url": site.url("/")}))
    assert ended.fault.code in ("TOOL_OUTPUT_MALFORMED", "TOOL_INPUT_INVALID")


@pytest.mark.parametrize("host", ["a" * 70 + ".example", "a..example", "xn--\udc80"])
def test_a_host_that_cannot_be_looked_up_is_the_models_to_fix(host):
    ended = finish(Toolbox([web_fetch(["*"])]).outcome("web_fetch", {"url": f"https://{host}/"}))
    assert ended.fault.code == "TOOL_INPUT_INVALID"


def test_arguments_go_into_the_path_the_query_or_the_body(site):
    site.answers["/cities/S%C3%A3o%2FX"] = (200, {"Content-Type": "application/json"}, b'{"t": 3}')
    site.answers["/orders/7"] = (200, {"Content-Type": "application/json"}, b"{}")
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string"}, "unit": {"type": "string"}},
        "required": ["city"],
    }

    class Order(msgspec.Struct):
        id: int
        size: int = 1

    box = Toolbox(
        [
            http_tool("weather", site.url("/cities/{city}"), input=schema),
            http_tool("order", site.url("/orders/{id}"), method="put", input=Order, headers=lambda: {"X-Key": "k"}),
        ]
    )
    assert finish(box.call("weather", {"city": "São/X", "unit": "C&x"})) == {"t": 3}
    assert site.asked[0][1] == "/cities/S%C3%A3o%2FX?unit=C%26x"
    assert finish(box.call("order", {"id": 7, "size": 2})) == {}
    method, _, headers, body = site.asked[1]
    assert (method, headers["X-Key"], json.loads(body)) == ("PUT", "k", {"size": 2})
    assert [box[name].contract.effect for name in ("weather", "order")] == ["read", "idempotent"]


@pytest.mark.parametrize(
    ("status", "code", "retryable"),
    [
        (404, "TOOL_FILE_NOT_FOUND", False),
        (403, "TOOL_FORBIDDEN", False),
        (400, "TOOL_INPUT_INVALID", False),
        (422, "TOOL_INPUT_INVALID", False),
    ],
)
def test_S0_22_statuses_are_classified_as_the_tools_own(site, status, code, retryable):
    site.answers["/"] = (status, {}, b"no")
    ended = finish(Toolbox([http_tool("x", site.url("/"))]).outcome("x"))
    assert (ended.fault.code, ended.fault.retryable, ended.fault.context["status"]) == (code, retryable, status)


def test_S0_22_a_rate_limit_waits_as_long_as_the_service_says(site):
    site.answers["/"] = [(429, {"Retry-After": "1"}, b""), (200, {}, b"ok")]
    began = time.monotonic()
    assert finish(Toolbox([http_tool("x", site.url("/"))]).call("x")) == "ok"
    assert time.monotonic() - began >= 1


def test_a_post_is_unsafe_and_not_repeated(site):
    def cut(handler: BaseHTTPRequestHandler) -> None:
        handler.connection.shutdown(socket.SHUT_RDWR)

    site.answers["/pay"] = cut
    with pytest.raises(OutcomeUnknownError):
        finish(Toolbox([http_tool("pay", site.url("/pay"), method="POST")]).call("pay"))
    assert len(site.asked) == 1


@pytest.mark.parametrize("effect", ["unsafe", "read", "idempotent"])
@pytest.mark.parametrize(
    ("status", "code"),
    [
        (300, "unknown"),
        (301, "failed"),
        (302, "unknown"),
        (303, None),
        (304, None),
        (305, "unknown"),
        (307, "failed"),
        (308, "failed"),
    ],
)
def test_a_redirect_is_no_success(site, status, code, effect):
    site.answers["/pay"] = (status, {"Location": "/login?next=pay"}, b"")
    box = Toolbox([http_tool("pay", site.url("/pay"), method="POST", effect=effect)])
    answer = finish(box.answer("pay"))
    assert len(site.asked) == 1
    if code is None:
        assert not answer.is_error
        return
    is_unknown = code == "unknown" and effect == "unsafe"
    assert answer.fault.code == ("TOOL_OUTCOME_UNKNOWN" if is_unknown else "TOOL_EXECUTION_FAILED")
    if not is_unknown:
        assert f"HTTP {status}: the service redirects to /login, and the tool follows no redirect" in answer.content


@pytest.mark.parametrize("location", [{}, {"Location": "http://[oops"}, {"Location": "https://other.example/x"}])
def test_a_redirect_says_where_it_leads_if_it_does(site, location):
    site.answers["/pay"] = (307, location, b"")
    answer = finish(Toolbox([http_tool("pay", site.url("/pay"), method="POST")]).answer("pay"))
    assert answer.fault.code == "TOOL_EXECUTION_FAILED"
    assert "HTTP 307: the service redirects" in answer.content
    assert ("https://other.example/x" in answer.content) == ("https://other.example/x" in location.values())


def test_a_keyed_post_sends_the_same_key_with_every_attempt(site):
    site.answers["/pay"] = [(503, {}, b""), (200, {}, b"paid")]
    retry = Tries(attempts=3, backoff=AT_ONCE)
    box = Toolbox([http_tool("pay", site.url("/pay"), method="POST", effect="keyed", retry=retry)])
    assert finish(box.call("pay")) == "paid"
    first, second = (asked[2]["Idempotency-Key"] for asked in site.asked)
    assert first == second != ""


def test_verify_and_check_work_for_http_too(site):
    site.answers["/pay"] = (500, {}, b"")
    site.answers["/short"] = (200, {}, b"no")
    paid = http_tool("pay", site.url("/pay"), method="POST", verify=lambda key: Happened("paid"))
    short = http_tool("short", site.url("/short"), check=lambda result: "too short" if len(result) < 3 else None)
    box = Toolbox([paid, short])
    assert finish(box.call("pay")) == "paid"
    assert "too short" in finish(box.outcome("short")).fault.message


def test_answers_that_are_too_long_or_no_JSON_are_faults(site):
    site.answers["/long"] = (200, {}, b"x" * 2_000)
    site.answers["/json"] = (200, {"Content-Type": "application/json"}, b"{oops")
    box = Toolbox([http_tool("long", site.url("/long"), cap=1_000), http_tool("json", site.url("/json"))])
    assert finish(box.outcome("long")).fault.code == "TOOL_OUTPUT_TOO_LARGE"
    assert finish(box.outcome("json")).fault.code == "TOOL_OUTPUT_MALFORMED"


def test_wrong_addresses_are_named_when_the_tool_is_made():
    for url in ("ftp://x/", "http://x/{0}", "http://x/{"):
        with pytest.raises(InvalidError):
            http_tool("x", url)


@pytest.mark.parametrize("url", ["http://{host}/x", "http://api-{host}/x", "http://a.{host}:80/", "http://{a}.x.{b}/"])
def test_an_argument_cannot_be_the_host(url: str):
    """A model could name any host then, those of the private network among them."""
    with pytest.raises(InvalidError, match="could make any host"):
        http_tool("x", url)
    assert http_tool("x", "https://{region}.example.org/{id}")
