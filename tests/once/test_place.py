"""Where a step is called: named by values, and stored."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.once.place import entered, in_part, in_step, in_task, may_have_moved, parting, waits_for_its_task

TEXTS = st.text(max_size=6)


def test_the_stored_places_stay_what_they_are() -> None:
    assert in_step("pay@1") == "8f1998fd1c6b9da2"
    assert in_part("run/1.0") == "417224d02dc93289"
    assert in_task("", "shop:sell", ['"ada"', "5"]) == "345818e0"


@given(TEXTS, TEXTS)
def test_places_differ_by_what_is_around(one: str, other: str) -> None:
    assert (in_step(one) == in_step(other)) == (one == other)
    assert (in_part(one) == in_part(other)) == (one == other)
    assert in_step(one) != in_part(other)


@given(TEXTS, TEXTS, st.lists(TEXTS, max_size=2))
def test_tasks_differ_by_who_began_them_their_function_and_their_arguments(
    around: str, fn: str, args: list[str]
) -> None:
    known = in_task(around, fn, args)
    assert known == in_task(around, fn, list(args))
    assert known != in_task(f"{around}x", fn, args)
    assert known != in_task(around, f"{fn}x", args)
    assert known != in_task(around, fn, [*args, "x"])


# --- the places around two calls ---


def path(*names: str, task: str = "") -> list[str]:
    """Places around a call, and the call. `=name` was named by the program; a task entered the first one."""
    places = [entered(each.strip("="), task, is_named=each.startswith("=")) for each in names]
    return [*places, entered("", "" if names else task, is_named=False)]


@given(st.lists(st.sampled_from("abc"), max_size=3), st.lists(st.sampled_from("abc"), max_size=3))
def test_two_calls_part_where_their_places_begin_to_differ(one: list[str], other: list[str]) -> None:
    together = parting(path(*one), path(*other))
    assert together == parting(path(*other), path(*one))
    assert path(*one)[:together] == path(*other)[:together]
    assert (path(*one) == path(*other)) == (together == max(len(one), len(other)) + 1)


def test_a_call_has_not_moved_where_the_program_named_a_place() -> None:
    assert may_have_moved(path("a"), path("b"))
    assert may_have_moved(path("a"), path())
    assert may_have_moved(path("=run", "a"), path("=run", "b"))
    assert not may_have_moved(path("=a"), path("=b"))
    assert not may_have_moved(path("a", "=p"), path("b"))
    assert not may_have_moved(path(), path("a", "=p"))


def test_a_call_waits_for_its_task_only_if_that_is_another_one_and_there() -> None:
    ada, bob = path("a", task="t1.ada"), path("b", task="t2.bob")
    assert waits_for_its_task(ada, bob, {"ada", "bob"})
    assert not waits_for_its_task(ada, bob, {"bob"})
    assert not waits_for_its_task(ada, path("b", task="t1.ada"), {"ada"})
    assert not waits_for_its_task(ada, path("b"), {"ada"})
    assert waits_for_its_task(ada, path(task="t2.bob"), {"ada"})
