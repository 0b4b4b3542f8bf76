from __future__ import annotations

import pytest

from holdfast import Fault, InvalidError
from holdfast.faults import CATALOG
from holdfast.policies.repair import USUAL, Changed, Repair, Repairs

OVERFLOW = Fault.of("PROVIDER_CONTEXT_OVERFLOW")


class Incomparable:
    def __eq__(self, other):
        raise ValueError("no truth here")

    __hash__ = None


def repairs(*words: str, times: int = 1) -> Repairs:
    return Repairs([Repair.of(words, "mend", times)])


def test_every_usual_code_is_in_the_catalog():
    assert {code for codes in USUAL.values() for code in codes} <= set(CATALOG)


def test_a_kind_stands_for_its_usual_codes_and_codes_stand_for_themselves():
    assert Repair.of(("compact", "PROVIDER_BILLING"), "mend", 1).codes == (*USUAL["compact"], "PROVIDER_BILLING")


def test_each_repair_is_used_at_most_its_number_of_times():
    known = repairs("compact", times=2)
    assert [known.choose(OVERFLOW) for _ in range(3)] == [0, 0, None]


def test_a_failure_nobody_mends_has_no_repair():
    assert repairs("compact").choose(Fault.of("PROVIDER_OVERLOADED")) is None


def test_the_first_that_was_added_comes_first_and_the_next_after_it():
    known = Repairs([Repair.of(("compact",), "one", 1), Repair.of(("compact",), "two", 1)])
    assert [known.choose(OVERFLOW) for _ in range(3)] == [0, 1, None]


def test_a_request_that_was_sent_is_known_again():
    known = repairs("compact")
    known.sent(("long",), {"model": "a"})
    assert known.repeats(Changed("long", model="a"))
    assert not known.repeats(Changed("short", model="a"))
    assert not known.repeats(Changed("long", model="b"))


def test_what_cannot_be_compared_counts_as_changed():
    known = repairs("compact")
    known.sent((Incomparable(),), {})
    assert not known.repeats(Changed(Incomparable()))


def test_only_a_refreshed_credential_leaves_the_request_as_it_was():
    assert Repair.of(("refresh",), "mend", 1).same_request
    assert not Repair.of(("refresh", "compact"), "mend", 1).same_request


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Repair.of(("PROVIDER_CONTXT_OVERFLOW",), "mend", 1), "PROVIDER_CONTEXT_OVERFLOW"),
        (lambda: Repair.of((), "mend", 1), "at least one code"),
        (lambda: Repair.of(("compact",), "mend", 0), "a whole number ≥ 1"),
        (lambda: Repair.of(("compact",), "mend", True), "a whole number ≥ 1"),
    ],
)
def test_bad_input_is_refused_with_what_was_expected(make, says):
    with pytest.raises(InvalidError) as refused:
        make()
    assert says in str(refused.value)
