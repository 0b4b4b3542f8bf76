"""Scripted failures: what each step raises, its classification, and the errors for invalid scripts."""

from __future__ import annotations

import asyncio
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast import CODES, CircuitOpenError, HoldfastError, InvalidError, fault_of
from holdfast.testing import ScriptedHTTPError, ScriptEndedError, run, script
from holdfast.testing.provider.script import read_script


def played(calls, count):
    """Return the result of each call, or the code of its fault."""
    results = []
    for _ in range(count):
        try:
            results.append(calls())
        except Exception as error:
            results.append(fault_of(error).code)
    return results


def test_a_script_plays_one_step_per_call():
    calls = script("429, 429, ok")
    assert played(calls, 3) == ["PROVIDER_RATE_LIMITED", "PROVIDER_RATE_LIMITED", None]
    assert (calls.calls, calls.left) == (3, 0)


@pytest.mark.parametrize(
    ("step", "kind", "code"),
    [
        ("400", ScriptedHTTPError, "PROVIDER_BAD_REQUEST"),
        ("401", ScriptedHTTPError, "AUTH_FAILED"),
        ("429", ScriptedHTTPError, "PROVIDER_RATE_LIMITED"),
        ("503", ScriptedHTTPError, "PROVIDER_UNAVAILABLE"),
        ("529", ScriptedHTTPError, "PROVIDER_OVERLOADED"),
        ("timeout", TimeoutError, "SYS_TIMEOUT"),
        ("reset", ConnectionResetError, "CONN_RESET"),
        ("refused", ConnectionRefusedError, "CONN_REFUSED"),
        ("code:PROVIDER_OVERLOADED", HoldfastError, "PROVIDER_OVERLOADED"),
        ("code:CIRCUIT_OPEN", CircuitOpenError, "CIRCUIT_OPEN"),
    ],
)
def test_a_step_raises_an_error_that_is_classified(step, kind, code):
    with pytest.raises(kind) as raised:
        script(step)()
    assert type(raised.value) is kind
    assert fault_of(raised.value).code == code


def test_headers_travel_with_the_answer():
    with pytest.raises(ScriptedHTTPError) as raised:
        script("429;Retry-After=7;x-request-id=r1")()
    assert raised.value.headers == {"retry-after": "7", "x-request-id": "r1"}
    assert fault_of(raised.value).retry_after == 7


def test_an_error_with_a_body_is_classified_by_it():
    error = ScriptedHTTPError(429, body={"error": {"type": "insufficient_quota", "message": "You exceeded your quota"}})
    assert fault_of(error).code == "PROVIDER_BILLING"
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.status_code, again.body) == ("HTTP 429", 429, error.body)


def test_a_step_may_be_repeated_and_every_failure_is_a_new_one():
    calls = script("503*2, ok:done*2")
    raised = []
    for _ in range(2):
        with pytest.raises(ScriptedHTTPError) as failure:
            calls()
        raised.append(failure.value)
    assert raised[0] is not raised[1]
    assert played(calls, 2) == ["done", "done"]


def test_a_list_holds_exceptions_results_and_steps():
    boom = KeyError("boom")
    calls = script([boom, ValueError, "503", "ok:a, b", 429, None, {"text": "hi"}])
    with pytest.raises(KeyError) as raised:
        calls()
    assert raised.value is boom
    with pytest.raises(ValueError):
        calls()
    assert played(calls, 5) == ["PROVIDER_UNAVAILABLE", "a, b", 429, None, {"text": "hi"}]


def test_it_keeps_the_arguments_of_each_call():
    calls = script("503, ok")
    played(lambda: calls("long", tokens=9), 1)
    calls("short")
    assert calls.received == [(("long",), {"tokens": 9}), (("short",), {})]
    assert calls.received[0].kwargs == {"tokens": 9}


def test_a_call_too_many_fails_the_test_and_so_does_a_step_too_many():
    calls = script("ok, ok")
    calls()
    with pytest.raises(AssertionError, match="expected all 2 steps to be played, got 1 calls"):
        calls.assert_finished()
    calls()
    calls.assert_finished()
    with pytest.raises(ScriptEndedError, match="expected at most 2 calls, got call 3"):
        calls()
    assert (calls.calls, calls.left) == (3, 0)


def test_threads_share_a_script_without_playing_a_step_twice():
    calls = script([*range(2000)])
    with ThreadPoolExecutor(8) as threads:
        assert sorted(threads.map(lambda _: calls(), range(2000))) == list(range(2000))


# Async


def test_an_async_call_plays_the_same_steps():
    calls = script("429, ok:hello")
    assert asyncio.iscoroutinefunction(calls.acall)

    async def main():
        with pytest.raises(ScriptedHTTPError):
            await calls.acall("q")
        return await calls.acall("q")

    assert run(main()) == "hello"


def test_hang_waits_until_it_is_cancelled():
    calls = script("hang, ok:late")

    async def main():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await calls.acall()
        assert asyncio.get_running_loop().time() == 60
        return await calls.acall()

    assert run(main()) == "late"


def test_blocking_code_cannot_play_a_hang():
    with pytest.raises(InvalidError, match=r"`hang` needs `await calls\.acall"):
        script("hang")()


# Chance


def test_the_same_seed_fails_the_same_calls_and_another_seed_others():
    def failures(seed):
        return [n for n, came in enumerate(played(script("503%30*200", seed=seed), 200)) if came is not None]

    assert failures(1) == failures(1)
    assert failures(1) != failures(2)
    assert 30 < len(failures(1)) < 90


def test_a_chance_of_0_never_fails_and_one_of_100_always():
    assert played(script("503%0*50"), 50) == [None] * 50
    assert played(script("503%100*50"), 50) == ["PROVIDER_UNAVAILABLE"] * 50


# Invalid scripts


@pytest.mark.parametrize(
    ("steps", "place", "expected", "received"),
    [
        ("429, 42x", r"script\[1\]", "ok, ok:VALUE, a status from 400 to 599", "'42x'"),
        ("200", r"script\[0\]", "a status from 400 to 599", "'200'"),
        ("600", r"script\[0\]", "a status from 400 to 599", "'600'"),
        ("ok,,ok", r"script\[1\]", "ok, ok:VALUE", "''"),
        ("", r"script\[0\]", "ok, ok:VALUE", "''"),
        ("ok, OK", r"script\[1\]", "ok, ok:VALUE", "'OK'"),
        ("503*0", r"script\[0\]", "a status from 400 to 599", r"'503\*0'"),
        ("503%101", r"script\[0\]", "a status from 400 to 599", "'503%101'"),
        ("429;retry-after", r"script\[0\]", "a header as NAME=VALUE", "'retry-after'"),
        ("429;=7", r"script\[0\]", "a header as NAME=VALUE", "'=7'"),
        (
            "code:PROVIDER_OVERLODED",
            r"script\[0\]",
            r"a code of the catalog \(did you mean PROVIDER_OVERLOADED",
            "'PROVIDER",
        ),
        ("code:rate_limit", r"script\[0\]", "a code of the catalog", "'rate_limit'"),
        ([429, "nonsense"], r"script\[1\]", "ok, ok:VALUE", "'nonsense'"),
        ([], "script", "at least one step", "'none'"),
        (429, "script", "a text or a list of steps", "429"),
        (None, "script", "a text or a list of steps", "NoneType"),
    ],
)
def test_a_bad_script_raises_where_it_is_written(steps, place, expected, received):
    with pytest.raises(InvalidError, match=f"{place}: expected .*{expected}.*, got {received}"):
        script(steps)


def test_a_class_that_inherits_its_code_is_not_taken_for_the_codes_own():
    class Own(HoldfastError):
        pass

    with pytest.raises(HoldfastError) as raised:
        script("code:SYS_INTERNAL_ERROR")()
    assert type(raised.value) is HoldfastError
    assert issubclass(Own, HoldfastError)


def test_every_code_of_the_catalog_can_be_scripted():
    assert played(script([f"code:{code}" for code in CODES]), len(CODES)) == list(CODES)


@pytest.mark.parametrize("read", [script, read_script])
def test_an_underscore_in_the_name_of_a_header_is_not_passed_over(read):
    with pytest.raises(InvalidError, match="retry-after"):
        read("429;retry_after=30, ok")
