"""A failure as a value."""

from __future__ import annotations

import copy
import pickle
import re
import string
from pathlib import Path

import msgspec
import pytest
from faults_strategies import faults, texts
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.faults import CATALOG, CODES, Attempt, Cause, Fault, ItemError, NextActor, Partial, Scope
from holdfast.faults.catalog import MAY_HAVE_HAPPENED
from holdfast.faults.surfaces import fill


@pytest.mark.parametrize("code", CODES)
def test_of_takes_its_verdict_from_the_catalog(code):
    fault, entry = Fault.of(code), CATALOG[code]
    assert (fault.code, fault.retryable, fault.scope) == (code, entry.retryable, entry.scope)
    assert fault.entry is entry
    for trait in ("layer", "kind", "severity", "next_actor", "schedule", "category"):
        assert getattr(fault, trait) is getattr(entry, trait)
    assert (fault.retry_after, fault.rule, fault.context) == (None, "", {})
    assert fault.maybe_executed is (code in MAY_HAVE_HAPPENED)
    assert (fault.partial, fault.cause, fault.attempts) == (None, None, ())


def test_FM6_S2_1_after_an_operation_gave_up_the_operator_acts_instead_of_the_machine():
    made = (Attempt(number=1, code="PROVIDER_OVERLOADED", then="attempts"),)
    passing = Fault.of("PROVIDER_OVERLOADED")
    assert passing.next_actor is NextActor.MACHINE
    assert passing.with_attempts(made).next_actor is NextActor.MACHINE
    final = Fault.of("PROVIDER_OVERLOADED", retryable=False).with_attempts(made)
    assert final.next_actor is NextActor.OPERATOR
    assert final.for_audit()["next_actor"] == "operator"
    assert "You cannot fix this" in final.for_model()["context"]["advice"]
    # Whoever acts on a failure that no machine retries acts on it after the attempts, too.
    assert Fault.of("AUTH_FAILED").with_attempts(made).next_actor is CATALOG["AUTH_FAILED"].next_actor


@pytest.mark.parametrize(
    ("value", "name", "instead"),
    [
        (Attempt(number=1), "fault", "`code`"),
        (Attempt(number=1), "error", "`cause`"),
        (Fault.of("AUTH_FAILED"), "status", 'context.get("status")'),
        (Fault.of("AUTH_FAILED"), "request_id", 'context.get("request_id")'),
    ],
)
def test_a_field_by_another_name_says_the_right_one(value, name, instead):
    with pytest.raises(AttributeError, match=re.escape(instead)) as caught:
        getattr(value, name)
    assert (caught.value.name, caught.value.obj) == (name, value)


def test_a_field_that_does_not_exist_is_an_ordinary_attribute_error():
    fault = Fault.of("AUTH_FAILED")
    assert not hasattr(fault, "nothing")
    assert getattr(Attempt(number=1), "nothing", 5) == 5
    with pytest.raises(AttributeError, match=r"^'Fault' object has no attribute 'nothing'$"):
        fault.nothing  # noqa: B018 - reading it is what raises


@pytest.mark.parametrize("kind", [Fault, Attempt, Partial, ItemError, Cause])
def test_the_reference_names_every_field(kind):
    page = (Path(__file__).parents[2] / "docs" / "reference" / "faults.md").read_text(encoding="utf-8")
    assert [name for name in kind.__struct_fields__ if f"`{name}`" not in page] == []
    traits = [name for name, member in vars(kind).items() if isinstance(member, property) and name != "is_empty"]
    assert [name for name in traits if f"`{name}`" not in page] == []


def test_of_is_overridden_by_what_this_failure_is():
    partial, cause = Partial(payload="half"), Cause(type="OSError")
    fault = Fault.of(
        "PROVIDER_OVERLOADED",
        "529",
        retryable=False,
        scope=Scope.MODEL,
        retry_after=0.0,
        maybe_executed=True,
        rule="mine",
        partial=partial,
        cause=cause,
        context={"status": 529},
    )
    assert (fault.message, fault.retryable, fault.scope, fault.retry_after) == ("529", False, Scope.MODEL, 0.0)
    assert (fault.maybe_executed, fault.rule, fault.context) == (True, "mine", {"status": 529})
    assert (fault.partial, fault.cause) == (partial, cause)


def test_of_an_empty_message_stays_empty():
    assert Fault.of("PROVIDER_OVERLOADED", "").message == ""


def test_of_a_code_that_does_not_exist_is_a_mistake():
    with pytest.raises(ValueError, match=r"there is no code 'PROVIDER_OVERLOAD'; did you mean PROVIDER_OVERLOADED, "):
        Fault.of("PROVIDER_OVERLOAD")


def test_of_keeps_its_own_copy_of_the_facts():
    facts = {"session_id": "s-1"}
    fault = Fault.of("SESS_NOT_FOUND", context=facts)
    facts["session_id"] = "s-2"
    assert fault.context == {"session_id": "s-1"}
    assert Fault.of("SESS_NOT_FOUND").context is not Fault.of("SESS_NOT_FOUND").context


@pytest.mark.parametrize("code", CODES)
def test_the_wording_is_filled_with_every_fact_it_names(code):
    named = [field for _, field, _, _ in string.Formatter().parse(CATALOG[code].message) if field]
    message = Fault.of(code, context={name: f"<{name}>" for name in named}).message
    assert all(f"<{name}>" in message for name in named)
    assert "{" not in message


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"session_id": "s-1"}, "Session 's-1' not found"),
        ({}, "Session not found"),
        ({"session_id": None}, "Session not found"),
        ({"session_id": 7}, "Session '7' not found"),
        ({"session_id": "{reason}", "reason": "no"}, "Session '{reason}' not found"),
        ({"session_id": ["a", 1]}, "Session '['a', 1]' not found"),
        ({"session_id": {"token": "abcdef123"}}, "Session '{'token': '[redacted]'}' not found"),
    ],
)
def test_a_fact_is_told_as_it_is_and_a_missing_one_not_at_all(facts, message):
    assert Fault.of("SESS_NOT_FOUND", context=facts).message == message


def test_a_fact_that_is_a_whole_log_does_not_fill_the_message():
    message = Fault.of("TOOL_EXECUTION_FAILED", context={"reason": "x" * 100_000}).message
    assert len(message) < 600
    assert "bytes truncated" in message


def test_a_fact_whose_text_cannot_be_made_does_no_harm():
    class Broken:
        def __str__(self):
            raise RuntimeError("no text")

        __repr__ = __str__

    assert "Broken" in Fault.of("TOOL_EXECUTION_FAILED", context={"reason": Broken()}).message


@given(st.text().filter(lambda text: "[" not in text))
@settings(max_examples=100, deadline=None)
def test_wording_without_clauses_is_left_alone(template):
    assert fill(template, {"a": 1}) == template


@given(faults, st.lists(texts, min_size=1, max_size=8))
@settings(max_examples=100, deadline=None)
def test_S2_9_wrapping_keeps_class_and_code_and_adds_to_the_message(fault, messages):
    wrapped = fault
    for message in messages:
        wrapped = wrapped.wrapped(message)
    assert wrapped.message == ": ".join([*reversed(messages), fault.message])
    assert wrapped.entry.classed == fault.entry.classed
    assert msgspec.structs.replace(wrapped, message=fault.message) == fault, "nothing else changed, the cause least"


def test_S2_9_wrapping_may_add_facts_and_the_inner_fault_does_not_see_them():
    inner = Fault.of("PROVIDER_TIMEOUT", context={"provider": "claude", "step": 1})
    outer = inner.wrapped("planning", step=2, stage="plan")
    assert outer.context == {"provider": "claude", "step": 2, "stage": "plan"}
    assert inner.context == {"provider": "claude", "step": 1}


def test_R26_with_attempts_carries_every_call():
    history = (
        Attempt(number=1, code="PROVIDER_OVERLOADED", took=2.1, cause=Cause(type="anthropic.APIStatusError")),
        Attempt(number=2, code="PROVIDER_TIMEOUT", took=30.0, waited=4.0),
    )
    fault = Fault.of("PROVIDER_TIMEOUT")
    assert fault.with_attempts(history).attempts == history
    assert fault.attempts == ()


@pytest.mark.parametrize("field", Fault.__struct_fields__)
def test_a_fault_cannot_be_changed(field):
    fault = Fault.of("SYS_UNKNOWN")
    with pytest.raises(AttributeError):
        setattr(fault, field, getattr(fault, field))


def test_values_are_equal_by_what_they_hold():
    assert Fault.of("SYS_UNKNOWN", context={"a": 1}) == Fault.of("SYS_UNKNOWN", context={"a": 1})
    assert Fault.of("SYS_UNKNOWN", context={"a": 1}) != Fault.of("SYS_UNKNOWN", context={"a": 2})
    assert len({Attempt(number=1), Attempt(number=1), Attempt(number=2)}) == 2
    assert len({Cause(type="A", chain=(Cause(type="B"),)), Cause(type="A", chain=(Cause(type="B"),))}) == 1


def test_a_fault_is_no_key_of_a_dict_because_its_facts_are_none():
    with pytest.raises(TypeError, match="unhashable"):
        hash(Fault.of("SYS_UNKNOWN"))


@given(faults)
@settings(max_examples=150, deadline=None)
def test_json_round_trip(fault):
    assert msgspec.json.decode(msgspec.json.encode(fault), type=Fault) == fault


@given(faults)
@settings(max_examples=50, deadline=None)
def test_pickle_and_copy_round_trip(fault):
    assert pickle.loads(pickle.dumps(fault)) == fault
    assert copy.deepcopy(fault) == fault


def test_json_holds_only_what_is_known():
    assert msgspec.to_builtins(Fault.of("AUTH_FAILED")) == {
        "code": "AUTH_FAILED",
        "message": "Authentication failed",
        "retryable": False,
        "scope": "credential",
    }


def test_json_of_a_newer_version_is_read_with_its_code_and_what_is_none_is_not():
    raw = b'{"code":"AUTH_FAILED","message":"m","retryable":false,"scope":"credential","mood":"blue"}'
    assert msgspec.json.decode(raw, type=Fault) == Fault.of("AUTH_FAILED", "m")
    newer = msgspec.json.decode(raw.replace(b"AUTH_FAILED", b"AUTH_FROM_THE_FUTURE"), type=Fault)
    assert (newer.code, newer.entry.code) == ("AUTH_FROM_THE_FUTURE", "AUTH_FAILED")
    with pytest.raises(msgspec.ValidationError, match=r"\$\.code"):
        msgspec.json.decode(raw.replace(b"AUTH_FAILED", b"no code"), type=Fault)
