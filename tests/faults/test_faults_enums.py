"""The closed vocabularies: each word is the text that travels."""

from __future__ import annotations

import json

import pytest

from holdfast.faults import CATALOG, Category, Kind, Layer, NextActor, Schedule, Scope, Severity

VOCABULARIES = {
    Layer: "transport protocol application recovery",
    Kind: "transient recoverable fatal permanent cancelled",
    Severity: "info warning error critical fatal",
    NextActor: "machine model user operator developer",
    Scope: "request model credential provider tool agent session connection process",
    Schedule: "none once matching transient rate_limit store connect reconnect tool_server tool",
    Category: (
        "rate_limit timeout network unavailable auth invalid not_found overflow tool_error agent_crash validation unknown"
        " cancelled"
    ),
}


@pytest.mark.parametrize("vocabulary", VOCABULARIES, ids=lambda v: v.__name__)
def test_S0_1_S0_4_S1_6_S4_1_the_words_in_their_order(vocabulary):
    assert list(vocabulary) == VOCABULARIES[vocabulary].split()


@pytest.mark.parametrize("vocabulary", VOCABULARIES, ids=lambda v: v.__name__)
def test_a_word_is_its_own_text(vocabulary):
    for word in vocabulary:
        assert word == word.value == str(word) == f"{word}"
        assert json.dumps(word) == f'"{word.value}"'
        assert word.name == word.value.upper()


@pytest.mark.parametrize(
    ("vocabulary", "trait"),
    [
        (Layer, "layer"),
        (Kind, "kind"),
        (Severity, "severity"),
        (NextActor, "next_actor"),
        (Scope, "scope"),
        (Schedule, "schedule"),
        (Category, "category"),
    ],
)
def test_every_word_is_used_by_some_code(vocabulary, trait):
    assert {getattr(entry, trait) for entry in CATALOG.values()} == set(vocabulary)
