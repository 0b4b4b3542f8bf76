"""`ask`, `outcome` and `tell`: answers, errors, time limits, budgets, cancellation, other threads."""

from __future__ import annotations

import asyncio
import threading

import pytest
from actors_kit import Stage

import holdfast
from holdfast import Budget, Err, Ok, recover
from holdfast.actors import Actor, AskTimeoutError, GaveUpError, Ref, Supervisor
from holdfast.events import ActorResumed, SuppressedError
from holdfast.faults import DeadlineError, Fault, HoldfastError, InvalidError
from holdfast.runtime.ambient import AMBIENT
from holdfast.runtime.lineage import REQUEST
from holdfast.testing import run


class Counter(Actor):
    """Counts."""

    def __init__(self, start: int = 0) -> None:
        self.count = start
        self.begun: list[str] = []

    async def add(self, n: int, *, times: int = 1) -> int:
        self.count += n * times
        return self.count

    async def wait(self, name: str, seconds: float) -> str:
        self.begun.append(name)
        await asyncio.sleep(seconds)
        return name

    async def request(self) -> str:
        return REQUEST.get()

    async def note_request(self) -> None:
        self.begun.append(REQUEST.get())

    async def log(self) -> list[str]:
        return list(self.begun)

    async def fail(self, error: BaseException) -> None:
        raise error

    async def rejected(self, fault: Fault) -> Err:
        return Err(fault)

    async def budget(self) -> object:
        return AMBIENT.get()

    def blocking(self) -> None:
        """Not async, so it cannot be asked."""

    async def _private(self) -> None:
        """Not public, so it cannot be asked."""


class Doubler(Counter):
    async def add(self, n: int, *, times: int = 1) -> int:
        return await super().add(2 * n, times=times)


def on_stage(main, kind=Counter, *args, **options):
    stage = Stage()

    async def play():
        async with stage.actor(kind, *args, **options) as ref:
            return await main(ref)

    return stage.run(play()), stage


def test_an_ask_returns_what_the_method_returns_and_the_state_is_kept():
    async def main(ref):
        return await ref.ask(Counter.add, 2), await ref.ask(Counter.add, 3, times=2), await ref.outcome(Counter.add, 1)

    (first, second, third), _ = on_stage(main)
    assert (first, second, third) == (2, 8, Ok(value=9))


def test_a_subclass_answers_with_its_own_method():
    async def main(ref):
        return await ref.ask(Counter.add, 2), await ref.ask(Doubler.add, 1)

    assert on_stage(main, Doubler)[0] == (4, 6)


def test_messages_are_worked_on_one_at_a_time_in_order():
    async def main(ref):
        await asyncio.gather(*(ref.ask(Counter.wait, name, 1.0) for name in "abc"))
        return await ref.ask(Counter.log), asyncio.get_running_loop().time()

    (order, now), _ = on_stage(main)
    assert order == ["a", "b", "c"]
    assert now >= 3.0


class Other(Actor):
    async def add(self, n: int) -> int:
        return n


@pytest.mark.parametrize("method", [Counter.blocking, Counter._private, Counter.started, Other.add, len, "add", None])
def test_what_cannot_be_asked_is_rejected_by_name(method):
    async def main(ref):
        for verb in (ref.ask, ref.outcome):
            with pytest.raises(InvalidError, match=r"public async method of Counter: Counter\.add, "):
                await verb(method)
        with pytest.raises(InvalidError, match="public async method"):
            ref.tell(method)

    on_stage(main)


def test_a_method_that_is_called_on_a_ref_says_how_it_is_asked():
    async def main(ref):
        with pytest.raises(
            AttributeError, match=r"'Ref' object has no attribute 'add'; use await ref\.ask\(Counter\.add, …\)"
        ):
            ref.add(5)
        with pytest.raises(AttributeError, match=r"no attribute 'subtract'$"):
            ref.subtract(5)
        assert not hasattr(ref, "__len__")

    on_stage(main)


def test_wrong_arguments_are_the_senders_mistake_and_no_crash():
    async def main(ref):
        with pytest.raises(TypeError, match="missing 1 required positional argument"):
            await ref.ask(Counter.add)
        ref.tell(Counter.add, 1, 2, 3)
        return await ref.ask(Counter.add, 1), ref.restarts

    answer, stage = on_stage(main)
    assert answer == (1, 0)
    assert len(stage.of(SuppressedError)) == 1


def test_A57_a_failure_that_is_resumed_reaches_the_caller_unchanged_and_the_state_is_kept():
    error = TimeoutError("the provider is slow")

    async def main(ref):
        await ref.ask(Counter.add, 5)
        with pytest.raises(TimeoutError) as raised:
            await ref.ask(Counter.fail, error)
        outcome = await ref.outcome(Counter.fail, error)
        return raised.value, outcome, await ref.ask(Counter.add, 1)

    (raised, outcome, count), _ = on_stage(main)
    assert raised is error
    assert outcome.error is error
    assert outcome.fault.kind == "transient"
    assert outcome.fault.retryable
    assert outcome.fault.context["actor"] == "team/one"
    assert count == 6


def test_an_actor_that_goes_on_after_a_failure_is_reported():
    async def main(ref):
        await ref.outcome(Counter.fail, TimeoutError("slow"))
        await ref.outcome(Counter.fail, RuntimeError("boom"))

    resumed = on_stage(main)[1].of(ActorResumed)
    assert [(event.actor, event.message, event.fault.code) for event in resumed] == [
        ("team/one", "Counter.fail", "SYS_TIMEOUT")
    ]


def test_A57_an_err_that_a_method_returns_is_an_err_and_never_a_crash():
    fault = Fault.of("PROTO_INVALID_MESSAGE")

    async def main(ref):
        for _ in range(100):
            assert await ref.outcome(Counter.rejected, fault) == Err(fault)
        return ref.restarts, ref.alive

    assert on_stage(main)[0] == (0, True)


def test_a_resumed_system_exit_ends_neither_the_actor_nor_the_program():
    async def main(ref):
        return await ref.outcome(Counter.fail, SystemExit(3)), await ref.ask(Counter.add, 1)

    (outcome, count), _ = on_stage(main, on={SystemExit: "resume"})
    assert isinstance(outcome.error, HoldfastError)
    assert isinstance(outcome.error.__cause__, SystemExit)
    assert count == 1


def test_A66_an_ask_whose_time_is_over_is_transient_and_retryable_and_the_late_answer_is_dropped():
    async def main(ref):
        began = asyncio.get_running_loop().time()
        running = await ref.using(timeout=0.1).outcome(Counter.wait, "slow", 5)
        took = asyncio.get_running_loop().time() - began
        return running, took, await ref.ask(Counter.log)

    (outcome, took, log), _ = on_stage(main)
    assert took == pytest.approx(0.1)
    assert isinstance(outcome.error, AskTimeoutError)
    assert isinstance(outcome.error, TimeoutError)
    assert (outcome.fault.code, outcome.fault.kind, outcome.fault.retryable) == ("SYS_TIMEOUT", "transient", True)
    assert outcome.fault.maybe_executed
    assert log == ["slow"]


def test_A66_a_message_whose_time_is_over_before_its_turn_is_never_worked_on():
    async def main(ref):
        slow = asyncio.ensure_future(ref.ask(Counter.wait, "slow", 5))
        await asyncio.sleep(0)
        late = await ref.using(timeout=1).outcome(Counter.wait, "late", 1)
        await slow
        return late, await ref.ask(Counter.log)

    (late, log), _ = on_stage(main)
    assert not late.fault.maybe_executed
    assert log == ["slow"]


def test_each_ask_keeps_its_own_limit_whatever_the_others_have():
    async def main(ref):
        loop, ended = asyncio.get_running_loop(), {}

        async def ask(seconds):
            outcome = await ref.using(timeout=seconds).outcome(Counter.wait, str(seconds), 1_000)
            ended[seconds] = loop.time(), outcome.fault.code

        await asyncio.gather(*(ask(seconds) for seconds in (7.0, 3.0, 11.0, 3.0, 0.5)))
        return ended

    ended, _ = on_stage(main)
    for seconds, (at, code) in ended.items():
        assert at == pytest.approx(seconds)
        assert code == "SYS_TIMEOUT"


def test_the_default_limit_is_30_seconds_and_a_class_may_have_its_own():
    class Patient(Counter, timeout=None):
        pass

    async def main(ref):
        began = asyncio.get_running_loop().time()
        outcome = await ref.outcome(Counter.wait, "x", 100)
        return outcome.ok, asyncio.get_running_loop().time() - began

    assert on_stage(main)[0] == (False, pytest.approx(30))
    assert on_stage(main, Patient)[0] == (True, pytest.approx(100))


def test_a_budget_around_an_ask_clips_it_and_holds_for_the_work():
    async def main(ref):
        stage_runtime = ref._cell.runtime
        began = asyncio.get_running_loop().time()
        with Budget(seconds=2, usd=1, runtime=stage_runtime) as budget:
            seen = await ref.ask(Counter.budget)
            outcome = await ref.outcome(Counter.wait, "x", 10)
        took = asyncio.get_running_loop().time() - began
        after = await ref.ask(Counter.budget)
        return seen.ledger.accounts == budget.ledger.accounts, outcome, took, after

    (same, outcome, took, after), _ = on_stage(main)
    assert same
    assert isinstance(outcome.error, DeadlineError)
    assert outcome.fault.maybe_executed
    assert took == pytest.approx(2)
    assert after is None


def test_an_actor_that_was_started_inside_a_budget_is_not_bound_by_it():
    stage = Stage()

    async def main():
        with Budget(seconds=1, runtime=stage.runtime):
            scope = stage.actor(Counter)
            ref = await scope.__aenter__()
        await asyncio.sleep(5)
        seen = await ref.ask(Counter.budget), await ref.ask(Counter.wait, "x", 5)
        await scope.__aexit__(None, None, None)
        return seen

    assert stage.run(main()) == (None, "x")


def test_a_cancelled_caller_withdraws_its_message_and_work_that_has_begun_goes_on():
    async def main(ref):
        running = asyncio.ensure_future(ref.ask(Counter.wait, "running", 3))
        waiting = asyncio.ensure_future(ref.ask(Counter.wait, "waiting", 3))
        await asyncio.sleep(1)
        running.cancel()
        waiting.cancel()
        for one in (running, waiting):
            with pytest.raises(asyncio.CancelledError):
                await one
        return await ref.ask(Counter.log), asyncio.get_running_loop().time()

    (log, now), _ = on_stage(main)
    assert log == ["running"]
    assert now == pytest.approx(3)


def test_a_task_group_of_asks_cancels_the_others_when_one_fails():
    async def main(ref):
        with pytest.raises(ExceptionGroup) as raised:
            async with asyncio.TaskGroup() as group:
                group.create_task(ref.ask(Counter.fail, TimeoutError("x")))
                group.create_task(ref.ask(Counter.wait, "b", 1))
                group.create_task(ref.ask(Counter.wait, "c", 1))
        await asyncio.sleep(5)
        return raised.value.exceptions, await ref.ask(Counter.log)

    (errors, log), _ = on_stage(main)
    assert [type(error) for error in errors] == [TimeoutError]
    assert log in ([], ["b"])


def test_a_tell_runs_and_its_failure_is_reported_since_nobody_waits():
    async def main(ref):
        ref.tell(Counter.add, 4)
        ref.tell(Counter.fail, TimeoutError("x"))
        return await ref.ask(Counter.add, 0)

    count, stage = on_stage(main)
    assert count == 4
    (ignored,) = stage.of(SuppressedError)
    assert "Counter.fail" in ignored.reason


def test_an_actor_that_tells_itself_without_end_lets_others_work():
    class Busy(Counter):
        async def again(self) -> None:
            self.count += 1
            self.ref.tell(Busy.again)

    async def main(ref):
        ref.tell(Busy.again)
        ticks = 0
        while ticks < 10:
            await asyncio.sleep(0)
            ticks += 1
        return await ref.ask(Counter.add, 0)

    count, _ = on_stage(main, Busy)
    assert count > 64


def test_other_threads_and_other_loops_can_ask_and_tell():
    stage = Stage()

    async def main():
        async with stage.actor(Counter) as ref:
            answers = []

            def elsewhere():
                async def ask():
                    ref.tell(Counter.add, 1)
                    return await ref.ask(Counter.add, 2), await ref.outcome(Counter.fail, TimeoutError("x"))

                ref.tell(Counter.add, 10)
                answers.append(asyncio.run(ask()))

            thread = threading.Thread(target=elsewhere)
            with asyncio.get_running_loop().hold():
                thread.start()
                await asyncio.to_thread(thread.join)
            return answers

    ((count, failed),) = stage.run(main())
    assert count == 13
    assert failed.fault.kind == "transient"


def test_a_thread_that_asks_an_actor_whose_loop_is_closed_gets_an_error():
    stage = Stage()

    async def main():
        async with stage.actor(Counter) as ref:
            return ref

    ref = stage.run(main())
    with pytest.raises(InvalidError, match="closed"):
        asyncio.run(ref.ask(Counter.add, 1))


@pytest.mark.parametrize("given", [{"timeout": 0}, {"timeout": "1"}, {"priority": -1}])
def test_wrong_options_of_a_ref_are_rejected(given):
    async def main(ref):
        with pytest.raises(InvalidError, match=r"ref\."):
            ref.using(**given)

    on_stage(main)


def test_refs_to_one_actor_are_equal_whatever_their_options():
    async def main(ref):
        return {ref, ref.using(timeout=1), ref.using(priority=10)}, repr(ref)

    refs, shown = on_stage(main)[0]
    assert len(refs) == 1
    assert shown == "<Ref team/one (Counter)>"


def test_wrong_class_options_and_reserved_names_are_rejected():
    with pytest.raises(InvalidError, match="did you mean `timeout`"):
        type("Bad", (Actor,), {}, timeuot=3)
    with pytest.raises(InvalidError, match=r"actor\.mailbox"):
        type("Bad", (Actor,), {}, mailbox=0)
    with pytest.raises(InvalidError, match=r"Bad\.stop"):
        type("Bad", (Actor,), {"stop": None})


def test_an_instance_made_by_hand_can_be_tested_but_has_no_ref():
    counter = Counter(3)
    assert asyncio.run(counter.add(1)) == 4
    with pytest.raises(InvalidError, match="supervisor"):
        _ = counter.ref


def test_a_crash_without_a_supervisor_ends_the_ask_with_what_happened():
    async def main(ref):
        with pytest.raises(HoldfastError) as raised:
            await ref.ask(Counter.fail, KeyError("plan"))
        return raised.value

    error, _ = on_stage(main)
    assert error.fault.code == "ACTOR_CRASHED"
    assert error.fault.message == "Actor team/one crashed: KeyError: 'plan'"
    assert error.fault.context["restart_count"] == 1
    assert error.fault.maybe_executed
    assert not error.fault.retryable
    assert isinstance(error.__cause__, KeyError)


# --- limits of the sender ---


class Slow(Actor, timeout=60):
    """Calls something that takes a second, within whatever budget there is."""

    async def fetch(self) -> str:
        @recover("tool:slow")
        async def slow() -> str:
            await asyncio.sleep(1)
            return "fetched"

        return await slow()

    async def ask_myself(self) -> str:
        return await self.ref.ask(Slow.fetch)


def in_a_team(main, *kinds):
    stage = Stage()

    async def play():
        async with Supervisor("team", runtime=stage.runtime) as team:
            return await main(team, *[await team.start(kind) for kind in kinds])

    return stage.run(play())


def test_a_budget_of_the_sender_that_ends_does_not_end_the_team():
    async def main(_, slow):
        with Budget(seconds=0.4), pytest.raises(DeadlineError):
            await slow.ask(Slow.fetch)
        await asyncio.sleep(2)
        return await slow.ask(Slow.fetch), slow.restarts

    assert in_a_team(main, Slow) == ("fetched", 0)


def test_wrong_arguments_leave_no_budget_on_the_actor():
    async def main(_, slow, counter):
        with Budget(seconds=0.4), pytest.raises(TypeError):
            await counter.ask(Counter.add)
        with Budget(seconds=0.4):
            with pytest.raises(TypeError):
                await slow.ask(Slow.fetch, "too many")
            return await asyncio.gather(without_budget(counter.ask, Counter.budget))

    assert in_a_team(main, Slow, Counter) == [None]


async def without_budget(ask, method):
    AMBIENT.set(None)
    return await ask(method)


def test_an_actor_that_asks_itself_learns_it_at_once():
    async def main(_, slow):
        before = asyncio.get_running_loop().time()
        with pytest.raises(HoldfastError, match="to itself"):
            await slow.ask(Slow.ask_myself)
        return asyncio.get_running_loop().time() - before

    assert in_a_team(main, Slow) < 1


class Linked(Actor):
    """Asks the next one, which may ask this one again."""

    async def link(self, other) -> None:
        self.other = other

    async def go(self, steps: int) -> int:
        return steps if not steps else await self.other.ask(Linked.go, steps - 1)

    async def go_beside(self, steps: int) -> list[int]:
        return await asyncio.gather(self.other.ask(Linked.go, steps), asyncio.sleep(0, 1))


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_actors_that_would_wait_for_each_other_learn_it_at_once_and_go_on(count):
    async def main():
        async with Supervisor("team") as team:
            refs = [await team.start(Linked, id=f"a{n}") for n in range(count)]
            for ref, other in zip(refs, [*refs[1:], refs[0]], strict=True):
                await ref.ask(Linked.link, other)
            began = asyncio.get_running_loop().time()
            outcome = await refs[0].outcome(Linked.go, count + 3)
            took = asyncio.get_running_loop().time() - began
            again = [await ref.ask(Linked.go, 0) for ref in refs]
            ways = await asyncio.gather(*(ref.outcome(Linked.go, max(0, count - 1)) for ref in refs))
            return outcome.fault, took, again, [ref.restarts for ref in refs], ways

    fault, took, again, restarts, ways = run(main())
    assert (fault.code, fault.maybe_executed, fault.retryable) == ("ACTOR_ERROR", False, False)
    if count > 1:
        circle = [f"team/a{n % count}" for n in range(count - 1, 2 * count)]
        assert " waits for ".join(circle) in fault.message
    assert took < 1
    assert again == [0] * count
    assert restarts == [0] * count
    # Several that ask at once: each has its answer, or the circle that it would have closed.
    assert all(way.ok or way.fault.code == "ACTOR_ERROR" for way in ways)


def test_actors_that_ask_one_behind_the_other_are_no_circle():
    async def main():
        async with Supervisor("team") as team:
            first, second, third = [await team.start(Linked, id=name) for name in "abc"]
            await first.ask(Linked.link, third)
            await second.ask(Linked.link, third)
            await third.ask(Linked.link, third)
            asked = (
                first.ask(Linked.go, 1),
                second.ask(Linked.go, 1),
                first.ask(Linked.go_beside, 0),
                third.ask(Linked.go, 0),
            )
            return await asyncio.gather(*asked)

    assert run(main()) == [0, 0, [0, 1], 0]


class Watcher(Actor, mailbox=1):
    def __init__(self) -> None:
        self.ended: list[str] = []

    async def observe(self, other: Ref) -> None:
        self.watch(other)

    async def wait(self) -> None:
        await asyncio.sleep(1)

    async def down(self, other, exit) -> None:  # noqa: A002
        self.ended.append(other.name)

    async def log(self) -> list[str]:
        return self.ended


def test_A65_a_full_mailbox_does_not_hide_that_somebody_ended():
    async def main(team, watcher):
        other = await team.start(Counter, id="other", restart="temporary")
        await watcher.ask(Watcher.observe, other)
        watcher.tell(Watcher.wait)
        await asyncio.sleep(0.1)
        watcher.tell(Watcher.wait)
        assert watcher.waiting == 1
        await team.terminate_child("other")
        await asyncio.sleep(3)
        return await watcher.ask(Watcher.log)

    assert in_a_team(main, Watcher) == ["team/other"]


def test_a_caller_that_asks_in_a_loop_is_stopped_when_its_supervisor_gives_up():
    class Fragile(Actor):
        async def crash(self) -> None:
            raise RuntimeError("broken")

    async def main() -> int:
        asked = 0
        with pytest.raises(GaveUpError):
            async with Supervisor("team", max_restarts=2, window=60) as team:
                ref = await team.start(Fragile)
                while asked < 1_000:
                    await ref.outcome(Fragile.crash)
                    asked += 1
        return asked

    assert run(main()) < 20


def test_what_the_sender_works_on_travels_with_the_message_and_not_with_the_next():
    async def main():
        async with Supervisor("team") as team:
            counter = await team.start(Counter)
            with holdfast.request("req-1"):
                assert await counter.ask(Counter.request) == "req-1"
                counter.tell(Counter.note_request)
                with pytest.raises(TypeError):
                    await counter.ask(Counter.add)
            counter.tell(Counter.note_request)
            assert not await counter.ask(Counter.request)
            assert await counter.ask(Counter.log) == ["req-1", ""]

    run(main())
