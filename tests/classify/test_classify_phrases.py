"""Phrases: which of the declared ones a text contains. The laws are stated on the text alone, not on the search."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from holdfast.classify import CLASSIFIER, from_http, from_process, from_text
from holdfast.classify.evidence import fold
from holdfast.classify.phrases import SECRETS, find_phrases, names, phrases
from holdfast.faults.redaction import mask_secrets

# Words no rule declares, so that these groups are matched for one reason only.
SINGLE = phrases("zorgle")
SEVERAL = phrases("blimp is grounded | quaxly tokens per min… | the zeppelin sank in two\nfnord limit")
SPACED = phrases(" enyip")
QUOTED = phrases("'wibble' must be")
UNSPACED = phrases("气球坏了")
DECLARED = {
    SINGLE: ("zorgle",),
    SEVERAL: ("blimp is grounded", "quaxly tokens per min", "the zeppelin sank in two", "fnord limit"),
    SPACED: (" enyip",),
    QUOTED: ("'wibble' must be",),
    UNSPACED: ("气球坏了",),
}
ALL = [(group, phrase) for group, texts in DECLARED.items() for phrase in texts]

quick = settings(max_examples=100, deadline=None, derandomize=True)
# Rubbish around a phrase: words of it, near misses, separators of every kind, other scripts.
WORDS = [
    "zorgle",
    "blimp",
    "is",
    "grounded",
    "tokens",
    "per",
    "fnord",
    "limit",
    "enyip",
    "wibble",
    "x",
    "s",
    "1",
    "气球",
    "é",
]
rubbish = st.lists(st.sampled_from([*WORDS, *" .,…—：·。\n\t_'\"{-/"]), max_size=12).map("".join)


@quick
@given(rubbish)
def test_law_only_a_phrase_that_stands_in_the_text_is_heard(text: str):
    matched = find_phrases(text)
    for group, texts in DECLARED.items():
        if matched & group:
            assert any(phrase in text for phrase in texts)


@pytest.mark.parametrize(("group", "phrase"), ALL, ids=[phrase for _, phrase in ALL])
@quick
@example(before="", after="")
@example(before="failed：", after="…")
@example(before="(", after=")")
@example(before="\u3000", after="。")
@given(before=rubbish, after=rubbish)
def test_law_a_phrase_whose_words_stand_whole_is_matched_whatever_is_around_it(
    group: int, phrase: str, before: str, after: str
):
    # Whole: not glued to a letter, a digit or an underscore. A space that belongs to the phrase separates it already.
    assume(not re.search(r"\w\Z", before) or not re.match(r"\w", phrase) or not phrase.isascii())
    assume(not re.match(r"\w", after) or not phrase.isascii())
    assert find_phrases(before + phrase + after) & group


@pytest.mark.parametrize("text", ["xzorgle", "zorgle_x", "un_zorgle", "zorgle1", "zorglement"])
def test_a_single_word_must_be_whole(text: str):
    assert not find_phrases(text) & SINGLE


@pytest.mark.parametrize("text", ["zorgles", "zorgled", "fnord limits", "fnord limited", "fnord limiting"])
def test_the_last_word_may_have_an_ending(text: str):
    assert find_phrases(text) & (SINGLE | SEVERAL)


def test_a_phrase_that_is_left_open_may_go_on_in_any_way():
    assert find_phrases("limit of quaxly tokens per minute") & SEVERAL
    assert find_phrases("limit of quaxly tokens per min.") & SEVERAL


def test_the_other_words_must_be_whole_and_in_order():
    assert not find_phrases("quaxlytokens per min") & SEVERAL
    assert not find_phrases("fnord the limit") & SEVERAL
    assert not find_phrases("limit fnord") & SEVERAL


def test_a_language_without_spaces_is_matched_inside_a_run_of_characters():
    assert find_phrases("昨天气球坏了吗") & UNSPACED


def test_a_group_holds_its_own_bit_and_groups_join():
    groups = list(DECLARED)
    assert len({*groups}) == len(groups)
    assert all(group.bit_count() == 1 for group in groups)
    both = SINGLE | SEVERAL
    assert find_phrases("zorgle") & both
    assert find_phrases("fnord limit") & both
    assert not find_phrases("nothing of the kind") & both


def test_one_phrase_may_belong_to_several_groups():
    first, second = phrases("gribble came apart"), phrases("gribble came apart | gribble came undone\nother gribbles")
    matched = find_phrases("the gribble came apart")
    assert matched & first
    assert matched & second
    assert not find_phrases("the gribble came undone") & first


@pytest.mark.parametrize("phrase", ["Upper Case", "...", "!!"])
def test_a_phrase_that_could_never_be_matched_is_rejected_when_it_is_declared(phrase: str):
    with pytest.raises(ValueError, match="lower case and contains a word"):
        phrases(phrase)


def test_names_are_words_without_quotes_and_commas():
    assert names("  alpha beta\n  gamma ") == {"alpha", "beta", "gamma"}


@pytest.mark.parametrize(
    ("sent", "folded"),
    [
        ("Can\u2019t `do` \u201cthat\u201d\u00a0NOW", "can't 'do' \"that\" now"),
        ("plain", "plain"),
        ("ÀÉ", "àé"),
    ],
)
def test_folding_gives_the_form_phrases_are_written_in(sent: str, folded: str):
    assert fold(sent) == folded


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("API Error: Overloaded…", "PROVIDER_OVERLOADED"),
        ("请求失败：rate limit reached", "PROVIDER_RATE_LIMITED"),
        ("错误：invalid api key。", "AUTH_FAILED"),
    ],
)
def test_typographic_and_full_width_punctuation_ends_a_word(text: str, code: str):
    assert from_text(text).code == code


def test_a_long_text_is_listened_to_past_its_beginning():
    advice = "See the documentation for help with this and other things. " * 30
    assert (
        from_http(400, {}, {"error": {"message": advice + "Your credit balance is too low"}}).code == "PROVIDER_BILLING"
    )


# Secrets: only texts in which SECRETS is matched are searched, so what is not matched is shown as it came.
SECRET_TEXTS = [
    "api key sk-ant-api03-abcdefghij0123456789 is wrong",
    "Authorization: Bearer abcdef0123456789",
    "password=hunter2hunter2",
    "https://user:hunter2hunter2@host/path",
    "DB_PASSWORD=hunter2hunter2",
    "session_token=hunter2hunter2",
    "OPENAI_API_KEY: hunter2hunter2",
    "{'accessKey': 'hunter2hunter2'}",
    "aws_secret=hunter2hunter2",
    "hf_abcdefghijABCDEFGHIJabcdefghijABCD is not valid",  # Hugging Face: letters only
    "AKIAIOSFODNN7EXAMPLE is not authorised",
    "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w has expired",
]


@pytest.mark.parametrize("text", SECRET_TEXTS)
def test_no_secret_is_shown_in_a_message(text: str):
    fault = from_process(1, text)
    assert "[redacted]" in fault.message, fault.message
    for canary in ("hunter2", "abcdefghij", "abcdef0123456789", "AKIAIOSFODNN7", "eyJz"):
        assert canary not in fault.message


PIECES = (
    *SECRET_TEXTS, "sk-", "sk_live_", "gsk_", "hf_", "pplx-", "glpat-", "xoxb-", "xoxs-", "ghp_", "gho_", "github_pat_", "AIza", "AKIA", "eyJ", "ya29.",
    "Bearer ", "basic ", "api key", "apiKey", "dbpassword", "passphrase", "pwd", "token", "credentials", "Cookie", "private_key", ":", "=", ": '", '": "',
    " ", "\\n", "://", "@", "x", "a1B2c3D4e5F6g7H8", "-----BEGIN PRIVATE KEY-----",
)  # fmt: skip


@settings(max_examples=1_000, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(PIECES), max_size=6).map("".join))
def test_law_where_there_is_something_to_mask_a_secret_is_heard(text: str):
    assert mask_secrets(text) == text or find_phrases(fold(text)) & SECRETS


def test_secrets_are_matched_near_their_names():
    assert find_phrases("the password is wrong") & SECRETS
    assert not find_phrases("the model is overloaded") & SECRETS


def test_declaring_phrases_does_not_change_what_the_rules_hear():
    assert from_text("the blimp is grounded").rule == "nothing-matched"
    assert "network.by_words" in CLASSIFIER.rules
