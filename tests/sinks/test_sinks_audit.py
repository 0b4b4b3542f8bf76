"""`audit_to`: what happens, in the store's audit trail."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from sinks_scenes import CANARY, PROMPT, STEADY, Stage

from holdfast import Policy, Runtime
from holdfast.events import KINDS, AttemptStarted, BudgetWarning, Retry, SuppressedError, TaskStateChange, WaitBegan
from holdfast.faults import Fault, HoldfastError, InvalidError
from holdfast.policies import Circuit
from holdfast.runtime.recover import recover
from holdfast.runtime.secrets import process_redactor
from holdfast.sinks import audit_to
from holdfast.sinks.audit_records import CLASSES
from holdfast.stores import MemoryStore, SqliteStore, verify_store
from holdfast.stores.errors import unavailable
from holdfast.stores.records import AUDIT_CLASSES
from holdfast.testing import script


def facts(records):
    return [(record.kind, json.loads(bytes(record.payload))) for record in records]


def kinds(records):
    return [payload["event"] for _, payload in facts(records)]


def trail_of(play, **options):
    """What `play(stage)` leaves in the trail."""
    stage, store = Stage(), MemoryStore()

    async def main():
        async with audit_to(store, stage.runtime, **options):
            await play(stage)
        return await store.audit("runtime")

    return stage.run(main())


def plays(steps, policy=STEADY, target="claude"):
    async def play(stage):
        with contextlib.suppress(Exception):
            await stage.recovery(target, policy).call(script(steps).acall)

    return play


def test_S2_13_a_recovery_is_recorded_with_each_attempt():
    records = trail_of(plays("529, 503, ok"))
    assert kinds(records) == ["trail-opened", "retry", "retry", "recovered", "trail-closed"]
    first, second = (payload for kind, payload in facts(records) if kind == "Retry")
    assert (first["attempt"], first["code"], first["max_attempts"]) == (1, "PROVIDER_OVERLOADED", 3)
    assert (second["attempt"], second["code"], second["operation"]) == (2, "PROVIDER_UNAVAILABLE", "claude")
    assert first["class"] == "ProviderTransient/Provider5xx"
    assert first["severity"] == "error"
    assert len({record.correlation for record in records[1:4]}) == 1, "the run"
    assert records[0].correlation == records[-1].correlation != records[1].correlation


def test_a_give_up_is_a_fault_with_its_history():
    records = trail_of(plays("503, 503, 503"))
    kind, payload = facts(records)[-2]
    assert (kind, payload["event"], payload["code"]) == ("Fault", "failed", "PROVIDER_UNAVAILABLE")
    assert [attempt["code"] for attempt in payload["fault"]["attempts"]] == ["PROVIDER_UNAVAILABLE"] * 3


def test_a_circuit_change_is_recorded():
    records = trail_of(plays("503, 503", Policy(attempts=1, circuit=Circuit(failures=1))))
    circuits = [payload for kind, payload in facts(records) if kind == "Circuit"]
    assert [(one["from"], one["to"], one["code"]) for one in circuits] == [("closed", "open", "PROVIDER_UNAVAILABLE")]


def test_fallback_and_degraded_are_recorded():
    async def play(stage):
        recovery = stage.recovery(policy=Policy(attempts=1, circuit=None))

        @recovery
        async def ask():
            raise ConnectionResetError(104, "reset")

        @ask.fallback
        async def other():
            raise ConnectionResetError(104, "reset")

        @ask.degraded
        async def least(_):
            return "less"

        await ask()

    records = trail_of(play)
    assert [kind for kind, payload in facts(records)[1:-1]] == ["Fallback"] * (len(records) - 2)
    assert {"fallback", "degraded"} <= set(kinds(records))


def test_N2_16_every_kind_of_event_has_a_class_of_the_list():
    assert set(CLASSES) == set(KINDS) - {AttemptStarted, TaskStateChange, WaitBegan}
    assert set(CLASSES.values()) <= AUDIT_CLASSES


def test_attempts_are_recorded_on_request_as_exchange_or_invocation():
    assert kinds(trail_of(plays("ok"))) == ["trail-opened", "trail-closed"]
    (_, exchange, _) = facts(trail_of(plays("ok"), attempts=True))
    (_, invocation, _) = facts(trail_of(plays("ok", target="tool:bash"), attempts=True))
    assert (exchange[0], exchange[1]["attempt"]) == ("ProviderExchange", 1)
    assert (invocation[0], invocation[1]["operation"]) == ("ToolInvocation", "tool:bash")


def test_what_belongs_to_no_run_is_correlated_with_the_trail():
    async def play(stage):
        stage.runtime.bus.emit(BudgetWarning(at=1.0, unit="usd", used=8, limit=10))

    records = trail_of(play)
    assert records[1].kind == "Budget"
    assert len({record.correlation for record in records}) == 1


def test_the_chain_is_sound_and_a_restart_goes_on_in_it(tmp_path):
    stage = Stage()

    def work():
        with audit_to(SqliteStore(tmp_path / "a.db"), stage.runtime) as trail:
            stage.play("529, ok")
        return trail

    assert [work().written, work().written] == [4, 4]

    async def read():
        async with SqliteStore(tmp_path / "a.db") as store:
            return await store.audit("runtime"), await verify_store(store)

    records, verification = asyncio.run(read())
    assert [record.seq for record in records] == list(range(1, 9))
    assert kinds(records) == ["trail-opened", "retry", "recovered", "trail-closed"] * 2
    assert (verification.sound, verification.records) == (True, 8)


def test_records_of_your_own():
    async def play(stage):
        trail = stage.trail
        trail.record("Approval", {"tool": "rm", "allowed": False, "password": CANARY}, correlation="turn-7")
        with pytest.raises(HoldfastError) as raised:
            trail.record("approval", {}, correlation="turn-7")
        assert raised.value.fault.code == "SYS_AUDIT_CLASS_UNKNOWN"
        with pytest.raises(HoldfastError) as raised:
            trail.record("Approval", {}, correlation="")
        assert raised.value.fault.code == "SYS_AUDIT_UNCORRELATED"

    stage, store = Stage(), MemoryStore()

    async def main():
        async with audit_to(store, stage.runtime) as stage.trail:
            await play(stage)
        with pytest.raises(InvalidError, match="an open trail"):
            stage.trail.record("Approval", {}, correlation="late")
        return await store.audit("runtime")

    record = asyncio.run(main())[1]
    assert (record.kind, record.correlation) == ("Approval", "turn-7")
    assert CANARY not in bytes(record.payload).decode()
    assert json.loads(bytes(record.payload))["tool"] == "rm"


# Never slowing, never breaking


class Away(MemoryStore):
    """A store that is away until `back` is set."""

    def __init__(self):
        super().__init__()
        self.back = False
        self.tried = 0

    async def commit(self, commit):
        self.tried += 1
        if not self.back:
            raise unavailable("it is away")
        return await super().commit(commit)


def test_a_store_that_is_away_is_waited_for_and_nothing_is_lost():
    stage, store = Stage(), Away()
    suppressed = []
    stage.runtime.on(suppressed.append, SuppressedError)

    async def main():
        async with audit_to(store, stage.runtime) as trail:
            await plays("529, ok")(stage)
            await asyncio.sleep(60)
            assert (trail.written, store.tried) == (0, pytest.approx(17, abs=4)), "waits grow, to 5 s at most"
            store.back = True
            await trail.flush()
        return await store.audit("runtime")

    records = stage.run(main())
    assert sorted(kinds(records)) == sorted(["trail-opened", "suppressed-error", "retry", "recovered", "trail-closed"])
    (event,) = suppressed
    assert (event.code, event.reason) == (
        "SESS_STORE_UNAVAILABLE",
        "the audit trail cannot be written; its records are kept and the write is retried",
    )


def test_a_full_queue_drops_counts_and_says_so_where_it_happened():
    stage, store = Stage(), Away()

    async def main():
        async with audit_to(store, stage.runtime, most_queued=10) as trail:
            await asyncio.sleep(0.01)
            for n in range(30):
                stage.runtime.bus.emit(BudgetWarning(at=float(n), unit="usd", used=n, limit=10))
            dropped = trail.dropped
            store.back = True
            await trail.flush()
            stage.runtime.bus.emit(BudgetWarning(at=99.0, unit="usd", used=99, limit=10))
            await trail.flush()
            return dropped, trail.dropped, await store.audit("runtime")

    before, after, records = stage.run(main())
    assert before == after
    payloads = [payload for _, payload in facts(records)]
    at = next(n for n, payload in enumerate(payloads) if payload["event"] == "records-dropped")
    kept = [payload["used"] for payload in payloads if payload["event"] == "budget-warning"]
    assert payloads[at]["count"] == before == 31 - len(kept)
    assert kept == [*range(len(kept) - 1), 99], "the oldest are kept, in order"
    assert payloads[at + 1]["used"] == 99, "it stands where they are missing"


def test_closing_while_the_store_is_away_ends_at_once_and_says_what_is_lost(caplog):
    stage, store = Stage(), Away()

    async def main():
        async with audit_to(store, stage.runtime) as trail:
            await plays("529, ok")(stage)
            await asyncio.sleep(1)
            began = stage.clock.monotonic()
        return trail, stage.clock.monotonic() - began

    with caplog.at_level(logging.ERROR, "holdfast"):
        trail, took = stage.run(main())
    assert took < 0.5
    assert (trail.written, trail.dropped) == (0, 5)
    assert "5 audit records could not be written to the store" in caplog.text


def test_a_store_that_raises_anything_breaks_nothing():
    class Broken(MemoryStore):
        async def commit(self, commit):
            raise RuntimeError("a defect")

    stage, store = Stage(), Broken()

    async def main():
        async with audit_to(store, stage.runtime):
            return await stage.recovery().call(script("529, ok:fine").acall)

    assert stage.run(main()) == "fine"


def test_a_call_does_not_wait_for_the_store():
    """The store takes forever; the call takes its backoff and nothing more."""

    class Slow(MemoryStore):
        async def commit(self, commit):
            await asyncio.sleep(1_000)
            return await super().commit(commit)

    stage = Stage()

    async def main():
        trail = audit_to(Slow(), stage.runtime)
        await trail.__aenter__()
        began = stage.clock.monotonic()
        await plays("529, ok")(stage)
        took = stage.clock.monotonic() - began
        await trail.__aexit__()
        return took, trail.dropped

    assert stage.run(main()) == (pytest.approx(1.0), 4), "and closing waits ten seconds for it, not longer"


def test_the_event_loop_has_its_turn_while_many_records_are_written():
    stage, store = Stage(), MemoryStore()

    async def main():
        async with audit_to(store, stage.runtime) as trail:
            for n in range(2_000):
                stage.runtime.bus.emit(BudgetWarning(at=float(n), unit="usd", used=n, limit=10))
            turns = 0
            flushed = asyncio.ensure_future(trail.flush())
            while not flushed.done():
                turns += 1
                await asyncio.sleep(0)
            return turns

    assert asyncio.run(main()) >= 2_000 // 10


def test_reporting_costs_microseconds():
    """A retry is put in a queue: no JSON, no masking, no lock that is held for long."""
    runtime = Runtime()
    event = Retry(at=1.0, run="r", attempt=1, max_attempts=3, delay=1.0, fault=Fault.of("PROVIDER_OVERLOADED"))
    with audit_to(MemoryStore(), runtime, most_queued=5_000):
        began = time.perf_counter()
        for _ in range(5_000):
            runtime.bus.emit(event)
        took = time.perf_counter() - began
    assert took / 5_000 < 0.001


def test_events_of_many_threads_are_all_there_and_each_thread_s_in_order(tmp_path):
    runtime = Runtime()

    def report(thread):
        for n in range(200):
            runtime.bus.emit(BudgetWarning(at=float(n), run=f"t{thread}", unit="usd", used=n, limit=10))

    with audit_to(SqliteStore(tmp_path / "a.db"), runtime) as trail:
        threads = [threading.Thread(target=report, args=(thread,)) for thread in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert (trail.written, trail.dropped) == (1_602, 0)

    async def read():
        async with SqliteStore(tmp_path / "a.db") as store:
            return [*await store.audit("runtime"), *await store.audit("runtime", after=1_000)]

    records = asyncio.run(read())
    assert len(records) == 1_602
    for thread in range(8):
        used = [payload["used"] for record, (_, payload) in zip(records, facts(records), strict=True) if record.correlation == f"t{thread}"]  # fmt: skip
        assert used == list(range(200))


def test_a_store_that_cannot_be_opened_raises_where_the_trail_is_opened(tmp_path):
    (tmp_path / "a.db").write_bytes(b"this is no database at all" * 100)
    with pytest.raises(HoldfastError) as raised, audit_to(SqliteStore(tmp_path / "a.db"), Runtime()):
        pytest.fail("it was opened")
    assert raised.value.fault.code == "SESS_MANIFEST_INVALID"


def test_a_trail_is_opened_once():
    trail = audit_to(MemoryStore(), Runtime())
    with trail:
        pass
    with pytest.raises(InvalidError, match="not opened before"), trail:
        pytest.fail("it was opened")


@pytest.mark.parametrize(
    ("options", "path"), [({"chain": "no spaces"}, "audit.chain"), ({"most_queued": 0}, "audit.most_queued")]
)
def test_wrong_options_are_rejected(options, path):
    with pytest.raises(InvalidError) as raised:
        audit_to(MemoryStore(), Runtime(), **options)
    assert raised.value.fault.context["path"] == path
    with pytest.raises(InvalidError, match="a Store"):
        audit_to("work.db", Runtime())


# The program's end, and forks


PROGRAM = """
import sys, warnings
warnings.simplefilter("ignore")
from holdfast import Policy, Runtime, recover
from holdfast.sinks import audit_to
from holdfast.stores import SqliteStore
from holdfast.testing import script

runtime = Runtime(waits=False)
trail = audit_to(SqliteStore(sys.argv[1]), runtime).__enter__()
recover("claude", Policy(circuit=None), runtime=runtime).call(script("529, ok"))
"""


def run_program(text, path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text), str(path)], env=environment, capture_output=True, timeout=60, check=False
    )  # fmt: skip


def stored(path):
    async def read():
        async with SqliteStore(path) as store:
            return await store.audit("runtime"), await verify_store(store)

    return asyncio.run(read())


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "raise ValueError('an end nobody planned')"])
def test_at_the_program_s_end_everything_is_written(tmp_path, end):
    result = run_program(PROGRAM + end, tmp_path / "a.db")
    assert b"Exception ignored" not in result.stderr
    records, verification = stored(tmp_path / "a.db")
    assert kinds(records) == ["trail-opened", "retry", "recovered", "trail-closed"]
    assert verification.sound


def test_a_forked_child_writes_nothing_into_its_parent_s_trail(tmp_path):
    fork = """
import os
child = os.fork()
recover("claude", Policy(circuit=None), runtime=runtime).call(script("503, ok"))
if child:
    os.waitpid(child, 0)
"""
    result = run_program(PROGRAM + fork, tmp_path / "a.db")
    assert result.returncode == 0, result.stderr
    records, verification = stored(tmp_path / "a.db")
    assert kinds(records) == ["trail-opened", "retry", "recovered", "retry", "recovered", "trail-closed"]
    assert verification.sound


# Secrets


def test_B105_no_secret_and_no_content_is_in_the_file_or_its_wal(tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "plain-looking-canary-42")
    process_redactor.cache_clear()
    path = tmp_path / "a.db"
    runtime = Runtime(waits=False)

    async def fails():
        raise ConnectionError(f"refused for {CANARY} and plain-looking-canary-42")

    async def main():
        async with SqliteStore(path) as store, audit_to(store, runtime) as trail:
            with contextlib.suppress(ConnectionError):
                await recover("claude", STEADY, runtime=runtime).call(fails)
            trail.record("ToolInvocation", {"args": {"token": CANARY, "note": CANARY}}, correlation="t")
            await trail.flush()
            return b"".join(file.read_bytes() for file in sorted(tmp_path.iterdir()))

    try:
        raw = asyncio.run(main())
    finally:
        process_redactor.cache_clear()
    assert (tmp_path / "a.db").exists()
    assert b"CONN_" in raw, "the trail is in what was read"
    for secret in (CANARY, "plain-looking-canary-42", PROMPT):
        assert secret.encode() not in raw
        assert secret[4:].encode() not in raw


def test_N2_16_long_strings_are_cut_with_a_marker():
    async def play(stage):
        fault = Fault.of("TOOL_EXECUTION_FAILED", "x" * 200_000, context={"stderr": "é" * 100_000})
        stage.runtime.bus.emit(Retry(at=1.0, run="r", attempt=1, max_attempts=3, delay=1.0, fault=fault))

    _, payload = facts(trail_of(play))[1]
    for text in (payload["fault"]["message"], payload["fault"]["context"]["stderr"]):
        assert len(text.encode()) <= 65_536
        assert text.endswith(" bytes truncated]")
