"""A failure that shows a POST which may have happened is not repeated, unless `effect=` declares that it may be."""

from __future__ import annotations

import aiohttp
import anthropic
import httpx
import httpx2
import openai
import pytest
import requests
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from holdfast import OutcomeUnknownError, Runtime, fault_of, recover
from holdfast.httpx import RecoveringTransport
from holdfast.testing import Midpoint, VirtualClock, run

ORDERS = "https://shop.test/orders?token=secret"
CHAT = "https://gateway.test/v1/chat/completions"


def of_httpx(library, kind, method="POST", url=ORDERS, status=0, **headers):
    request = library.Request(method, url, headers={"Idempotency-Key": "k"} if headers.pop("keyed", False) else None)
    if not status:
        return getattr(library, kind)("broken", request=request)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return library.HTTPStatusError(
        "x", request=request, response=library.Response(status, headers=named, request=request)
    )


def of_requests(kind, method="POST", url=ORDERS):
    return getattr(requests, kind)("broken", request=requests.Request(method, url).prepare())


def of_aiohttp(status, method="POST", url=ORDERS):
    info = aiohttp.RequestInfo(URL(url), method, CIMultiDictProxy(CIMultiDict()), URL(url))
    return aiohttp.ClientResponseError(info, (), status=status)


def calls(error, **options):
    """Recover a call that fails twice, then answers; return how many calls were made, and its error."""
    runtime, made = Runtime(clock=VirtualClock(), rng=Midpoint()), []

    @recover("shop", runtime=runtime, **options)
    async def order():
        made.append(1)
        if len(made) < 3:
            raise error
        return "ok"

    async def outcome():
        try:
            return await order()
        except Exception as failed:
            return failed

    answer = run(outcome(), clock=runtime.clock)
    return len(made), None if answer == "ok" else answer


MAY_HAVE_HAPPENED = [
    of_httpx(httpx, "ReadTimeout"),
    of_httpx(httpx, "RemoteProtocolError"),
    of_httpx(httpx, "ReadError", method="PATCH"),
    of_httpx(httpx2, "ReadTimeout"),
    of_httpx(httpx, "", status=500),
    of_httpx(httpx, "", status=502),
    of_httpx(httpx, "", status=503),
    of_httpx(httpx, "", status=504),
    of_requests("ReadTimeout"),
    of_requests("ConnectionError"),
    of_aiohttp(502),
]


@pytest.mark.parametrize("error", MAY_HAVE_HAPPENED, ids=repr)
def test_XR9_a_post_that_may_have_happened_is_not_repeated(error):
    made, failed = calls(error)
    assert made == 1
    assert failed is error, "the caller gets its own exception"
    fault = fault_of(failed)
    assert fault.maybe_executed
    assert "shop.test/orders may have happened; `effect=` says" in fault.message
    assert "secret" not in fault.message
    assert "`effect=`" in failed.__notes__[0]


@pytest.mark.parametrize("error", MAY_HAVE_HAPPENED, ids=repr)
def test_XR9_it_is_repeated_where_an_effect_declares_it(error):
    assert calls(error, effect="idempotent") == (3, None)


@pytest.mark.parametrize("error", MAY_HAVE_HAPPENED, ids=repr)
def test_XR9_it_is_repeated_where_the_caller_names_the_failure(error):
    assert calls(error, retry_on=type(error)) == (3, None)


@pytest.mark.parametrize(
    "error",
    [
        of_httpx(httpx, "ConnectError"),
        of_httpx(httpx, "ConnectTimeout"),
        of_httpx(httpx, "ReadTimeout", method="GET"),
        of_httpx(httpx, "ReadTimeout", method="PUT"),
        of_httpx(httpx, "ReadTimeout", url=CHAT),
        of_httpx(httpx, "ReadTimeout", keyed=True),
        of_httpx(httpx, "", status=429),
        of_httpx(httpx, "", status=529),
        of_httpx(httpx, "", status=503, retry_after="2"),
        of_httpx(httpx, "", status=500, url=CHAT),
        of_httpx(httpx, "", method="GET", status=502),
        of_requests("ReadTimeout", method="GET"),
        of_requests("ConnectTimeout"),
        of_aiohttp(429),
        httpx.ReadTimeout("it shows nothing"),
        ConnectionResetError(104, "Connection reset by peer"),
        TimeoutError("it shows nothing"),
    ],
    ids=repr,
)
def test_XR9_what_was_rejected_or_shows_nothing_is_repeated(error):
    assert calls(error) == (3, None)


def test_XR9_a_request_behind_the_users_own_exception_counts():
    failed = RuntimeError("read timed out")
    failed.__cause__ = of_httpx(httpx, "ReadTimeout")
    assert calls(failed)[0] == 1


def of_sdk(sdk, path, status=500, method="POST", host="https://llm.internal"):
    request = httpx2.Request(method, f"{host}{path}")
    if not status:
        return sdk.APIConnectionError(request=request)
    return sdk.InternalServerError("x", response=httpx2.Response(status, request=request), body=None)


@pytest.mark.parametrize("status", [500, 502, 503, 0])
@pytest.mark.parametrize(
    ("sdk", "path"),
    [
        (openai, "/v1/batches"),
        (openai, "/v1/fine_tuning/jobs"),
        (openai, "/v1/images/generations"),
        (openai, "/v1/files"),
        (anthropic, "/v1/messages/batches"),
    ],
)
def test_what_an_sdk_creates_is_not_created_twice(sdk, path, status):
    assert calls(of_sdk(sdk, path, status))[0] == 1
    assert calls(of_sdk(sdk, path, status), effect="idempotent")[0] == 3


@pytest.mark.parametrize("status", [500, 502, 503, 0])
@pytest.mark.parametrize(
    ("sdk", "path"),
    [
        (openai, "/v1/chat/completions"),
        (openai, "/v1/responses"),
        (openai, "/v1/embeddings"),
        (anthropic, "/v1/messages"),
        (anthropic, "/v1/messages/count_tokens"),
        (anthropic, ""),
    ],
)
def test_a_question_of_an_sdk_to_a_model_is_repeated(sdk, path, status):
    assert calls(of_sdk(sdk, path, status)) == (3, None)
    assert calls(of_sdk(sdk, "/v1/batches/b_1", status, method="GET")) == (3, None)


@pytest.mark.parametrize("status", [500, 502, 503, 504, 520])
def test_an_unsafe_post_that_may_have_happened_is_not_repeated(status):
    made, failed = calls(of_httpx(httpx, "", status=status), effect="unsafe")
    assert made == 1
    assert isinstance(failed, OutcomeUnknownError)


@pytest.mark.parametrize("error", [of_httpx(httpx, "", status=429), of_httpx(httpx, "", status=503, retry_after="2")])
def test_an_unsafe_post_that_was_rejected_is_repeated(error):
    assert calls(error, effect="unsafe") == (3, None)


# --- a body that did more than the request that failed ---


class Shop:
    """Charges by a POST, which is answered, then answers the GET of the receipt with a failure a few times."""

    def __init__(self, failure, transport=None):
        self.failure = failure
        self.charged = self.read = 0
        wire = httpx.MockTransport(self.serve)
        self.web = httpx.Client(transport=wire if transport is None else transport(wire))

    def serve(self, request):
        if request.method == "POST":
            self.charged += 1
            return httpx.Response(201)
        self.read += 1
        if self.read > 3:
            return httpx.Response(200)
        if isinstance(self.failure, Exception):
            raise self.failure
        return httpx.Response(self.failure, headers={"retry-after": "1"})

    def buy(self):
        self.web.post("https://shop.test/charge").raise_for_status()
        return self.web.get("https://shop.test/receipt").raise_for_status().status_code


FAILURES = [503, 500, 429, httpx.ReadError("reset"), httpx.ConnectError("refused")]


@pytest.mark.parametrize("failure", FAILURES, ids=str)
@pytest.mark.parametrize(
    ("target", "options"), [("shop", {"effect": "unsafe"}), ("tool:shop", {"effect": "unsafe"}), ("tool:shop", {})]
)
def test_AK14_the_failure_of_a_read_shows_nothing_about_the_charge_before_it(target, options, failure):
    shop = Shop(failure)
    with pytest.raises((OutcomeUnknownError, httpx.HTTPError)) as failed:
        recover(target, runtime=Runtime(clock=VirtualClock()), **options).call(shop.buy)
    assert shop.charged == 1
    assert fault_of(failed.value).maybe_executed


def test_AK14_what_the_users_own_declaration_allows_is_repeated():
    shop = Shop(503)
    runtime = Runtime(clock=VirtualClock())
    assert recover("shop", effect="idempotent", runtime=runtime).call(shop.buy) == 200
    assert shop.charged == 4


def test_AK14_a_request_of_the_body_that_was_answered_is_seen():
    """The request that fails could be the effect, but our own transport has seen one before it."""
    runtime = Runtime(clock=VirtualClock())
    shop = Shop(503, lambda wire: RecoveringTransport(wire, runtime=runtime))

    def buy():
        shop.web.post("https://shop.test/charge").raise_for_status()
        raise httpx.ConnectError("refused", request=httpx.Request("POST", "https://mail.test/send"))

    with pytest.raises(OutcomeUnknownError):
        recover("shop", effect="unsafe", runtime=runtime).call(buy)
    assert shop.charged == 1


def test_AK14_a_charge_that_was_turned_away_is_repeated():
    made = []

    def charge():
        made.append(1)
        if len(made) < 3:
            raise of_httpx(httpx, "", status=429, retry_after="1")
        return "ok"

    assert recover("shop", effect="unsafe", runtime=Runtime(clock=VirtualClock())).call(charge) == "ok"


class OperationalError(Exception):
    """As SQLAlchemy's, which carries the statement and the error of the driver."""

    def __init__(self, statement, orig):
        super().__init__(str(orig))
        self.statement, self.orig = statement, orig


OperationalError.__module__ = "sqlalchemy.exc"


class Lost(ConnectionResetError):
    sqlstate = "08006"


class Deadlock(ConnectionResetError):
    sqlstate = "40P01"


RESET = ConnectionResetError(104, "Connection reset by peer")


@pytest.mark.parametrize(
    ("statement", "cause", "made"),
    [
        ("INSERT INTO orders VALUES (1)", RESET, 1),
        ("-- order\n  update stock set n = n - 1", RESET, 1),
        ("WITH gone AS (DELETE FROM a RETURNING *) SELECT * FROM gone", RESET, 1),
        ("INSERT INTO orders VALUES (1)", Lost(104, "lost"), 1),
        ("SELECT * FROM orders", RESET, 3),
        ("INSERT INTO orders VALUES (1)", Deadlock(104, "deadlock"), 3),
    ],
)
def test_AK13_a_write_whose_connection_was_lost_is_not_repeated(statement, cause, made):
    error = OperationalError(statement, cause)
    error.__cause__ = cause
    assert calls(error)[0] == made
    assert calls(error, effect="idempotent")[0] == 3


def test_AK13_a_tool_that_declares_nothing_is_not_called_again_after_a_reset():
    made = []

    def insert():
        made.append(1)
        raise ConnectionResetError(104, "Connection reset by peer")

    with pytest.raises(ConnectionResetError):
        recover("tool:shop", runtime=Runtime(clock=VirtualClock())).call(insert)
    assert len(made) == 1
