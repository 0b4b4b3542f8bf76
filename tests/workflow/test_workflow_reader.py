"""The reader: positions, good errors, and limits."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.workflow import Form, Position, ReadLimits, Symbol, WorkflowSyntaxError, read, read_one, show
from holdfast.workflow.syntax import quoted


def test_a_program_is_read_with_positions():
    forms = read('; first\n(bind x\n  (list 1 -2.5 "a\\n\\u00e9" true none))\n')
    (form,) = forms
    assert (form.position.line, form.position.column) == (2, 1)
    assert form.items[0] == Symbol("bind")
    inner = form.items[2]
    assert (inner.position.line, inner.position.column) == (3, 3)
    assert inner.items[1:] == (1, -2.5, "a\né", True, None)


def test_a_text_over_several_lines_does_not_shift_positions():
    forms = read('(a "one\ntwo"\n b)')
    assert str(forms[0].items[2].position) == "line 3, column 2"


def test_a_quote_is_a_form_of_its_own():
    form = read_one("'(continue 'x)")
    assert quoted(form.items[1]) == [Symbol("continue"), [Symbol("quote"), Symbol("x")]]


def test_S3_18_a_name_between_two_quotes_is_a_quoted_name():
    assert read_one("'task-a'").items == (Symbol("quote"), Symbol("task-a"))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("(list 1", "line 1, column 1: expected a ) that closes this list, got the end of the source"),
        ("(a\n  (b 1)", "line 1, column 1: expected a ) that closes this list"),
        ("(a))", "line 1, column 4: expected no ) here, because no list is open"),
        ('(a "b', 'line 1, column 4: expected a " that closes this text'),
        ("(a ')", "line 1, column 4: expected an expression after ', got a )"),
        ("'", "line 1, column 1: expected an expression after ', got the end of the source"),
        ('"\\q"', "line 1, column 1: expected one of \\n"),
        ("(a b'c)", "line 1, column 4: expected a space or ( before '"),
        ("1e999", "line 1, column 1: expected a number below 1.8e308"),
        ("9" * 5_000, "line 1, column 1: expected a number of at most 400 digits"),
    ],
)
def test_A90_a_mistake_is_named_with_its_position(source, expected):
    with pytest.raises(WorkflowSyntaxError) as caught:
        read(source)
    assert expected in caught.value.fault.message
    assert caught.value.fault.code == "TASK_SYNTAX_ERROR"


def test_the_name_of_the_file_stands_before_the_position():
    with pytest.raises(WorkflowSyntaxError, match=r"review\.sexp:2:1: expected a \)"):
        read("\n(", "review.sexp")


def test_A90_nesting_of_10_000_is_a_clean_error():
    with pytest.raises(WorkflowSyntaxError, match="nested at most 1,000 deep"):
        read("(" * 10_000 + ")" * 10_000)
    with pytest.raises(WorkflowSyntaxError, match="nested at most 1,000 deep"):
        read("'" * 10_000 + "a")


def test_A90_a_list_of_a_million_items_is_a_clean_error():
    with pytest.raises(WorkflowSyntaxError, match="at most 200,000 symbols and values"):
        read(f"(list {'1 ' * 1_000_000})")
    with pytest.raises(WorkflowSyntaxError, match="at most 4,000,000 characters"):
        read("1 " * 3_000_000)


def test_the_limits_are_options():
    with pytest.raises(WorkflowSyntaxError, match="at most 2 deep"):
        read("(((1)))", limits=ReadLimits(depth=2))


_ATOMS = st.one_of(
    st.integers(-(10**12), 10**12),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
    st.booleans(),
    st.none(),
    st.from_regex(r"[a-z*!?<>=+-][a-z0-9*!?<>=-]{0,8}", fullmatch=True)
    .filter(lambda name: name not in {"true", "false", "none"} and not isinstance(read_one(name), (int, float)))
    .map(Symbol),
)
_TREES = st.recursive(
    _ATOMS, lambda inner: st.lists(inner, max_size=5).map(lambda items: Form(tuple(items))), max_leaves=40
)


@settings(deadline=None)
@given(_TREES)
def test_what_show_writes_is_read_as_the_same(tree):
    assert quoted(read_one(show(tree, 100_000))) == quoted(tree)


@settings(deadline=None)
@given(st.text(alphabet="()'\"\\; \nab1.-e", max_size=200))
def test_every_text_is_read_or_rejected_with_a_position(text):
    place = Position(1, 1)
    try:
        read(text)
    except WorkflowSyntaxError as error:
        place = error.position
    lines = text.split("\n")
    assert 1 <= place.line <= len(lines)
    assert 1 <= place.column <= len(lines[place.line - 1]) + 1
