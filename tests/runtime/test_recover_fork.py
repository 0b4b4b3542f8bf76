"""Pre-fork servers: what a forked worker must not share with its parent."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


def forked(code: str) -> list[str]:
    """Run `code` in an interpreter of its own, where forking meets no threads of pytest's."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", _HEAD + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


_HEAD = """
import asyncio, os, threading
from holdfast import Backoff, Circuit, DeadlineError, Policy, Runtime, recover, tool
from holdfast.runtime.runtime import default_runtime
from holdfast.runtime.tool import call_key

def in_children(count, work):
    for _ in range(count):
        reading, writing = os.pipe()
        if not os.fork():
            try:
                os.write(writing, work().encode())
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            print(pipe.read())
        os.wait()
"""


def test_a_child_forked_while_every_lock_is_held_can_call() -> None:
    """Locks held at the fork by another thread would never be released in the child."""
    out = forked("""
        own = Runtime(waits=False)
        policy = Policy(concurrency=2, per_second=1000, circuit=Circuit(failures=3))
        named = recover("a", policy)(lambda: "ok")
        with_runtime = recover("b", policy, runtime=own)(lambda: "ok")
        without_target = recover(lambda: "ok")
        for fn in (named, with_runtime, without_target):
            fn()
        held = [default_runtime().registry._lock, own.registry._lock, default_runtime().bus._lock, own.bus._lock, default_runtime().abandoned_threads.lock]
        held += [state._lock for runtime in (own, default_runtime()) for state in runtime.registry]
        held += [state.limiter._lock for runtime in (own, default_runtime()) for state in runtime.registry]
        held += [without_target.__holdfast_plan__.state._lock]
        for lock in held:
            lock.acquire()

        def work():
            default_runtime().on(lambda event: None)
            return "".join(fn() for fn in (named, with_runtime, without_target, recover("new")(lambda: "ok")))

        in_children(2, work)
    """)
    assert out == ["okokokok"] * 2


def test_jitter_and_keys_differ_between_workers() -> None:
    out = forked("""
        own = Runtime(waits=False)

        def work():
            waits = []
            own.on(lambda event: waits.append(getattr(event, "delay", None)))
            default_runtime().waits = False
            default_runtime().on(lambda event: waits.append(getattr(event, "delay", None)))
            for recovery in (recover("a", Policy(attempts=3), runtime=own), recover("a", Policy(attempts=3))):
                try:
                    recovery.call(fails)
                except ConnectionResetError:
                    pass
            keys = recover("b").call(call_key)
            return f"{[wait for wait in waits if wait]}|{keys}".replace(" ", "")

        def fails():
            raise ConnectionResetError(104, "reset")

        own.rng.random(), default_runtime().rng.random()
        in_children(3, work)
    """)
    waits, keys = zip(*(line.split("|") for line in out), strict=True)
    assert all(len(wait.split(",")) == 4 for wait in waits)
    assert len({wait for row in waits for wait in row.strip("[]").split(",")}) == 12
    assert len(set(keys)) == 3


def test_threads_left_behind_in_the_parent_do_not_count_in_the_child() -> None:
    out = forked("""
        never = threading.Event()
        try:
            recover("a", Policy(timeout=0.01, attempts=1), threads=True).call(never.wait)
        except DeadlineError:
            pass
        assert default_runtime().abandoned_threads.count == 1
        in_children(1, lambda: str(default_runtime().abandoned_threads.count))
    """)
    assert out == ["0"]


def test_a_child_runs_an_event_loop_of_its_own_with_limits() -> None:
    out = forked("""
        policy = Policy(timeout=0.01, attempts=1, concurrency=1)

        async def late():
            await asyncio.sleep(5)

        async def in_time():
            return "ok"

        recovery = recover("a", policy)
        asyncio.run(recovery.call(in_time))

        def work():
            try:
                asyncio.run(recovery.call(late))
            except DeadlineError:
                return asyncio.run(recovery.call(in_time))

        in_children(2, work)
    """)
    assert out == ["ok", "ok"]


def test_a_thread_of_a_child_reports_although_a_thread_of_the_parent_was_reporting() -> None:
    """A new thread may get the identity of the parent's thread, and its events must not wait for that one's handlers."""
    out = forked("""
        runtime = Runtime()
        inside, go = threading.Event(), threading.Event()
        seen = []

        def hear(event):
            seen.append(event)
            if threading.current_thread() is reporting:
                inside.set()
                go.wait()

        runtime.on(hear)
        call = recover("a", runtime=runtime)(lambda: None)
        reporting = threading.Thread(target=call)
        reporting.start()
        inside.wait()

        def work():
            seen.clear()
            threads = [threading.Thread(target=call) for _ in range(20)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return str(len(seen))

        in_children(1, work)
        go.set()
        reporting.join()
        """)
    assert out == ["40"], "the start and the end of each call"


def test_a_child_does_not_wait_for_what_calls_of_its_parent_have_reserved() -> None:
    out = forked("""
        import contextvars
        from holdfast import Budget
        from holdfast.policies.models.prices import Price, Prices

        request = {"model": "m", "max_tokens": 6, "messages": []}
        answer = {"model": "m", "usage": {"input_tokens": 0, "output_tokens": 1}}
        begun, go_on = threading.Event(), threading.Event()

        def slow(**_):
            begun.set()
            go_on.wait(20)
            return answer

        def ask(fn):
            return recover("a", Policy(deadline=20)).call(fn, **request)

        with Budget(usd=10, prices=Prices({"m": Price(input=0, output=1_000_000)})) as budget:
            threads = [threading.Thread(target=contextvars.copy_context().run, args=(ask, slow)) for _ in range(2)]
            for thread in threads:
                thread.start()
            begun.wait(20)

            def work():
                ask(lambda **_: answer)
                return f"{budget.spend().usd:g}/{budget.left().usd:g}"

            has_lock = threading.Event()

            def hold_the_lock():
                with budget.reservations.after, budget.reservations.lock:
                    has_lock.set()
                    threading.Event().wait(0.3)

            threads.append(threading.Thread(target=hold_the_lock))
            threads[-1].start()
            has_lock.wait(20)
            in_children(1, work)
            go_on.set()
            for thread in threads:
                thread.join()
            print(f"{budget.spend().usd:g}")
    """)
    assert out == ["1/9", "2"]


def test_a_call_that_forks_keeps_its_own_reservation() -> None:
    out = forked("""
        from holdfast import Budget
        from holdfast.policies.models.prices import Price, Prices

        with Budget(usd=10, prices=Prices({"m": Price(input=0, output=1_000_000)})) as budget:
            def forks(**_):
                in_children(1, lambda: f"{budget.left().usd:g}")
                return {"model": "m", "usage": {"input_tokens": 0, "output_tokens": 1}}
            recover("a").call(forks, model="m", max_tokens=6, messages=[])
            print(f"{budget.left().usd:g}")
    """)
    assert out == ["4", "9"]
