"""What a request needs against what a model offers (S2-1, N2-18)."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.faults import InvalidError
from holdfast.policies.models.capabilities import CAPABILITIES, Needs, Offers, able, lacking, negotiate
from holdfast.views import classed

FIELDS = {name: getattr(Offers(), field) for name, field in zip(Offers.__struct_encode_fields__, Offers.__struct_fields__, strict=True)}  # fmt: skip
BARE = Offers(
    streaming=False,
    tool_calling=False,
    structured_output=False,
    multimodal=False,
    reasoning=False,
    prompt_caching=False,
    context_window=1000,
)


def needing(**levels):
    return Needs(levels=levels, window=2000 if "contextWindow" in levels else 0)


def test_N2_18_the_names_are_the_documents():
    assert set(CAPABILITIES) == set(FIELDS)


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("level", ["hard", "preferred", "probed"])
def test_N2_18_missing_capabilities_are_listed_by_how_much_they_are_needed(capability, level):
    found = negotiate(needing(**{capability: level}), BARE)
    assert getattr(found, level) == (capability,)
    assert found.agreed is (level != "hard")


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_N2_18_an_absent_capability_is_not_needed(capability):
    levels = {capability: "absent"}
    assert negotiate(Needs(levels=levels), BARE) == negotiate(Needs(), BARE)
    assert negotiate(Needs(), BARE).agreed


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_an_unknown_capability_is_left_to_the_model(capability):
    assert negotiate(needing(**{capability: "hard"}), Offers()).agreed


@pytest.mark.parametrize(("window", "agreed"), [(999, True), (1000, True), (1001, False)])
def test_a_window_is_needed_hard_and_may_be_just_large_enough(window, agreed):
    assert negotiate(Needs(window=window), BARE).agreed is agreed


def test_a_window_may_be_only_preferred():
    needs = Needs(window=2000, levels={"contextWindow": "preferred"})
    assert negotiate(needs, BARE).preferred == ("contextWindow",)


@pytest.mark.parametrize(
    ("capability", "name"),
    [
        ("streaming", "MissingStreaming"),
        ("toolCalling", "MissingToolCalling"),
        ("contextWindow", "ContextWindowTooSmall"),
        ("structuredOutput", "MissingCapability"),
        ("multimodal", "MissingCapability"),
        ("reasoning", "MissingCapability"),
        ("promptCaching", "MissingCapability"),
    ],
)
def test_S2_7_each_lack_has_document_002s_name_and_is_never_retried(capability, name):
    needs = needing(**{capability: "hard"})
    fault = lacking("tiny", negotiate(needs, BARE).hard, needs, BARE)
    shown = classed.write(fault)
    assert (shown["class"], shown["code"]) == ("ProviderCapability", name)
    assert not fault.retryable


def test_S2_1_the_fault_names_what_is_missing_and_the_models_that_have_it():
    needs = Needs(levels={"toolCalling": "hard"}, window=2000)
    models = {"tiny": BARE, "large": Offers(tool_calling=True, context_window=4000), "unknown": Offers()}
    fault = lacking("tiny", negotiate(needs, BARE).hard, needs, BARE, instead=able(needs, models))
    assert fault.message == (
        "tiny lacks toolCalling, contextWindow (needs 2000 tokens, has 1000); use large or unknown instead"
    )
    assert fault.context["instead"] == ["large", "unknown"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"levels": {"toolcalling": "hard"}},
        {"levels": {"toolCalling": "must"}},
        {"levels": {"contextWindow": "hard"}},
        {"window": -1},
    ],
)
def test_wrong_needs_are_invalid(wrong):
    with pytest.raises(InvalidError):
        Needs(**wrong)


LEVELS = st.dictionaries(
    st.sampled_from([name for name in CAPABILITIES if name != "contextWindow"]),
    st.sampled_from(["hard", "preferred", "probed", "absent"]),
)
KNOWN = st.builds(
    Offers, **dict.fromkeys((f for f in Offers.__struct_fields__ if f != "context_window"), st.sampled_from([True, False, None])),
    context_window=st.none() | st.integers(1, 10),
)  # fmt: skip


@given(LEVELS, st.integers(0, 10), KNOWN)
def test_a_model_that_offers_more_never_lacks_more(levels, window, offers):
    needs = Needs(levels=levels, window=window)
    better = msgspec.structs.replace(
        offers, **{name: True for name in Offers.__struct_fields__ if name != "context_window"}, context_window=None
    )
    assert negotiate(needs, better).agreed
    if negotiate(needs, offers).agreed:
        assert negotiate(Needs(levels=levels, window=max(0, window - 1)), offers).agreed
