"""Failures and recovery in the language: what a failure carries, and `try`, `retry`, `fallback`, `with-budget` and the loops."""

from __future__ import annotations

import msgspec
import pytest
from workflow_support import Drive, value_of

from holdfast import Fault
from holdfast.faults import Partial
from holdfast.views import task
from holdfast.workflow import Operators, WorkflowError

TASKS = Operators(tasks={"a": None, "b": None, "c": None}, functions=frozenset({"process"}))
DOWN = Fault.of("PROVIDER_OVERLOADED", "529")


def failing(*names, fault=DOWN):
    return lambda call: fault if call.name in names else call.name.upper()


# --- what a failure carries ---


def test_A89_a_failed_task_leaves_the_bindings_before_it():
    source = "(bind x (call-atomic-task 'a) (bind y (call-atomic-task 'b (input x)) (process y)))"
    with pytest.raises(WorkflowError) as caught:
        value_of(source, operators=TASKS, answer=failing("b"))
    error = caught.value
    assert error.reason == "subtask_failure"
    assert error.environment == {"x": "A"}
    assert error.expression == "(call-atomic-task (quote b) (input x))"
    document = task.write(error.fault)
    assert (document["type"], document["reason"]) == ("TASK_FAILURE", "subtask_failure")
    assert document["details"]["s_expression_environment"] == {"x": "A"}
    assert document["details"]["subtaskRequest"]["inputs"] == {"input": "A"}
    assert document["details"]["subtaskError"]["message"] == "529"
    assert document["details"]["failing_expression"] == error.expression


def test_S3_18_the_example_of_the_specification_runs_to_the_letter():
    source = "(bind x (call-atomic-task 'task-a') (bind y (call-atomic-task 'task-b' (input x)) (process y)))"
    operators = Operators(tasks={"task-a": None, "task-b": None}, functions=frozenset({"process"}))
    drive = Drive(source, operators, lambda call: f"{call.name}:{call.inputs or list(call.args)}")
    assert drive.value == "process:[\"task-b:{'input': 'task-a:[]'}\"]"


def test_S3_7_the_environment_holds_inner_bindings_and_no_outputs_of_steps():
    with pytest.raises(WorkflowError) as caught:
        value_of("(bind a 1) (let ((b 2) (a 3)) (progn 99 ((lambda (c) (nobody)) 4)))")
    assert caught.value.environment == {"b": 2, "a": 3, "c": 4}


def test_an_environment_is_masked():
    with pytest.raises(WorkflowError) as caught:
        value_of('(bind password "hunter2-hunter2") (bind note "key sk-ant-api03-0123456789abcdefghijklmn") (nobody)')
    assert "hunter2" not in str(caught.value.environment)
    assert "0123456789abcdefghijklmn" not in str(caught.value.environment)


def test_S3_8_an_environment_is_cut_with_a_mark_and_older_bindings_go_first():
    source = "\n".join(f"(bind x{n} (big))" for n in range(30)) + "(nobody)"
    operators = Operators(tasks={"big": None})
    with pytest.raises(WorkflowError) as caught:
        value_of(source, operators=operators, answer=lambda call: "y" * 10_000)
    error = caught.value
    assert error.fault.partial.truncated
    assert list(error.environment) == [f"x{n}" for n in range(24, 30)]
    assert len(msgspec.json.encode(error.environment)) <= 65_536
    with pytest.raises(WorkflowError) as caught:
        value_of("(bind x (big)) (nobody)", operators=operators, answer=lambda call: "y" * 100_000)
    assert caught.value.environment["x"].endswith("bytes left out)")


# --- try, fallback ---


def test_try_gives_the_handler_the_failure():
    partial = Fault.of("TASK_LLM_FAILED", "cut", partial=Partial(payload="half"))
    source = '(try (a) (catch (e) (list (get-field e "code") (get-field e "message") (get-field e "partial"))))'
    assert value_of(source, operators=TASKS, answer=failing("a", fault=partial)) == ["TASK_LLM_FAILED", "cut", "half"]


def test_try_catches_wrong_expressions_and_errors_of_the_program():
    assert value_of('(try (nobody) (catch (e) (get-field e "reason")))') == "unbound_symbol"
    assert value_of('(try (error "x" (list 1)) (catch (e) (get-field e "value")))') == [1]
    assert value_of("(try 1 2 (catch (e) 3))") == 2


def test_a_failure_in_a_handler_is_the_failure():
    with pytest.raises(WorkflowError, match="second"):
        value_of('(try (error "first") (catch (e) (error "second")))')


def test_a_fallback_takes_the_first_that_works():
    drive = Drive("(fallback (a) (b) (c))", TASKS, failing("a"))
    assert drive.value == "B"
    assert [call.name for call in drive.calls] == ["a", "b"]
    with pytest.raises(WorkflowError) as caught:
        value_of("(fallback (a) (b))", operators=TASKS, answer=failing("a", "b"))
    assert caught.value.fault.context["subtask"] == "b"


# --- retry ---


def test_retry_repeats_a_failed_call_and_waits_longer_each_time():
    answers = iter([DOWN, DOWN, "ok"])
    drive = Drive("(retry ((attempts 4) (delay 1) (backoff 3)) (a))", TASKS, lambda call: next(answers))
    assert drive.value == "ok"
    assert drive.waits == [1.0, 3.0]
    assert len(drive.calls) == 3


def test_retry_ends_with_the_last_failure():
    drive = Drive("(retry 3 (a))", TASKS, failing("a"))
    assert len(drive.calls) == 3
    with pytest.raises(WorkflowError, match="529"):
        _ = drive.value


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("(nobody)", DOWN),
        ('(+ 1 "a")', DOWN),
        ("(a)", Fault.of("TOOL_OUTCOME_UNKNOWN", "who knows")),
        ("(a)", Fault.of("TASK_TIMEOUT", "late")),
    ],
)
def test_retry_does_not_repeat_what_cannot_end_otherwise(body, fault):
    drive = Drive(f"(bind n 0) (retry 5 (set! n (+ n 1)) {body})", TASKS, failing("a", fault=fault))
    assert drive.machine.failure is not None
    assert drive.machine.env.names["n"] == 1


def test_names_of_one_attempt_are_not_there_in_the_next():
    answers = iter([DOWN, "ok"])
    source = '(retry 2 (bind seen (try seen (catch (e) "fresh"))) (a) seen)'
    assert value_of(source, operators=TASKS, answer=lambda call: next(answers)) == "fresh"


def test_will_catch_knows_whether_the_program_handles_a_failure():
    cases = {
        "(a)": False,
        "(try (a) (catch (e) 1))": True,
        "(try (error 1) (catch (e) (a)))": False,
        "(fallback (a) 1)": True,
        "(fallback (error 1) (a))": False,
        "(retry 2 (a))": True,
        "(retry 1 (a))": False,
        "(first (map (lambda (x) (a)) '(1) :collect true))": True,
        "(map (lambda (x) (a)) '(1))": False,
        "(try (map (lambda (x) (a)) '(1)) (catch (e) 1))": True,
    }
    for source, expected in cases.items():
        seen = []
        drive = Drive.__new__(Drive)
        drive.answer, drive.requests = (lambda call: None), []
        original = Drive.run

        def run(self, machine, original=original, seen=seen):
            self.answer = lambda call: (seen.append(machine.will_catch(DOWN)), "x")[1]
            original(self, machine)

        drive.run = run.__get__(drive)
        Drive.__init__(drive, source, TASKS)
        assert seen[:1] == [expected], source


# --- budgets ---


def test_A83_a_budget_of_turns_stops_the_call_after_the_last():
    drive = Drive("(with-budget ((turns 3)) (map (lambda (x) (a)) (range 4)))", TASKS, failing())
    assert len(drive.calls) == 3
    with pytest.raises(WorkflowError) as caught:
        _ = drive.value
    document = task.write(caught.value.fault)
    assert (document["type"], document["resource"]) == ("RESOURCE_EXHAUSTION", "turns")
    assert document["metrics"] == {"used": 3, "limit": 3}


def test_a_budget_ends_with_its_body_and_nests():
    source = "(with-budget ((turns 2)) (with-budget ((turns 1)) (a)) (a)) (a)"
    assert len(Drive(source, TASKS, failing()).calls) == 3
    source = '(with-budget ((turns 1)) (try (with-budget ((turns 5)) (a) (a)) (catch (e) "out")))'
    drive = Drive(source, TASKS, failing())
    assert drive.value == "out"
    assert [len(call.scopes) for call in drive.calls] == [2]
    # After a failure the budget around it is in force again.
    assert len(Drive("(try (with-budget ((turns 1)) (a) (a)) (catch (e) (a) (a)))", TASKS, failing()).calls) == 3


def test_a_budget_of_steps_can_be_caught():
    source = '(bind f (lambda (n) (if true (f n) 1))) (try (with-budget ((steps 500)) (f 1)) (catch (e) (get-field e "code")))'
    assert value_of(source) == "TASK_LOOP_BOUND"


# --- loops ---

DIRECTOR = """
(director-evaluator-loop (max-iterations {n}) (initial-director-input "goal")
  (director (lambda (input i) (list input i (get-field *loop-config* "max-iterations"))))
  (executor (lambda (plan i) (a (plan plan))))
  (evaluator (lambda (result plan i) (b (result result))))
  (controller (lambda (feedback plan result i) {controller})))
"""


def test_N3_11_the_loop_stops_when_the_controller_says_so():
    source = DIRECTOR.format(n=5, controller="(if (= i 2) (list 'stop plan) (list 'continue feedback))")
    assert value_of(source, operators=TASKS, answer=failing()) == ["B", 2, 5]


def test_N3_11_after_the_last_iteration_the_value_is_the_last_result():
    source = DIRECTOR.format(n=3, controller="(list 'continue i)")
    drive = Drive(source, TASKS, failing())
    assert drive.value == "A"
    assert len(drive.calls) == 6
    assert value_of(DIRECTOR.format(n=0, controller="1"), operators=TASKS) == []


def test_A91_a_failure_in_a_phase_ends_the_loop_with_its_history():
    source = DIRECTOR.format(n=5, controller="(list 'continue i)")
    count = iter(range(10))
    answer = lambda call: DOWN if call.name == "b" and next(count) == 1 else call.name  # noqa: E731
    drive = Drive(source, TASKS, answer)
    assert len(drive.calls) == 4
    fault = drive.machine.error().fault
    assert (fault.context["iteration"], fault.context["phase"]) == (2, "evaluator")
    history = fault.context["iteration_history"]
    assert [entry["iteration"] for entry in history] == [1, 2]
    assert history[1]["phase"] == "evaluator"
    assert history[1]["result"] == "a"
    assert fault.context["subtask_error"]["message"] == "529"
    assert task.write(fault)["reason"] == "subtask_failure"


@pytest.mark.parametrize("decision", ["1", "(list 'go 1)", "'(stop)", '"stop"'])
def test_N3_11_a_malformed_decision_is_an_error(decision):
    with pytest.raises(WorkflowError, match="the controller returns") as caught:
        value_of(DIRECTOR.format(n=2, controller=decision), operators=TASKS, answer=failing())
    assert caught.value.fault.context["phase"] == "controller"
    assert caught.value.fault.context["iteration"] == 1


@pytest.mark.parametrize(
    ("clauses", "text"),
    [
        ("(max-iterations 1)", "needs the clause initial-director-input"),
        ("(max-iterations 1) (max-iterations 2)", "has the clause max-iterations twice"),
        ("(iterations 1)", "takes the clauses max-iterations"),
        ("(max-iterations)", "the clause max-iterations of director-evaluator-loop takes one value"),
        ("5", "takes clauses such as (max-iterations …)"),
    ],
)
def test_N3_11_clauses_are_checked(clauses, text):
    with pytest.raises(WorkflowError) as caught:
        value_of(f"(director-evaluator-loop {clauses})")
    assert text in caught.value.fault.message


def test_N3_12_the_iterative_loop_validates_with_its_command():
    source = """
    (iterative-loop (max-iterations 4) (initial-input 1) (test-command "pytest -q")
      (executor (lambda (input i) (* input 2)))
      (validator (lambda (command i) (dict "stdout" command "exit_code" (if (< i 3) 1 0))))
      (controller (lambda (result validation input i)
        (if (= (get-field validation "exit_code") 0)
            (list 'stop (list result input i (get-field validation "stdout")))
            (list 'continue result)))))
    """
    assert value_of(source) == [8, 4, 3, "pytest -q"]


def test_N3_2_a_failed_reduce_names_its_item():
    with pytest.raises(WorkflowError) as caught:
        value_of('(reduce + 0 (list 1 2 "x" 4))')
    context = caught.value.fault.context
    assert (context["failedInputIndex"], context["totalInputs"], context["processedInputs"]) == (2, 4, 2)
    assert context["currentAccumulator"] == "3"


# --- bindings ---


def test_bindings_are_kept_after_something_was_performed():
    source = "(bind p 1) (bind x (a)) (bind q 2) (let ((y (b)) (z (c))) (bind w 3) w)"
    drive = Drive(source, TASKS, failing())
    assert drive.bound == [["p", "x"], ["q", "y"], ["z"]]
    assert [binding.name for binding in drive.machine.unsaved().bindings] == ["w"]


def test_map_collects_failures_in_their_place():
    source = "(map (lambda (x) (if (= x 1) (a) x)) (range 3) :collect true)"
    found = value_of(source, operators=TASKS, answer=failing("a"))
    assert (found[0], found[1]["code"], found[2]) == (0, "PROVIDER_OVERLOADED", 2)
