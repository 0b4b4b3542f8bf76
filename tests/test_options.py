"""Checks of options: what is wrong is named, with what was expected, what came and where."""

from __future__ import annotations

import copy
import inspect
import math
import pickle
from typing import Any

import msgspec
import pytest

from holdfast import Backoff, Circuit, Hedge, InvalidError, Policy, Quota, Tries, options

KINDS = (Policy, Circuit, Backoff, Hedge, Quota, Tries)


@pytest.mark.parametrize("value", [math.nan, math.inf, -1, "3", True, None, 10**400])
def test_seconds_are_a_finite_number(value: Any) -> None:
    with pytest.raises(InvalidError, match=r"x\.y: expected a finite number of seconds > 0, got"):
        options.seconds("x.y", value)


def test_zero_and_none_are_valid_only_where_they_have_a_meaning() -> None:
    options.seconds("x", 0, zero=True)
    options.seconds("x", None, optional=True)
    with pytest.raises(InvalidError, match="> 0 or None, got 0"):
        options.seconds("x", 0, optional=True)


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: options.count("x", 1.0), "x: expected a whole number ≥ 1, got 1.0"),
        (lambda: options.count("x", True), "x: expected a whole number ≥ 1, got True"),
        (lambda: options.share("x", 1.1), "x: expected a number above 0 to 1, got 1.1"),
        (lambda: options.share("x", -1, zero=True), "x: expected a number from 0 to 1, got -1"),
        (lambda: options.at_least("x", 1, 2), "x: expected a finite number ≥ 2, got 1"),
        (lambda: options.one_of("x", "c", ("b", "a")), "x: expected one of a, b, got 'c'"),
        (lambda: options.names("x", "abc"), "x: expected a set of names, got 'abc'"),
        (lambda: options.flag("x", 1), "x: expected True or False, got 1"),
    ],
)
def test_a_check_says_what_it_expected_and_what_came(check: Any, message: str) -> None:
    with pytest.raises(InvalidError) as failed:
        check()
    assert failed.value.fault.message == message


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (
            Policy,
            {"retries": 3},
            (
                "unknown option `retries` of Policy; did you mean `attempts=4`? "
                "(attempts count calls: 3 retries are 4 attempts)"
            ),
        ),
        (
            Tries,
            {"max_retries": 1},
            (
                "unknown option `max_retries` of Tries; did you mean `attempts=2`? "
                "(attempts count calls: 1 retry is 2 attempts)"
            ),
        ),
        (
            Policy,
            {"retries": None},
            (
                "unknown option `retries` of Policy; did you mean `attempts`? "
                "(attempts count calls: 3 retries are 4 attempts)"
            ),
        ),
        (Policy, {"deadlin": 3}, "unknown option `deadlin` of Policy; did you mean `deadline`?"),
        (Circuit, {"failure": 3}, "unknown option `failure` of Circuit; did you mean `failures`?"),
        (Hedge, {"afer": 3}, "unknown option `afer` of Hedge; did you mean `after`?"),
        (Quota, {"shares": 0.1}, "unknown option `shares` of Quota; did you mean `share`?"),
        (
            Backoff,
            {"max_delay": 3},
            (
                "unknown option `max_delay` of Backoff; "
                "use one of initial, factor, cap, jitter, curve, steps, jitter_after_cap"
            ),
        ),
    ],
)
def test_an_unknown_option_is_named_and_the_right_one_suggested(kind: Any, given: Any, message: str) -> None:
    with pytest.raises(InvalidError) as failed:
        kind(**given)
    assert failed.value.fault.message == message
    assert failed.value.fault.context["path"] == f"{kind.__name__.lower()}.{next(iter(given))}"
    assert failed.value.__suppress_context__, "msgspec's own error would only repeat the name"


@pytest.mark.parametrize("value", [Policy(), Circuit()])
def test_replace_names_an_unknown_option_too(value: Any) -> None:
    with pytest.raises(InvalidError, match="unknown option `nonsense`"):
        value.replace(nonsense=1)


def test_other_mistakes_of_a_call_stay_a_type_error() -> None:
    with pytest.raises(TypeError, match="after"):
        Hedge()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="positional"):
        Policy(3)  # type: ignore[misc]


@pytest.mark.parametrize("kind", KINDS)
def test_options_are_still_plain_frozen_structs(kind: Any) -> None:
    value = kind(after=1.0) if kind is Hedge else kind()
    assert pickle.loads(pickle.dumps(value)) == value
    assert copy.deepcopy(value) == value
    assert msgspec.convert(msgspec.to_builtins(value), kind) == value
    assert list(inspect.signature(kind).parameters) == list(kind.__struct_fields__)
    with pytest.raises(AttributeError):
        value.anything = 1


@pytest.mark.parametrize(
    ("noun", "phrase"),
    [("object", "an object"), ("int", "an int"), ("Circuit", "a Circuit"), ("Unit", "a Unit")],
)
def test_FU10_an_article_fits_its_noun(noun, phrase):
    assert options.an(noun) == phrase
