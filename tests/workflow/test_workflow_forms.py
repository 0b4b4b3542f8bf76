"""The language: what each form and primitive does, and what is wrong where."""

from __future__ import annotations

import pytest
from workflow_support import Drive, value_of

from holdfast import Fault
from holdfast.workflow import Limits, Operators, Symbol, UnboundSymbolError, WorkflowError
from holdfast.workflow.frames import SPECIAL
from holdfast.workflow.primitives import PRIMITIVES

TASKS = Operators(tasks={"a": None, "b": ("input",), "task-a": None, "task-b": None}, functions=frozenset({"process"}))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("(if true 1 2)", 1),
        ("(if nil 1 2)", 2),
        ('(if "" 1 2)', 2),
        ("(let ((a 1) (b 2)) (+ a b))", 3),
        ("(bind a 1) (let ((a 2) (b a)) b)", 1),
        ("(bind a 1 (bind b (+ a 1) (list a b)))", [1, 2]),
        ("(bind a 1) (bind a (+ a 1)) a", 2),
        ("(progn 1 2 3)", 3),
        ("(progn)", []),
        ("'(a 1 (b))", [Symbol("a"), 1, [Symbol("b")]]),
        ("((lambda (x y) (- x y)) 5 3)", 2),
        ("(bind add (lambda (n) (lambda (x) (+ x n)))) ((add 2) 40)", 42),
        ("(bind n 1) (bind f (lambda () n)) (let ((n 2)) (f))", 1),
        ("(bind n 0) (loop 5 (set! n (+ n 1)))", 5),
        ("(loop 0 1)", []),
        ("(and 1 0 (nobody))", 0),
        ("(or nil 2 (nobody))", 2),
        ("(and)", True),
        ("(or)", False),
        ("(let ((go (lambda (n acc) (if (= n 0) acc (recur (- n 1) (+ acc n)))))) (go 1000 0))", 500_500),
        ("(map (lambda (x) (* x x)) (range 4))", [0, 1, 4, 9]),
        ("(map length '((1 2) ()))", [2, 0]),
        ("(filter (lambda (x) (> x 1)) '(1 2 3))", [2, 3]),
        ("(reduce + 0 '(1 2 3))", 6),
        ('(get-field (dict "a" 1) "a")', 1),
        ("(get-field (list (list 'a 1) (list 'b 2)) \"b\")", 2),
        ('(get-field (dict) "a" 7)', 7),
        ("(nth '(1 2) 1)", 2),
        ("(null? none)", True),
        ("(nil? '())", True),
        ("(eq? '(1 (2)) (list 1 (list 2)))", True),
        ("(equal? 1 true)", False),
        ('(string=? "a" \'a)', True),
        ("(not nil)", True),
        ("(- 5)", -5),
        ("(< 1 2 3)", True),
        ('(concat "n=" 1 " " (list 1 "x"))', 'n=1 [1,"x"]'),
        ('(join (split "a,b" ",") "-")', "a-b"),
        ('(get-field (parse-json "{\\"a\\": [1]}") "a")', [1]),
        ("(append '(1) '(2 3))", [1, 2, 3]),
        ('(put (dict "a" 1) "b" 2)', {"a": 1, "b": 2}),
        ("", []),
    ],
)
def test_N3_13_a_form_has_its_value(source, expected):
    assert value_of(source) == expected


@pytest.mark.parametrize(
    ("source", "why", "text"),
    [
        ("(if 1 2)", "arity", "if takes 3 arguments, got 2"),
        ("(let ((a 1)))", "arity", "let takes at least 2 arguments, got 1"),
        ("(let (a 1) a)", "syntax", "let takes bindings such as"),
        ("(let ((a 1) (a 2)) a)", "syntax", "let binds a twice"),
        ("(bind 1 2)", "syntax", "bind takes a name first, got 1"),
        ("(lambda (1) 2)", "syntax", "lambda takes a list of names first"),
        ("((lambda (x) x))", "arity", "takes 1 argument, got 0"),
        ('(+ 1 "a")', "wrong_type", '+ takes numbers, got a text: "a"'),
        ("(1 2)", "not_callable", "expected a function at the head of the list, got a number"),
        ("(bind x 1) (x 2)", "not_callable", "got a number"),
        ("(/ 1 0)", "division_by_zero", "/ by zero"),
        ("(+ 1.5 (* 1e300 (bind n (reduce * 1 (map (lambda (x) 1000000) (range 200))))))", "overflow", "+"),
        ("(loop -1 1)", "wrong_type", "loop takes a whole number from 0"),
        ("(recur 1)", "syntax", "recur stands inside of a lambda only"),
        ("(map 1 '(1))", "wrong_type", "map takes a function"),
        ("(map not '(1) :limit 0)", "wrong_type", "map :limit takes a whole number from 1"),
        ("(map not '(1) :what 1)", "syntax", "map takes :limit and :collect"),
        ("(try 1 2)", "syntax", "try ends with (catch (failure) handler …)"),
        ("(retry 0 1)", "wrong_type", "retry takes 1 to 100 attempts"),
        ("(with-budget ((turns -1)) 1)", "wrong_type", "the limit turns of with-budget"),
        (
            "(with-budget ((cash 1)) 1)",
            "syntax",
            "with-budget takes the clauses turns, steps, seconds, usd, tokens; got cash",
        ),
        ('(error "no plan")', "raised", "no plan"),
        ('(parse-json "{")', "not_json", "parse-json takes JSON"),
        ("(call-atomic-task 5)", "wrong_type", "call-atomic-task takes the name of a task"),
    ],
)
def test_N3_13_a_wrong_expression_says_what_is_wrong_and_where(source, why, text):
    with pytest.raises(WorkflowError) as caught:
        value_of(source)
    fault = caught.value.fault
    assert fault.code == "TASK_EVALUATION_FAILED"
    assert fault.context["why"] == why
    assert text in fault.message
    assert caught.value.expression


def test_A90_an_unbound_symbol_is_named_with_its_place():
    with pytest.raises(UnboundSymbolError) as caught:
        value_of("(bind plan 1)\n(list plan\n  plna)")
    error = caught.value
    assert (error.symbol, error.reason) == ("plna", "unbound_symbol")
    assert str(error.position) == "line 3, column 3"
    assert "did you mean plan?" in error.fault.message
    assert error.environment == {"plan": 1}


def test_N3_13_set_changes_only_a_binding_that_exists():
    with pytest.raises(UnboundSymbolError, match="set! changes a name that is bound, and x is not"):
        value_of("(set! x 1)")


def test_N3_13_an_operator_is_a_form_then_a_closure_then_a_primitive_then_a_task_then_a_tool_then_a_function():
    operators = Operators(
        tasks={"list": None, "both": None},
        tools={"both": None, "search": None},
        functions=frozenset({"both", "search", "f"}),
    )
    drive = Drive("(list 1) (both) (search) (f) (bind both (lambda () 7)) (both)", operators)
    assert drive.value == 7
    assert [(call.kind, call.name) for call in drive.calls] == [("task", "both"), ("tool", "search"), ("function", "f")]
    # A binding hides a primitive, but no form.
    assert value_of("(bind + (lambda (a b) 9)) (+ 1 1)") == 9
    assert value_of("(bind if 1) (if true 2 3)") == 2


@pytest.mark.parametrize(
    "source",
    [
        "(b :input (+ 1 1))",
        "(b (input (+ 1 1)))",
        "(b (+ 1 1))",
        "(call-atomic-task 'b (input 2))",
        "(call-atomic-task 'b :input 2)",
        '(call-atomic-task "b" 2)',
        "(first (map b '(2)))",
    ],
)
def test_a_task_gets_its_inputs_by_name_or_in_order(source):
    (call,) = Drive(source, TASKS).calls
    assert (call.kind, call.name, call.inputs, call.args) == ("task", "b", {"input": 2}, ())


def test_an_argument_that_is_a_call_is_no_name():
    drive = Drive("(bind input (lambda (x) 7)) (a (input 2)) (a (list 2)) (b (input 3))", TASKS)
    assert [(call.inputs, call.args) for call in drive.calls] == [({}, (7,)), ({}, ([2],)), ({"input": 3}, ())]


def test_a_task_with_too_many_arguments_is_not_called():
    drive = Drive("(b 1 2)", TASKS)
    assert drive.calls == []
    with pytest.raises(WorkflowError, match="b takes input; got 2 arguments without a name"):
        _ = drive.value


def test_a_name_that_the_task_does_not_have_is_an_error():
    with pytest.raises(WorkflowError, match="b takes input; got inptu"):
        value_of("(b :inptu 1)", operators=TASKS)
    with pytest.raises(UnboundSymbolError, match="inptu"):
        value_of("(b (inptu 1))", operators=TASKS)


def test_a_task_that_nobody_registered_lists_those_that_are():
    with pytest.raises(
        WorkflowError, match="no task nobody is registered; registered are: a, b, task-a, task-b"
    ) as caught:
        value_of("(call-atomic-task 'nobody)", operators=TASKS)
    assert caught.value.fault.code == "TASK_TEMPLATE_NOT_FOUND"


def test_N3_13_defatom_defines_a_task_with_a_template():
    source = """
    (defatom user:plan (params goal files) (instructions "Plan {{goal}} in {{files}}") (model "opus")
      (output_format ((type "json"))))
    (user:plan (goal "x") (files (list "a" "b")))
    """
    drive = Drive(source, answer=lambda call: call.template.prompt(call.inputs))
    assert drive.value == 'Plan x in ["a","b"]'
    (call,) = drive.calls
    assert call.kind == "template"
    assert call.template.options == {"model": "opus", "output_format": [[Symbol("type"), "json"]]}


def test_log_message_shows_a_line_and_is_its_last_value():
    drive = Drive('(log-message "plan:" (list 1 "a") \'x)')
    assert drive.logs == ['plan: (1 "a") x']
    assert drive.value == Symbol("x")


def test_user_primitives_are_called_with_plain_values_and_may_fail():
    def shout(text):
        return text.upper()

    operators = Operators(
        primitives={"shout": shout}, fault_of=lambda error: Fault.of("TOOL_EXECUTION_FAILED", str(error))
    )
    assert value_of("(shout 'abc)", operators=operators) == "ABC"
    with pytest.raises(WorkflowError, match="shout raised AttributeError") as caught:
        value_of("(shout 1)", operators=operators)
    assert caught.value.fault.context["why"] == "primitive_failed"


def test_there_is_no_way_to_python():
    for name in (
        "__import__",
        "eval",
        "open",
        "print",
        "getattr",
        "x.__class__",
        "os:system",
        "system:run_script",
        "get_context",
    ):
        with pytest.raises(UnboundSymbolError):
            value_of(f'({name} "os")')


def test_strands_must_not_change_what_others_see():
    assert value_of("(map (lambda (x) (bind y x) (set! y (+ y 1)) y) '(1 2))") == [2, 3]
    with pytest.raises(WorkflowError, match="set! of n is not possible inside of map"):
        value_of("(bind n 0) (map (lambda (x) (set! n x)) '(1 2))")
    with pytest.raises(WorkflowError, match="defatom of t is not possible inside of map"):
        value_of('(map (lambda (x) (defatom t (instructions "x"))) \'(1 2))')


def test_every_form_and_primitive_says_how_it_is_written():
    for name, begin in SPECIAL.items():
        assert f"({name}" in (begin.__doc__ or "") or "'x" in (begin.__doc__ or ""), name
    for name, primitive in PRIMITIVES.items():
        assert (primitive.run.__doc__ or "").startswith("("), name


# --- limits ---


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("(bind f (lambda () (f))) (f)", "TASK_LOOP_BOUND"),
        ("(bind f (lambda () (+ 1 (f)))) (f)", "TASK_DEPTH_EXCEEDED"),
        ("(range 1000000)", "TASK_OUTPUT_EXHAUSTED"),
        ("(bind x '(1)) (loop 40 (set! x (append x x)))", "TASK_OUTPUT_EXHAUSTED"),
        ('(bind x "a") (loop 40 (set! x (concat x x)))', "TASK_OUTPUT_EXHAUSTED"),
        ("(bind x 9) (loop 40 (set! x (* x x)))", "TASK_OUTPUT_EXHAUSTED"),
        ("(bind x (range 50000)) (loop 2000 (append x))", "TASK_OUTPUT_EXHAUSTED"),
    ],
)
def test_a_program_without_end_is_a_clean_error(source, code):
    with pytest.raises(WorkflowError) as caught:
        value_of(source, limits=Limits(steps=100_000))
    assert caught.value.fault.code == code
    assert caught.value.expression


def test_values_nested_very_deep_are_shown_and_compared_without_recursion():
    drive = Drive("(bind x '()) (bind y '()) (loop 20000 (progn (set! x (list x)) (set! y (list y)))) (equal? x y)")
    assert drive.value is True
    with pytest.raises(WorkflowError) as caught:
        value_of("(bind x '()) (loop 20000 (set! x (list x))) (nobody)")
    assert caught.value.environment["x"].startswith("((((")


def test_what_the_whole_workflow_may_use_cannot_be_caught():
    source = "(bind f (lambda () (f))) (bind g (lambda () (try (f) (catch (e) (g))))) (g)"
    with pytest.raises(WorkflowError) as caught:
        value_of(source, limits=Limits(steps=1_000))
    assert caught.value.fault.code == "TASK_LOOP_BOUND"


def test_an_answer_from_outside_counts_too():
    with pytest.raises(WorkflowError) as caught:
        value_of("(a)", operators=TASKS, answer=lambda call: [0] * 200_000)
    assert caught.value.fault.code == "TASK_OUTPUT_EXHAUSTED"
