"""One conformance suite for the engines that keep what a fleet knows: in this process, on Redis, on PostgreSQL, and behind a pooler."""

from __future__ import annotations

import multiprocessing
import secrets
import threading
import time
from functools import partial

import pytest
from redis import Redis

from holdfast.policies.fleet import FleetReport, MetLimit, tell
from holdfast.runtime.fleet.shared_state import SharedStateError
from holdfast.stores.shared_state import local, postgres, redis
from holdfast.testing.redis import PrivateRedis

ENGINES = ("local", "redis", "postgres", "pooler")


@pytest.fixture(scope="module")
def redis_server():
    with PrivateRedis() as server:
        yield server


@pytest.fixture(params=ENGINES)
def place(request):
    """How another process opens the same engine."""
    if request.param == "local":
        return local.open_state, "local:conformance", secrets.token_hex(4)
    if request.param == "redis":
        return redis.open_state, request.getfixturevalue("redis_server").url, secrets.token_hex(4)
    server = request.getfixturevalue("postgres" if request.param == "postgres" else "pooler")
    return postgres.open_state, server.url, secrets.token_hex(4)


@pytest.fixture
def state(place):
    opener, *where = place
    engine = opener(*where)
    yield engine
    engine.close()


def count(target, _now):
    target.number += 1
    return target.number


def patiently(state, name, step):
    """A change, tried again where a loaded machine was too slow for the engine's time limit."""
    for _ in range(50):
        try:
            return state.change(name, step)
        except SharedStateError:
            time.sleep(0.01)
    raise AssertionError("the engine never answered")


def test_a_change_is_kept(state):
    assert [patiently(state, "provider:claude", count) for _ in range(3)] == [1, 2, 3]


def test_targets_are_apart(state):
    patiently(state, "provider:a", count)
    assert patiently(state, "provider:b", count) == 1
    assert set(state.targets()) == {"provider:a", "provider:b"}


def test_namespaces_are_apart(place):
    opener, url, namespace = place
    one, other = opener(url, namespace), opener(url, f"{namespace}-2")
    patiently(one, "provider:a", count)
    assert other.targets() == {}
    one.close(), other.close()


def test_a_name_may_hold_anything(state):
    names = ["key:claude/team {a}", "deployment:openai@[::1]:80/ä*?/x", "a:b:c"]
    for name in names:
        patiently(state, name, count)
    assert set(state.targets()) == set(names)


def test_no_change_of_several_processes_is_lost(place):
    if place[0] is local.open_state:
        pytest.skip("it is this process only")
    context = multiprocessing.get_context("spawn")
    children = [context.Process(target=_count_often, args=(place,)) for _ in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join(30)
    opener, *where = place
    engine = opener(*where)
    done = patiently(engine, "provider:claude", lambda target, _: (target.number, target.granted))
    engine.close()
    assert [child.exitcode for child in children] == [0, 0, 0]
    # A change that failed for the process may have been done, and none that was done is missing.
    assert done[0] >= 150


def _count_often(place):
    opener, *where = place
    engine = opener(*where)
    for _ in range(50):
        patiently(engine, "provider:claude", count)


def test_time_is_the_engines(state):
    first = patiently(state, "provider:claude", lambda _, now: now)
    time.sleep(0.02)
    assert 0.01 < patiently(state, "provider:claude", lambda _, now: now) - first < 10


def test_what_a_fleet_knows_survives_the_engine_unchanged(state):
    report = FleetReport(process="a", limited=(MetLimit(), MetLimit(0, 2.0)), waiting={"high": 2, "low": 1})
    step = partial(_tell, report)
    answer = patiently(state, "provider:claude", step)
    target = state.targets()["provider:claude"]
    assert answer.epoch == target.epoch
    assert target.pace is not None
    assert target.pace.next > target.at + 1
    assert target.members["a"].waiting["high"] >= 1


def _tell(report, target, now):
    return tell(target, report, now)


def test_a_closed_engine_opens_again(state):
    patiently(state, "provider:claude", count)
    state.close()
    assert patiently(state, "provider:claude", count) == 2


def test_nothing_is_wrong_with_a_fresh_engine(state):
    assert state.check() == []


@pytest.mark.parametrize("opener", [redis.open_state, postgres.open_state])
def test_an_engine_that_is_not_there_is_said_without_its_password(opener, tmp_path):
    scheme = "redis" if opener is redis.open_state else "postgresql"
    engine = opener(f"{scheme}://app:hunter2@127.0.0.1:1/0", "x")
    with pytest.raises(SharedStateError) as raised:
        engine.change("provider:claude", count)
    assert "hunter2" not in str(raised.value)
    assert "hunter2" not in engine.place
    engine.close()


def test_a_paused_redis_is_noticed_at_once():
    with PrivateRedis() as server:
        engine = redis.open_state(server.url, "x")
        patiently(engine, "provider:claude", count)
        server.pause()
        began = time.monotonic()
        with pytest.raises(SharedStateError):
            engine.change("provider:claude", count)
        assert time.monotonic() - began < 5
        server.resume()
        assert patiently(engine, "provider:claude", count) >= 2
        engine.close()


def test_a_redis_that_forgot_begins_anew():
    with PrivateRedis() as server:
        engine = redis.open_state(server.url, "x")
        first = patiently(engine, "provider:claude", lambda target, _: target.epoch)
        server.kill()
        with pytest.raises(SharedStateError):
            engine.change("provider:claude", count)
        time.sleep(0.005)
        server.start()
        assert patiently(engine, "provider:claude", lambda target, _: target.epoch) != first
        engine.close()


def test_a_replica_and_scripts_forbidden_and_eviction():
    with PrivateRedis() as server:
        admin = Redis.from_url(server.url)
        # Proxies and access rules often forbid these: none is used.
        admin.execute_command("ACL", "SETUSER", "default", "-@scripting", "-@pubsub")
        engine = redis.open_state(server.url, "x")
        assert patiently(engine, "provider:claude", count) == 1
        admin.execute_command(
            *("ACL", "SETUSER", "app", "on", ">pw", "~hf1:{x:*", "+@read", "+@write", "+@transaction", "+@connection"),
            *("+time", "+info", "+scan"),
        )
        least = redis.open_state(server.url.replace("unix://", "unix://app:pw@"), "x")
        assert patiently(least, "provider:claude", count) == 2
        assert set(least.targets()) == {"provider:claude"}
        assert least.check() == []
        assert "pw" not in least.place
        least.close()
        admin.config_set("maxmemory", "100mb")
        admin.config_set("maxmemory-policy", "allkeys-lru")
        assert "allkeys-lru" in engine.check()[0]
        admin.replicaof("127.0.0.1", 1)
        with pytest.raises(SharedStateError, match="ReadOnly"):
            engine.change("provider:claude", count)
        assert any("replica" in each for each in engine.check())
        engine.close()
        admin.close()


def test_threads_of_one_engine_in_memory_lose_nothing():
    kept: dict[str, bytes] = {}
    engines = [local.LocalState(kept) for _ in range(4)]
    threads = [
        threading.Thread(target=lambda engine=engine: [engine.change("a", count) for _ in range(200)])
        for engine in engines
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert engines[0].change("a", count) == 801
