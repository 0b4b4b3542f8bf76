"""Document 002's class and code."""

from __future__ import annotations

import pytest

from holdfast.faults import CATALOG, Cause, Fault, ItemError, Partial
from holdfast.views import classed


def test_S2_7_class_code_message_context_and_cause():
    fault = Fault.of(
        "PROVIDER_RATE_LIMITED",
        "Slow down",
        context={"provider": "claude"},
        cause=Cause(type="anthropic.RateLimitError", message="429", chain=(Cause(type="httpx.HTTPStatusError"),)),
    )
    document = {
        "class": "ProviderTransient",
        "code": "RateLimited",
        "message": "Slow down",
        "context": {"provider": "claude"},
        "cause": {"type": "anthropic.RateLimitError", "message": "429", "chain": [{"type": "httpx.HTTPStatusError"}]},
    }
    assert classed.write(fault) == document
    assert classed.read(document) == fault


@pytest.mark.parametrize(
    "pair",
    [
        "Validation/ShapeInvalid",
        "Validation/ContractVersionMismatch",
        "Validation/ConfigSchemaViolation",
        "ProviderTransient/NetworkTimeout",
        "ProviderTransient/Provider5xx",
        "ProviderTransient/RateLimited",
        "ProviderCapability/MissingStreaming",
        "ProviderCapability/MissingToolCalling",
        "ProviderCapability/ContextWindowTooSmall",
        "ToolTransient/ExecutionTimeout",
        "ToolTransient/ResourceBusy",
        "ToolTerminal/InputInvalid",
        "ToolTerminal/OutputMalformed",
        "ToolTerminal/Forbidden",
        "ToolTerminal/NotFound",
        "Session/ManifestDrift",
        "Session/StoreUnavailable",
        "Session/ResumeMismatch",
        "Cancellation/SessionCancelled",
        "Cancellation/TurnCancelled",
        "Cancellation/ToolCancelled",
        "ExtensionHost/LifecycleFailure",
        "ExtensionHost/DependencyCycle",
        "ExtensionHost/DependencyMissing",
    ],
)
def test_S2_7_every_pair_the_document_names_is_known(pair):
    failure, code = pair.split("/")
    fault = classed.read({"class": failure, "code": code, "message": "m", "context": {}})
    assert fault.entry.classed == pair
    assert "said" not in fault.context


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        ("Validation", "CONFIG_INVALID"),
        ("ProviderCapability", "PROVIDER_CAPABILITY_MISSING"),
        ("ToolTerminal", "TOOL_EXECUTION_FAILED"),
        ("Cancellation", "SYS_CANCELLED"),
        ("ExtensionHost", "SYS_LIFECYCLE_FAILURE"),
        ("Strange", "SYS_UNKNOWN"),
    ],
)
def test_a_pair_never_seen_stands_by_its_class_and_keeps_its_name(failure, code):
    document = {"class": failure, "code": "NeverSeen", "message": "m", "context": {}}
    fault = classed.read(document)
    assert fault.code == code
    assert classed.write(fault) == document


@pytest.mark.parametrize("failure", ["ProviderTransient", "ToolTransient"])
def test_N2_20_a_transient_class_alone_promises_nothing(failure):
    fault = classed.read({"class": failure, "code": "NeverSeen", "message": "m", "context": {}})
    assert fault.code == "SYS_UNKNOWN", "retried once at most, where that is harmless"
    unauthorized = classed.read({"class": "ProviderTransient", "code": "Unauthorized", "message": "m", "context": {}})
    assert (unauthorized.code, unauthorized.retryable) == ("AUTH_FAILED", False)


def test_N2_1_the_shape_made_for_a_model_is_read_too():
    document = {"class": "ToolTerminal", "code": "InputInvalid", "context": {"reason": "no such flag"}}
    fault = classed.read(document)
    assert fault.message == "Tool arguments are not valid: no such flag"
    assert classed.write(fault) == document


def test_S2_20_three_of_five_urls():
    errors = tuple(
        ItemError.of(url, Fault.of(code, "m"))
        for url, code in (("https://d.test", "PROVIDER_TIMEOUT"), ("https://e.test", "TOOL_FORBIDDEN"))
    )
    partial = Partial(payload=["<a>", "<b>", "<c>"], errors=errors)
    document = classed.write(Fault.of("TOOL_EXECUTION_FAILED", "2 of 5 failed", partial=partial))
    assert len(document["payload"]) == 3
    assert len(document["errors"]) == 2
    assert document["errors"][1] == {
        "class": "ToolTerminal",
        "code": "Forbidden",
        "message": "m",
        "context": {"item": "https://e.test"},
    }
    assert classed.read(document).partial == partial


def test_S2_20_an_item_error_without_a_class_gets_its_codes():
    partial = Partial(
        errors=(ItemError(item=1, code="TOOL_FORBIDDEN", message="m"), ItemError(item=2, code="?", message="m"))
    )
    document = classed.write(Fault.of("TOOL_EXECUTION_FAILED", partial=partial))
    assert [error["code"] for error in document["errors"]] == ["Forbidden", "Unknown"]
    assert document["payload"] is None


@pytest.mark.parametrize(
    ("cause", "heard"),
    [
        ("boom", Cause(type="Error", message="boom")),
        ({"name": "TypeError", "message": "boom", "stack": "at x"}, Cause(type="TypeError", message="boom")),
        ({"name": "TypeError", "message": 5}, Cause(type="TypeError")),
        (
            {"class": "Session", "code": "NoSnapshot", "message": "a", "cause": {"name": "Error", "cause": "b"}},
            Cause(
                type="Session/NoSnapshot", message="a", chain=(Cause(type="Error"), Cause(type="Error", message="b"))
            ),
        ),
        ({"type": "E", "chain": [5, {"type": "F"}]}, Cause(type="E", chain=(Cause(type="F"),))),
        (5, None),
        ({}, None),
    ],
)
def test_N2_1_a_cause_of_any_form_is_kept(cause, heard):
    document = {"class": "Session", "code": "ManifestDrift", "message": "m", "context": {}, "cause": cause}
    fault = classed.read(document)
    assert fault.cause == heard
    assert classed.write(fault) == document


def test_every_code_of_the_catalog_has_a_class_and_a_code():
    for code in CATALOG:
        document = classed.write(Fault.of(code))
        assert document["class"]
        assert document["code"]
