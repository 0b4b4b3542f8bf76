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
