"""Which recorded step a call is, in any later run of the program: whatever was recorded, in whatever order the calls come."""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from once_kit import calling, ended, identity, started

from holdfast.once.identity import Identity, identity_of, step_name, within
from holdfast.once.place import in_step
from holdfast.once.records import StepEnded, StepEntry
from holdfast.once.replay import Use, Uses, is_later

PAY, MAIL, KEYED = identity("bank:pay"), identity("post:mail"), Identity("", "", "invoice")
OLD = Identity("pay", "a" * 64)
CALLS = st.lists(st.sampled_from([PAY, MAIL, KEYED, identity("bank:pay", "b" * 64)]), max_size=8)


def take(uses: Uses, of: Identity, task: str = "", **facts: Any) -> str:
    """Make a call to its end; return the name of its step."""
    use = uses.take(calling(of, task, **facts))
    assert use is not None
    with use:
        return use.name


def of_name(recorded: list[tuple[Identity, str]], task: str = "") -> dict[str, StepEntry]:
    return {name: _entry(of, name, task) for of, name in recorded}


def _entry(of: Identity, name: str, task: str) -> StepEnded:
    number = int(name.rpartition("#")[2]) if "#" in name else 1
    return ended(of, number, task=task)


@given(CALLS, st.data())
def test_a_program_that_runs_again_calls_the_same_steps_wherever_it_was_cut(calls: list[Identity], data: Any) -> None:
    first = Uses({})
    names = [(of, take(first, of)) for of in calls]
    cut = data.draw(st.integers(0, len(calls)))
    again = Uses(of_name(names[:cut]))
    assert [(of, take(again, of)) for of in calls] == names


@given(CALLS, st.data())
def test_the_order_of_different_calls_does_not_matter(calls: list[Identity], data: Any) -> None:
    first = Uses({})
    names = [(of, take(first, of)) for of in calls]
    other = data.draw(st.permutations(calls))
    again, was, now = Uses(of_name(names)), defaultdict(list), defaultdict(list)
    for of, name in names:
        was[of].append(name)
    for of in other:
        now[of].append(take(again, of))
    assert now == was


@given(CALLS)
def test_equal_calls_are_different_steps_and_a_key_is_one(calls: list[Identity]) -> None:
    uses = Uses({})
    names = [take(uses, of) for of in calls]
    assert len(set(names)) == len([of for of in calls if of != KEYED]) + (KEYED in calls)


@given(st.permutations(["ann", "bob", "ann", "bob", "cid"]), st.permutations(["ann", "bob", "ann", "bob", "cid"]))
def test_tasks_get_their_own_steps_back_in_whatever_order_they_run(first: list[str], then: list[str]) -> None:
    uses, was = Uses({}), defaultdict(list)
    for task in first:
        was[task].append(take(uses, PAY, task))
    recorded = {
        name: entry for task, names in was.items() for name, entry in of_name([(PAY, n) for n in names], task).items()
    }
    again, now = Uses(recorded), defaultdict(list)
    for task in then:
        now[task].append(take(again, PAY, task))
    assert now == was


def test_a_step_that_another_task_made_is_kept_for_it_until_somebody_gives_it_up() -> None:
    uses = Uses({step_name(PAY, 1): ended(PAY, task="ann")})
    bob = calling(PAY, "bob")
    assert uses.take(bob) is None
    assert uses.tasks_of(bob) == {"ann"}
    assert uses.take(calling(PAY, "ann")) is not None
    assert uses.tasks_of(bob) == set()
    # Ann came to it in this run, so Bob's call is another one.
    assert take(Uses({step_name(PAY, 1): ended(PAY, task="ann")}), PAY, "ann") == step_name(PAY, 1)


def test_a_worker_takes_what_comes_once_its_task_is_loose() -> None:
    uses = Uses({step_name(PAY, n): ended(PAY, n, task="ann") for n in (1, 2)})
    uses.loose |= uses.tasks_of(calling(PAY, "bob"))
    assert [take(uses, PAY, "bob"), take(uses, PAY, "bob")] == [step_name(PAY, 1), step_name(PAY, 2)]


def test_a_key_is_one_step_whichever_task_calls_it() -> None:
    name = step_name(KEYED, 1)
    assert take(Uses({name: ended(KEYED, task="ann")}), KEYED, "bob") == name


def test_a_question_may_be_asked_by_any_task() -> None:
    uses = Uses({step_name(PAY, 1): ended(PAY, task="ann")})
    use = uses.take(calling(PAY, "bob"), of_any_task=True)
    assert use is not None
    assert use.name == step_name(PAY, 1)


def test_equal_calls_of_one_task_that_nothing_tells_apart_are_rivals() -> None:
    uses = Uses({})
    assert uses.rivals(calling(PAY, "ann")) == []
    use = uses.take(calling(PAY, "ann"))
    assert use is not None
    with use:
        assert uses.rivals(calling(PAY, "ann")) == [use]
        assert uses.rivals(calling(PAY, "bob")) == []
        assert uses.rivals(calling(MAIL, "ann")) == []


def test_a_call_that_is_known_or_has_a_key_has_no_rivals() -> None:
    uses = Uses({step_name(PAY, n): ended(PAY, n, task="ann") for n in (1, 2)})
    take(uses, PAY, "ann")
    assert uses.rivals(calling(PAY, "ann")) == []
    take(uses, PAY, "ann")
    assert {rival.task for rival in uses.rivals(calling(PAY, "ann"))} == {"ann"}
    take(uses, KEYED)
    assert uses.rivals(calling(KEYED)) == []


def test_a_further_equal_call_does_not_look_through_all_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Use] = []
    is_free = Use.is_free

    def counted(use: Use, attempts: dict[str, int]) -> bool:
        looked.append(use)
        return is_free(use, attempts)

    monkeypatch.setattr(Use, "is_free", counted)
    recorded = {step_name(PAY, n): ended(PAY, n) for n in range(1, 501)}
    for uses in (Uses({}), Uses(recorded)):
        looked.clear()
        for number in range(1, 502):
            uses.rivals(calling(PAY))
            assert take(uses, PAY) == step_name(PAY, number)
        assert len(looked) <= 1_200
        assert len(uses.rivals(calling(PAY))) == 1, "one stands for all that its task has made"


def test_a_released_use_is_found_again_among_those_that_were_taken() -> None:
    uses = Uses({})
    taken = []
    for _ in range(4):
        use = uses.take(calling(PAY))
        assert use is not None
        with use:
            taken.append(use)
    assert take(uses, PAY) == step_name(PAY, 5)
    uses.release(taken[1])
    assert take(uses, PAY) == step_name(PAY, 2)
    uses.forget({step_name(PAY, 3)})
    assert take(uses, PAY) == step_name(PAY, 3)
    assert take(uses, PAY) == step_name(PAY, 6)


def test_in_a_later_attempt_the_first_use_is_taken_again_also_if_that_fails() -> None:
    uses = Uses({})
    for attempt in (1, 1, 2):
        use = uses.take(calling(PAY, attempts={"run": attempt}))
        assert use is not None
        with suppress(ValueError), use:
            if attempt == 2:
                raise ValueError
    assert use.name == step_name(PAY, 1)
    assert take(uses, PAY) == step_name(PAY, 1)


def test_a_call_that_failed_is_the_same_step_when_it_is_made_again() -> None:
    uses = Uses({})
    use = uses.take(calling(PAY))
    assert use is not None
    try:
        with use:
            assert uses.busy() == {use.name}
            raise ValueError
    except ValueError:
        assert uses.busy() == set()
    assert take(uses, PAY) == use.name
    assert take(uses, PAY) != use.name


def test_a_call_that_failed_in_one_task_is_the_same_step_in_another() -> None:
    uses = Uses({step_name(PAY, 1): ended(PAY, task="ann")})
    use = uses.take(calling(PAY, "ann"))
    assert use is not None
    assert take(uses, PAY, "bob") == use.name


def test_a_call_beside_a_busy_one_is_another_step() -> None:
    uses = Uses({})
    use = uses.take(calling(PAY))
    assert use is not None
    with use:
        assert take(uses, PAY) == step_name(PAY, 2)


@given(st.integers(1, 4), st.integers(1, 4))
def test_what_a_later_attempt_calls_are_the_same_steps(calls: int, attempts: int) -> None:
    uses = Uses({})
    runs = [
        [take(uses, PAY, attempts={"outer": 1, "inner": attempt}) for _ in range(calls)]
        for attempt in range(1, attempts + 1)
    ]
    assert runs == [[step_name(PAY, number) for number in range(1, calls + 1)]] * attempts


def test_an_operation_around_that_was_not_there_before_makes_no_later_attempt() -> None:
    assert is_later({"a": 2}, {"a": 1})
    assert is_later({"a": 1, "b": 2}, {"a": 1, "b": 1})
    assert not is_later({"a": 1}, {"a": 1})
    assert not is_later({"a": 1}, {"a": 2})
    assert not is_later({"b": 3}, {"a": 1})
    assert not is_later({}, {"a": 1})


def test_what_is_called_inside_of_a_place_that_begins_anew_are_the_same_steps() -> None:
    uses, place = Uses({}), in_step("outer@1")
    inside = identity(place=place)
    assert not uses.by_place
    first = [take(uses, inside, places=(place,)) for _ in range(2)]
    assert uses.by_place
    outside = take(uses, PAY)
    uses.begin(place)
    assert not uses.by_place
    assert uses.not_replayed(inside, {}, lambda: OLD) == first
    assert [take(uses, inside, places=(place,)) for _ in range(2)] == first
    assert take(uses, PAY) != outside


def test_the_steps_that_the_program_has_not_called_yet_are_known() -> None:
    other = identity("bank:pay", "b" * 64)
    recorded = of_name([(PAY, step_name(PAY, 1)), (other, step_name(other, 1)), (MAIL, step_name(MAIL, 1))])
    uses = Uses(recorded)
    assert uses.not_called() == list(recorded)
    assert uses.not_replayed(PAY, {}, lambda: OLD) == [step_name(PAY, 1), step_name(other, 1)]
    take(uses, PAY, attempts={"run": 1})
    assert uses.not_replayed(PAY, {"run": 1}, lambda: OLD) == [step_name(other, 1)]
    assert uses.not_called() == [step_name(other, 1), step_name(MAIL, 1)]
    # A later attempt of the operation around has called nothing yet.
    assert uses.not_replayed(PAY, {"run": 2}, lambda: OLD) == [step_name(PAY, 1), step_name(other, 1)]


def test_a_step_that_another_one_stands_for_need_not_be_called() -> None:
    other = identity("bank:pay", "b" * 64)
    uses = Uses(of_name([(other, step_name(other, 1))]))
    uses.replay(step_name(other, 1), {})
    assert uses.not_replayed(PAY, {}, lambda: OLD) == []
    assert uses.not_called() == []
    assert take(uses, other) == step_name(other, 2)


def test_a_step_that_moved_into_another_one_is_not_called_yet() -> None:
    uses = Uses(of_name([(PAY, step_name(PAY, 1))]))
    assert uses.not_replayed(identity(place=in_step("outer@1")), {}, lambda: OLD) == [step_name(PAY, 1)]
    assert uses.not_replayed(identity("bank:pay", "b" * 64, place=in_step("outer@1")), {}, lambda: OLD) == []


def test_what_need_not_be_called_is_not_missed() -> None:
    inside = identity(place=in_step("outer@1"))
    uses = Uses(of_name([(inside, step_name(inside, 1)), (KEYED, step_name(KEYED, 1))]))
    assert uses.not_called() == []
    assert uses.not_replayed(PAY, {}, lambda: OLD) == []
    # A step of an earlier version in a part, which may be left out.
    part = within(OLD, "run/1.0")
    old = StepEnded(turn=0, step=step_name(part, 1), args=OLD.args, ok=True)
    assert Uses({old.step: old}).not_replayed(identity(), {}, lambda: OLD) == []


def test_equal_calls_before_a_step_are_known_by_name() -> None:
    uses = Uses(of_name([(PAY, step_name(PAY, n)) for n in (1, 2, 3)]))
    assert uses.before(PAY, step_name(PAY, 3), lambda: OLD) == [step_name(PAY, 1), step_name(PAY, 2)]
    assert uses.before(PAY, step_name(PAY, 1), lambda: OLD) == []


def test_a_forgotten_step_is_the_next_call() -> None:
    uses = Uses({})
    names = [take(uses, PAY) for _ in range(3)]
    uses.forget({names[1], names[2]})
    assert [take(uses, PAY), take(uses, PAY), take(uses, PAY)] == [names[1], names[2], step_name(PAY, 4)]


# --- logs of earlier versions ---


def old(name: str, turn: int = 0, **facts: Any) -> StepEnded:
    return StepEnded(turn=turn, step=name, args=OLD.args, ok=facts.pop("ok", True), **facts)


def test_a_step_of_an_earlier_version_is_found_by_what_it_was_known_by() -> None:
    name = step_name(OLD, 1)
    assert take(Uses({name: old(name)}), PAY, earlier=lambda: OLD) == name
    assert take(Uses({name: old(name)}), PAY, earlier=lambda: Identity("other", OLD.args)) == step_name(PAY, 1)


def test_a_step_of_an_earlier_version_is_of_the_function_that_takes_it_first() -> None:
    name, mail = step_name(OLD, 1), identity("mail:pay")
    uses = Uses({name: old(name)})
    assert take(uses, PAY, earlier=lambda: OLD) == name
    uses.forget({name})
    assert take(uses, mail, earlier=lambda: OLD) == step_name(mail, 1)
    assert take(uses, PAY, earlier=lambda: OLD) == name


def test_a_step_of_an_earlier_version_that_was_not_called_yet_is_known() -> None:
    name = step_name(OLD, 1)
    uses = Uses({name: old(name)})
    assert uses.not_replayed(identity("bank:pay", "b" * 64), {}, lambda: OLD) == [name]
    take(uses, PAY, earlier=lambda: OLD)
    assert uses.not_replayed(identity("bank:pay", "b" * 64), {}, lambda: OLD) == []


def test_steps_of_earlier_versions_come_before_those_of_this_one() -> None:
    name = step_name(OLD, 1)
    uses = Uses({step_name(PAY, 1): ended(PAY), name: old(name)})
    assert [take(uses, PAY, earlier=lambda: OLD) for _ in range(3)] == [name, step_name(PAY, 1), step_name(PAY, 2)]


def test_of_the_same_use_in_several_turns_of_version_1_the_one_in_doubt_comes_first_then_the_newest_that_happened() -> (
    None
):
    recorded: dict[str, StepEntry] = {
        "1/pay#1": old("pay#1", 1, ok=False, unknown=True),
        "2/pay#1": old("pay#1", 2),
        "3/pay#1": old("pay#1", 3),
        "4/pay#1": old("pay#1", 4, ok=False),
    }
    uses = Uses(recorded)
    names = [take(uses, PAY, earlier=lambda: OLD) for _ in range(4)]
    assert names == ["1/pay#1", "3/pay#1", "2/pay#1", "4/pay#1"]


def test_the_tasks_of_earlier_versions_are_not_known() -> None:
    name = step_name(OLD, 1)
    uses = Uses({name: old(name, task="x")})
    assert take(uses, PAY, "bob", earlier=lambda: OLD) == name
    assert Uses({name: old(name)}).not_called() == []


# --- calls that wait for one another ---


def test_a_call_that_waits_for_itself_in_a_circle_is_seen() -> None:
    one, two, three = Use("1"), Use("2"), Use("3")
    one.waits_for, two.waits_for = (two,), (three,)
    assert one.needs({one})
    assert one.needs({three})
    assert not two.needs({one})
    three.waits_for = (one,)
    assert two.needs({one})
    assert not two.needs({Use("2")})


def test_a_call_that_ends_wakes_who_waits_for_it() -> None:
    class Signal:
        is_set = False

        def set(self) -> None:
            self.is_set = True

        async def wait(self) -> object:
            raise AssertionError

    use, signal = Use("1"), Signal()
    with use:
        use.ended = signal
    assert signal.is_set
    assert use.ended is None


def test_a_start_is_as_good_as_an_end_to_find_a_step() -> None:
    cut = started(PAY, 1, task="ann")
    assert identity_of(cut) == PAY
    assert take(Uses({cut.step: cut}), PAY, "ann") == cut.step
    assert Uses({cut.step: cut}).take(calling(PAY, "bob")) is None
