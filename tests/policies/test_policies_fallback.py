"""Whether a fallback step is tried."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import CODES, Fault, InvalidError
from holdfast.policies.decide import Ask, Skip, Take, can_fall_back, decide_fallback
from holdfast.policies.fallback import checked_when, meets

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


@pytest.mark.parametrize("when", ["NO_SUCH_CODE", "rate-limit", ("auth", "NOPE"), ["auth", 5], "", 5, (), []])
def test_R71_a_condition_that_could_never_be_met_is_refused(when: Any) -> None:
    with pytest.raises(InvalidError, match=r"when.*a code, a category, several of them in a list, or a function"):
        checked_when("fallback.when", when)


@pytest.mark.parametrize("when", [None, "auth", "CONN_RESET", ("auth", "CONN_RESET"), lambda *_: True])
def test_a_condition_that_can_be_met_is_kept(when: Any) -> None:
    assert checked_when("fallback.when", when) is when


@pytest.mark.parametrize("several", [list, set, frozenset, tuple])
def test_several_codes_may_be_any_collection_and_later_changes_do_not_count(several: Any) -> None:
    words = several(("network", "PROVIDER_RATE_LIMITED"))
    kept = checked_when("fallback.when", words)
    if several in (list, set):
        words.clear()
    assert meets(kept, RESET, RESET)
    assert meets(kept, LIMITED, LIMITED)
    assert not meets(kept, Fault.of("AUTH_FAILED"), Fault.of("AUTH_FAILED"))


def test_R74_a_mistake_and_a_call_that_may_have_happened_are_not_answered_by_another_way() -> None:
    refused = {code for code in CODES if not can_fall_back(Fault.of(code))}
    of_a_step_done_elsewhere = {"SESS_STEP_DRIFT", "SESS_MANIFEST_DRIFT", "SESS_LEASE_LOST"}
    assert refused == {"SYS_PROGRAMMING_ERROR", "TOOL_OUTCOME_UNKNOWN", "SYS_CANCELLED", *of_a_step_done_elsewhere}
