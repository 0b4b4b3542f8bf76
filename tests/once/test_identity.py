"""What a step is known by. The names are stored and other services know them as keys, so they are written out here."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from once_kit import ended, identity, started

from holdfast.once.identity import (
    Identity,
    call_key_in,
    function_name,
    identity_of,
    is_earlier_form,
    is_outermost,
    is_same_in,
    is_within,
    key_of,
    name_in,
    short_name,
    step_name,
    suffix,
    turn_key,
    within,
)
from holdfast.once.records import StepEnded

WORDS = st.text("abcXY_.<>[]0", min_size=1, max_size=12)
HASHES = st.text("0123456789abcdef", min_size=64, max_size=64)
PLACES = st.sampled_from(["", "0011223344556677", "8899aabbccddeeff"])
IDENTITIES = st.one_of(
    st.builds(
        Identity, st.builds(function_name, st.sampled_from(["", "bank", "shop.till"]), WORDS), HASHES, place=PLACES
    ).map(lambda one: Identity(one.fn, one.args, place=one.place, is_full=True)),
    st.builds(lambda key: Identity("", "", key), st.text(min_size=1, max_size=20)),
    st.builds(Identity, WORDS, HASHES),
)


@pytest.mark.parametrize(
    ("known", "use", "name"),
    [
        (identity(), 1, "pay@5c7d29ba90f99f5f"),
        (identity(), 2, "pay@5c7d29ba90f99f5f#2"),
        (identity(":pay"), 1, "pay@8a018860bd890b3b"),
        (identity(place="0123456789abcdef"), 1, "pay@b417f439f8f6d458"),
        (Identity("pay", "a" * 64), 1, "pay@aaaaaaaaaaaaaaaa"),
        (Identity("pay", "a" * 64), 3, "pay@aaaaaaaaaaaaaaaa#3"),
        (Identity("", "", "invoice/17"), 1, "key:invoice/17"),
        (Identity("", "", "invoice/17"), 2, "key:invoice/17"),
    ],
)
def test_the_stored_names_stay_what_they_are(known: Identity, use: int, name: str) -> None:
    assert step_name(known, use) == name


def test_the_stored_names_of_parts_and_turns_stay_what_they_are() -> None:
    assert step_name(within(Identity("?Ask", "b" * 64), "run/1.0"), 1) == "?Ask@~a863806cce9ee1f"
    assert turn_key("message 5") == "ee2a8bc71ab62565"
    assert call_key_in("s/2/key:run/1.0") == "s/2/key:run/1.0/1"
    assert call_key_in("s/2/key:run/1.0", 3) == "s/2/key:run/1.0/3"


@given(IDENTITIES, IDENTITIES, st.integers(1, 3), st.integers(1, 3))
def test_two_calls_have_one_name_only_if_they_are_one_call(
    one: Identity, other: Identity, use: int, other_use: int
) -> None:
    is_one = one == other and (use == other_use or bool(one.key))
    assert (step_name(one, use) == step_name(other, other_use)) == is_one


@given(IDENTITIES, st.integers(1, 3))
def test_the_log_gives_back_what_a_step_was_known_by(known: Identity, use: int) -> None:
    if is_earlier_form(known):
        # Its whole hash is beside the name, and it had no field for the function.
        known = Identity(known.fn.replace("#", "").removesuffix("[]"), known.args)
    assert identity_of(ended(known, use)) == known
    assert identity_of(started(known, use)) == known


@pytest.mark.parametrize("name", ["pay#2", "pay[]#1/7", "pay#1/2", "pay"])
def test_the_names_of_version_1_are_read(name: str) -> None:
    entry = StepEnded(turn=1, step=name, args="abc", ok=True)
    assert identity_of(entry) == Identity("pay", "abc")


@given(IDENTITIES, st.text(max_size=8), st.text(max_size=8), st.integers(1, 3))
def test_a_step_inside_of_a_part_is_told_from_all_others(known: Identity, part: str, other: str, use: int) -> None:
    if known.key:
        return
    inside = within(known, part)
    assert is_within(inside)
    assert not is_within(known)
    assert (inside == within(known, other)) == (part == other)
    # The part is in the hash that the name has, so that the log gives it back.
    entry = StepEnded(turn=0, step=step_name(inside, use), args=known.args, ok=True)
    assert identity_of(entry) == inside


@given(IDENTITIES, st.integers(0, 3), st.sampled_from(["s", "s/1", "1"]))
def test_a_key_gives_back_the_name_in_its_turn(known: Identity, turn: int, session: str) -> None:
    for name in (step_name(known, 1), f"0/{step_name(known, 1)}"):
        assert name_in(key_of(session, suffix(turn, name)), session, turn) == name


def test_the_keys_of_a_session_outside_of_turns_have_no_turn() -> None:
    assert key_of("s", suffix(0, "pay@1")) == "s/pay@1"
    assert key_of("s", suffix(2, "pay@1")) == "s/2/pay@1"


def test_a_function_is_known_with_its_module_and_shown_without() -> None:
    assert function_name("billing", "fetch") != function_name("mail", "fetch")
    assert short_name(identity(function_name("billing", "Till.fetch"))) == "Till.fetch"
    assert short_name(identity(function_name("", "task:review"))) == "task:review"
    # An earlier version wrote the qualified name alone, which may have a colon.
    assert short_name(Identity("task:review", "x")) == "task:review"


def test_what_an_earlier_version_wrote_is_recognised() -> None:
    assert is_earlier_form(Identity("pay", "x"))
    assert not is_earlier_form(identity())
    assert not is_earlier_form(Identity("", "", "k"))


@pytest.mark.parametrize(
    ("one", "turn", "other", "other_turn", "is_same"),
    [
        (identity(), 1, identity(), 2, True),
        (identity(), 1, identity(args="b"), 2, False),
        (Identity("", "", "1/run/1.0"), 1, Identity("", "", "2/run/1.0"), 2, True),
        (Identity("", "", "1/run/1.0"), 1, Identity("", "", "2/run/1.1"), 2, False),
        (Identity("", "", "1/run/1.0"), 2, Identity("", "", "2/run/1.0"), 2, False),
        (Identity("", "", "invoice"), 1, Identity("", "", "invoice"), 2, True),
        (identity(), 1, Identity("", "", "1/"), 1, False),
        (Identity("", "", "1/"), 1, identity(), 1, False),
    ],
)
def test_calls_of_two_turns_are_one_whatever_the_number_of_the_turn(
    one: Identity, turn: int, other: Identity, other_turn: int, *, is_same: bool
) -> None:
    assert is_same_in(one, turn, other, other_turn) is is_same


def test_only_a_first_use_outside_of_parts_is_outermost() -> None:
    known = Identity("task", "c" * 64)
    assert is_outermost(step_name(known, 1))
    assert is_outermost(suffix(2, step_name(known, 1)))
    assert not is_outermost(step_name(known, 2))
    assert not is_outermost(step_name(within(known, "run/1.0"), 1))
