"""Which extensions start and in which order, decided from what they declare (N2-14)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.extensions.order import CONTRACT, Described, start_order
from holdfast.faults import Fault
from holdfast.views import classed


def ext(name, *requires, contract=CONTRACT):
    return Described(id=name, contract=contract, requires=requires)


def started(planned):
    return [one.id for one in planned.order]


def reasons(planned):
    return {one.id: one.fault.code for one in planned.skipped}


def test_requirements_start_first_and_the_rest_by_id():
    planned = start_order([ext("d", "b"), ext("c"), ext("b", "a"), ext("a")])
    assert started(planned) == ["a", "b", "c", "d"]
    assert planned.skipped == ()


def test_the_order_does_not_depend_on_where_they_were_found():
    found = [ext("x", "z"), ext("y"), ext("z"), ext("w", "x", "y")]
    assert start_order(found) == start_order(found[::-1])


def test_N2_14_a_missing_dependency_leaves_out_those_that_need_it_with_the_reason_and_nobody_else():
    planned = start_order([ext("alone"), ext("audit", "vault"), ext("report", "audit")])
    assert started(planned) == ["alone"]
    assert [one.document for one in planned.skipped] == [
        {"extId": "audit", "reason": "audit needs vault, which is not installed", "code": "SYS_DEPENDENCY_MISSING"},
        {
            "extId": "report",
            "reason": "report needs audit, which was left out: audit needs vault, which is not installed",
            "code": "SYS_DEPENDENCY_MISSING",
        },
    ]


def test_a_circle_is_found_before_anything_starts_and_is_shown_whole():
    planned = start_order([ext("a", "b"), ext("b", "c"), ext("c", "a"), ext("into", "a"), ext("free")])
    assert started(planned) == ["free"]
    circle = "Extensions depend on each other in a circle: a -> b -> c -> a"
    assert {one.id: one.fault.message for one in planned.skipped if one.id in "abc"} == dict.fromkeys("abc", circle)
    assert reasons(planned)["into"] == "SYS_DEPENDENCY_MISSING"


def test_an_extension_that_needs_itself_is_a_circle():
    assert reasons(start_order([ext("a", "a")])) == {"a": "SYS_DEPENDENCY_CYCLE"}


def test_another_contract_version_is_skipped_and_both_versions_are_named():
    planned = start_order([ext("old", contract=CONTRACT - 1), ext("new")])
    assert started(planned) == ["new"]
    (skipped,) = planned.skipped
    assert skipped.fault.message == f"old speaks contract version {CONTRACT - 1}, this Holdfast speaks {CONTRACT}"
    assert skipped.fault.code == "CONFIG_CONTRACT_MISMATCH"


def test_the_second_of_one_id_is_left_out_and_the_first_runs_with_those_that_need_it():
    planned = start_order([ext("a"), ext("a", "nothing"), ext("b", "a")])
    assert started(planned) == ["a", "b"]
    (skipped,) = planned.skipped
    assert skipped.fault.code == "CONFIG_OPTION_INVALID"
    assert "'a' again" in skipped.fault.message


def test_an_extension_that_could_not_be_loaded_takes_those_that_need_it_with_it():
    broken = Fault.of("SYS_LIFECYCLE_FAILURE", context={"name": "a", "phase": "load", "reason": "boom"})
    planned = start_order([ext("b", "a"), ext("c")], absent={"a": broken})
    assert started(planned) == ["c"]
    assert reasons(planned) == {"a": "SYS_LIFECYCLE_FAILURE", "b": "SYS_DEPENDENCY_MISSING"}


def test_S2_7_the_faults_have_document_002s_names():
    planned = start_order([ext("a", "a"), ext("b", "nobody"), ext("c", contract=99)])
    shown = {(one["class"], one["code"]) for one in (classed.write(skipped.fault) for skipped in planned.skipped)}
    assert shown == {
        ("ExtensionHost", "DependencyCycle"),
        ("ExtensionHost", "DependencyMissing"),
        ("Validation", "ContractVersionMismatch"),
    }


NAMES = "abcdef"
FOUND = st.lists(
    st.builds(
        lambda name, requires, contract: ext(name, *requires, contract=contract),
        st.sampled_from(NAMES),
        st.lists(st.sampled_from(NAMES), max_size=3),
        st.sampled_from([CONTRACT, CONTRACT, CONTRACT, 7]),
    ),
    max_size=8,
)


@given(FOUND)
def test_every_order_is_complete_and_starts_nothing_before_its_requirements(found):
    planned = start_order(found)
    assert len(planned.order) + len(planned.skipped) == len(found)
    running = set()
    for described in planned.order:
        assert set(described.requires) <= running
        assert described.contract == CONTRACT
        running.add(described.id)
    assert len(running) == len(planned.order)
