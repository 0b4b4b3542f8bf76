"""A failure that shows a POST which may have happened is not repeated, unless `effect=` declares that it may be."""

from __future__ import annotations

import aiohttp
import httpx
import httpx2
import pytest
import requests
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from holdfast import Runtime, fault_of, recover
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
