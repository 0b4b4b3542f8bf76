"""Which kills leave different states behind."""

from __future__ import annotations

from holdfast.testing.crashtest.points import Kind, Mark, kills_of, states_of


def both(kind: Kind, name: str, *inside: Mark, nth: int = 1) -> list[Mark]:
    return [Mark("before", kind, name, nth), *inside, Mark("after", kind, name, nth)]


def shown(marks: list[Mark], **options: int | bool) -> list[str]:
    return [str(kill) for kill in kills_of(marks, **options)]  # type: ignore[arg-type]


CHARGE = both("effect", "POST /charges")
COMMIT = both("commit", "state.db")


def test_a_kill_after_a_request_stands_for_the_one_before_the_commit_that_follows():
    assert shown([*CHARGE, *COMMIT]) == ["before POST /charges", "after POST /charges", "after commit state.db"]


def test_every_makes_all_of_them():
    assert len(shown([*CHARGE, *COMMIT], every=True)) == 4


def test_a_tool_leaves_the_states_of_what_it_contains():
    marks = both("tool", "charge", *CHARGE)
    assert [len(state) for state in states_of(marks)] == [2, 2]
    assert shown(marks) == ["before POST /charges", "after POST /charges"]


def test_a_tool_that_contains_nothing_seen_is_a_point_itself():
    assert shown(both("tool", "charge")) == ["before tool charge", "after tool charge"]


def test_requests_at_the_same_time_are_all_different_states():
    """Between `before A` and `before B` A may be performed already."""
    first, second = both("effect", "POST /a"), both("effect", "POST /b")
    marks = [first[0], second[0], first[1], second[1]]
    assert [len(state) for state in states_of(marks)] == [1, 1, 1, 1]


def test_a_name_that_occurs_twice_is_numbered():
    marks = [*CHARGE, *both("effect", "POST /charges", nth=2)]
    assert shown(marks) == [
        "before POST /charges (1 of 2)",
        "after POST /charges (1 of 2)",
        "after POST /charges (2 of 2)",
    ]


def test_few_kills_are_made_around_effects_first():
    commits = [mark for number in range(1, 9) for mark in both("commit", "state.db", nth=number)]
    marks = [*commits, *CHARGE, *both("commit", "end.db")]
    assert shown(marks, most=2) == ["before POST /charges", "after POST /charges"]
    assert len(shown(marks, most=5)) == 5


def test_a_file_is_written_after_it_was_opened():
    opened = both("open", "state.json")
    assert shown([*opened, *COMMIT]) == [
        "before open state.json",
        "after open state.json",
        "before commit state.db",
        "after commit state.db",
    ]


def test_no_marks_no_kills():
    assert shown([]) == []
