"""Schedules: which times cron means, and that each time is submitted once, by however many workers."""

from __future__ import annotations

import asyncio
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from holdfast import InvalidError, Session
from holdfast.stores import MemoryStore
from holdfast.work import Schedule, Worker, program
from holdfast.work import worker as worker_module
from holdfast.work.cron import Cron
from holdfast.work.schedule import Scheduler

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


@program("clean")
async def clean(session: Session) -> str:
    return session.id


@program("report")
async def report(session: Session, name: str, *, copies: int = 1) -> str:
    return name * copies


def at(text, zone="UTC"):
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


def ticks(cron, begin, count, zone="UTC"):
    found, now, read = [], at(begin, zone), Cron.read(cron, zone)
    for _ in range(count):
        now = read.after(now)
        found.append(datetime.fromtimestamp(now, ZoneInfo(zone)).strftime("%Y-%m-%d %H:%M"))
    return found


@pytest.mark.parametrize(
    ("cron", "begin", "expected"),
    [
        ("*/15 * * * *", "2026-01-01 00:07", ["2026-01-01 00:15", "2026-01-01 00:30"]),
        ("0 3 * * *", "2026-01-01 03:00", ["2026-01-02 03:00", "2026-01-03 03:00"]),
        ("30 9 * * mon-fri", "2026-01-02 10:00", ["2026-01-05 09:30", "2026-01-06 09:30"]),
        ("0 0 29 2 *", "2026-01-01 00:00", ["2028-02-29 00:00", "2032-02-29 00:00"]),
        ("0 0 29 2 *", "2096-03-01 00:00", ["2104-02-29 00:00"]),
        ("0 12 13 * fri", "2026-01-01 00:00", ["2026-01-02 12:00", "2026-01-09 12:00", "2026-01-13 12:00"]),
        ("5,10 1-3/2 1 jan,jul *", "2026-01-01 01:05", ["2026-01-01 01:10", "2026-01-01 03:05", "2026-01-01 03:10", "2026-07-01 01:05"]),
        ("0 0 * * 7", "2026-01-01 00:00", ["2026-01-04 00:00"]),
        ("0 0 * * 0", "2026-01-01 00:00", ["2026-01-04 00:00"]),
        ("@monthly", "2026-01-31 00:00", ["2026-02-01 00:00", "2026-03-01 00:00"]),
        ("59 23 31 12 *", "2026-12-31 23:59", ["2027-12-31 23:59"]),
    ],
)  # fmt: skip
def test_the_next_times_of_cron(cron, begin, expected):
    assert ticks(cron, begin, len(expected)) == expected


def test_a_minute_that_the_clocks_leave_out_is_no_time_and_one_that_comes_twice_is_one():
    # On 29 March 2026 in Berlin 02:30 does not exist; on 25 October it comes twice.
    assert ticks("30 2 * * *", "2026-03-28 00:00", 3, "Europe/Berlin") == [
        "2026-03-28 02:30", "2026-03-30 02:30", "2026-03-31 02:30",
    ]  # fmt: skip
    assert ticks("30 2 * * *", "2026-10-24 03:00", 2, "Europe/Berlin") == ["2026-10-25 02:30", "2026-10-26 02:30"]
    first = Cron.read("30 2 * * *", "Europe/Berlin").after(at("2026-10-25 00:00", "Europe/Berlin"))
    assert datetime.fromtimestamp(first, ZoneInfo("UTC")).hour == 0


def test_every_time_is_after_the_one_before_it_in_a_year_of_changing_clocks():
    read, now = Cron.read("*/20 * * * *", "America/New_York"), at("2026-01-01 00:00")
    for _ in range(30_000):
        following = read.after(now)
        assert 0 < following - now <= 7_800
        now = following


@pytest.mark.parametrize(
    "cron",
    ["", "* * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8", "a * * * *", "*/0 * * * *", "5-1 * * * *", "0 0 31 2 *", "-1 * * * *", "1- * * * *"],
)  # fmt: skip
def test_what_is_no_cron_is_rejected(cron):
    with pytest.raises(InvalidError):
        Cron.read(cron)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"cron": "@daily", "every": 5},
        {"every": 0.1},
        {"cron": "@daily", "zone": "Nowhere/Land"},
        {"cron": "@daily", "missed": "twice"},
    ],
)
def test_a_wrong_schedule_is_rejected(options):
    with pytest.raises(InvalidError):
        Schedule("nightly", clean, **options)
    for name in ("", "a b", "x" * 41):
        with pytest.raises(InvalidError):
            Schedule(name, clean, cron="@daily")
    with pytest.raises(InvalidError):
        Worker("memory:", clean, schedules=[Schedule("a", clean, every=1), Schedule("a", clean, every=2)])


async def submitted(store):
    return [item.session.partition("@")[2] for item in await store.work()]


HOUR = 3_600.0
START = at("2026-01-01 00:30")


@pytest.mark.parametrize(
    ("missed", "expected"),
    [
        ("once", ["2026-01-01T01:00:00Z", "2026-01-01T05:00:00Z"]),
        ("all", [f"2026-01-01T0{hour}:00:00Z" for hour in range(1, 6)]),
        ("none", ["2026-01-01T01:00:00Z"]),
    ],
)
async def test_what_was_missed_while_no_worker_ran(missed, expected):
    async with MemoryStore() as store:
        schedule = Schedule("hourly", clean, cron="@hourly", missed=missed)
        first = Scheduler(store, [schedule])
        assert await first.submit_due(START) == 1_800
        await first.submit_due(START + 1_801)
        # Four hours later another worker begins, and knows what was submitted last from the store.
        await Scheduler(store, [schedule]).submit_due(START + 4.6 * HOUR)
        assert await submitted(store) == expected


async def test_a_new_schedule_has_missed_nothing():
    async with MemoryStore() as store:
        await Scheduler(store, [Schedule("hourly", clean, cron="@hourly", missed="all")]).submit_due(START)
        assert await submitted(store) == []


async def test_each_time_is_submitted_once_by_all_workers(make_store, monkeypatch):
    monkeypatch.setattr(worker_module, "_SWEEP_S", 0.05)
    async with make_store() as store, asyncio.timeout(30):
        schedules = [Schedule("second", report.given("x", copies=2), every=1)]
        workers = [Worker(store, [report], schedules=schedules) for _ in range(3)]
        for worker in workers:
            await worker.__aenter__()
        while len(done := await store.work(statuses=["done"])) < 3:  # noqa: ASYNC110 - real time passes
            await asyncio.sleep(0.05)
        for worker in workers:
            await worker.__aexit__(None, None, None)
    assert len({item.session for item in done}) == len(done)
