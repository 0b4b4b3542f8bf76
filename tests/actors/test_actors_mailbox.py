"""The mailbox: bounded, with priorities, and a signal before it is full."""

from __future__ import annotations

import asyncio

import pytest
from actors_kit import Stage

from holdfast.actors import Actor, Supervisor
from holdfast.actors.mailbox import Letter, Mailbox
from holdfast.events import MailboxPressure, MessageDropped
from holdfast.faults import HoldfastError, InvalidError


def letter(name: str) -> Letter:
    return Letter(name, (), {}, None)


def taken(mailbox: Mailbox) -> list[str]:
    found = []
    while mailbox.size:
        found.append(mailbox.take().name)
    return found


def test_N4_4_urgent_letters_come_first_then_normal_ones_then_the_others_each_in_order():
    mailbox = Mailbox("a")
    for name, priority in [("n1", 5), ("low1", 0), ("u1", 10), ("n2", 9), ("low2", 4), ("u2", 99), ("n3", 5)]:
        mailbox.put(letter(name), priority)
    assert taken(mailbox) == ["u1", "u2", "n1", "n2", "n3", "low1", "low2"]


def test_the_order_is_kept_while_letters_are_put_and_taken_in_turn():
    mailbox, found = Mailbox("a"), []
    for n in range(0, 90, 3):
        for k in range(3):
            mailbox.put(letter(str(n + k)))
        found.append(mailbox.take().name)
    assert found + taken(mailbox) == [str(n) for n in range(90)]


def test_N4_4_a_full_mailbox_rejects_and_keeps_what_it_has():
    mailbox = Mailbox("team/coder", capacity=3)
    for name in "abc":
        mailbox.put(letter(name))
    with pytest.raises(HoldfastError) as rejected:
        mailbox.put(letter("d"))
    fault = rejected.value.fault
    assert (fault.code, fault.retryable, fault.maybe_executed) == ("ACTOR_MAILBOX_FULL", True, False)
    assert fault.context == {"actor": "team/coder", "size": 3, "restarting": False}
    assert taken(mailbox) == ["a", "b", "c"]


def test_a_mailbox_that_is_full_of_less_urgent_letters_takes_more_urgent_ones():
    changes = []
    mailbox = Mailbox("a", capacity=10)
    mailbox.on_pressure = lambda box: changes.append(box.pressure)
    for priority, name in ((0, "low"), (5, "normal"), (10, "urgent")):
        for n in range(10):
            mailbox.put(letter(f"{name}{n}"), priority)
        for least in range(priority + 1):
            with pytest.raises(HoldfastError, match="ACTOR_MAILBOX_FULL"):
                mailbox.put(letter("one more"), least)
    assert changes == ["high"]
    assert taken(mailbox) == [f"{name}{n}" for name in ("urgent", "normal", "low") for n in range(10)]


def test_N4_4_pressure_is_signalled_above_100_letters_and_at_80_percent_and_ends_lower():
    changes = []
    mailbox = Mailbox("a", capacity=1000)
    mailbox.on_pressure = lambda box: changes.append((box.pressure, box.size))
    for n in range(900):
        mailbox.put(letter(str(n)))
    assert changes == [("long", 101), ("high", 800)]
    while mailbox.size > 600:
        mailbox.take()
    assert changes[2:] == [("none", 600)]


@pytest.mark.parametrize("options", [{"capacity": 0}, {"capacity": "many"}, {"stash": -1}, {"capacity": True}])
def test_wrong_options_are_rejected(options):
    with pytest.raises(InvalidError, match="mailbox"):
        Mailbox("a", **options)


class Slow(Actor, mailbox=10, timeout=None):
    async def work(self, seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds


def test_N4_4_a_sender_that_waits_for_relief_never_meets_a_full_mailbox():
    stage, sent = Stage(), []

    async def main():
        async with stage.actor(Slow) as slow:
            for n in range(50):
                if slow.pressure == "high":
                    await slow.relieved()
                slow.tell(Slow.work, 1.0)
                sent.append(n)
                assert slow.waiting <= 8

    stage.run(main())
    assert len(sent) == 50
    levels = [event.level for event in stage.of(MailboxPressure)]
    assert levels[:2] == ["high", "none"]


def test_a_flood_is_rejected_and_the_actor_lives_on():
    stage = Stage()

    async def main():
        async with stage.actor(Slow) as slow:
            outcomes = await asyncio.gather(*(slow.outcome(Slow.work, 0.1) for _ in range(1_000)))
            assert await slow.ask(Slow.work, 0.5) == 0.5
            return outcomes

    outcomes = stage.run(main())
    # One is worked on and ten wait.
    assert sum(outcome.ok for outcome in outcomes) == 11
    assert {outcome.fault.code for outcome in outcomes if not outcome.ok} == {"ACTOR_MAILBOX_FULL"}


def test_what_waits_at_the_end_is_failed_or_reported_as_dropped():
    stage = Stage()

    async def main():
        async with stage.actor(Slow) as slow:
            asking = [asyncio.ensure_future(slow.outcome(Slow.work, 60)) for _ in range(3)]
            await asyncio.sleep(1)
            slow.tell(Slow.work, 1)
        return [await one for one in asking], await slow.outcome(Slow.work, 1), slow

    (worked_on, *waited), later, slow = stage.run(main())
    assert (worked_on.fault.code, worked_on.fault.maybe_executed) == ("ACTOR_STOPPED", True)
    for outcome in (*waited, later):
        assert (outcome.fault.code, outcome.fault.maybe_executed) == ("ACTOR_STOPPED", False)
    (dropped,) = stage.of(MessageDropped)
    assert (dropped.actor, dropped.message, dropped.reason) == ("team/one", "Slow.work", "stopped")
    with pytest.raises(HoldfastError, match="ACTOR_STOPPED"):
        slow.tell(Slow.work, 1)
    assert not slow.alive


class Patient(Slow, mailbox=200): ...


def test_messages_that_nobody_worked_on_are_a_few_warnings_in_the_log(caplog):
    async def main():
        async with Supervisor("team") as team:
            patient = await team.start(Patient, id="one")
            for _ in range(100):
                patient.tell(Patient.work, 1)

    with caplog.at_level("WARNING", logger="holdfast"):
        asyncio.run(main())
    lines = [record.getMessage() for record in caplog.records]
    assert set(lines) == {"a message to team/one was dropped: Slow.work (stopped)"}
    assert len(lines) < 20
