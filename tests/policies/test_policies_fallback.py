"""Whether a fallback step is tried."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from holdfast import CODES, Category, Fault, InvalidError
from holdfast.policies.decide import Ask, Skip, Take, can_fall_back, decide_fallback
from holdfast.policies.fallback import CategoryName, check_when, meets

RESET = Fault.of("CONN_RESET")
LIMITED = Fault.of("PROVIDER_RATE_LIMITED")
NOTHING: frozenset[str] = frozenset()


def decided(**facts: Any) -> Any:
    plain = {"condition_met": True, "needs": NOTHING, "offers": None, "circuit_open": False, "consent": "configured"}
    return decide_fallback(**{**plain, **facts})


def test_S1_16_a_step_is_tried_unless_something_speaks_against_it() -> None:
    assert decided() == Take()
    assert decided(consent="ask") == Ask()
    assert decided(condition_met=False) == Skip("its condition is not met")
    assert decided(circuit_open=True) == Skip("its circuit is open")
    assert decided(circuit_open=True, consent="ask") == Skip("its circuit is open")


def test_R73_what_is_needed_and_not_offered_is_named() -> None:
    needs = frozenset({"vision", "tools"})
    assert decided(needs=needs, offers=frozenset({"vision"})) == Skip("it lacks tools")
    assert decided(needs=needs, offers=NOTHING) == Skip("it lacks tools, vision")
    assert decided(needs=needs, offers=needs | {"more"}) == Take()
    assert decided(needs=needs, offers=None) == Take()


@pytest.mark.parametrize(
    ("when", "latest", "primary", "met"),
    [
        (None, RESET, RESET, True),
        ("CONN_RESET", RESET, LIMITED, True),
        ("CONN_RESET", LIMITED, RESET, True),
        ("CONN_RESET", LIMITED, LIMITED, False),
        ("rate_limit", LIMITED, RESET, True),
        (("rate_limit", "auth"), RESET, RESET, False),
        (("rate_limit", "CONN_RESET"), RESET, RESET, True),
        (lambda latest, primary: latest is RESET and primary is LIMITED, RESET, LIMITED, True),
        (lambda latest, primary: 0, RESET, LIMITED, False),
    ],
)
def test_R73_a_condition_is_met_by_the_latest_or_the_primary(
    when: Any, latest: Fault, primary: Fault, met: bool
) -> None:
    assert meets(when, latest, primary) is met


@pytest.mark.parametrize("when", ["NO_SUCH_CODE", "rate-limit", ("auth", "NOPE"), "", 5, ["auth"], {"auth"}])
def test_R71_a_condition_that_could_never_be_met_is_refused(when: Any) -> None:
    with pytest.raises(InvalidError, match="when"):
        check_when("fallback.when", when)


@pytest.mark.parametrize("when", [None, "auth", "CONN_RESET", ("auth", "CONN_RESET"), lambda *_: True])
def test_a_condition_that_can_be_met_is_taken(when: Any) -> None:
    check_when("fallback.when", when)


def test_the_words_a_type_checker_takes_for_a_category_are_the_categories() -> None:
    assert set(get_args(CategoryName)) == set(Category)


def test_R74_a_mistake_and_a_call_that_may_have_happened_are_not_answered_by_another_way() -> None:
    refused = {code for code in CODES if not can_fall_back(Fault.of(code))}
    assert refused == {"SYS_PROGRAMMING_ERROR", "TOOL_OUTCOME_UNKNOWN", "SYS_CANCELLED"}
