"""Resume tokens: bound, rotated, and never the reason that a client cannot come back."""

from __future__ import annotations

import pytest

from holdfast.bridge.access.resume_tokens import ResumeTokens

ADA = ("ada", "phone", "release-42")


@pytest.fixture
def tokens() -> ResumeTokens:
    return ResumeTokens(300)


def test_a_token_is_ok_while_the_client_is_here_and_for_the_lifetime_after(tokens):
    token = tokens.issue(*ADA)
    assert tokens.check(token, *ADA, now=86_400.0) == "ok"
    tokens.depart(*ADA, now=86_400.0)
    assert tokens.check(token, *ADA, now=86_699.9) == "ok"
    assert tokens.check(token, *ADA, now=86_700.0) == "expired"


@pytest.mark.parametrize("other", [("bob", *ADA[1:]), ("ada", "tablet", "release-42"), ("ada", "phone", "other")])
def test_B50_a_stolen_token_is_unknown_to_another_holder_client_or_session(tokens, other):
    token = tokens.issue(*ADA)
    tokens.issue(*other)
    assert tokens.check(token, *other, now=0.0) == "unknown"
    assert tokens.check("", *ADA, now=0.0) == "unknown"
    assert tokens.check("never issued", *ADA, now=0.0) == "unknown"


def test_the_token_before_holds_until_the_client_has_the_new_one(tokens):
    first = tokens.issue(*ADA)
    assert tokens.check(first, *ADA, now=0.0) == "ok"
    tokens.issue(*ADA)  # the answer with this one was lost
    assert tokens.check(first, *ADA, now=1.0) == "ok"
    lost = tokens.issue(*ADA)  # and this one
    assert tokens.check(first, *ADA, now=2.0) == "ok"
    third = tokens.issue(*ADA)
    tokens.confirm(*ADA)
    assert tokens.check(first, *ADA, now=3.0) == "unknown"
    assert tokens.check(lost, *ADA, now=3.0) == "unknown"
    assert tokens.check(third, *ADA, now=3.0) == "ok"


def test_a_client_that_came_back_in_time_is_not_expired_later(tokens):
    tokens.issue(*ADA)
    tokens.depart(*ADA, now=0.0)
    token = tokens.issue(*ADA)
    assert tokens.check(token, *ADA, now=1000.0) == "ok"


def test_B49_revoking_ends_every_resume_token_of_the_holder(tokens):
    places = [ADA, ("ada", "tablet", "release-42"), ("ada", "phone", "other")]
    issued = [tokens.issue(*place) for place in places]
    bob = tokens.issue("bob", "phone", "release-42")
    tokens.revoke("ada")
    assert [tokens.check(token, *place, now=0.0) for token, place in zip(issued, places, strict=True)] == [
        "unknown"
    ] * 3
    assert tokens.check(bob, "bob", "phone", "release-42", now=0.0) == "ok"


def test_no_token_is_kept_as_it_is_and_each_is_new(tokens):
    issued = {tokens.issue(*ADA) for _ in range(10)}
    assert len(issued) == 10
    assert all(len(token) == len("hf_resume_") + 43 for token in issued)
    assert not any(token.encode() in (held.newest, held.held) for token in issued for held in tokens._issued.values())


def test_what_is_remembered_is_bounded(tokens):
    for number in range(20_050):
        tokens.issue("ada", f"client {number}", "release-42")
    assert len(tokens._issued) == 20_000
