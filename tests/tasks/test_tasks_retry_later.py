"""`retry-later`: a timer in the session's store. Any process that knows the workflow goes on when it is due, and exactly one does."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import textwrap

import msgspec
import pytest

from holdfast import Err, Fault, HoldfastError, InvalidError, Ok, Runtime, Session, fault_of
from holdfast.cli.store.sessions import record_document
from holdfast.events import OperatorAsked, Retry
from holdfast.policies.alerts import Alerts
from holdfast.sessions import answer, pending
from holdfast.sessions.admin import overview, unpark_runs
from holdfast.sessions.later import run_due, watch_due
from holdfast.sessions.parked_runs import ParkedError
from holdfast.sinks import raise_alerts
from holdfast.stores import MemoryStore, Store, open_store
from holdfast.tasks.workflows import Workflow
from holdfast.testing import Capture, VirtualClock
from holdfast.testing import run as in_virtual_time
from holdfast.workflow import WorkflowError

HOUR = 3600.0
SOURCE = """
(bind plan (prepare 1))
(bind done (retry-later ((after 3600) (attempts 3)) (deploy plan)))
(report done)
"""


class Killed(BaseException):
    """The process ends here."""


class World:
    """Tasks that count how often they ran, and fail as often as a test wants it."""

    def __init__(self, *, failures: int = 0) -> None:
        self.clock = VirtualClock()
        self.runtime = Runtime(clock=self.clock)
        self.store: Store = MemoryStore(clock=self.clock)
        self.ran: list[str] = []
        self.failures = failures
        self.fault = Fault.of("PROVIDER_OVERLOADED", "no capacity")
        self.stops_at: int | None = None

    def tasks(self):
        async def task(name, x):
            await asyncio.sleep(0)
            if self.stops_at == len(self.ran):
                self.stops_at = None
                raise Killed
            self.ran.append(name)
            if name == "deploy" and self.failures:
                self.failures -= 1
                raise HoldfastError(self.fault)
            return f"{name}({x})"

        def of(name):
            async def run(x):
                return await task(name, x)

            return run

        return {name: of(name) for name in ("prepare", "deploy", "report")}

    def workflow(self, source: str = SOURCE) -> Workflow:
        return Workflow(source, name="release", tasks=self.tasks(), runtime=self.runtime)

    async def start(self, source: str = SOURCE, *, interactors=(), **options):
        async with Session.open(
            "s", store=self.store, runtime=self.runtime, interactors=interactors, **options
        ) as session:
            return await self.workflow(source).run(session)

    async def due(self, source: str = SOURCE, **options):
        return [run async for run in run_due(self.store, self.workflow(source), runtime=self.runtime, **options)]


# --- parking ---


async def test_without_a_session_it_waits_in_this_process():
    world = World(failures=2)
    loop = asyncio.get_running_loop()
    begin = loop.time()
    assert await world.workflow().run() == "report(deploy(prepare(1)))"
    assert loop.time() - begin == pytest.approx(2 * HOUR)


async def test_S2_5_retry_later_stores_the_time_and_ends_the_run():
    world = World(failures=1)
    capture = Capture()
    with world.runtime.on(capture), pytest.raises(ParkedError) as parked:
        await world.start()
    assert parked.value.until == world.clock.wall() + HOUR
    assert parked.value.fault.code == "PROVIDER_OVERLOADED"
    assert "no capacity" in parked.value.fault.message
    (retry,) = [event for event in capture.events if isinstance(event, Retry)]
    assert (retry.attempt, retry.max_attempts, retry.delay, retry.session) == (1, 3, HOUR, "s")
    # The list of sessions shows it, and so does the overview.
    assert record_document(await world.store.session("s"), used=False)["parked_until"] is not None
    (run,) = (await overview(world.store, "s")).parked
    assert run.agent.startswith("workflow release@")
    assert run.program == "workflow release"


async def test_before_its_time_nothing_is_called_and_after_it_the_run_goes_on_where_it_was():
    world = World(failures=1)
    for _ in range(3):
        with pytest.raises(ParkedError):
            await world.start()
    assert world.ran == ["prepare", "deploy"]
    world.clock.advance(HOUR)
    assert await world.start() == "report(deploy(prepare(1)))"
    assert world.ran == ["prepare", "deploy", "deploy", "report"]
    assert (await overview(world.store, "s")).parked == ()
    assert record_document(await world.store.session("s"), used=False)["parked_until"] is None


async def test_the_time_grows_by_the_backoff_and_a_longer_time_of_the_provider_counts():
    world = World(failures=3)
    source = "(retry-later ((after 60) (attempts 4) (backoff 10)) (deploy 1))"
    delays = []
    for retry_after in (None, 5000, 10):
        world.fault = Fault.of("PROVIDER_OVERLOADED", retry_after=retry_after)
        with pytest.raises(ParkedError) as parked:
            await world.start(source)
        delays.append(parked.value.until - world.clock.wall())
        world.clock.advance(delays[-1])
    assert delays == pytest.approx([60, 5000, 6000])
    assert await world.start(source) == "deploy(1)"


async def test_after_the_last_attempt_the_failure_is_that_of_the_body():
    world = World(failures=9)
    for _ in range(2):
        with pytest.raises(ParkedError):
            await world.start()
        world.clock.advance(HOUR)
    with pytest.raises(WorkflowError) as failed:
        await world.start()
    assert failed.value.expression == "(deploy plan)"
    assert world.ran.count("deploy") == 3


async def test_a_wrong_expression_is_not_put_off():
    world = World()
    with pytest.raises(WorkflowError, match="plna"):
        await world.start("(bind plan 1) (retry-later ((after 60)) (deploy plna))")
    assert (await overview(world.store, "s")).parked == ()


async def test_an_operator_can_let_it_go_on_before_its_time():
    world = World(failures=1)
    with pytest.raises(ParkedError):
        await world.start()
    (lifted,) = await unpark_runs(world.store, "s", by="ann", runtime=world.runtime)
    assert lifted.program == "workflow release"
    (run,) = await world.due()
    assert run.outcome == Ok("report(deploy(prepare(1)))")
    assert await world.start() == "report(deploy(prepare(1)))"


async def test_an_item_of_a_map_that_waits_does_not_stop_the_others():
    world = World(failures=1)
    source = "(map (lambda (n) (retry-later ((after 60)) (deploy n))) (range 4) :limit 1)"
    with pytest.raises(ParkedError):
        await world.start(source)
    assert world.ran.count("deploy") == 4
    world.clock.advance(60)
    assert await world.start(source) == [f"deploy({n})" for n in range(4)]
    assert world.ran.count("deploy") == 5


async def test_a_failure_that_is_handled_after_the_last_attempt_stays_after_a_restart():
    world = World(failures=1)
    source = '(bind how (try (retry-later ((after 60) (attempts 1)) (deploy 1)) (catch (e) "without"))) (report how)'
    world.stops_at = 1
    with pytest.raises(Killed):
        await world.start(source)
    assert await world.start(source) == "report(without)"
    assert world.ran == ["deploy", "report"]


@pytest.mark.parametrize("seed", range(8))
async def test_killed_at_any_call_it_is_attempted_as_often_as_without_the_kill(seed):
    rng = random.Random(seed)
    world, value = World(failures=2), None
    for _ in range(40):
        if rng.random() < 0.5:
            world.stops_at = len(world.ran) + rng.randint(0, 2)
        try:
            value = await world.start()
            break
        except (Killed, ParkedError):
            world.clock.advance(rng.choice([0, HOUR / 2, HOUR]))
    assert value == "report(deploy(prepare(1)))"
    assert world.ran.count("deploy") == 3
    assert world.ran.count("prepare") == 1


# --- going on in any process ---


async def test_S2_5_any_process_that_knows_the_workflow_goes_on_when_it_is_due():
    world = World(failures=1)
    with pytest.raises(ParkedError):
        await world.start()
    assert await world.due() == []
    world.clock.advance(HOUR)
    other = Workflow("(deploy 1)", name="another", tasks=world.tasks())
    assert [run async for run in run_due(world.store, other, runtime=world.runtime)] == []
    (run,) = await world.due()
    assert (run.session, run.program, run.outcome) == ("s", "workflow release", Ok("report(deploy(prepare(1)))"))
    assert await world.due() == []
    assert await world.start() == "report(deploy(prepare(1)))"
    assert world.ran.count("report") == 1


async def test_inputs_are_kept_with_the_timer():
    world = World(failures=1)
    workflow = Workflow(
        "(retry-later ((after 60)) (deploy what))", name="w", tasks=world.tasks(), runtime=world.runtime
    )
    async with Session.open("s", store=world.store, runtime=world.runtime) as session:
        with pytest.raises(ParkedError):
            await workflow.run(session, inputs={"what": {"version": 4}})
    world.clock.advance(60)
    (run,) = [run async for run in run_due(world.store, workflow, runtime=world.runtime)]
    assert run.outcome == Ok("deploy({'version': 4})")


async def test_a_run_that_is_parked_again_says_so_and_comes_again():
    world = World(failures=2)
    with pytest.raises(ParkedError):
        await world.start()
    world.clock.advance(HOUR)
    (run,) = await world.due()
    assert isinstance(run.outcome, Err)
    assert isinstance(run.outcome.error, ParkedError)
    world.clock.advance(HOUR)
    (run,) = await world.due()
    assert run.outcome == Ok("report(deploy(prepare(1)))")


async def test_a_session_that_is_in_use_is_left_to_its_process():
    world = World(failures=1)
    with pytest.raises(ParkedError):
        await world.start()
    world.clock.advance(HOUR)
    async with Session.open("s", store=world.store, runtime=world.runtime):
        assert await world.due() == []
    assert len(await world.due()) == 1


async def test_a_run_inside_of_a_turn_goes_on_only_with_its_own_program():
    world = World(failures=1)

    async def start():
        async with Session.open("s", store=world.store, runtime=world.runtime) as session, session.turn("go"):
            return await world.workflow().run(session)

    with pytest.raises(ParkedError):
        await start()
    world.clock.advance(HOUR)
    assert await world.due() == []
    assert await start() == "report(deploy(prepare(1)))"
    assert world.ran == ["prepare", "deploy", "deploy", "report"]


async def test_a_due_run_that_fails_before_its_timer_is_not_run_all_the_time():
    world = World(failures=1)
    with pytest.raises(ParkedError):
        await world.start()
    world.clock.advance(HOUR)
    broken = "(bind plan (prepare 1)) (report plna)"
    (run,) = await world.due(broken)
    assert isinstance(run.outcome, Err)
    assert await world.due(broken) == []
    world.clock.advance(600)
    (run,) = await world.due()
    assert run.outcome == Ok("report(deploy(prepare(1)))")


@pytest.mark.parametrize("calls", [0, 1])
async def test_S2_5_a_due_run_whose_process_stops_is_still_due(calls):
    """It is stopped in the call that was put off, or in the one after it."""
    world = World(failures=1)
    with pytest.raises(ParkedError):
        await world.start()
    world.clock.advance(HOUR)
    world.stops_at = len(world.ran) + calls
    with pytest.raises(Killed):
        await world.due()
    assert record_document(await world.store.session("s"), used=False)["parked_until"] is not None
    (run,) = await world.due()
    assert run.outcome == Ok("report(deploy(prepare(1)))")
    assert world.ran == ["prepare", "deploy", "deploy", "report"]
    assert await world.due() == []
    assert (await overview(world.store, "s")).parked == ()


async def test_a_due_run_that_its_own_program_began_is_still_due_if_it_stops():
    world = World(failures=1)
    with pytest.raises(ParkedError):
        await world.start()
    world.clock.advance(HOUR)
    world.stops_at = len(world.ran)
    with pytest.raises(Killed):
        await world.start()
    assert len(await world.due()) == 1


async def test_a_run_that_is_parked_again_after_a_stop_is_not_due_before_its_time():
    world = World(failures=2)
    with pytest.raises(ParkedError):
        await world.start()
    world.clock.advance(HOUR)
    world.stops_at = len(world.ran)
    with pytest.raises(Killed):
        await world.due()
    assert len(await world.due()) == 1
    assert await world.due() == []
    world.clock.advance(HOUR)
    (run,) = await world.due()
    assert run.outcome == Ok("report(deploy(prepare(1)))")


async def test_a_stopped_run_that_meets_a_broken_program_comes_again_later():
    world = World(failures=1)
    with pytest.raises(ParkedError):
        await world.start()
    world.clock.advance(HOUR)
    world.stops_at = len(world.ran)
    with pytest.raises(Killed):
        await world.due()
    (run,) = await world.due("(report plna)")
    assert isinstance(run.outcome, Err)
    assert await world.due() == []
    world.clock.advance(600)
    (run,) = await world.due()
    assert run.outcome == Ok("report(deploy(prepare(1)))")


async def test_a_due_run_that_used_up_its_attempts_has_ended():
    world = World(failures=9)
    with pytest.raises(ParkedError):
        await world.start()
    ends = []
    for _ in range(2):
        world.clock.advance(HOUR)
        (run,) = await world.due()
        assert isinstance(run.outcome, Err)
        ends.append(type(run.outcome.error))
    assert ends == [ParkedError, WorkflowError]
    world.clock.advance(10 * HOUR)
    assert await world.due() == []
    assert world.ran.count("deploy") == 3


async def test_a_due_run_that_ends_without_its_timer_is_not_run_again():
    world = World(failures=1)
    with pytest.raises(ParkedError):
        await world.start()
    world.clock.advance(HOUR)
    changed = "(report 1)"
    (run,) = await world.due(changed)
    assert run.outcome == Ok("report(1)")
    world.clock.advance(HOUR)
    assert await world.due(changed) == []


class Damaged(MemoryStore):
    """A store in which one session is damaged."""

    manifest: bytes | None = None
    log: Fault | None = None

    async def sessions(self, **given):
        records = await super().sessions(**given)
        return [
            msgspec.structs.replace(record, manifest=msgspec.Raw(self.manifest))
            if record.id == "s" and self.manifest is not None
            else record
            for record in records
        ]

    async def session(self, session):
        if session == "s" and self.log is not None:
            raise HoldfastError(self.log)
        return await super().session(session)


@pytest.mark.parametrize(
    ("damage", "program", "code"),
    [
        ({"manifest": b'{"parkedUntil": 1.0, "junk": 1}'}, "workflow release", "SESS_MANIFEST_INVALID"),
        ({"log": Fault.of("SESS_MANIFEST_DRIFT")}, "", "SESS_MANIFEST_DRIFT"),
    ],
)
async def test_a_damaged_session_does_not_stop_the_others(damage, program, code):
    world = World(failures=2)
    store = world.store = Damaged(clock=world.clock)
    for name in ("s", "t"):
        with pytest.raises(ParkedError):
            async with Session.open(name, store=store, runtime=world.runtime) as session:
                await world.workflow().run(session)
    world.clock.advance(HOUR)
    for field, value in damage.items():
        setattr(store, field, value)
    damaged, run = await world.due()
    assert isinstance(damaged.outcome, Err)
    assert (damaged.session, damaged.program, damaged.outcome.fault.code) == ("s", program, code)
    assert (run.session, run.outcome) == ("t", Ok("report(deploy(prepare(1)))"))


async def test_a_store_that_does_not_answer_is_raised():
    world = World(failures=1)
    store = world.store = Damaged(clock=world.clock)
    with pytest.raises(ParkedError):
        await world.start()
    world.clock.advance(HOUR)
    store.log = Fault.of("SESS_STORE_UNAVAILABLE")
    with pytest.raises(HoldfastError) as error:
        await world.due()
    assert error.value.fault.code == "SESS_STORE_UNAVAILABLE"


async def test_two_programs_with_one_name_are_rejected():
    world = World()
    other = Workflow("(report 1)", name="release", tasks=world.tasks())
    with pytest.raises(InvalidError, match="two that are 'workflow release'"):
        [run async for run in run_due(world.store, world.workflow(), other, runtime=world.runtime)]
    same = world.workflow()
    assert [run async for run in run_due(world.store, same, same, runtime=world.runtime)] == []


def test_a_process_can_watch_for_runs_that_are_due():
    async def watch():
        world = World(failures=1)
        world.clock = loop_clock = VirtualClock()
        world.runtime = Runtime(clock=loop_clock)
        with pytest.raises(ParkedError):
            await world.start()

        async def pass_time():
            for _ in range(3):
                await asyncio.sleep(30)
                loop_clock.advance(HOUR / 2)

        passing = asyncio.ensure_future(pass_time())
        async for run in watch_due(world.store, world.workflow(), every=10, runtime=world.runtime):
            assert run.outcome == Ok("report(deploy(prepare(1)))")
            break
        await passing

    in_virtual_time(watch())


PROCESS = """
import asyncio, sys, os, time
from holdfast import Runtime, Session
from holdfast.sessions.later import run_due
from holdfast.stores import open_store
from holdfast.tasks.workflows import Workflow
from holdfast.testing import VirtualClock

async def deploy(x):
    with open("notes", "a") as notes:
        notes.write(f"{os.getpid()}\\n")
    if len(open("notes").read().split()) == 1:
        raise ConnectionError("down")
    return x

async def main():
    # The first process runs two hours ago.
    begin = sys.argv[1] == "start"
    runtime = Runtime(clock=VirtualClock(wall=time.time() - 7200)) if begin else None
    workflow = Workflow("(retry-later ((after 3600)) (deploy 1))", name="w", tasks=[deploy], runtime=runtime)
    if begin:
        async with Session.open("s", store="sqlite:work.db", runtime=runtime) as session:
            try:
                await workflow.run(session)
            except Exception as error:
                print(type(error).__name__)
        return
    async with open_store("sqlite:work.db") as store:
        print("ready", flush=True)
        sys.stdin.readline()
        print(len([run async for run in run_due(store, workflow)]))

asyncio.run(main())
"""


def test_of_two_processes_exactly_one_goes_on(tmp_path):
    """Both are real processes on one SQLite file, and look at the same moment."""
    script = tmp_path / "process.py"
    script.write_text(textwrap.dedent(PROCESS))

    def process(word):
        return subprocess.Popen(
            [sys.executable, str(script), word], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    first = process("start")
    assert first.communicate(timeout=30)[0].split() == ["ParkedError"]
    two = [process("due") for _ in range(2)]
    for one in two:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    for one in two:
        assert one.stdin is not None
        one.stdin.write("go\n")
        one.stdin.flush()
    counts = sorted(int(one.communicate(timeout=30)[0]) for one in two)
    ran = (tmp_path / "notes").read_text().split()
    assert counts == [0, 1]
    assert len(ran) == len(set(ran)) == 2


def test_S2_5_another_process_goes_on_if_the_one_that_did_is_killed(tmp_path):
    script = tmp_path / "process.py"
    # The second process is killed in the call that was put off.
    killed = PROCESS.replace("    return x", "    if sys.argv[1] == 'killed': os.kill(os.getpid(), 9)\n    return x")
    script.write_text(textwrap.dedent(killed))

    def process(word):
        return subprocess.run(
            [sys.executable, str(script), word],
            cwd=tmp_path,
            input="go\n",
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    assert process("start").stdout.split() == ["ParkedError"]
    assert process("killed").returncode == -9
    assert process("due").stdout.split() == ["ready", "1"]
    assert process("due").stdout.split() == ["ready", "0"]
    assert len((tmp_path / "notes").read_text().split()) == 3


# --- the operator ---

ASKING = "(retry-later ((after 3600) (attempts 2) (ask true)) (deploy 1))"


async def _used_up(world: World) -> None:
    with pytest.raises(ParkedError):
        await world.start(ASKING)
    world.clock.advance(HOUR)
    with pytest.raises(HoldfastError) as asked:
        await world.start(ASKING)
    assert asked.value.fault.code == "SESS_NO_INTERACTOR"


async def test_S2_1_escalate_after_n_asks_the_operator_and_raises_an_alert():
    world, alerts, capture = World(failures=2), [], Capture()
    with raise_alerts(world.runtime, Alerts(), tell=alerts.append), world.runtime.on(capture):
        await _used_up(world)
        with pytest.raises(HoldfastError):
            await world.start(ASKING)
    assert [alert.signal for alert in alerts] == ["PROVIDER_OVERLOADED"]
    (event,) = [event for event in capture.events if isinstance(event, OperatorAsked)]
    assert (event.attempts, event.session) == (2, "s")
    (question,) = await pending(world.store, "s")
    assert question.kind == "Approve"
    assert question.prompt == "workflow release failed 2 times: no capacity Try it again?"
    assert world.ran == ["deploy", "deploy"]


async def test_nobody_goes_on_before_the_operator_has_answered():
    world = World(failures=2)
    await _used_up(world)
    world.clock.advance(10 * HOUR)
    assert await world.due(ASKING) == []
    (question,) = await pending(world.store, "s")
    await answer(world.store, "s", question.id, approved=True, by="ann", runtime=world.runtime)
    (run,) = await world.due(ASKING)
    assert run.outcome == Ok("deploy(1)")
    assert world.ran == ["deploy"] * 3
    assert await world.due(ASKING) == []


async def test_a_run_that_the_operator_let_go_on_is_still_due_if_its_process_stops():
    world = World(failures=2)
    await _used_up(world)
    (question,) = await pending(world.store, "s")
    await answer(world.store, "s", question.id, approved=True, by="ann", runtime=world.runtime)
    world.stops_at = len(world.ran)
    with pytest.raises(Killed):
        await world.due(ASKING)
    (run,) = await world.due(ASKING)
    assert run.outcome == Ok("deploy(1)")


async def test_a_no_of_the_operator_is_the_failure_of_the_body():
    world = World(failures=9)
    await _used_up(world)
    (question,) = await pending(world.store, "s")
    await answer(world.store, "s", question.id, approved=False, runtime=world.runtime)
    with pytest.raises(WorkflowError) as failed:
        await world.start(ASKING)
    assert failed.value.expression == "(deploy 1)"
    assert fault_of(failed.value).code == "TASK_EVALUATION_FAILED"
    assert world.ran == ["deploy"] * 2
    assert (await overview(world.store, "s")).parked == ()


async def test_automatic_answers_do_not_go_on_forever():
    world = World(failures=99)
    for _ in range(60):
        try:
            await world.start(ASKING, mode="yolo")
        except ParkedError:
            world.clock.advance(HOUR)
        except WorkflowError:
            break
    assert world.ran.count("deploy") == 8


async def test_a_store_on_disk_keeps_the_timer(tmp_path):
    world = World(failures=1)
    path = f"sqlite:{tmp_path / 'work.db'}"
    async with open_store(path, clock=world.clock) as store:
        world.store = store
        with pytest.raises(ParkedError):
            await world.start()
    world.clock.advance(HOUR)
    async with open_store(path, clock=world.clock) as store:
        world.store = store
        (run,) = await world.due()
        assert run.outcome == Ok("report(deploy(prepare(1)))")
