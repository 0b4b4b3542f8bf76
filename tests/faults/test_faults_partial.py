"""Partial results: what there is, and typed errors beside it."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.faults import Fault, ItemError, Partial


def test_S2_20_three_of_five_urls_give_payload_three_and_errors_two():
    fetched = {f"https://{name}.test": f"<{name}>" for name in "abc"}
    failed = {
        "https://d.test": Fault.of("PROVIDER_TIMEOUT"),
        "https://e.test": Fault.of("TOOL_FORBIDDEN", "403 from e.test"),
    }
    partial = Partial(
        payload=list(fetched.values()),
        errors=tuple(ItemError.of(url, fault) for url, fault in failed.items()),
        complete=3,
        expected=5,
    )
    fault = Fault.of("TOOL_EXECUTION_FAILED", partial=partial)
    assert len(fault.partial.payload) == 3
    assert len(fault.partial.errors) == 2
    assert fault.partial.errors == (
        ItemError(
            item="https://d.test",
            code="PROVIDER_TIMEOUT",
            message="The provider did not answer in time",
            classed="ProviderTransient/NetworkTimeout",
            retryable=True,
        ),
        ItemError(
            item="https://e.test",
            code="TOOL_FORBIDDEN",
            message="403 from e.test",
            classed="ToolTerminal/Forbidden",
            retryable=False,
        ),
    )


def test_S2_20_an_item_keeps_the_verdict_for_this_failure_not_for_its_code():
    assert ItemError.of(3, Fault.of("PROVIDER_OVERLOADED", retryable=False)).retryable is False


@pytest.mark.parametrize("payload", [None, "", [], {}, ()])
def test_a_partial_without_payload_and_errors_is_empty(payload):
    assert Partial(payload=payload).is_empty


@pytest.mark.parametrize("payload", ["half", [None], {"a": None}, 0, False, 0.0])
def test_a_partial_with_any_payload_is_not_empty(payload):
    assert not Partial(payload=payload).is_empty


def test_a_partial_that_knows_what_is_missing_is_not_empty():
    assert not Partial(errors=(ItemError.of(1, Fault.of("TOOL_TIMEOUT")),)).is_empty


def test_S3_8_truncation_is_told():
    assert msgspec.to_builtins(Partial(payload="…end", truncated=True)) == {"payload": "…end", "truncated": True}


def test_a_partial_is_a_frozen_value_with_a_json_form():
    partial = Partial(
        payload={"stdout": "one\n"}, errors=(ItemError.of(2, Fault.of("TOOL_TIMEOUT")),), complete=1, expected=2
    )
    assert msgspec.json.decode(msgspec.json.encode(partial), type=Partial) == partial
    with pytest.raises(AttributeError):
        partial.payload = "whole"
