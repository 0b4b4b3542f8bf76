"""Several clients behind one name: shares, failover from key to key, rests, announced limits."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from contextlib import suppress

import anthropic
import httpx2
import pytest
from clients_kit import (
    DENIED,
    LIMITED,
    OVERLOADED,
    REQUEST,
    START,
    WHOLE,
    Streaming,
    Wire,
    anthropic_on,
    async_anthropic_on,
    completion,
    failing,
    in_time,
    message,
    openai_on,
    world,
)

import holdfast.openai
from holdfast import Circuit, Policy
from holdfast.anthropic import recovering
from holdfast.events import AttemptStarted, CircuitState
from holdfast.testing import FaultProvider, VirtualClock, run
from holdfast.testing.provider import Rule, Script

NO_CREDIT = failing(429, "insufficient_quota", "You exceeded your current quota, please check your plan and billing")


def pool(wire: Wire, runtime, keys: str = "ab", **options):
    return recovering(*(anthropic_on(wire, key) for key in keys), runtime=runtime, **options)


def test_calls_are_shared_out_by_weight():
    wire, (runtime, _) = Wire(message()), world()
    claude = pool(wire, runtime, "abc", weights=(2, 1, 1))
    for _ in range(8):
        claude.messages.create(**REQUEST)
    assert Counter(wire.keys) == {"a": 4, "b": 2, "c": 2}


@pytest.mark.parametrize("failure", [DENIED, LIMITED, NO_CREDIT], ids=["401", "429", "no credit"])
def test_a_key_that_fails_is_left_for_the_next_at_once(failure):
    wire, (runtime, heard) = Wire(by_key={"a": [failure], "b": [message("hi")]}), world()
    claude = pool(wire, runtime)
    assert claude.messages.create(**REQUEST).content[0].text == "hi"
    assert wire.keys == ["a", "b"]
    assert runtime.clock.monotonic() == 0.0
    assert len(heard.of(AttemptStarted)) == len(wire.requests)
    claude.messages.create(**REQUEST)
    assert wire.keys == ["a", "b", "b"], "a key that failed rests"


@pytest.mark.parametrize("failure", [DENIED, LIMITED], ids=["401", "429"])
def test_a_key_that_fails_is_left_for_the_next_at_once_in_a_task(failure):
    wire, (runtime, _) = Wire(by_key={"a": [failure], "b": [message("hi")]}), world()
    claude = recovering(async_anthropic_on(wire, "a"), async_anthropic_on(wire, "b"), runtime=runtime)
    assert in_time(runtime, claude.messages.create(**REQUEST)).content[0].text == "hi"
    assert (wire.keys, runtime.clock.monotonic()) == (["a", "b"], 0.0)


def test_a_key_that_was_limited_comes_back_when_its_rest_is_over():
    wire, (runtime, _) = Wire(by_key={"a": [LIMITED, message()], "b": [message()]}), world()
    claude = pool(wire, runtime)
    claude.messages.create(**REQUEST)
    runtime.sleep(30)
    for _ in range(2):
        claude.messages.create(**REQUEST)
    assert Counter(wire.keys) == {"a": 2, "b": 2}


def test_where_every_key_is_limited_the_first_to_be_free_is_waited_for():
    by_key = {
        "a": [failing(429, "rate_limit_error", retry_after="10"), message("hi")],
        "b": [failing(429, "rate_limit_error", retry_after="50"), message("no")],
    }
    wire, (runtime, _) = Wire(by_key=by_key), world()
    assert pool(wire, runtime).messages.create(**REQUEST).content[0].text == "hi"
    assert wire.keys == ["a", "b", "a"]
    assert runtime.clock.monotonic() == pytest.approx(10.0)


def test_moving_to_another_key_is_no_retry_of_the_policys():
    by_key = {key: [LIMITED, message()] for key in "abcd"}
    wire, (runtime, _) = Wire(by_key=by_key), world()
    pool(wire, runtime, "abcd", policy=Policy(attempts=2)).messages.create(**REQUEST)
    assert wire.keys[:4] == ["a", "b", "c", "d"]
    assert len(wire.requests) == 5


def test_where_every_key_is_denied_the_denial_surfaces():
    wire, (runtime, _) = Wire(DENIED), world()
    claude = pool(wire, runtime)
    for _ in range(2):
        with pytest.raises(anthropic.AuthenticationError):
            claude.messages.create(**REQUEST)
    assert wire.keys[:2] == ["a", "b"]


def test_attempts_end_where_every_key_stays_limited():
    wire, (runtime, _) = Wire(failing(429, "rate_limit_error", retry_after="1")), world()
    with pytest.raises(anthropic.RateLimitError):
        pool(wire, runtime, policy=Policy(attempts=3)).messages.create(**REQUEST)
    assert len(wire.requests) == 4, "three, and one that only changed the key"


def test_what_is_no_keys_fault_moves_nobody_and_waits():
    wire, (runtime, _) = Wire(by_key={"a": [OVERLOADED], "b": [message()]}), world()
    pool(wire, runtime, weights=(9, 1)).messages.create(**REQUEST)
    assert wire.keys == ["a", "b"], "the one that just failed is not the one to try next"
    assert runtime.clock.monotonic() == pytest.approx(1.0)


def test_an_announced_limit_is_not_run_into():
    announcing = message(
        anthropic_ratelimit_requests_limit="100",
        anthropic_ratelimit_requests_remaining="0",
        anthropic_ratelimit_requests_reset="2025-01-01T00:00:40Z",
    )
    wire, (runtime, _) = Wire(by_key={"a": [announcing], "b": [message()]}), world()
    claude = pool(wire, runtime)
    for _ in range(5):
        claude.messages.create(**REQUEST)
    assert wire.keys == ["a", "b", "b", "b", "b"]
    runtime.sleep(40)
    for _ in range(2):
        claude.messages.create(**REQUEST)
    assert "a" in wire.keys[5:]


def announcing(remaining: int):
    return message(
        anthropic_ratelimit_requests_limit="100",
        anthropic_ratelimit_requests_remaining=str(remaining),
        anthropic_ratelimit_requests_reset="2025-01-01T00:00:40Z",
    )


def test_where_all_keys_have_reached_their_limits_calls_wait_as_with_one_key():
    waits = []
    for keys in ("a", "ab"):
        wire, (runtime, _) = Wire(by_key={key: [announcing(1), announcing(0), message()] for key in keys}), world()
        claude = pool(wire, runtime, keys)
        for _ in range(2 * len(keys)):
            claude.messages.create(**REQUEST)
        began = runtime.clock.monotonic()
        claude.messages.create(**REQUEST)
        waits.append(runtime.clock.monotonic() - began)
    assert waits[0] == pytest.approx(waits[1])


@pytest.mark.parametrize("retry_after", [None, "60"])
def test_a_prompt_that_is_always_limited_holds_no_other_call_back(retry_after: str | None):
    named = {"retry_after": retry_after} if retry_after else {}
    limited = failing(429, "rate_limit_error", **named)
    wire, (runtime, _) = Wire(by_key={key: [limited] * 3 + [message()] for key in "abc"}), world()
    claude = pool(wire, runtime, "abc", policy=Policy(attempts=1))
    with pytest.raises(anthropic.RateLimitError):
        claude.messages.create(**REQUEST)
    wire.by_key = {key: [message()] for key in "abc"}
    began = runtime.clock.monotonic()
    for _ in range(6):
        claude.messages.create(**REQUEST)
    assert runtime.clock.monotonic() == began


NO_MODEL = failing(404, "not_found_error", "model: claude-test")


def test_a_key_that_lacks_the_model_is_left_for_the_next_at_once_and_not_asked_for_it_again():
    wire, (runtime, _) = Wire(by_key={"a": [NO_MODEL], "b": [message("hi")]}), world()
    claude = pool(wire, runtime)
    for _ in range(3):
        assert claude.messages.create(**REQUEST).content[0].text == "hi"
    assert wire.keys == ["a", "b", "b", "b"]
    assert runtime.clock.monotonic() == 0.0
    for _ in range(2):
        claude.messages.create(**{**REQUEST, "model": "claude-other"})
    assert "a" in wire.keys[4:], "it may have other models"


def test_a_model_that_no_key_has_is_not_found_and_rests_no_key():
    wire, (runtime, _) = Wire(NO_MODEL), world()
    claude = pool(wire, runtime)
    for _ in range(2):
        with pytest.raises(anthropic.NotFoundError):
            claude.messages.create(**REQUEST)
    assert wire.keys[:2] == ["a", "b"]
    assert len(wire.requests) == 4


def test_a_key_whose_circuit_is_open_is_passed_over():
    circuit = Circuit(failures=1, rate=None, open_for=500)
    wire, (runtime, _) = Wire(by_key={"a": [DENIED], "b": [message()]}), world()
    claude = pool(wire, runtime, policy=Policy(circuit=circuit))
    claude.messages.create(**REQUEST)
    shut = [line for line in runtime.registry if line._breaker.recorded_state is CircuitState.OPEN]
    assert [line.name.partition("/")[0] for line in shut] == ["key:anthropic"]
    runtime.sleep(100)  # the key's rest is over, its circuit is still open
    for _ in range(3):
        claude.messages.create(**REQUEST)
    assert Counter(wire.keys) == {"a": 1, "b": 4}


def test_copies_of_a_pool_are_pools_that_know_what_it_knows():
    wire, (runtime, _) = Wire(by_key={"a": [DENIED], "b": [message()]}), world()
    claude = pool(wire, runtime)
    claude.messages.create(**REQUEST)
    claude.with_options(timeout=3).messages.create(**REQUEST)
    claude.with_options(timeout=3).messages.create(**REQUEST)
    assert wire.keys == ["a", "b", "b", "b"]


def test_a_stream_moves_to_another_key_before_its_first_content():
    by_key = {"a": [LIMITED], "b": [Streaming(START), Streaming(*WHOLE)]}
    wire, (runtime, _) = Wire(by_key=by_key), world()
    with pool(wire, runtime).messages.stream(**REQUEST) as stream:
        assert "".join(stream.text_stream) == "Hello"
    assert wire.keys == ["a", "b", "b"]


def test_one_outcome_for_the_whole_gives_every_permit_back():
    wire, (runtime, _) = Wire(by_key={"a": [DENIED], "b": [message()]}), world()
    pool(wire, runtime, policy=Policy(counts="operation")).messages.create(**REQUEST)
    lines = [line._breaker for line in runtime.registry if line.name != "provider:anthropic"]
    assert sum(b.successes + b.failures + b.ignored + b.cancelled for b in lines) == 4, (
        "model and key, for each of both"
    )
    assert runtime.registry.get("provider:anthropic")._breaker.successes == 1


def test_closing_the_pool_closes_every_client():
    wires = [Wire(), Wire()]
    given = [anthropic_on(wires[0], "a"), anthropic_on(wires[1], "b")]
    with recovering(*given) as claude:
        assert not claude.is_closed()
    assert [client.is_closed() for client in given] == [True, True]


def test_fifty_threads_and_a_denied_key_see_no_error():
    wire, (runtime, _) = Wire(by_key={"a": [DENIED], "b": [message()], "c": [message()]}), world()
    claude = pool(wire, runtime, "abc")
    failures = []

    def ask():
        try:
            claude.messages.create(**REQUEST)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=ask) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert Counter(wire.keys)["b"] + Counter(wire.keys)["c"] == 50


def test_openai_keys_form_a_pool_too():
    chat = {"model": "gpt-test", "messages": [{"role": "user", "content": "hi"}]}
    wire, (runtime, _) = Wire(by_key={"a": [NO_CREDIT], "b": [completion("hi")]}), world()
    gpt = holdfast.openai.recovering(openai_on(wire, "a"), openai_on(wire, "b"), runtime=runtime)
    assert gpt.chat.completions.create(**chat).choices[0].message.content == "hi"
    assert wire.keys == ["a", "b"]


def clients_of(provider: FaultProvider, keys: str) -> list[anthropic.AsyncAnthropic]:
    return [
        anthropic.AsyncAnthropic(
            base_url="http://p.test", api_key=key, http_client=httpx2.AsyncClient(transport=provider.transport())
        )
        for key in keys
    ]


def test_no_call_waits_in_the_line_of_one_key_while_another_key_is_free():
    clock = VirtualClock()
    unlike = [
        f"requests={n};burst=4;keys={key};retry_after=no;headers=no"
        for key, n in zip("abc", (12, 12, 480), strict=True)
    ]
    provider = FaultProvider("slow;seconds=1, loop", limits=unlike, clock=clock)
    rng = random.Random(4)

    async def main() -> list[float]:
        pool = recovering(*clients_of(provider, "abc"))
        took: list[float] = []

        async def ask() -> None:
            began = clock.monotonic()
            await pool.messages.create(**REQUEST)
            took.append(clock.monotonic() - began)

        async with asyncio.TaskGroup() as group:
            while clock.monotonic() < 120:
                await asyncio.sleep(rng.expovariate(5))
                group.create_task(ask())
        return sorted(took)

    took = run(main(), clock=clock)
    assert took[int(0.95 * len(took))] < 5, "one key alone answers more than comes"
    assert took[-1] < 15


def test_callers_one_after_the_other_learn_that_a_key_hangs():
    hangs = Script(rules=(Rule(steps="hang", loop=True, keys=("a",)),))

    async def main() -> int:
        pool, answered = recovering(*clients_of(FaultProvider(hangs), "abc")), 0
        for _ in range(30):
            with suppress(TimeoutError):
                async with asyncio.timeout(20):  # nobody here can see this limit
                    await pool.messages.create(**REQUEST)
                    answered += 1
                    await asyncio.sleep(0.5)
        return answered

    assert run(main()) == 29
