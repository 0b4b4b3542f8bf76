"""The journal: what is kept of runs, what they add up to, and how a run is drawn."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3

import pytest

import holdfast
from holdfast import Policy, Runtime, recover
from holdfast.faults import HoldfastError
from holdfast.journal import JournalFile, bars_of, drawn, journal_to
from holdfast.journal.recorder import MOST_A_MINUTE
from holdfast.policies import Backoff
from holdfast.testing import Midpoint, VirtualClock, run, script

ANSWER = {"model": "claude-opus-4-1", "usage": {"input_tokens": 1000, "output_tokens": 200}}
PRICE = 1000 * 15e-6 + 200 * 75e-6
STEADY = Policy(attempts=3, backoff=Backoff(initial=1.0, factor=2.0, jitter="none"), circuit=None)


class Desk:
    """A runtime in virtual time that writes a journal."""

    def __init__(self, path) -> None:
        self.path = path
        self.clock = VirtualClock()
        self.runtime = Runtime(clock=self.clock, rng=Midpoint())
        self.sink = journal_to(path, self.runtime, process="api-1")

    def play(self, *steps, target="claude", policy=STEADY):
        async def all_of_them():
            for each in steps:
                try:
                    await recover(target, policy, runtime=self.runtime).call(script(each).acall)
                except Exception:  # the journal says how it ended
                    continue

        run(all_of_them(), clock=self.clock)

    def read(self):
        self.sink.cancel()
        return JournalFile(self.path)


@pytest.fixture
def desk(tmp_path):
    found = Desk(tmp_path / "j.db")
    yield found
    found.sink.cancel()


def test_a_run_that_recovered_is_kept_with_what_it_took(desk):
    with holdfast.request("req-1"):
        desk.play("529, 529, ok")
    with desk.read() as journal:
        (record,) = journal.runs()
        assert (record.operation, record.outcome, record.attempts) == ("claude", "recovered", 3)
        assert (record.took, record.waited, record.code) == (3.0, 3.0, "PROVIDER_OVERLOADED")
        assert (record.request, record.process) == ("req-1", "api-1")
        assert journal.run(record.run) == record


def test_of_good_runs_only_the_sums_are_kept(desk):
    desk.play("ok", "ok", "529, ok")
    with desk.read() as journal:
        assert [record.outcome for record in journal.runs()] == ["recovered"]
        sums = {(each.operation, each.outcome): (each.calls, each.attempts, each.waited) for each in journal.minutes()}
    assert sums == {("claude", "ok"): (2, 2, 0.0), ("claude", "recovered"): (1, 2, 1.0)}


@pytest.mark.parametrize(
    ("steps", "outcome"), [("529, 529, 529", "failed"), ("401", "failed"), ("529, ok", "recovered")]
)
def test_how_a_run_ended(desk, steps, outcome):
    desk.play(steps)
    with desk.read() as journal:
        assert [record.outcome for record in journal.runs()] == [outcome]


def test_a_run_that_was_cancelled_or_never_ended_is_kept(desk):
    async def main():
        task = asyncio.create_task(recover("claude", STEADY, runtime=desk.runtime).call(script("529, hang").acall))
        await asyncio.sleep(5)
        task.cancel()
        await asyncio.wait([task])

    run(main(), clock=desk.clock)
    with desk.read() as journal:
        assert [record.outcome for record in journal.runs()] == ["cancelled"]


def nested(desk, calls):
    inner = recover("claude", STEADY, runtime=desk.runtime)(calls)
    outer = recover("outer", STEADY, runtime=desk.runtime)(inner)
    run(outer(), clock=desk.clock)


def test_a_call_that_works_because_one_inside_recovered_is_kept_with_it_and_counted_once(desk):
    made = []

    async def call():
        made.append(1)
        await asyncio.sleep(2)
        if len(made) == 1:
            raise ConnectionResetError
        return ANSWER

    nested(desk, call)
    with desk.read() as journal:
        (whole,) = journal.runs()
        assert (whole.operation, whole.outcome, whole.code) == ("outer", "recovered", "CONN_RESET")
        assert whole.usd == pytest.approx(PRICE)
        assert whole.extra_usd == pytest.approx(PRICE)
        inner = journal.runs(code="CONN_RESET", operation="claude")
        assert [(record.root, record.within) for record in inner] == [(whole.run, whole.run)]
        assert sum(each.usd for each in journal.minutes()) == pytest.approx(PRICE)
        rows = [(bar.kind, bar.depth, bar.start, bar.seconds) for bar in bars_of(journal.events(inner[0].run))]
    assert rows == [
        ("run", 0, 0.0, 5.0),
        ("attempt", 1, 0.0, 5.0),
        ("run", 1, 0.0, 5.0),
        ("attempt", 2, 0.0, 2.0),
        ("wait", 2, 2.0, 1.0),
        ("attempt", 2, 3.0, 2.0),
    ]


def test_a_wait_for_a_place_is_drawn_and_named(desk):
    async def slow():
        await asyncio.sleep(4)
        raise ConnectionResetError

    async def both():
        call = recover("claude", STEADY.replace(attempts=1, concurrency=1), runtime=desk.runtime).call
        await asyncio.gather(call(slow), call(slow), return_exceptions=True)

    run(both(), clock=desk.clock)
    with desk.read() as journal:
        waited = next(record for record in journal.runs() if record.waited)
        bars = bars_of(journal.events(waited.run))
    assert [(bar.kind, bar.seconds) for bar in bars] == [("run", 8.0), ("wait", 4.0), ("attempt", 4.0)]
    assert "place" in bars[1].label
    lines = drawn(bars)
    assert lines[1].startswith("     0.0 s │" + "░" * 16 + " " * 16 + "│")
    assert lines[2].startswith("     4.0 s │" + " " * 16 + "█" * 16 + "│")


def test_a_good_call_that_waited_for_a_place_ends(desk):
    async def slow():
        await asyncio.sleep(4)

    async def both():
        call = recover("claude", STEADY.replace(concurrency=1), runtime=desk.runtime).call
        await asyncio.gather(call(slow), call(slow))

    run(both(), clock=desk.clock)
    with desk.read() as journal:
        assert [(each.outcome, each.calls, each.waited) for each in journal.minutes()] == [("ok", 2, 4.0)]


def test_in_an_outage_the_first_runs_of_a_minute_are_kept_and_all_are_counted(desk):
    desk.play(*["401"] * (MOST_A_MINUTE + 50), "503, 503, 503")
    with desk.read() as journal:
        kept = [record.code for record in journal.runs(limit=1_000)]
        assert kept.count("AUTH_FAILED") == MOST_A_MINUTE
        assert kept.count("PROVIDER_UNAVAILABLE") == 1
        assert sum(each.calls for each in journal.minutes()) == MOST_A_MINUTE + 51


def test_runs_are_found_by_request_and_by_time(desk):
    with holdfast.request("req-1"):
        desk.play("529, ok")
    desk.clock.advance(100)
    desk.play("401")
    with desk.read() as journal:
        late, early = journal.runs()
        assert journal.runs(request="req-1") == [early]
        assert journal.runs(before=late.began) == [early]
        assert journal.runs(since=late.began) == [late]
        assert journal.runs(outcome="failed") == [late]
        assert journal.runs(limit=1) == [late]


def test_what_happens_outside_of_runs_is_kept_beside_them(desk):
    with holdfast.suppress(OSError, reason="the cache is optional", runtime=desk.runtime):
        raise ConnectionResetError
    with desk.read() as journal:
        assert [event.reason for event in journal.around()] == ["the cache is optional"]
        assert journal.runs() == []


def test_what_is_too_old_goes(desk):
    desk.play("529, ok")
    with desk.read() as journal:
        began = journal.runs()[0].began
        assert journal.prune(began + 8 * 86_400) > 0
        assert (len(journal.runs()), len(journal.events(journal.runs()[0].run))) == (1, 0)
        assert journal.prune(began + 31 * 86_400) == 1
        assert (journal.runs(), len(journal.minutes())) == ([], 1)
        journal.prune(began + 401 * 86_400)
        assert journal.minutes() == []


def test_two_processes_write_one_journal(tmp_path):
    one, other = Desk(tmp_path / "j.db"), Desk(tmp_path / "j.db")
    one.play("529, ok", "ok")
    other.play("401", "ok")
    one.sink.cancel()
    with other.read() as journal:
        assert sorted(record.outcome for record in journal.runs()) == ["failed", "recovered"]
        assert sum(each.calls for each in journal.minutes()) == 4


def test_a_journal_that_cannot_be_opened_says_what_to_do(tmp_path):
    (tmp_path / "j.db").write_text("no database, but a text that is longer than the header of one" * 20)
    with pytest.raises(HoldfastError, match="It may be deleted") as failed:
        journal_to(tmp_path / "j.db", Runtime())
    assert failed.value.fault.code == "SESS_STORE_UNAVAILABLE"


def test_a_journal_that_cannot_be_written_loses_itself_and_no_call(desk, caplog):
    with sqlite3.connect(desk.path) as other:
        other.execute("DROP TABLE run")
    with caplog.at_level(logging.WARNING, "holdfast"):
        desk.play("529, ok", "529, ok")
        desk.sink.cancel()
    assert desk.sink.dropped == 8  # the four events of each
    assert len([line for line in caplog.messages if "no such table" in line]) == 1


def test_a_fork_leaves_the_journal_to_its_parent(desk):
    desk.play("529, ok")
    child = os.fork()
    if not child:
        desk.play("401")
        desk.sink.cancel()
        os._exit(0)
    os.waitpid(child, 0)
    desk.play("503, ok")
    with desk.read() as journal:
        assert [record.outcome for record in journal.runs()] == ["recovered", "recovered"]
