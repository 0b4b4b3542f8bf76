"""Workflows on sessions: calls are steps, failures that were handled stay, bindings are checkpoints, and a run goes on after any stop."""

from __future__ import annotations

import asyncio
import random

import pytest

from holdfast import Err, HoldfastError, InvalidError, OutcomeUnknownError, Session, Task
from holdfast.documents.task import TaskSystem
from holdfast.faults import Fault, Partial
from holdfast.runtime.ambient import AMBIENT
from holdfast.runtime.tool import tool
from holdfast.stores import MemoryStore
from holdfast.tasks import Status, TaskResult
from holdfast.tasks.workflows import BindingKept, CallEnded, Logged, Workflow, bindings_of, fork_from_binding
from holdfast.workflow import WorkflowError


class World:
    """Tasks that count how often they ran, and fail or stop where a test wants it."""

    def __init__(self):
        self.ran = []
        self.fails = {}
        self.stops_before = None
        self.stops_after = None

    async def task(self, name, given):
        if self.stops_before == len(self.ran):
            raise Killed
        self.ran.append((name, given))
        left = self.fails.get(name, 0)
        if left:
            self.fails[name] = left - 1
            raise ConnectionError(f"{name} is down")
        if self.stops_after == len(self.ran):
            raise Killed
        return f"{name}({given})"

    def tasks(self, *names):
        def of(name):
            async def run(x=None):
                await asyncio.sleep(0)
                return await self.task(name, x)

            return run

        return {name: of(name) for name in names}


class Killed(BaseException):
    """The process ends here."""


async def _run(source, store, tasks, session="s", **options):
    workflow = Workflow(source, tasks=tasks, **options)
    async with Session.open(session, store=store) as opened:
        return await workflow.run(opened)


SOURCE = """
(bind plan (a "goal"))
(bind parts (map (lambda (n) (bind y (b n)) (c y)) (range 4)))
(bind checked (try (d plan) (catch (e) (get-field e "message"))))
(bind again (retry 3 (e plan)))
(list plan parts checked again)
"""
NAMES = ("a", "b", "c", "d", "e")
WHOLE = [
    "a(goal)",
    ["c(b(0))", "c(b(1))", "c(b(2))", "c(b(3))"],
    "d is down",
    "e(a(goal))",
]


async def test_a_workflow_runs_without_a_session():
    world = World()
    world.fails = {"d": 1, "e": 2}
    assert await Workflow(SOURCE, tasks=world.tasks(*NAMES)).run() == WHOLE
    assert len(world.ran) == 13


async def test_a_run_that_ended_is_not_made_again():
    world, store = World(), MemoryStore()
    world.fails = {"d": 1, "e": 2}
    assert await _run(SOURCE, store, world.tasks(*NAMES)) == WHOLE
    ran = len(world.ran)
    assert await _run(SOURCE, store, world.tasks(*NAMES)) == WHOLE
    assert len(world.ran) == ran


@pytest.mark.parametrize("seed", range(12))
async def test_interrupted_at_any_call_and_resumed_it_gives_the_uninterrupted_result(seed):
    """The process ends before or after a random call, several times. No call with a stored result is made twice."""
    rng = random.Random(seed)
    world, store = World(), MemoryStore()
    world.fails = {"d": 1, "e": 2}
    for _ in range(40):
        if rng.random() < 0.5:
            world.stops_before, world.stops_after = len(world.ran) + rng.randint(0, 3), None
        else:
            world.stops_before, world.stops_after = None, len(world.ran) + rng.randint(1, 3)
        try:
            assert await _run(SOURCE, store, world.tasks(*NAMES), concurrency=rng.choice([1, 2, 8])) == WHOLE
            break
        except Killed:
            continue
    else:
        pytest.fail("it never ended")
    # A call that was cut off before its result was stored may be made again; each of the rest is made once.
    stored = [call for call in world.ran if world.ran.count(call) == 1]
    assert len(set(world.ran)) == 11
    assert stored


async def test_a_failure_that_the_program_handled_stays_after_a_restart():
    world, store = World(), MemoryStore()
    world.fails = {"a": 1}
    source = '(bind how (try (a 1) (catch (e) "without"))) (b how)'
    world.stops_before = 1
    with pytest.raises(Killed):
        await _run(source, store, world.tasks("a", "b"))
    world.stops_before = None
    # `a` would work now, but the program went on without it.
    assert await _run(source, store, world.tasks("a", "b")) == "b(without)"
    assert world.ran == [("a", 1), ("b", "without")]


async def test_a_failure_that_ended_the_run_is_tried_again():
    world, store = World(), MemoryStore()
    world.fails = {"b": 1}
    source = "(bind x (a 1)) (b x)"
    with pytest.raises(WorkflowError, match="b is down") as caught:
        await _run(source, store, world.tasks("a", "b"))
    assert caught.value.environment == {"x": "a(1)"}
    assert await _run(source, store, world.tasks("a", "b")) == "b(a(1))"
    assert [name for name, _ in world.ran] == ["a", "b", "b"]


async def test_a_corrected_program_uses_the_stored_results():
    world, store = World(), MemoryStore()
    with pytest.raises(WorkflowError, match="plna"):
        await _run("(bind plan (a 1)) (b plna)", store, world.tasks("a", "b"))
    assert await _run("(bind plan (a 1))\n\n(b plan)", store, world.tasks("a", "b")) == "b(a(1))"
    assert world.ran == [("a", 1), ("b", "a(1)")]


async def test_an_unsafe_task_that_was_cut_off_is_never_made_twice():
    ran = []
    store = MemoryStore()

    @tool(effect="unsafe")
    async def pay(amount):
        ran.append(amount)
        if len(ran) == 1:
            raise Killed
        return "paid"

    source = '(try (pay 5) (catch (e) "swallowed"))'
    with pytest.raises(Killed):
        await _run(source, store, {"pay": pay})
    with pytest.raises(OutcomeUnknownError):
        await _run(source, store, {"pay": pay})
    assert ran == [5]
    async with Session.open("s", store=store) as session:
        await session.resolve(session.unknown[0], happened=True, result="paid elsewhere")
    assert await _run(source, store, {"pay": pay}) == "paid elsewhere"
    assert ran == [5]


async def test_the_item_that_stopped_a_map_stays_the_same_after_a_restart():
    store, ran = MemoryStore(), []
    release = asyncio.Event()

    async def item(n):
        ran.append(n)
        if n == 2:
            raise ConnectionError("two is down")
        await release.wait()
        raise ConnectionError(f"{n} is down")

    async def after(x):
        ran.append(x)
        if len(ran) < 6:
            raise Killed
        return x

    source = '(bind why (try (map item (range 4)) (catch (e) (get-field e "message")))) (after why)'
    with pytest.raises(Killed):
        await _run(source, store, {"item": item, "after": after})
    release.set()
    # The others would fail now too, and first; but the program went on with the failure of item 2.
    ran.append("restart")
    ran.append("restart")
    assert await _run(source, store, {"item": item, "after": after}) == "two is down"
    assert ran.count("two is down") == 2
    assert ran.count(0) == 1


async def test_A86_the_first_failure_stops_the_other_items_and_waits_for_them():
    ended = []

    async def item(n):
        try:
            if n == 1:
                raise ConnectionError("down")
            await asyncio.Event().wait()
        finally:
            ended.append(n)

    with pytest.raises(WorkflowError):
        await Workflow("(map item (range 3))", tasks={"item": item}).run()
    assert sorted(ended) == [0, 1, 2]


async def test_A86_with_collect_all_items_end_and_errors_stand_in_their_place():
    world = World()
    world.fails = {"b": 1}
    found = await Workflow("(map b (range 3) :collect true)", tasks=world.tasks("b")).run()
    assert found[0]["message"] == "b is down"
    assert found[1:] == ["b(1)", "b(2)"]


async def test_map_runs_as_many_items_at_once_as_the_limit_allows():
    running, most = 0, 0

    async def item(n):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return n

    for source, limit, expected in (("(map item (range 9))", 4, 4), ("(map item (range 9) :limit 2)", 8, 2)):
        running = most = 0
        assert await Workflow(source, tasks={"item": item}, concurrency=limit).run() == list(range(9))
        assert most == expected


async def test_a_cancelled_run_leaves_nothing_running():
    ended = []
    started = asyncio.Event()

    async def item(n):
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(n)

    run = asyncio.ensure_future(Workflow("(try (map item (range 3)) (catch (e) 1))", tasks={"item": item}).run())
    await started.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert sorted(ended) == [0, 1, 2]


async def test_a_long_evaluation_lets_others_run_and_can_be_cancelled():
    source = "(let ((go (lambda (n) (recur (+ n 1))))) (go 0))"
    run = asyncio.ensure_future(Workflow(source).run())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not run.done()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run


async def test_waits_of_retry_are_waited_once():
    world, store = World(), MemoryStore()
    world.fails = {"a": 1}
    loop = asyncio.get_running_loop()
    begin = loop.time()
    world.stops_after = 2
    source = "(bind x (retry ((attempts 2) (delay 60)) (a 1))) (b x)"
    with pytest.raises(Killed):
        await _run(source, store, world.tasks("a", "b"))
    assert loop.time() - begin >= 60
    begin, world.stops_after = loop.time(), None
    assert await _run(source, store, world.tasks("a", "b")) == "b(a(1))"
    assert loop.time() - begin < 60


async def test_a_budget_of_seconds_ends_a_call_and_can_be_handled():
    async def slow(n):
        await asyncio.sleep(n)
        return n

    source = '(try (with-budget ((seconds 10)) (list (slow 6) (slow 6))) (catch (e) (get-field e "code")))'
    assert await Workflow(source, tasks={"slow": slow}).run() == "TASK_TIMEOUT"
    assert await Workflow("(with-budget ((seconds 13)) (list (slow 6) (slow 6)))", tasks={"slow": slow}).run() == [6, 6]


# --- bindings ---


async def test_every_binding_is_in_the_log_masked_and_with_its_place():
    store = MemoryStore()
    world = World()
    await _run('(bind n 1)\n(bind plan (a 1))\n(bind password "hunter2hunter2")', store, world.tasks("a"))
    found = await bindings_of(store, "s")
    assert [(one.name, one.line, one.column) for one in found] == [("n", 1, 7), ("plan", 2, 7), ("password", 3, 7)]
    assert [one.shown for one in found[:2]] == ["1", '"a(1)"']
    assert "hunter2" not in found[2].shown


async def test_a_fork_from_a_binding_has_what_was_before_and_runs_the_rest_anew():
    world, store = World(), MemoryStore()
    source = "(bind x (a 1)) (bind y (b x)) (bind z (c y)) (list x y z)"
    first = await _run(source, store, world.tasks("a", "b", "c"))
    await fork_from_binding(store, "s", "fork", "y")
    world.ran.clear()
    assert await _run(source, store, world.tasks("a", "b", "c"), session="fork") == first
    assert [name for name, _ in world.ran] == ["c"]
    with pytest.raises(InvalidError, match=r"a name that session s has bound \(x, y, z\)"):
        await fork_from_binding(store, "s", "other", "w")


async def test_a_primitive_that_gives_other_values_after_a_restart_is_found():
    store, world = MemoryStore(), World()
    numbers = iter(range(10))
    source = "(bind n (now)) (bind x (a n)) (b x)"
    options = {"primitives": {"now": lambda: next(numbers)}}
    world.stops_before = 1
    with pytest.raises(Killed):
        await _run(source, store, world.tasks("a", "b"), **options)
    world.stops_before = None
    with pytest.raises(HoldfastError) as caught:
        await _run(source, store, world.tasks("a", "b"), **options)
    assert caught.value.fault.code == "SESS_STEP_DRIFT"
    assert "n was 0 when this workflow ran before, and now n is 1" in caught.value.fault.message


# --- what may be called ---


async def test_tools_functions_agents_context_and_scripts_can_be_called():
    @tool(effect="read")
    def search(pattern: str) -> list[str]:
        """Search."""
        return [pattern]

    class Helper:
        name = "helper"

        async def run(self, prompt, *, session=None):
            return type("Reply", (), {"text": f"re: {prompt}"})()

    source = """
    (defatom ask (params q) (instructions "Q: {{q}}"))
    (list (search :pattern "x") (add 1 2) (ask "why") (helper "hi") (get_context (query "files"))
          (get-field (system:run_script "echo out; exit 3") "exit_code"))
    """
    workflow = Workflow(
        source,
        tasks={"helper": Helper()},
        tools=[search],
        functions={"add": lambda a, b: a + b},
        agent=Helper(),
        context=lambda query: {"matches": [query]},
        scripts="idempotent",
    )
    expected = [["x"], 3, "re: Q: why", "re: hi", {"matches": ["files"]}, 3]
    assert await workflow.run() == expected
    async with Session.open("s", store=MemoryStore()) as session:
        assert await workflow.run(session) == expected


async def test_a_list_of_functions_is_called_by_their_names_with_hyphens_too():
    async def make_plan(goal):
        return [goal]

    workflow = Workflow("(list (make-plan 1) (make_plan 2))", tasks=[make_plan])
    assert await workflow.run() == [[1], [2]]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tasks": {"if": len}}, "a name that the language does not have"),
        ({"tasks": {"a": 5}}, "a function or an agent"),
        ({"primitives": {"wait": asyncio.sleep}}, "a plain function of values"),
        ({"scripts": "yes"}, "workflow.scripts"),
        ({"concurrency": 0}, "workflow.concurrency"),
    ],
)
def test_wrong_options_are_named(options, text):
    with pytest.raises(InvalidError, match=text):
        Workflow("1", **options)


async def test_defatom_without_an_agent_says_what_to_do():
    with pytest.raises(WorkflowError, match="an agent for the tasks of defatom"):
        await Workflow('(defatom ask (params q) (instructions "{{q}}")) (ask 1)').run()


async def test_a_run_can_be_watched():
    world, store, seen = World(), MemoryStore(), []
    workflow = Workflow('(bind x (a 1)) (log-message "got" x)', tasks=world.tasks("a"))
    for _ in range(2):
        async with Session.open("s", store=store) as session:
            await workflow.run(session, observe=seen.append)
    ended = [progress for progress in seen if isinstance(progress, CallEnded)]
    assert [(one.name, one.ok, one.stored) for one in ended] == [("a", True, False), ("a", True, True)]
    assert [one.name for one in seen if isinstance(one, BindingKept)] == ["x", "x"]
    assert [one.text for one in seen if isinstance(one, Logged)] == ["got a(1)"] * 2


async def test_two_runs_of_one_workflow_in_one_program_are_two_runs():
    world, store = World(), MemoryStore()
    workflow = Workflow("(a n)", tasks=world.tasks("a"))
    async with Session.open("s", store=store) as session:
        assert await workflow.run(session, inputs={"n": 1}) == "a(1)"
        assert await workflow.run(session, inputs={"n": 1}) == "a(1)"
        assert await workflow.run(session, inputs={"n": 2}) == "a(2)"
    assert len(world.ran) == 3


async def test_a_task_system_runs_a_workflow():
    world = World()
    assert await TaskSystem(lambda given: "unused").run(Workflow("(a 1)", tasks=world.tasks("a"))) == "a(1)"


async def test_a_budget_of_money_is_in_force_inside_of_its_calls():
    async def left(n):
        around = AMBIENT.get()
        found = None if around is None or around.budget is None else around.budget
        return None if found is None else [found.left().usd, found.left().tokens]

    source = "(list (left 0) (with-budget ((usd 2)) (left 1) (with-budget ((tokens 50)) (left 2)) (left 3)) (left 4))"
    expected = [None, [2.0, None], None]
    workflow = Workflow(source, tasks={"left": left})
    assert await workflow.run() == expected
    async with Session.open("s", store=MemoryStore()) as session:
        assert await workflow.run(session) == expected
    inner = Workflow("(with-budget ((usd 2)) (with-budget ((tokens 50)) (left 2)))", tasks={"left": left})
    assert await inner.run() == [2.0, 50]


# --- calls that fail ---


async def _returned(_assignment):
    return TaskResult(content="half", status=Status.FAILED)


async def _raised(_assignment):
    raise HoldfastError(Fault.of("TASK_LLM_FAILED", partial=Partial(payload="half")))


@pytest.mark.parametrize("perform", [_returned, _raised])
async def test_N3_14_a_task_may_return_its_failure_or_raise_it(perform):
    source = "(bind x 1)\n(list (call-atomic-task 'plan))"
    result = await TaskSystem(perform).execute_s_expression(source, tasks={"plan": Task("Make a plan")})
    error = result.notes["error"]
    assert (result.status, error["reason"]) == (Status.FAILED, "subtask_failure")
    assert error["details"]["failing_expression"] == "(call-atomic-task (quote plan))"
    assert (error["details"]["line"], error["details"]["column"]) == (2, 7)
    assert error["details"]["subtaskError"]["content"] == "half"
    assert error["details"]["s_expression_environment"] == {"x": 1}


@pytest.mark.parametrize("source", ["(list (broken))", "(map (lambda (n) (broken)) (list 1 2))"])
async def test_N3_14_an_exception_of_a_function_is_wrapped_with_the_failing_expression_and_stays_its_cause(source):
    def broken():
        raise ZeroDivisionError("division by zero")

    with pytest.raises(WorkflowError, match="function broken failed: division by zero") as caught:
        await Workflow(source, functions=[broken]).run()
    assert caught.value.expression == "(broken)"
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


async def test_XK9_a_map_that_failed_says_what_its_other_items_had():
    async def look(n):
        if n == 2:
            raise ConnectionResetError("gone")
        return {"n": n}

    workflow = Workflow("(map (lambda (n) (look n)) (list 0 1 2 3) :limit 1)", tasks=[look])
    with pytest.raises(WorkflowError) as raised:
        await workflow.run()
    assert raised.value.fault.context["finished_items"] == {"0": '(dict "n" 0)', "1": '(dict "n" 1)'}


async def test_XK10_a_task_system_returns_the_outcome_of_a_workflow():
    system = TaskSystem(lambda _: "")
    assert (await system.outcome(Workflow("(list 1 2)"))).value.value == [1, 2]
    failed = await system.outcome(Workflow('(error "no")'))
    assert isinstance(failed, Err)
    assert isinstance(failed.error, WorkflowError)
