"""The fault provider's limits: token buckets, ramps, places for answers, and how they are announced."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time

import anthropic
import httpx2
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from provider_calls import CLAUDE, GPT, MESSAGES

from holdfast import Policy, Runtime, fault_of, recover
from holdfast.faults import InvalidError
from holdfast.testing import FaultProvider, VirtualClock, run, serve_in_thread, use_runtime
from holdfast.testing.provider import Limit, Limits, Request, Rule, Script, read_limit, read_script
from holdfast.testing.provider.http import Data, ReplyHead

BASE = "http://provider.test"
REQUEST = {"model": CLAUDE, "max_tokens": 9, "messages": MESSAGES}
CHAT = {"model": GPT, "messages": MESSAGES}
PATHS = {"anthropic": "/v1/messages", "chat": "/v1/chat/completions", "responses": "/v1/responses"}


def provider_with(*limits, clock=None, script=""):
    return FaultProvider(script, clock=clock or VirtualClock(), limits=limits)


def ask(provider, path="/v1/messages", key="k", model="claude-x", **document):
    """Return status, headers and body of one request, performed at once."""
    body = json.dumps({"model": model, **document}).encode()
    plan = provider.plan(Request("POST", path, {"x-api-key": key}, body))
    acts = list(plan)
    plan.close()
    head = next(act for act in acts if isinstance(act, ReplyHead))
    data = b"".join(act.data for act in acts if isinstance(act, Data))
    return head.status, dict(head.headers), json.loads(data)


def statuses(provider, count, **request):
    return [ask(provider, **request)[0] for _ in range(count)]


# --- buckets ---


def test_a_bucket_gives_its_burst_and_then_its_rate():
    clock = VirtualClock()
    provider = provider_with(Limit(requests=60, burst=3), clock=clock)
    assert statuses(provider, 5) == [200, 200, 200, 429, 429]
    clock.advance(1)
    assert statuses(provider, 2) == [200, 429]
    clock.advance(100)
    assert statuses(provider, 4) == [200, 200, 200, 429]
    assert provider.counters.limited == {"requests": 4}
    assert provider.counters.answered == 7


def test_the_burst_is_a_minute_if_none_is_given():
    assert statuses(provider_with(Limit(requests=5)), 6) == [200] * 5 + [429]


def test_each_key_has_its_own_bucket_unless_the_limit_is_shared():
    own = provider_with(Limit(requests=60, burst=1))
    assert [ask(own, key=key)[0] for key in ("a", "a", "b", "b")] == [200, 429, 200, 429]
    shared = provider_with(Limit(requests=60, burst=1, shared=True))
    assert [ask(shared, key=key)[0] for key in ("a", "b")] == [200, 429]


def test_a_limit_may_count_only_some_models_and_keys():
    provider = provider_with(Limit(requests=60, burst=1, models=("claude-*",), keys=("sk-a*",)))
    assert statuses(provider, 2, key="sk-a1") == [200, 429]
    assert statuses(provider, 2, key="sk-b") == [200, 200]
    assert statuses(provider, 2, key="sk-a1", model="gpt-5") == [200, 200]


def test_tokens_are_the_prompt_and_the_answer():
    clock = VirtualClock()
    _, _, answer = ask(provider_with(), messages=MESSAGES)
    cost = answer["usage"]["input_tokens"] + answer["usage"]["output_tokens"]
    provider = provider_with(Limit(tokens=60 * cost, burst=2 * cost), clock=clock)
    assert statuses(provider, 3, messages=MESSAGES) == [200, 200, 429]
    clock.advance(1)
    assert statuses(provider, 2, messages=MESSAGES) == [200, 429]
    assert provider.counters.limited == {"tokens": 2}


def test_a_request_that_the_bucket_can_never_hold_announces_no_time():
    provider = provider_with(Limit(tokens=100))
    status, headers, body = ask(provider, "/v1/chat/completions", messages=[{"role": "user", "content": "x" * 4000}])
    assert (status, "retry-after" in headers) == (429, False)
    assert body["error"]["message"].startswith("Request too large for claude-x in organization org-XXXX on tokens per")


def test_all_limits_must_admit_a_request_and_then_all_charge_it():
    provider = provider_with(Limit(requests=60, burst=2), Limit(requests=6, burst=1, models=("big",)))
    assert [ask(provider, model=model)[0] for model in ("big", "big", "small", "small")] == [200, 429, 200, 429]


def test_a_rejected_request_may_be_charged_too():
    clock = VirtualClock()
    provider = provider_with(Limit(requests=60, burst=1, charge_rejected=True), Limit(concurrency=9), clock=clock)
    seen = []
    for _ in range(10):
        seen += statuses(provider, 1)
        clock.advance(0.75)
    assert seen == [200] + [429] * 9  # each attempt takes what has come back
    clock.advance(1)
    assert statuses(provider, 1) == [200]


@given(
    requests=st.integers(1, 600),
    burst=st.integers(1, 20),
    ramp=st.sampled_from([0.0, 60.0]),
    ramp_from=st.sampled_from([0.0, 30.0, 900.0]),
    gaps=st.lists(st.integers(0, 100), min_size=1, max_size=25),
)
def test_a_client_that_waits_as_announced_is_admitted(requests, burst, ramp, ramp_from, gaps):
    limits = Limits([Limit(requests=requests, burst=burst, ramp=ramp, ramp_from=ramp_from)])
    at = 0.0
    for admitted, gap in enumerate(gaps, 1):
        at += gap / 10
        rejection = limits.admit("k", "m", tokens=1, at=at).rejection
        if rejection is not None:
            if rejection.seconds > 0.01:
                assert limits.admit("k", "m", tokens=1, at=at + rejection.seconds * 0.99 - 1e-5).rejection is not None
            at += rejection.seconds
            assert limits.admit("k", "m", tokens=1, at=at).rejection is None
        rate = max(requests, ramp_from) if ramp else requests
        assert admitted <= burst + rate * at / 60 + 1e-3


# --- moments and ramps ---


def test_a_limit_begins_and_ends():
    clock = VirtualClock()
    provider = provider_with(Limit(requests=1, since=10, until=20), clock=clock)
    seen = []
    for _ in range(6):
        seen.append(statuses(provider, 2))
        clock.advance(5)
    assert seen == [[200, 200], [200, 200], [200, 429], [429, 429], [200, 200], [200, 200]]


def test_a_wait_ends_with_the_limit():
    provider = provider_with(Limit(requests=1, until=20))
    assert [ask(provider)[1].get("retry-after") for _ in range(2)] == [None, "20"]


def test_a_limit_that_returns_slowly():
    """From 0 to 600 a minute in 60 s, so 300 requests pass in that minute and 10 a second after it."""
    clock = VirtualClock()
    provider = provider_with(Limit(requests=600, burst=10, since=0, ramp=60), clock=clock)
    passed = []
    for _ in range(90):
        passed.append(statuses(provider, 20).count(200))
        clock.advance(1)
    assert passed[0] == 0
    assert sum(passed[:61]) == pytest.approx(300, abs=2)
    assert passed[-20:] == [10] * 20
    assert sum(passed[:10]) < sum(passed[10:20]) < sum(passed[20:30])


def test_places_grow_with_a_ramp():
    clock = VirtualClock()
    provider = provider_with(Limit(concurrency=10, ramp=100, ramp_from=2), clock=clock, script="hang, loop")
    open_plans = []

    def admitted():
        for _ in range(12):
            plan = provider.plan(Request("POST", "/v1/messages", {"x-api-key": "k"}, b'{"model":"claude-x"}'))
            if not isinstance(next(plan), ReplyHead):
                open_plans.append(plan)
        return len(open_plans)

    assert admitted() == 2
    clock.advance(50)
    assert admitted() == 6
    clock.advance(50)
    assert admitted() == 10


@pytest.mark.parametrize(("path", "status"), [("/v1/messages", 529), ("/v1/chat/completions", 503)])
def test_a_limit_may_answer_with_another_error_and_announces_nothing_then(path, status):
    """A provider that comes back after an outage is overloaded; it does not speak of a rate limit."""
    clock = VirtualClock()
    provider = provider_with(Limit(requests=60, burst=1, error="overloaded"), clock=clock)
    seen = [ask(provider, path) for _ in range(2)]
    assert [code for code, _, _ in seen] == [200, status]
    assert not [name for _, headers, _ in seen for name in headers if "ratelimit" in name or "retry" in name]
    assert "overloaded" in json.dumps(seen[1][2]).lower()
    assert provider.counters.limited == {"requests": 1}
    clock.advance(1)
    assert statuses(provider, 1) == [200]


# --- what is announced ---


def test_anthropic_announces_requests_and_tokens():
    clock = VirtualClock()
    provider = provider_with(Limit(requests=60, burst=2), Limit(tokens=6_000_000), clock=clock)
    _, headers, _ = ask(provider)
    assert headers["anthropic-ratelimit-requests-limit"] == "60"
    assert headers["anthropic-ratelimit-requests-remaining"] == "1"
    assert headers["anthropic-ratelimit-requests-reset"] == "2025-01-01T00:00:01Z"
    assert headers["anthropic-ratelimit-tokens-limit"] == "6000000"
    assert 5_999_900 < int(headers["anthropic-ratelimit-tokens-remaining"]) < 6_000_000
    ask(provider)
    status, headers, body = ask(provider)
    assert (status, headers["retry-after"]) == (429, "1")
    assert headers["anthropic-ratelimit-requests-remaining"] == "0"
    assert body["error"]["type"] == "rate_limit_error"
    assert body["error"]["message"].startswith(
        "This request would exceed your organization's rate limit of 60 requests"
    )


def test_openai_announces_requests_and_tokens():
    provider = provider_with(Limit(requests=40, burst=1), Limit(tokens=60_000))
    _, headers, _ = ask(provider, PATHS["chat"])
    assert headers["x-ratelimit-limit-requests"] == "40"
    assert headers["x-ratelimit-remaining-requests"] == "0"
    assert headers["x-ratelimit-reset-requests"] == "1.5s"
    assert headers["x-ratelimit-limit-tokens"] == "60000"
    assert headers["x-ratelimit-reset-tokens"].endswith("ms")
    status, headers, body = ask(provider, PATHS["responses"])
    assert (status, headers["retry-after"], headers["retry-after-ms"]) == (429, "2", "1500")
    assert body["error"] == {
        "message": "Rate limit reached for claude-x in organization org-XXXX on requests per min (RPM): Limit 40, Used 40, "
        "Requested 1. Please try again in 1.5s. Visit https://platform.openai.com/account/rate-limits to learn more.",
        "type": "requests",
        "param": None,
        "code": "rate_limit_exceeded",
    }


def test_a_long_wait_is_written_as_openai_does():
    provider = provider_with(Limit(requests=1, burst=1, lie=75))
    _, headers, _ = ask(provider, PATHS["chat"])
    assert headers["x-ratelimit-reset-requests"] == "1h15m0s"


def test_xai_has_its_own_words():
    provider = provider_with(Limit(requests=60, burst=1))
    ask(provider, PATHS["chat"], model="grok-4")
    _, headers, body = ask(provider, PATHS["chat"], model="grok-4")
    assert body["code"] == "Some resource has been exhausted"
    assert "Requests per Minute (actual/limit): 61/60" in body["error"]
    assert headers["retry-after"] == "1"


@pytest.mark.parametrize("path", PATHS.values())
def test_a_silent_limit_announces_nothing(path):
    provider = provider_with(Limit(requests=60, burst=1, headers=False, retry_after=False))
    seen = [ask(provider, path) for _ in range(2)]
    assert [status for status, _, _ in seen] == [200, 429]
    assert not [name for _, headers, _ in seen for name in headers if "ratelimit" in name or "retry" in name]
    assert "try again in" not in json.dumps(seen[1][2])


@pytest.mark.parametrize(("lie", "announced"), [(0.1, "1"), (1, "10"), (6, "60")])
def test_a_limit_may_lie_about_its_end(lie, announced):
    clock = VirtualClock()
    provider = provider_with(Limit(requests=6, burst=1, lie=lie), clock=clock)
    ask(provider)
    assert ask(provider)[1]["retry-after"] == announced
    clock.advance(9)
    assert statuses(provider, 1) == [429]
    clock.advance(1)
    assert statuses(provider, 1) == [200]


@pytest.mark.parametrize(
    "limit",
    [Limit(requests=60, burst=1), Limit(tokens=600, burst=60), Limit(tokens=60, burst=9), Limit(concurrency=1)],
    ids=["requests", "tokens", "too large", "concurrency"],
)
@pytest.mark.parametrize("retry_after", [True, False])
@pytest.mark.parametrize("name", ["anthropic", "chat", "xai"])
def test_the_sdks_and_the_classifier_understand_each_429(limit, retry_after, name):
    clock = VirtualClock()
    limit = Limit(
        **{f: getattr(limit, f) for f in ("requests", "tokens", "concurrency", "burst")},
        retry_after=retry_after,
        headers=retry_after,
    )
    provider = provider_with(limit, clock=clock, script="hang, loop" if limit.concurrency else "")
    prompt = [{"role": "user", "content": "x" * 100}]
    held = provider.plan(Request("POST", "/v1/messages", {"x-api-key": "k"}, b'{"model":"claude-x"}'))
    http = httpx2.Client(transport=provider.transport())
    with http, pytest.raises((anthropic.RateLimitError, openai.RateLimitError)) as failed:
        for _ in range(3):
            if name == "anthropic":
                client = anthropic.Anthropic(base_url=BASE, api_key="k", max_retries=0, http_client=http)
                client.messages.create(model=CLAUDE, max_tokens=9, messages=prompt)
            else:
                client = openai.OpenAI(base_url=f"{BASE}/v1", api_key="k", max_retries=0, http_client=http)
                client.chat.completions.create(model="grok-4" if name == "xai" else GPT, messages=prompt)
    held.close()
    announced = retry_after and limit.burst not in (None, 9)
    assert (fault_of(failed.value).retry_after is not None) == announced


# --- places ---


def hanging(client):
    return asyncio.create_task(client.messages.create(**REQUEST))


def test_a_place_is_free_again_when_a_request_is_cancelled():
    async def main():
        provider = provider_with(Limit(concurrency=2), script="hang*3, ok")
        http = httpx2.AsyncClient(transport=provider.transport())
        client = anthropic.AsyncAnthropic(base_url=BASE, api_key="k", max_retries=0, http_client=http)
        tasks = [hanging(client) for _ in range(2)]
        await asyncio.sleep(1)
        with pytest.raises(anthropic.RateLimitError):
            await client.messages.create(**REQUEST)
        tasks[0].cancel()
        await asyncio.sleep(1)
        tasks.append(hanging(client))
        await asyncio.sleep(1)
        tasks[1].cancel()
        await asyncio.sleep(1)
        await client.messages.create(**REQUEST)
        tasks[2].cancel()
        assert provider.counters.limited == {"concurrency": 1}
        assert provider.counters.injected == {"hang": 3}

    run(main(), clock=VirtualClock())


@pytest.mark.parametrize(
    "fault", ["cut", "reset", "reset;after=1", "disconnect", "malformed-http", "truncate", "empty", "503"]
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_place_is_free_again_however_an_answer_ends(fault, stream):
    provider = provider_with(Limit(concurrency=1), script=f"{fault}, loop")
    with httpx2.Client(transport=provider.transport(), base_url=BASE, headers={"x-api-key": "k"}) as client:
        for _ in range(3):
            with contextlib.suppress(httpx2.HTTPError):
                client.post("/v1/messages", json={**REQUEST, "stream": stream})
    assert provider.counters.limited == {}
    assert sum(provider.counters.injected.values()) == 3


def test_a_place_is_free_again_after_a_clients_timeout_and_a_half_read_answer():
    clock = VirtualClock()
    provider = provider_with(Limit(concurrency=1), script="hang, silence, ok, ok, ok", clock=clock)
    with httpx2.Client(transport=provider.transport(), base_url=BASE, headers={"x-api-key": "k"}, timeout=5) as client:
        for _ in range(2):
            with pytest.raises(httpx2.ReadTimeout):
                client.post("/v1/messages", json={**REQUEST, "stream": True})
        with client.stream("POST", "/v1/messages", json={**REQUEST, "stream": True}):
            assert client.post("/v1/messages", json=REQUEST).status_code == 429  # one answer is not read yet
        assert client.post("/v1/messages", json=REQUEST).status_code == 200


def until(happened, limit=5.0):
    end = time.monotonic() + limit
    while not happened():
        assert time.monotonic() < end


def test_a_place_is_free_again_when_a_socket_closes():
    body = json.dumps(REQUEST).encode()
    head = b"POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: k\r\ncontent-length: %d\r\n\r\n" % len(body)

    def status(connection):
        connection.sendall(head + body)
        return int(connection.recv(65536).split()[1])

    with serve_in_thread("hang, ok, loop", limits=[Limit(concurrency=1)]) as provider:
        address = ("127.0.0.1", provider.port)
        with socket.create_connection(address, timeout=5) as other:
            with socket.create_connection(address, timeout=5) as hanging_one:
                hanging_one.sendall(head + body)
                until(lambda: provider.counters.injected)
                assert status(other) == 429
            until(lambda: provider.counters.abandoned)
            assert [status(other), provider.counters.limited] == [200, {"concurrency": 1}]


def test_a_reset_forgets_what_was_used():
    provider = provider_with(Limit(requests=1))
    assert statuses(provider, 2) == [200, 429]
    provider.reset()
    assert statuses(provider, 1) == [200]
    assert provider.counters.limited == {}


def test_a_place_taken_before_a_reset_does_not_count_after_it():
    provider = provider_with(Limit(concurrency=1), script="hang, ok")
    plan = provider.plan(Request("POST", "/v1/messages", {"x-api-key": "k"}, b'{"model":"claude-x"}'))
    provider.set_script("")
    assert statuses(provider, 1) == [200]
    plan.close()
    plan.close()
    assert statuses(provider, 1) == [200]


# --- with the rest ---


def test_a_limited_request_takes_no_step_and_a_models_list_is_not_limited():
    clock = VirtualClock()
    provider = provider_with(Limit(requests=60, burst=1), clock=clock, script="503, ok")
    assert statuses(provider, 2) == [503, 429]
    clock.advance(1)
    assert statuses(provider, 1) == [200]
    models = Request("GET", "/v1/models", {"x-api-key": "k"})
    assert next(provider.plan(models)).status == 200


def test_a_recovery_keeps_to_the_limit_in_virtual_time():
    clock = VirtualClock()
    with use_runtime(Runtime(clock=clock)):
        provider = FaultProvider(limits=["requests=60;burst=1"])
        http = httpx2.AsyncClient(transport=provider.transport())
        client = anthropic.AsyncAnthropic(base_url=BASE, api_key="k", max_retries=0, http_client=http)

        async def main():
            one = recover("claude", policy=Policy(attempts=20, deadline=600, wait_for_circuit=True))(
                client.messages.create
            )
            return await asyncio.gather(*(one(**REQUEST) for _ in range(5)))

        assert len(run(main(), clock=clock)) == 5
    assert provider.counters.answered == 5
    assert clock.monotonic() >= 4
    assert provider.counters.limited["requests"] == provider.counters.received - 5


def test_limits_in_toml_json_and_python_are_the_same():
    made = Script(
        rules=(Rule(steps="503", loop=True, since=60, until=120),),
        limits=(Limit(requests=60, burst=5, since=120, ramp=300, ramp_from=6), Limit(concurrency=4, shared=True)),
    )
    toml = (
        '[[limits]]\nrequests = 60\nburst = 5\nfrom = 120\nramp = 300\nramp_from = 6\n[[rules]]\nsteps = "503"\nloop = true\n'
        "from = 60\nto = 120\n[[limits]]\nconcurrency = 4\nshared = true\n"
    )
    assert read_script(toml) == made
    provider = FaultProvider(made, clock=VirtualClock())
    plan = provider.plan(Request("GET", "/_holdfast/script", {}))
    written = b"".join(act.data for act in plan if isinstance(act, Data)).decode()
    assert read_script(written) == made


def test_a_limit_in_one_line():
    assert read_limit("requests=60;burst=5;from=10;to=20;retry-after=no") == Limit(
        requests=60, burst=5, since=10, until=20, retry_after=False
    )
    assert read_limit("concurrency=4; shared; keys=a|b*") == Limit(concurrency=4, shared=True, keys=("a", "b*"))
    assert read_limit("tokens=3e4;headers=no;lie=0.2") == Limit(tokens=30_000, headers=False, lie=0.2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("banana", "limit: expected KIND=NUMBER;OPTION=VALUE, such as requests=60;burst=5;headers=no, got 'banana'"),
        ("burst=5", "limit: expected one of requests, tokens, concurrency, got 'none'"),
        ("requests=1;tokens=5", "limit: expected one of requests, tokens, concurrency, got 'requests and tokens'"),
        ("requests=0", "limit.requests: expected a finite number ≥ 1, got 0.0"),
        ("requests=5;burts=4", "an unknown option `burts`"),
        ("requests=five", "limit.requests: expected float"),
        ("requests=5;headers=maybe", "limit.headers: expected bool"),
        ("requests=5;from=9;to=3", "limit.to: expected a moment after 9 s, where the limit begins, got 3.0"),
        ("concurrency=5;burst=3", "limit.burst: expected no burst"),
        ("requests=5;error=banana", "limit.error: expected one of auth, bad-request"),
    ],
)
def test_a_wrong_limit_says_what_is_expected(text, message):
    with pytest.raises(InvalidError) as failed:
        FaultProvider(limits=[text])
    assert message in str(failed.value)


def test_a_wrong_limit_in_toml_is_found_by_its_line():
    with pytest.raises(
        InvalidError, match=r"script:5: limits\[1\]\.burst: expected a finite number ≥ 1 or None, got 0"
    ):
        read_script('[[limits]]\nrequests = 4\n[[limits]]\ntokens = 5\nburst = 0\n[[rules]]\nsteps = "ok"\n')
