"""Where a step is called: named by values, and stored."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.once.place import in_part, in_step, in_task

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
