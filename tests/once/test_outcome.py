"""How a call ended, and what the log says to do about it."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from once_kit import ended, identity, started

from holdfast.faults import Fault
from holdfast.once.outcome import (
    Drifted,
    Found,
    InDoubt,
    Mark,
    Repeat,
    Return,
    RunStep,
    StepDecision,
    decide_step,
    must_not_repeat,
    needs_start,
)
from holdfast.once.records import StepEntry, is_bound, is_doubtful, may_have_happened
from holdfast.policies.decide import Effect

STEP = identity()
RESULT = msgspec.Raw(b'"receipt"')
EFFECTS: tuple[Effect | None, ...] = (None, *get_args(Effect))
SAFE = [effect for effect in EFFECTS if effect != "unsafe"]
BEGUN = started(STEP)
DONE, FAILED, DOUBTFUL = ended(STEP, result=RESULT), ended(STEP, ok=False), ended(STEP, ok=False, unknown=True)
KNOWN = st.sampled_from([None, BEGUN, DONE, FAILED, DOUBTFUL])


@pytest.mark.parametrize(
    ("known", "decision"),
    [
        (None, RunStep()),
        (BEGUN, InDoubt()),
        (DONE, Return(RESULT)),
        (FAILED, Repeat(unknown=False)),
        (DOUBTFUL, InDoubt()),
    ],
)
def test_an_unsafe_step_that_may_have_happened_is_not_repeated(known: StepEntry | None, decision: StepDecision) -> None:
    assert decide_step(known, "unsafe") == decision


@pytest.mark.parametrize("effect", SAFE)
@pytest.mark.parametrize(
    ("known", "decision"),
    [
        (None, RunStep()),
        (BEGUN, Repeat(unknown=True)),
        (DONE, Return(RESULT)),
        (FAILED, Repeat(unknown=False)),
        (DOUBTFUL, Repeat(unknown=True)),
    ],
)
def test_any_other_step_runs_until_it_has_a_result(
    known: StepEntry | None, decision: StepDecision, effect: Effect | None
) -> None:
    assert decide_step(known, effect) == decision


OTHERS = st.lists(KNOWN.filter(bool), max_size=3).map(tuple)


@given(OTHERS)
def test_a_new_unsafe_call_drifts_from_the_first_that_may_have_happened_and_was_not_called(others: Any) -> None:
    bound = [other for other in others if other is not FAILED]
    assert decide_step(None, "unsafe", others) == (Drifted(bound[0]) if bound else RunStep())


@given(KNOWN, st.sampled_from(EFFECTS), OTHERS)
def test_no_other_call_drifts(known: StepEntry | None, effect: Effect | None, others: Any) -> None:
    if known is not None or effect != "unsafe":
        assert decide_step(known, effect, others) == decide_step(known, effect)


@pytest.mark.parametrize(
    ("entry", "doubtful", "may_have", "bound"),
    [
        (BEGUN, True, True, True),
        (DONE, False, True, True),
        (FAILED, False, False, False),
        (DOUBTFUL, True, True, True),
        (started(STEP, effect="keyed"), False, True, False),
        (ended(STEP, effect="read"), False, True, False),
    ],
)
def test_what_the_log_says_about_a_step(entry: StepEntry, *, doubtful: bool, may_have: bool, bound: bool) -> None:
    assert (is_doubtful(entry), may_have_happened(entry), is_bound(entry)) == (doubtful, may_have, bound)


@pytest.mark.parametrize("effect", EFFECTS)
def test_only_an_unsafe_step_is_recorded_before_it_runs(effect: Effect | None) -> None:
    assert needs_start(effect) is (effect == "unsafe")


@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("maybe", [True, False])
def test_a_failed_call_must_not_be_repeated_if_it_is_unsafe_and_may_have_happened(
    effect: Effect | None, *, maybe: bool
) -> None:
    fault = Fault.of("TOOL_TIMEOUT", maybe_executed=maybe)
    assert must_not_repeat(effect, fault) is (effect == "unsafe" and maybe)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["holdfast.call", "value"]), inner, max_size=2)
    ),
    max_leaves=5,
)


@given(JSON)
def test_what_a_function_returned_is_told_from_what_somebody_found_out(document: Any) -> None:
    mark = Mark("holdfast.call")
    assert mark.on(document) == {"holdfast.call": document}
    assert mark.read(mark.on(document)) == document
    assert Mark("holdfast.stage").read(mark.on(document)) == Found(mark.on(document))
    assert mark.read([document]) == Found([document])
    assert mark.read({"value": document}) == Found({"value": document})
    assert mark.read({"holdfast.call": document, "value": 1}) == Found({"holdfast.call": document, "value": 1})
