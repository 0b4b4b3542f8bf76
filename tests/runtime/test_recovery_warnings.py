"""Retries of other code inside an attempt are reported once, with what to change. tenacity is installed here; the rest of
the libraries is tested in an environment of its own (`make soak`)."""

from __future__ import annotations

import asyncio
import warnings
from typing import Any

import httpx2
import pytest
import tenacity
from anthropic import Anthropic, AsyncAnthropic
from recover_kit import LOOSE, World

from holdfast import Policy
from holdfast.runtime.operation.plan import Plan
from holdfast.runtime.operation.recovery_warnings import RecoveryWarning
from holdfast.runtime.recover import Recovery

REQUEST: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}


def recovery(world: World) -> Recovery:
    return Recovery(Plan("it", Policy(attempts=3, circuit=LOOSE), runtime=world.runtime))


def overloaded(request: httpx2.Request) -> httpx2.Response:
    headers = {"retry-after-ms": "1"}
    return httpx2.Response(529, json={"type": "error", "error": {"type": "overloaded_error"}}, headers=headers)


def refused(request: httpx2.Request) -> httpx2.Response:
    raise httpx2.ConnectError("refused", request=request)


def found(call: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(Exception):
            call()
    assert {warning.category for warning in caught} <= {RecoveryWarning}
    assert {warning.filename for warning in caught} <= {__file__}
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize("answer", [overloaded, refused])
def test_FI9_the_retries_of_an_sdks_client_are_reported_once(answer: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("anthropic._base_client.INITIAL_RETRY_DELAY", 0.001)
    client = Anthropic(api_key="k", max_retries=1, http_client=httpx2.Client(transport=httpx2.MockTransport(answer)))
    once = recovery(World())
    (message,) = found(lambda: once.call(client.messages.create, **REQUEST))
    assert "the SDK's client retried once inside one attempt of it" in message
    assert "max_retries=0" in message
    assert found(lambda: once.call(client.messages.create, **REQUEST)) == []
    quiet = client.with_options(max_retries=0)
    assert found(lambda: recovery(World()).call(quiet.messages.create, **REQUEST)) == []


def test_FI9_in_a_task_too() -> None:
    http = httpx2.AsyncClient(transport=httpx2.MockTransport(overloaded))
    client = AsyncAnthropic(api_key="k", max_retries=1, http_client=http)

    async def ask() -> None:
        await recovery(World()).call(client.messages.create, **REQUEST)

    assert len(found(lambda: asyncio.run(ask()))) == 1


@pytest.mark.parametrize("reraise", [False, True])
def test_FI9_tenacity_inside_is_reported_and_one_attempt_of_it_is_not(reraise: bool) -> None:
    def call(attempts: int) -> None:
        loop = tenacity.Retrying(stop=tenacity.stop_after_attempt(attempts), reraise=reraise)
        loop(lambda: (_ for _ in ()).throw(ConnectionResetError("reset")))

    (message,) = found(lambda: recovery(World()).call(call, 3))
    assert "tenacity retried 2 times" in message
    assert found(lambda: recovery(World()).call(call, 1)) == []


def test_FI9_a_failure_that_is_not_retried_warns_of_nothing() -> None:
    def call() -> None:
        tenacity.Retrying(stop=tenacity.stop_after_attempt(2), reraise=True)(int, "x")

    assert found(lambda: recovery(World()).call(call)) == []


def test_FI9_an_error_instead_of_the_warning_leaves_nothing_behind() -> None:
    world = World()

    @tenacity.retry(stop=tenacity.stop_after_attempt(2), reraise=True)
    def call() -> None:
        raise ConnectionResetError("reset")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RecoveryWarning):
            recovery(world).call(call)
    metrics = world.state("provider:it").metrics(world.now)
    assert (metrics.successes, metrics.failures) == (0, 1)
