"""Every library × every way a POST fails × every way to wrap its error: a POST that may have happened is sent once.

The requests go to a real server on this machine, so the errors and their tracebacks are the libraries' own.
"""

from __future__ import annotations

import asyncio
import http.client
import http.server
import socket
import threading
import urllib.error
import urllib.request
from collections import Counter

import aiohttp
import botocore.session
import httpx
import httpx2
import pytest
import requests
import urllib3
from botocore.config import Config

from holdfast import Runtime, fault_of, recover
from holdfast.testing import VirtualClock, no_waiting

# An error of urllib is a response too, and nobody closes it here.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::DeprecationWarning"
)

SENT: Counter[str] = Counter()


class Shop(http.server.BaseHTTPRequestHandler):
    """Counts the orders. The first part of a path says how the request ends: a status, `cut`, `half`, `html` or `redirect`."""

    def do_POST(self):
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self.answer()

    def do_GET(self):
        self.answer()

    def answer(self):
        SENT[self.path] += 1
        kind, _, rest = self.path[1:].partition("/")
        if kind == "cut":
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        status, body, headers = 200, b"{}", {}
        if kind == "html":
            body = b"<html>"
        elif kind == "redirect":
            status, headers = 303, {"Location": f"/502/{rest}"}
        elif kind != "half":
            status, _, after = kind.partition("-")
            status, headers = int(status), {"Retry-After": after} if after else {}
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body) + (100 if kind == "half" else 0)))
        self.end_headers()
        self.wfile.write(body)
        if kind == "half":
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True

    def log_message(self, *_):
        """Print nothing."""


@pytest.fixture(scope="module")
def shop():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Shop)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


# --- the libraries: each sends one request and raises its own error ---


def by_httpx(method, url, headers):
    httpx.request(method, url, headers=headers, follow_redirects=True).raise_for_status().json()


def by_httpx2(method, url, headers):
    httpx2.request(method, url, headers=headers, follow_redirects=True).raise_for_status().json()


def by_requests(method, url, headers):
    answer = requests.request(method, url, headers=headers)
    answer.raise_for_status()
    answer.json()


def by_aiohttp(method, url, headers):
    async def send():
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, url, headers=headers, raise_for_status=True) as answer,
        ):
            await answer.json()

    asyncio.run(send())


def by_urllib(method, url, headers):
    body = b"{}" if method == "POST" else None
    with urllib.request.urlopen(urllib.request.Request(url, data=body, method=method, headers=headers)) as answer:
        answer.read()


def by_urllib3(method, url, headers):
    retries = urllib3.Retry(0, status_forcelist=range(400, 600), allowed_methods=None)
    urllib3.request(method, url, headers=headers, retries=retries)


def by_http_client(method, url, headers):
    host, _, path = url.removeprefix("http://").partition("/")
    connection = http.client.HTTPConnection(host)
    try:
        connection.request(method, f"/{path}", body=b"{}" if method == "POST" else None, headers=headers)
        connection.getresponse().read()
    finally:
        connection.close()


STATUS = ("500", "502", "503", "504", "520", "524")
CUT = ("cut",)
LIBRARIES = {
    by_httpx: (*STATUS, "cut", "half", "html", "redirect"),
    by_httpx2: (*STATUS, "cut", "half", "html", "redirect"),
    by_requests: (*STATUS, "cut", "half", "html", "redirect"),
    by_aiohttp: (*STATUS, "cut", "half", "redirect"),
    by_urllib: (*STATUS, "cut", "half", "redirect"),
    by_urllib3: (*STATUS, "cut", "half", "redirect"),
    by_http_client: ("cut", "half"),
}


# --- the ways to wrap its error ---


class ShopError(Exception):
    """An error of the user's own, with a status if there is one."""

    def __init__(self, text, status=None):
        super().__init__(text)
        if status is not None:
            self.status_code = status


def status_of(error):
    return getattr(getattr(error, "response", None), "status_code", None) or getattr(error, "status", None) or 502


def bare(send):
    return send


def with_status(send):
    def order(*request):
        try:
            send(*request)
        except Exception as error:
            raise ShopError(f"shop answered {status_of(error)}", status_of(error)) from error

    return order


def unavailable(send):
    def order(*request):
        try:
            send(*request)
        except Exception as error:
            raise ShopError("service unavailable", 503) from error

    return order


def without_from(send):
    def order(*request):
        try:
            send(*request)
        except Exception:
            raise ShopError("shop answered 503", 503)  # noqa: B904 - it is what is tested

    return order


def from_none(send):
    def order(*request):
        try:
            send(*request)
        except Exception:
            raise ShopError("shop answered 503", 503) from None

    return order


def twice(send):
    return with_status(unavailable(send))


def in_a_group(send):
    def order(*request):
        try:
            send(*request)
        except Exception as error:
            raise ExceptionGroup("shop answered 503", [error])  # noqa: B904 - as a task group does

    return order


WRAPPINGS = [bare, with_status, unavailable, without_from, from_none, twice, in_a_group]


def orders(send, method, address, **headers):
    """Recover a call in virtual time; return how many requests were sent, and what surfaced."""
    SENT.clear()
    runtime = Runtime(clock=VirtualClock())
    error = None
    with no_waiting(runtime):
        try:
            recover("shop", runtime=runtime).call(send, method, address, headers)
        except Exception as raised:
            error = raised
    return max(SENT.values(), default=0), error


@pytest.mark.parametrize("wrap", WRAPPINGS, ids=lambda wrap: wrap.__name__)
@pytest.mark.parametrize(
    ("send", "kind"),
    [(send, kind) for send, kinds in LIBRARIES.items() for kind in kinds],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_post_that_may_have_happened_is_sent_once(shop, send, kind, wrap):
    sent, error = orders(wrap(send), "POST", f"{shop}/{kind}/orders")
    assert error is not None
    assert sent == 1, f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("wrap", [bare, with_status, from_none], ids=lambda wrap: wrap.__name__)
@pytest.mark.parametrize("kind", ["503", "cut"])
@pytest.mark.parametrize("send", [send for send in LIBRARIES if send is not by_http_client], ids=lambda s: s.__name__)
def test_a_get_is_repeated(shop, send, kind, wrap):
    assert orders(wrap(send), "GET", f"{shop}/{kind}/orders")[0] > 3


@pytest.mark.parametrize("kind", ["429", "529", "503-1", "522"])
@pytest.mark.parametrize("send", [by_httpx, by_requests, by_aiohttp, by_urllib], ids=lambda send: send.__name__)
def test_a_post_that_was_rejected_is_repeated(shop, send, kind):
    assert orders(send, "POST", f"{shop}/{kind}/orders")[0] > 3


@pytest.mark.parametrize("send", [send for send in LIBRARIES if send is not by_http_client], ids=lambda s: s.__name__)
def test_a_post_with_a_key_or_to_a_model_is_repeated(shop, send):
    assert orders(send, "POST", f"{shop}/503/orders", **{"Idempotency-Key": "k"})[0] > 3
    assert orders(send, "POST", f"{shop}/503/v1/chat/completions")[0] > 3


@pytest.mark.parametrize("send", LIBRARIES, ids=lambda send: send.__name__)
def test_a_post_that_was_never_sent_is_repeated(send):
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    calls = []

    def order(*request):
        calls.append(1)
        send(*request)

    orders(order, "POST", f"http://127.0.0.1:{port}/orders")
    assert len(calls) > 2


def test_a_connection_that_timed_out_before_it_was_open_is_repeated(monkeypatch):
    def late(*_args, **_options):
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "getaddrinfo", late)
    calls = []

    def order(*request):
        calls.append(1)
        by_urllib(*request)

    orders(order, "POST", "http://shop.test/orders")
    assert len(calls) > 2


# --- a response in a variable of the function that raises ---


def seen_by_aiohttp(url):
    async def send():
        async with aiohttp.ClientSession() as session, session.post(url) as answer:
            if answer.status >= 500:
                raise ShopError("shop answered 503", 503)

    asyncio.run(send())


def seen_by_http_client(url):
    host, _, path = url.removeprefix("http://").partition("/")
    connection = http.client.HTTPConnection(host)
    connection.request("POST", f"/{path}", body=b"{}")
    answer = connection.getresponse()
    connection.close()
    if answer.status >= 500:
        raise ShopError("shop answered 503", 503)


def seen_by_urllib3(url):
    answer = urllib3.request("POST", url)
    if answer.status >= 500:
        raise ShopError("shop answered 503", 503)


def seen_by(library):
    def order(url):
        answer = library.post(url)
        if answer.status_code >= 500:
            raise ShopError("shop answered 503", 503)

    order.__name__ = f"seen_by_{library.__name__}"
    return order


@pytest.mark.parametrize("status", STATUS)
@pytest.mark.parametrize(
    "order",
    [seen_by(httpx), seen_by(httpx2), seen_by(requests), seen_by_aiohttp, seen_by_http_client, seen_by_urllib3],
    ids=lambda order: order.__name__,
)
def test_a_response_that_the_function_has_looked_at_counts(shop, order, status):
    assert orders(lambda _, url, __: order(url), "POST", f"{shop}/{status}/orders")[0] == 1
    assert orders(lambda _, url, __: order(url), "POST", f"{shop}/529/orders")[0] > 3


def test_a_failed_post_that_a_caller_handles_does_not_forbid_retries_of_something_else(shop):
    """The error of another call, in whose `except` block this one is made, is the context of this one's error."""
    try:
        by_httpx("POST", f"{shop}/502/orders", {})
    except httpx.HTTPError:
        assert orders(by_httpx, "GET", f"{shop}/502/status")[0] > 3


def test_a_get_after_a_post_in_the_same_function_is_not_repeated(shop):
    def order(_method, url, headers):
        try:
            by_httpx("POST", url, headers)
        except httpx.HTTPError:
            by_httpx("GET", url + "/state", headers)

    assert orders(order, "POST", f"{shop}/502/orders")[0] == 1


def test_the_note_names_the_request_of_urllib(shop):
    _, error = orders(by_urllib, "POST", f"{shop}/500/orders?token=secret")
    assert isinstance(error, urllib.error.HTTPError)
    assert "POST 127.0.0.1/500/orders may have happened; `effect=` says" in fault_of(error).message


# --- botocore: almost every operation is a POST, so the operation's name says what it does ---


SESSION = botocore.session.get_session()


def by_botocore(service, operation, **params):
    def send(_method, url, _headers):
        client = SESSION.create_client(
            service,
            region_name="eu-west-1",
            endpoint_url=url.rpartition("/")[0],
            aws_access_key_id="a",
            aws_secret_access_key="b",
            config=Config(retries={"total_max_attempts": 1}),
        )
        getattr(client, operation)(**params)

    return send


PUBLISH = by_botocore("sns", "publish", TopicArn="arn:aws:sns:eu-west-1:1:t", Message="hi")
LIST = by_botocore("sns", "list_topics")


@pytest.mark.parametrize("wrap", WRAPPINGS, ids=lambda wrap: wrap.__name__)
@pytest.mark.parametrize("kind", ["500", "502", "503", "cut"])
def test_an_operation_of_aws_that_may_have_happened_is_made_once(shop, kind, wrap):
    assert orders(wrap(PUBLISH), "POST", f"{shop}/{kind}/orders")[0] == 1


@pytest.mark.parametrize("kind", ["500", "cut"])
def test_an_operation_of_aws_that_reads_is_repeated(shop, kind):
    assert orders(LIST, "POST", f"{shop}/{kind}/orders")[0] > 1
