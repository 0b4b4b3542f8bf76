"""A response that a recovered function returns is the failure that its status reports; in the end the caller gets it."""

from __future__ import annotations

import asyncio

import httpx
import pytest
import requests

from holdfast import Policy, Runtime, recover
from holdfast.httpx import RecoveringTransport
from holdfast.testing import Capture, Midpoint, VirtualClock, run


def response(status, method="GET", library="httpx", **headers):
    if library == "requests":
        answer = requests.Response()
        answer.status_code = status
        answer.request = requests.Request(method, "https://shop.test/orders").prepare()
        return answer
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.Response(status, headers=named, request=httpx.Request(method, "https://shop.test/orders"))


def world():
    return Runtime(clock=VirtualClock(), rng=Midpoint())


def returning(runtime, answers, *, is_async, **options):
    calls = []

    def next_answer():
        calls.append(1)
        return answers[min(len(calls), len(answers)) - 1]

    if is_async:

        @recover("shop", runtime=runtime, **options)
        async def call():
            await asyncio.sleep(0)
            return next_answer()

        return (lambda: run(call(), clock=runtime.clock)), calls, call

    @recover("shop", runtime=runtime, **options)
    def call():
        return next_answer()

    return call, calls, call


BOTH = pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])


@BOTH
@pytest.mark.parametrize("library", ["httpx", "requests"])
@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_XR10_a_returned_failure_is_retried(is_async, library, status):
    good = response(200, library=library)
    call, calls, _ = returning(world(), [response(status, library=library), good], is_async=is_async)
    assert call() is good
    assert len(calls) == 2


@BOTH
def test_XR10_after_the_last_attempt_the_response_is_returned(is_async):
    runtime, heard = world(), Capture()
    runtime.on(heard)
    last = response(503)
    call, calls, _ = returning(
        runtime, [response(503), response(503), last], is_async=is_async, policy=Policy(attempts=3)
    )
    assert call() is last
    assert len(calls) == 3
    assert [type(event).__name__ for event in heard.events].count("Failed") == 1


@BOTH
@pytest.mark.parametrize("status", [200, 301, 404, 422])
def test_XR10_other_statuses_are_answers(is_async, status):
    answer = response(status)
    call, calls, _ = returning(world(), [answer], is_async=is_async)
    assert call() is answer
    assert len(calls) == 1


@BOTH
def test_XR10_a_post_that_may_have_happened_is_returned_at_once(is_async):
    answer = response(500, method="POST")
    call, calls, _ = returning(world(), [answer], is_async=is_async)
    assert call() is answer
    assert len(calls) == 1


@BOTH
def test_XR10_a_recovery_around_does_not_multiply_the_attempts(is_async):
    runtime = world()
    _, calls, inner = returning(runtime, [response(503)], is_async=is_async, policy=Policy(attempts=3))
    outer = recover("outer", Policy(attempts=3), runtime=runtime)(inner)
    answer = run(outer(), clock=runtime.clock) if is_async else outer()
    assert (answer.status_code, len(calls)) == (503, 3)


@BOTH
def test_XR10_a_fallback_answers_and_else_the_response_is_returned(is_async):
    runtime = world()
    for fails in (False, True):
        call, _, decorated = returning(runtime, [response(503)], is_async=is_async, policy=Policy(attempts=1))

        def other(fails=fails):
            if fails:
                raise OSError("down")
            return "other"

        async def other_async(other=other):
            return other()

        decorated.fallback(other_async if is_async else other)
        answer = call()
        assert (answer.status_code if fails else answer) == (503 if fails else "other")


def test_XR10_a_recovering_transport_inside_is_not_retried_again():
    runtime, sent = world(), []

    def serve(_request):
        sent.append(1)
        return httpx.Response(503)

    transport = RecoveringTransport(httpx.MockTransport(serve), policy=Policy(attempts=2), runtime=runtime)
    client = httpx.Client(transport=transport)
    answer = recover("shop", Policy(attempts=3), runtime=runtime)(client.get)("https://shop.test/")
    assert (answer.status_code, len(sent)) == (503, 2)
