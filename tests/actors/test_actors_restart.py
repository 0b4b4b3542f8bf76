"""Actors under a supervisor: directives, restarts, stash, watch, groups, children, health."""

from __future__ import annotations

import asyncio

import pytest
from actors_kit import Stage

from holdfast import Backoff, Fault, HoldfastError
from holdfast.actors import BY_KIND, Actor, Error, GaveUpError, Group, Health, Shutdown, StartError, Supervisor
from holdfast.actors.messages import AKKA_SAMPLE, ActorKilledError
from holdfast.events import ChildLeaked, MessageDropped, SuppressedError
from holdfast.faults import CircuitOpenError, InvalidError
from holdfast.tools import Toolbox, read_file


class Notes(Actor):
    """Remembers what happened to it, over all instances."""

    log: list[str]

    def __init__(self, log: list[str] | None = None) -> None:
        self.log = [] if log is None else log
        self.log.append("made")
        self.count = 0

    async def add(self, n: int = 1) -> int:
        self.count += n
        return self.count

    async def fail(self, error: BaseException) -> None:
        raise error

    async def wait(self, seconds: float) -> int:
        await asyncio.sleep(seconds)
        return self.count

    async def hang(self) -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if "leave" in self.log:
                    raise


class Hooked(Notes):
    async def started(self) -> None:
        self.log.append("started")

    async def stopping(self, exit) -> None:  # noqa: A002
        self.log.append(f"stopping: {exit}")

    async def crashed(self, error) -> None:
        self.log.append(f"crashed: {error}")
        raise RuntimeError("a hook that fails")


def supervised(main, **rules):
    stage = Stage()

    async def play():
        async with Supervisor("team", runtime=stage.runtime, **rules) as team:
            return await main(team, stage)

    return stage.run(play())


def test_A53_a_message_that_crashes_is_lost_and_those_behind_it_are_for_the_next_instance():
    async def main(team, _):
        ref = await team.start(Notes)
        await ref.ask(Notes.add, 5)
        bad, two, three = await asyncio.gather(
            ref.outcome(Notes.fail, KeyError("plan")), ref.outcome(Notes.add), ref.outcome(Notes.add)
        )
        return bad, two.value, three.value, ref.restarts, ref.alive

    bad, two, three, restarts, alive = supervised(main)
    assert (bad.fault.code, bad.fault.maybe_executed) == ("ACTOR_CRASHED", True)
    assert bad.fault.context["restart_count"] == 1
    assert "restarts" not in bad.fault.context, "one number for one thing"
    assert (two, three) == (1, 2)
    assert (restarts, alive) == (1, True)


def test_A54_after_stop_every_ask_that_waits_ends_and_later_ones_too():
    async def main(team, _):
        ref = await team.start(Notes, on={KeyError: "stop"})
        bad, *waiting = await asyncio.gather(
            ref.outcome(Notes.fail, KeyError("plan")), *(ref.outcome(Notes.add) for _ in range(3))
        )
        return bad, waiting, await ref.outcome(Notes.add), await ref.ended()

    bad, waiting, later, ended = supervised(main)
    assert bad.fault.code == "ACTOR_CRASHED"
    assert [outcome.fault.code for outcome in (*waiting, later)] == ["ACTOR_STOPPED"] * 4
    assert not any(outcome.fault.maybe_executed for outcome in (*waiting, later))
    assert isinstance(ended, Error)


def test_A55_an_escalated_failure_is_the_supervisors_own():
    error = PermissionError("the key was revoked")

    async def main(team, _):
        ref = await team.start(Notes, on={PermissionError: "escalate"})
        ref.tell(Notes.fail, error)
        await asyncio.sleep(60)

    with pytest.raises(GaveUpError) as raised:
        supervised(main)
    causes, one = [], raised.value
    while one is not None:
        causes.append(one)
        one = one.__cause__
    assert error in causes


class Reader(Notes):
    """Calls what its messages name, as a model provokes it."""

    async def read(self, toolbox, path: str) -> str:
        return await toolbox.call("read_file", {"path": path})

    async def ask_other(self, other) -> None:
        await other.ask(Notes.fail, KeyError("plan"))


def _answered(status: int) -> Exception:
    return type("HTTPStatusError", (Exception,), {"status_code": status})(f"the service answered {status}")


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(2, "no such file"),
        PermissionError(13, "permission denied"),
        OSError(28, "no space left"),
        OSError("odd"),
        *(_answered(status) for status in (400, 401, 403, 404, 422, 429, 500)),
        HoldfastError(Fault.of("PROVIDER_CONTEXT_OVERFLOW")),
        HoldfastError(Fault.of("TOOL_FORBIDDEN")),
        HoldfastError(Fault.of("SYS_FALLBACKS_EXHAUSTED")),
    ],
    ids=repr,
)
def test_a_failure_of_one_message_leaves_the_actor_and_its_siblings_as_they_are(error):
    async def main(team, _):
        ref = await team.start(Notes)
        sibling = await team.start(Notes)
        await ref.ask(Notes.add, 5)
        for _ in range(20):
            with pytest.raises(type(error)) as raised:
                await ref.ask(Notes.fail, error)
            assert raised.value is error
            ref.tell(Notes.fail, error)
        return await ref.ask(Notes.add, 1), await sibling.ask(Notes.add, 1), ref.restarts, sibling.restarts

    assert supervised(main) == (6, 1, 0, 0)


def test_a_tool_call_that_a_model_got_wrong_ends_nothing(tmp_path):
    toolbox = Toolbox([read_file(tmp_path)])

    async def main():
        async with Supervisor("team") as team:
            reader = await team.start(Reader)
            await reader.ask(Reader.add, 5)
            outcomes = [
                await reader.outcome(Reader.read, toolbox, path) for path in ("../x", "no-such-file", "", "a\0b")
            ]
            return [outcome.fault.code for outcome in outcomes], await reader.ask(Reader.add, 1), reader.restarts

    codes, count, restarts = asyncio.run(main())
    assert codes == ["TOOL_FORBIDDEN", "TOOL_FILE_NOT_FOUND", "TOOL_INPUT_INVALID", "TOOL_INPUT_INVALID"]
    assert (count, restarts) == (6, 0)


def test_an_actor_that_asks_one_that_crashes_does_not_crash_with_it():
    async def main(team, _):
        asker, other = await team.start(Reader), await team.start(Notes)
        await asker.ask(Reader.add, 5)
        outcome = await asker.outcome(Reader.ask_other, other)
        return outcome.fault.code, await asker.ask(Reader.add, 1), asker.restarts, other.restarts

    assert supervised(main) == ("ACTOR_CRASHED", 6, 0, 1)


@pytest.mark.parametrize(
    "error", [InvalidError.at("policy.attempts", "a number", "x"), StartError.because(actor="a", reason="b")]
)
def test_A55_a_wrong_configuration_escalates(error):
    async def main(team, _):
        ref = await team.start(Notes)
        await ref.outcome(Notes.fail, error)
        await asyncio.sleep(60)

    with pytest.raises(GaveUpError):
        supervised(main)


def test_the_preset_by_kind_escalates_what_no_retry_can_cure():
    async def main(team, _):
        ref = await team.start(Notes, on=BY_KIND)
        await ref.outcome(Notes.fail, TimeoutError("x"))
        assert ref.restarts == 0
        await ref.outcome(Notes.fail, KeyError("x"))
        assert ref.restarts == 1
        await ref.outcome(Notes.fail, PermissionError(13, "no"))
        await asyncio.sleep(60)

    with pytest.raises(GaveUpError):
        supervised(main)


@pytest.mark.parametrize(
    ("on", "error", "restarts"),
    [
        ({"SYS_TIMEOUT": "restart"}, TimeoutError("x"), 1),
        ({"transient": "restart"}, TimeoutError("x"), 1),
        ({TimeoutError: "restart"}, TimeoutError("x"), 1),
        ({Exception: "resume"}, KeyError("x"), 0),
        (None, TimeoutError("x"), 0),
        (None, KeyError("x"), 1),
        (None, RuntimeError("boom"), 1),
        (None, RuntimeError("cannot parse this ticket"), 1),
        (None, RuntimeError("no such file"), 1),
    ],
)
def test_directives_go_by_code_by_kind_or_by_exception(on, error, restarts):
    async def main(team, _):
        ref = await team.start(Notes, on=on)
        await ref.outcome(Notes.fail, error)
        await ref.ask(Notes.add)
        return ref.restarts

    assert supervised(main) == restarts


def test_A57_faults_that_are_validation_never_touch_the_budget():
    async def main(team, _):
        ref = await team.start(Notes)
        for _ in range(100):
            await ref.outcome(Notes.fail, HoldfastError(Fault.of("PROTO_INVALID_MESSAGE")))
        return ref.restarts

    assert supervised(main, max_restarts=0) == 0


def test_A58_the_hook_of_a_crash_is_called_on_the_old_instance_and_what_it_raises_changes_nothing():
    log: list[str] = []

    async def main(team, stage):
        ref = await team.start(Hooked, log)
        await ref.outcome(Notes.fail, KeyError("plan"))
        await ref.ask(Notes.add)
        return list(log), [event.reason for event in stage.of(SuppressedError)]

    during, reported = supervised(main)
    assert during == ["made", "started", "crashed: 'plan'", "made", "started"]
    assert any("Hooked.crashed" in reason for reason in reported)
    assert log[-1].startswith("stopping: was stopped")


class Parent(Actor):
    async def started(self) -> None:
        children = await self.children()
        self.helper = await children.start(Hooked, LOG)

    async def ask_helper(self) -> int:
        return await self.helper.ask(Notes.add)

    async def fail(self, error: BaseException) -> None:
        raise error

    async def helper_fails(self) -> None:
        for _ in range(10):
            await self.helper.outcome(Notes.fail, KeyError("x"))


class KeepingParent(Parent, stop_children=False):
    async def started(self) -> None:
        children = await self.children()
        infos = await children.which_children()
        self.helper = infos[0].ref if infos else await children.start(Hooked, LOG)


LOG: list[str] = []


@pytest.mark.parametrize(("kind", "count"), [(Parent, 1), (KeepingParent, 2)])
def test_A59_children_are_stopped_before_the_new_instance_unless_they_are_kept(kind, count):
    LOG.clear()

    async def main(team, _):
        ref = await team.start(kind)
        await ref.ask(Parent.ask_helper)
        await ref.outcome(Parent.fail, KeyError("x"))
        return await ref.ask(Parent.ask_helper)

    assert supervised(main) == count
    if kind is Parent:
        assert [line.partition(":")[0] for line in LOG[:4]] == ["made", "started", "stopping", "made"]
    assert LOG[-1].startswith("stopping: was stopped")


def test_an_actor_whose_childrens_supervisor_gives_up_has_failed():
    LOG.clear()

    async def main(team, _):
        ref = await team.start(Parent)
        await ref.outcome(Parent.helper_fails)
        await asyncio.sleep(1)
        return ref.restarts, await ref.ask(Parent.ask_helper)

    assert supervised(main) == (1, 1)


class Stashing(Notes, stash=2, mailbox=10):
    pass


def test_A62_during_backoff_the_stash_keeps_so_many_and_rejects_the_next():
    async def main(team, _):
        ref = await team.start(Stashing, backoff=Backoff(initial=5, cap=5, jitter=0))
        await ref.outcome(Notes.fail, KeyError("x"))
        await asyncio.sleep(0.1)
        kept = [asyncio.ensure_future(ref.outcome(Notes.add)) for _ in range(2)]
        await asyncio.sleep(0.1)
        rejected = await ref.outcome(Notes.add)
        return rejected, [(await one).value for one in kept], asyncio.get_running_loop().time()

    rejected, kept, now = supervised(main)
    assert rejected.fault.code == "ACTOR_MAILBOX_FULL"
    assert rejected.fault.context["restarting"] is True
    assert kept == [1, 2]
    assert now >= 5


class NeverStarts(Notes):
    async def started(self) -> None:
        if len(self.log) > 1 or not self.log[0]:
            raise RuntimeError("no such model")


def test_A63_a_start_that_always_fails_ends_and_does_not_loop():
    log: list[str] = []

    async def first(team, _):
        with pytest.raises((StartError, RuntimeError)) as raised:
            await team.start(NeverStarts, [""])
        return raised.value

    error = supervised(first)
    assert "no such model" in f"{error} {error.__cause__}"

    async def later(team, _):
        ref = await team.start(NeverStarts, log)
        await ref.outcome(Notes.fail, KeyError("x"))
        await asyncio.sleep(600)

    with pytest.raises(GaveUpError):
        supervised(later, max_restarts=3)
    assert log == ["made"] * 4


class Watcher(Actor):
    def __init__(self) -> None:
        self.ends: list[str] = []

    async def look_at(self, other) -> None:
        self.watch(other)

    async def down(self, other, exit) -> None:  # noqa: A002
        self.ends.append(f"{other.name} {exit}")

    async def seen(self) -> list[str]:
        return list(self.ends)


def test_A65_a_watcher_is_told_of_the_end_also_if_it_came_before_and_not_of_a_restart():
    async def main(team, _):
        watcher = await team.start(Watcher)
        ref = await team.start(Notes, id="notes")
        await watcher.ask(Watcher.look_at, ref)
        await ref.outcome(Notes.fail, KeyError("x"))
        await ref.ask(Notes.add)
        restarted = await watcher.ask(Watcher.seen)
        await team.terminate_child("notes")
        ended = list(await watcher.ask(Watcher.seen))
        await watcher.ask(Watcher.look_at, ref)
        await asyncio.sleep(0)
        return restarted, ended, await watcher.ask(Watcher.seen), await ref.ended()

    restarted, ended, again, how = supervised(main)
    assert restarted == []
    assert ended == ["team/notes was stopped: terminated"]
    assert again == ["team/notes was stopped: terminated"] * 2
    assert isinstance(how, Shutdown)


def test_a_child_that_is_started_again_by_hand_is_reached_by_the_same_ref():
    async def main(team, _):
        ref = await team.start(Notes, id="notes")
        await ref.ask(Notes.add, 5)
        await team.terminate_child("notes")
        stopped = await ref.outcome(Notes.add)
        await team.restart_child("notes")
        return stopped.fault.code, await ref.ask(Notes.add)

    assert supervised(main) == ("ACTOR_STOPPED", 1)


def test_N4_3_an_actor_leaves_its_groups_when_it_has_ended_and_stays_while_it_is_restarted():
    async def main(team, _):
        group: Group[Notes] = Group("notes")
        refs = [await team.start(Notes, id=name) for name in ("a", "b", "c")]
        for ref in (*refs, refs[0]):
            group.join(ref)
        assert len(group) == 3
        assert [(await group.next().ask(Notes.add)) for _ in range(6)] == [1, 1, 1, 2, 2, 2]
        await refs[0].outcome(Notes.fail, KeyError("x"))
        assert refs[0] in group
        await team.terminate_child("b")
        assert group.members == (refs[0], refs[2])
        group.leave(refs[2])
        assert group.tell(Notes.add) == 1
        outcomes = await group.ask_all(Notes.add)
        group.leave(refs[0])
        group.join(refs[1])
        with pytest.raises(HoldfastError, match="has no members"):
            group.next()
        with pytest.raises(InvalidError, match="Ref of an actor"):
            group.join("a")
        return [outcome.value for outcome in outcomes]

    assert supervised(main) == [2]


def test_an_actor_that_stops_itself_ends_after_the_message_and_counts_as_any_exit():
    class Once(Notes):
        async def finish(self) -> str:
            self.stop("done")
            return "bye"

    async def main(team, _):
        ref = await team.start(Once, restart="transient")
        answer = await ref.ask(Once.finish)
        how = await ref.ended()
        return answer, how

    assert supervised(main) == ("bye", Shutdown("done"))


class Pinged(Notes, timeout=None, health=Health(every=1, timeout=1, failures=5)):
    pass


class Rejecting(Notes, timeout=None, health=Health(every=1, timeout=1, failures=5, then="reject", open_for=30)):
    pass


def test_N4_3_an_actor_that_answers_no_pings_is_restarted_and_its_ask_ends():
    async def main(team, _):
        ref = await team.start(Pinged)
        assert await ref.ask(Notes.wait, 3) == 0
        began = asyncio.get_running_loop().time()
        outcome = await ref.outcome(Notes.wait, 1_000)
        took = asyncio.get_running_loop().time() - began
        return outcome.fault.code, took, await ref.ask(Notes.add), ref.restarts, ref.health

    code, took, count, restarts, health = supervised(main)
    assert code in ("ACTOR_STOPPED", "ACTOR_CRASHED")
    assert 9 <= took <= 12
    assert (count, restarts, health) == (1, 1, "healthy")


def test_N4_3_an_actor_that_hangs_and_ignores_its_cancellation_is_given_up():
    log: list[str] = []

    async def main(team, stage):
        ref = await team.start(Pinged, log)
        hanging = asyncio.ensure_future(ref.outcome(Notes.hang))
        await asyncio.sleep(30)
        count = await ref.ask(Notes.add)
        log.append("leave")
        left = list(stage.runtime.leaked_tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await hanging
        return count, ref.restarts

    assert supervised(main) == (1, 1)


def test_N4_3_reject_rejects_for_30_seconds_and_then_one_ping_decides():
    async def main(team, _):
        ref = await team.start(Rejecting)
        slow = asyncio.ensure_future(ref.ask(Notes.wait, 25))
        await asyncio.sleep(15)
        rejected = await ref.outcome(Notes.add)
        opened = ref.health
        await slow
        await asyncio.sleep(5)
        still = await ref.outcome(Notes.add)
        await asyncio.sleep(20)
        return rejected, opened, still.ok, await ref.ask(Notes.add), ref.health, ref.restarts

    rejected, opened, still, count, health, restarts = supervised(main)
    assert isinstance(rejected.error, CircuitOpenError)
    assert (opened, still) == ("open", False)
    assert (count, health, restarts) == (1, "healthy", 0)


@pytest.mark.parametrize("given", [{"every": 0}, {"failures": 0}, {"then": "ignore"}, {"timeout": None}])
def test_wrong_options_of_health_are_rejected(given):
    with pytest.raises(InvalidError, match=r"health\."):
        Health(**given)
    with pytest.raises(InvalidError, match=r"actor\.health"):
        type("Bad", (Actor,), {}, health=3)


@pytest.mark.parametrize(
    ("error", "restarts", "alive"),
    [
        (ZeroDivisionError(), 0, True),
        (AttributeError(), 1, True),
        (ValueError(), 0, False),
        (ActorKilledError(), 0, False),
    ],
)
def test_S4_4_akkas_sample_strategy(error, restarts, alive):
    async def main(team, _):
        ref = await team.start(Notes, on=AKKA_SAMPLE)
        await ref.outcome(Notes.fail, error)
        await asyncio.sleep(1)
        return ref.restarts, ref.alive

    assert supervised(main) == (restarts, alive)


@pytest.mark.parametrize("error", [ImportError("no such module"), RuntimeError("other")])
def test_S4_4_akkas_sample_strategy_escalates_what_it_does_not_name(error):
    async def main(team, _):
        ref = await team.start(Notes, on=AKKA_SAMPLE)
        await ref.outcome(Notes.fail, error)
        await asyncio.sleep(1)

    with pytest.raises(GaveUpError):
        supervised(main)


def test_a_message_to_an_actor_that_ignores_its_stop_does_not_keep_the_supervisor():
    log: list[str] = []
    stage = Stage()

    async def main():
        async with Supervisor("team", runtime=stage.runtime) as team:
            ref = await team.start(Notes, log, shutdown=0.3)
            hanging = asyncio.ensure_future(ref.outcome(Notes.hang))
            await asyncio.sleep(1)
            ref.tell(Notes.add)
        took = asyncio.get_running_loop().time() - 1
        log.append("leave")
        left = list(stage.runtime.leaked_tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        return took, await hanging

    took, outcome = stage.run(main())
    assert took < 2
    assert outcome.fault.code in ("ACTOR_STOPPED", "ACTOR_CRASHED")
    assert stage.of(ChildLeaked)
    assert stage.of(MessageDropped)


@pytest.mark.parametrize(("restart", "count"), [("permanent", 1), ("transient", 1), ("temporary", 0)])
def test_a_restart_counts_as_soon_as_the_sender_has_the_crash(restart, count):
    async def main(stage):
        async with Supervisor("team", runtime=stage.runtime) as team:
            flaky = await team.start(Crasher, restart=restart)
            crashed = await flaky.outcome(Crasher.crash)
            at_once = flaky.restarts
            await asyncio.sleep(1)
            return crashed.fault.code, crashed.fault.context["restart_count"], at_once, flaky.restarts

    stage = Stage()
    assert stage.run(main(stage)) == ("ACTOR_CRASHED", count, count, count)


class Crasher(Actor):
    async def crash(self) -> None:
        raise KeyError("plan")


class Small(Notes, mailbox=1, stash=1): ...


def test_a_member_that_takes_no_message_is_left_out_and_an_event_says_so():
    async def main(team, stage):
        group: Group[Small] = Group("notes")
        for name in ("a", "b"):
            group.join(await team.start(Small, id=name))
        busy = asyncio.ensure_future(group.members[0].outcome(Small.wait, 5))
        await asyncio.sleep(1)
        taken = [group.tell(Small.add) for _ in range(2)]
        await busy
        return taken, [(event.reason, event.code) for event in stage.of(SuppressedError)]

    reason = "group notes goes on without team/a, which did not take the message"
    taken, reported = supervised(main)
    assert taken == [2, 1]
    assert (reason, "ACTOR_MAILBOX_FULL") in reported


class Deaf(Hooked, timeout=None, health=Health(every=1, timeout=1, failures=5)):
    async def work(self, seconds: float) -> str:
        """Finish whatever anybody says."""
        ends = asyncio.get_running_loop().time() + seconds
        while (left := ends - asyncio.get_running_loop().time()) > 0:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                self.log.append("ignored")
        return "done"


def test_an_actor_that_finishes_its_message_although_it_is_stopped_takes_no_further_one():
    log: list[str] = []
    stage = Stage()

    async def main():
        async with Supervisor("team", runtime=stage.runtime) as team:
            ref = await team.start(Deaf, log, shutdown=5)
            working = asyncio.ensure_future(ref.outcome(Deaf.work, 3))
            behind = asyncio.ensure_future(ref.outcome(Notes.add))
            await asyncio.sleep(1)
        return asyncio.get_running_loop().time(), await working, await behind

    took, working, behind = stage.run(main())
    assert took == pytest.approx(3, abs=0.1)
    assert working.value == "done"
    assert (behind.fault.code, behind.fault.maybe_executed) == ("ACTOR_STOPPED", False)
    assert [line.partition(":")[0] for line in log] == ["made", "started", "ignored", "stopping"]


def test_an_instance_that_was_given_up_takes_no_message_of_the_next_one():
    async def main(team, _):
        ref = await team.start(Deaf)
        working = asyncio.ensure_future(ref.outcome(Deaf.work, 40))
        await asyncio.sleep(30)
        counts = [await ref.ask(Notes.add)]
        # The first instance ends its message, long after the second one has begun.
        await working
        counts += [await ref.using(timeout=5).ask(Notes.add) for _ in range(3)]
        return counts, ref.restarts

    assert supervised(main) == ([1, 2, 3, 4], 1)


def test_a_told_message_that_is_cut_by_the_stop_is_reported():
    stage = Stage()

    async def play():
        async with Supervisor("team", runtime=stage.runtime) as team:
            ref = await team.start(Notes)
            ref.tell(Notes.wait, 60)
            ref.tell(Notes.add)
            await asyncio.sleep(1)

    stage.run(play())
    assert [event.message for event in stage.of(MessageDropped)] == ["Notes.wait", "Notes.add"]
