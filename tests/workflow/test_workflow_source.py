"""The formatter and the checker."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_workflow_reference import Programs, actual_of

from holdfast.workflow import Operators, WorkflowSyntaxError, check_program, format_source, read, show
from holdfast.workflow.reader import tokens

# --- formatter ---

WRITTEN = """
; a review
(bind   plan (make-plan
   :goal goal))   ; from the user


(map (lambda (part) (log-message "reviewing" part) (review :text (get-field part "text") :depth 3)) (get-field plan "parts") :limit 4)
(let ((a 1) (b "text
over lines")) ; two
  (if a
    ; yes
    'yes (no)))
"""
FORMATTED = """\
; a review
(bind plan (make-plan :goal goal))  ; from the user

(map
  (lambda (part) (log-message "reviewing" part) (review :text (get-field part "text") :depth 3))
  (get-field plan "parts")
  :limit 4)
(let ((a 1)
      (b
        "text
over lines"))  ; two
  (if a
    ; yes
    'yes
    (no)))
"""


def test_a_program_is_formatted():
    assert format_source(WRITTEN) == FORMATTED
    assert format_source(FORMATTED) == FORMATTED
    assert format_source("") == ""
    assert format_source("; only\n\n\n; comments") == "; only\n\n; comments\n"
    assert format_source("(list 'task-a')") == "(list 'task-a)\n"


def test_what_cannot_be_read_is_not_formatted():
    with pytest.raises(WorkflowSyntaxError, match=r"x\.sexp:1:1"):
        format_source("(list", "x.sexp")


def _comments(text):
    return [token.text.rstrip() for token in tokens(text) if token.kind == "comment"]


def _same(one, other):
    return [show(node, 10**6) for node in read(one)] == [show(node, 10**6) for node in read(other)]


@settings(deadline=None)
@example(["(", "; c\n", ")"])
@example(["'", "; c\n", "a"])
@given(
    st.lists(
        st.sampled_from(["(", ")", "'", "a", "bind", "lambda", '"t"', '"\n"', "; c\n", "\n", "\n\n\n", " ", "1.5"]),
        max_size=60,
    )
)
def test_formatting_keeps_the_program_and_its_comments_and_is_stable(parts):
    text = " ".join(parts)
    try:
        read(text)
    except WorkflowSyntaxError:
        return
    formatted = format_source(text)
    assert _same(text, formatted)
    assert _comments(text) == _comments(formatted)
    assert format_source(formatted) == formatted


def test_random_programs_keep_their_meaning():
    rng = random.Random(3)
    for seed in range(100):
        program = Programs(seed).program()
        text = "\n".join(show(node, 10**6) for node in program)
        formatted = format_source(text)
        assert _same(text, formatted)
        assert format_source(formatted) == formatted
        broken = "".join(char if char != " " or rng.random() < 0.5 else "\n  " for char in text)
        assert _same(broken, formatted)


def test_very_deep_programs_are_formatted_without_recursion():
    text = "(a " * 990 + "1" + ")" * 990
    assert _same(text, format_source(text))


# --- checker ---

OPERATORS = Operators(tasks={"review": ("text", "depth"), "any": None})


def found(source, **options):
    return [str(finding) for finding in check_program(read(source), OPERATORS, **options)]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("(bind plan 1)\n(list plna)", ["2:7: the symbol plna is not bound; did you mean plan?"]),
        ("(if 1 2)", ["1:1: if takes 3 arguments, got 2"]),
        ("(not 1 2)", ["1:1: not takes 1 argument, got 2"]),
        ("(reveiw 1)", ["1:2: the symbol reveiw is not bound; did you mean review?"]),
        ("(review :txt 1)", ["1:9: review takes text, depth; got :txt"]),
        ("(call-atomic-task 'nobody)", ["1:1: no task nobody is registered"]),
        ("(let ((a 1) (b a)) b)", ["1:16: the symbol a is not bound"]),
        ("(let (a 1) a)", ["1:1: let takes bindings such as ((a 1) (b 2)), got (a 1)"]),
        ("(lambda (1) 1)", ["1:1: lambda takes a list of names first, got (1)"]),
        ("(try 1 (catch e 2))", ["1:1: try ends with (catch (failure) handler …)"]),
        ("(bind 1 2)", ["1:1: bind takes a name first, got 1"]),
        ("(set! x 1)", ["1:7: the symbol x is not bound"]),
        ("(1 2)", ["1:1: expected a function at the head of the list, got 1"]),
        ("(list a)\n(list b)", ["1:7: the symbol a is not bound", "2:7: the symbol b is not bound"]),
    ],
)
def test_a_mistake_is_found_without_running(source, expected):
    assert found(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        "(bind f (lambda (n) (if n (f (- n 1)) (later)))) (bind later (lambda () 1)) (f 3)",
        "(review (text 1) (depth 2)) (review :text 1) (any (goal 1) (other 2)) (call-atomic-task 'any (input 1))",
        "(try (error 1) (catch (e) e)) (retry ((attempts 3) (delay 1)) 1) (retry 2 1) (with-budget ((turns 1)) 1)",
        '(defatom ask (params q) (instructions "{{q}}")) (ask 1) \'(any thing)',
        "(map review '(1) :limit 2) (let ((a 1)) (bind b a) (set! b 2) b)",
        """(iterative-loop (max-iterations 2) (initial-input 1) (test-command "t") (executor (lambda (x i) *loop-config*))
             (validator (lambda (c i) c)) (controller (lambda (r v x i) (list 'stop r))))""",
    ],
)
def test_a_good_program_has_no_findings(source):
    assert found(source) == []


def test_calls_of_tasks_that_are_registered_elsewhere_are_collected():
    unknown = set()
    assert found("(other 1) (call-atomic-task 'third (x y))", unknown_calls=unknown, inputs=frozenset({"y"})) == []
    assert unknown == {"other", "third"}


def test_a_random_program_with_an_unbound_name_at_its_end_was_found_or_had_no_chance():
    """What the checker calls a mistake, the machine would fail at if it came there; a program without findings never has an unbound name."""
    operators = Operators(tasks={"ask": ("q",), "fetch": ("q",)})
    for seed in range(300):
        program = Programs(seed).program()
        text = "\n".join(show(node, 10**6) for node in program)
        findings = check_program(read(text), operators)
        if not findings:
            (outcome, code), _ = actual_of(program)
            assert (outcome, code) != ("failed", "TASK_UNBOUND_SYMBOL") or "(bind" in text
