"""Secrets and bulk stay inside: by shape, by name, by value, whatever holds them."""

from __future__ import annotations

import enum
import functools
import json
import math
import subprocess
import sys
import threading
import time
from itertools import product
from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.faults import CAP_BYTES, REDACTOR, Redactor, cap
from holdfast.faults import redaction as module
from holdfast.faults.redaction import MASK, PieceMask, whole_characters, whole_escapes

CORPUS = Path(__file__).parents[1] / "corpus"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N"
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA7bq\nHy3w==\n-----END RSA PRIVATE KEY-----"

# Shape → a text that holds a secret of it, and the secret.
CANARIES = {
    "openai": ("Incorrect API key: sk-proj-AbCd1234EfGh5678", "sk-proj-AbCd1234EfGh5678"),
    "anthropic": ("using sk-ant-api03-AbCd_1234-EfGh now", "sk-ant-api03-AbCd_1234-EfGh"),
    "openai, masked by itself": ("key sk-proj-AbCd1234EfGh**********wxyz.", "sk-proj-AbCd1234EfGh"),
    "stripe": ("sk_live_51H8abcdefghijkl", "sk_live_51H8abcdefghijkl"),
    "publishable": ("pk_live_51H8abcdefghijkl", "pk_live_51H8abcdefghijkl"),
    "restricted": ("rk_live_51H8abcdefghijkl", "rk_live_51H8abcdefghijkl"),
    "xai": ("xai-AbCd1234EfGh5678", "xai-AbCd1234EfGh5678"),
    "groq": ("gsk_AbCd1234EfGh5678", "gsk_AbCd1234EfGh5678"),
    "hugging face": ("hf_AbCd1234EfGh5678", "hf_AbCd1234EfGh5678"),
    "perplexity": ("pplx-AbCd1234EfGh5678", "pplx-AbCd1234EfGh5678"),
    "nvidia": ("nvapi-AbCd1234EfGh5678", "nvapi-AbCd1234EfGh5678"),
    "together": ("tgp_v1_AbCd1234EfGh5678", "tgp_v1_AbCd1234EfGh5678"),
    "cerebras": ("csk-AbCd1234EfGh5678", "csk-AbCd1234EfGh5678"),
    "fireworks": ("fw_AbCd1234EfGh5678", "fw_AbCd1234EfGh5678"),
    "replicate": ("r8_AbCd1234EfGh5678", "r8_AbCd1234EfGh5678"),
    "github": ("git clone with ghp_AbCd1234EfGh5678", "ghp_AbCd1234EfGh5678"),
    "github oauth": ("gho_AbCd1234EfGh", "gho_AbCd1234EfGh"),
    "github user": ("ghu_AbCd1234EfGh", "ghu_AbCd1234EfGh"),
    "github server": ("ghs_AbCd1234EfGh", "ghs_AbCd1234EfGh"),
    "github refresh": ("ghr_AbCd1234EfGh", "ghr_AbCd1234EfGh"),
    "github fine-grained": ("github_pat_11AbCd1234_EfGh", "github_pat_11AbCd1234_EfGh"),
    "gitlab": ("glpat-AbCd1234EfGh", "glpat-AbCd1234EfGh"),
    "slack": ("xoxb-1234567890-AbCdEf", "xoxb-1234567890-AbCdEf"),
    "google oauth": ("ya29.a0AfH6SMBx-AbCdEf", "ya29.a0AfH6SMBx-AbCdEf"),
    "google": ("?key=AIzaSyA1234567890abcdefghijklmnopqrstuv", "AIzaSyA1234567890abcdefghijklmnopqrstuv"),
    "aws id": ("AKIAIOSFODNN7EXAMPLE", "AKIAIOSFODNN7EXAMPLE"),
    "aws temporary id": ("ASIAIOSFODNN7EXAMPLE", "ASIAIOSFODNN7EXAMPLE"),
    "jwt": (f"rejected {JWT} at the door", JWT),
    "pem": (f"cannot load {PEM}", "MIIEowIBAAKCAQEA7bq"),
    "pem, cut off": (PEM[:50], "MIIEowIBAAKCAQEA"[:10]),
    "bearer": ("Authorization: Bearer abcdef123456", "abcdef123456"),
    "bearer, alone": ("sent bearer abcdef123456", "abcdef123456"),
    "basic": ("Proxy-Authorization: Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
    "basic, after a tab": ("basic\tdXNlcjpwYXNzd29yZA==", "dXNlcjpwYXNzd29yZA"),
    "header": ("x-api-key: abcdef123456", "abcdef123456"),
    "assignment": ("OPENAI_API_KEY=abcdef123456", "abcdef123456"),
    "wide assignment": ("api_key  =  abcdef123456", "abcdef123456"),
    "query": ("GET /v1?access_token=abcdef123456&page=2", "abcdef123456"),
    "json": ('{"api_key": "abcdef123456", "model": "m"}', "abcdef123456"),
    "json in json": (r'{"body": "{\"api_key\": \"abcdef123456\"}"}', "abcdef123456"),
    "repr": ("{'password': 'abcdef123456', 'user': 'bob'}", "abcdef123456"),
    "yaml": ("client_secret: abcdef123456", "abcdef123456"),
    "azure": ("Endpoint=sb://x/;SharedAccessKey=abcdef123456==", "abcdef123456"),
    "azure storage": ("AccountName=x;AccountKey=abcdef123456==;EndpointSuffix=y", "abcdef123456"),
    "npm": ("//registry/:_auth npm_AbCd1234EfGh5678IjKl9012MnOp3456", "npm_AbCd1234EfGh5678IjKl9012MnOp3456"),
    "pypi": ("pypi-AgEIcHlwaS5vcmcCJDAwMDAwMDAw", "pypi-AgEIcHlwaS5vcmcCJDAwMDAwMDAw"),
    "list": ('{"api_key": ["abcdef123456"], "model": "m"}', "abcdef123456"),
    "second in a list": ("{'tokens': 1, 'api_key': [ 'ghijkl123456' , 'abcdef123456' ]}", "abcdef123456"),
    "list in json": (r'{"body": "{\"api_key\": [\"abcdef123456\"]}"}', "abcdef123456"),
    "number": ('{"password": 90210555, "model": "m"}', "90210555"),
    "url, key alone": ("https://abcdef1234567890abcd@git.test/x.git", "abcdef1234567890abcd"),
    "url, at sign in the password": ("postgresql://bob:abc@def123456@host/db", "def123456"),
    "aws secret": ("aws_secret_access_key=wJalrXUtnFEMI/K7MDENG", "wJalrXUtnFEMI/K7MDENG"),
    "camel case": ('{"accessToken":"abcdef123456","expiresIn":3600}', "abcdef123456"),
    "url": ("https://bob:abcdef123456@host/path", "abcdef123456"),
    "url without a user": ("redis://:abcdef123456@host:6379/0", "abcdef123456"),
    "cookie": ("Cookie: session=abcdef123456", "abcdef123456"),
    "slack webhook": ("POST https://hooks.slack.com/services/T00000000/B11111111/AbCdEfGhIjKl", "AbCdEfGhIjKl"),
    "slack trigger": ("https://hooks.slack.com/triggers/T0/1234567890123/abcdef123456", "abcdef123456"),
    "discord webhook": (
        "https://canary.discord.com/api/v10/webhooks/123456789012345678/AbCd-1234_EfGh5678IjKl",
        "AbCd-1234_EfGh5678IjKl",
    ),
    "teams webhook": (
        "https://x.webhook.office.com/webhookb2/11111111-2222-3333-4444-555555555555@6/IncomingWebhook/0a1b2c3d",
        "0a1b2c3d",
    ),
    "outlook webhook": ("https://outlook.office.com/webhook/11111111-2222-3333-4444-555555555555@6/x/0a1b", "/0a1b"),
    "feishu webhook": ("https://open.feishu.cn/open-apis/bot/v2/hook/01234567-89ab-cdef", "01234567-89ab-cdef"),
    "wecom webhook": ("https://qyapi.weixin.qq.com/cgi-bin/webhook/send?key=01234567-89ab-cdef", "01234567-89ab-cdef"),
    "mattermost webhook": ("https://chat.test:8065/hooks/xxxxxyyyyyzzzzz11111222223", "yyyyyzzzzz11111222223"),
    "zapier webhook": ("https://hooks.zapier.com/hooks/catch/123456/abcde12/", "abcde12"),
    "make webhook": ("https://hook.eu1.make.com/abcdefghijklmnop", "abcdefghijklmnop"),
    "ifttt webhook": ("https://maker.ifttt.com/trigger/x/with/key/cAbCdEfGhIjK", "cAbCdEfGhIjK"),
    "pagerduty": ("https://events.pagerduty.com/integration/0123456789abcdef/enqueue", "0123456789abcdef"),
    "telegram": (
        "https://api.telegram.org/bot123456789:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw0/getMe",
        "AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw0",
    ),
    "azure signature": ("https://a.blob.test/c?sv=2019-12-12&sig=abcdefghij0123456789%3D", "abcdefghij0123456789"),
    "aws signature": ("https://b.s3.test/k?X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d", "aeeed9bbccd4d02ee5c0109b86d"),
    "splunk": ("Authorization: Splunk 01234567-89ab-cdef", "01234567-89ab-cdef"),
    "token": ("Authorization: Token abcdef123456", "abcdef123456"),
    "tavily": ("tvly-dev-AbCd1234EfGh5678IjKl", "AbCd1234EfGh5678IjKl"),
    "langsmith": ("lsv2_pt_0123456789abcdef0123", "0123456789abcdef0123"),
    "vault": ("hvs.CAESIJ01234567890123456789", "CAESIJ01234567890123456789"),
    "second cookie": ("Cookie: theme=dark123; session=abcdef123456", "abcdef123456"),
}


@pytest.mark.parametrize(("text", "secret"), CANARIES.values(), ids=CANARIES)
def test_a_secret_is_masked_by_its_shape(text, secret):
    shown = REDACTOR.text(text)
    assert secret not in shown
    assert MASK in shown
    assert REDACTOR.text(shown) == shown


@pytest.mark.parametrize(("text", "secret"), CANARIES.values(), ids=CANARIES)
def test_a_secret_is_masked_in_the_middle_of_a_sentence(text, secret):
    shown = REDACTOR.text(f"Before it failed: ({text}) and after 429 tokens")
    assert secret not in shown
    assert shown.startswith("Before it failed: (")
    assert "after 429 tokens" in shown or "PRIVATE KEY" in text, "a key file is masked to its end"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Authorization: Bearer abcdef123456", "Authorization: [redacted]"),
        ('{"api_key": "abcdef123456"}', '{"api_key": "[redacted]"}'),
        ("?access_token=abcdef123456&page=2", "?access_token=[redacted]&page=2"),
        ("https://bob:abcdef123456@host/path", "https://[redacted]@host/path"),
        ("git ghp_AbCd1234EfGh5678 failed", "git [redacted] failed"),
    ],
)
def test_what_stands_around_a_secret_stays(text, shown):
    assert REDACTOR.text(text) == shown


ORDINARY = [
    "https://docs.github.com/en/webhooks/webhook-events-and-payloads and https://api.test/repos/a/b/hooks/12345678/pings",
    "https://reactjs.org/docs/hooks-state.html and http://localhost:8080/webhook/github",
    "https://hooks.test/ did not answer; .git/hooks/pre-commit exited with 1",
    "the signature=inspect.signature(function) and sig=None; the time is 12:30:AA",
    "Authorization: a header of this name is missing in the request",
    "password = getpass()",
    "password = getpass.getpass('Password: ')",
    'api_key=os.environ["OPENAI_API_KEY"]',
    '{"next_page_token": "CAUQAA", "nextPageToken": "CAUQAA", "sync_token": "abcdefgh"}',
    "?page_token=abcdef123456&continuation-token=abcdef123456",
    "ssh://git@github.test/a/b.git and https://bob@corp.test/",
    "npm_config_registry and npm_package_version",
    "This request would exceed your organization's rate limit of 30,000 input tokens per minute.",
    "maximum context length is 200000 tokens, you requested 201928 (max_tokens: 4096)",
    "prompt_tokens=123456 completion_tokens=7890 total_tokens=131346",
    "The model `claude-sonnet-4-20250514` does not exist",
    "gpt-4o-mini-2024-07-18 is overloaded",
    "https://docs.anthropic.com/en/api/rate-limits",
    "see https://user-guide.example.test/a:b for details",
    "OPENAI_API_KEY is not set",
    "password is required",
    "SyntaxError: Unexpected token '<', \"<!DOCTYPE \" is not valid JSON",
    "Basic authentication failed for this account",
    "Bearer authentication is required",
    "asia-northeast1-docker.pkg.dev refused the connection",
    'duplicate key value violates unique constraint "pk_user_accounts_email"',
    "Violation of PRIMARY KEY constraint 'PK_Orders_CustomerId'",
    "url 'file:///etc/passwd': expected an address that begins with https://",
    "set HF_HUB_ENABLE_HF_TRANSFER=0 and try again",
    "in hf_raise_for_status(response)",
    "hf_hub_download() got an unexpected keyword argument",
    "hf-internal-testing/tiny-random-gpt2 is not a local folder, token=True",
    "the disk-encryption-service and the task-scheduler-service are down",
    "Retry-After: 30, x-request-id: req_011CSHoEeqs5C35K2UUqR7Fy",
]


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_error_texts_keep_their_words(text):
    assert REDACTOR.text(text) == text


def _strings(value: object) -> list[str]:
    match value:
        case str():
            return [value]
        case dict():
            return [text for pair in value.items() for part in pair for text in _strings(part)]
        case list():
            return [text for item in value for text in _strings(item)]
    return []


def test_the_corpus_keeps_its_words():
    """Two records show where a key would stand; masking a placeholder loses nothing."""
    changed = set()
    read = 0
    for file in sorted(CORPUS.glob("*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            read += 1
            if any(
                REDACTOR.text(text) != text
                for text in _strings([record.get(k) for k in ("body", "exception", "headers")])
            ):
                changed.add(record["id"])
    assert read > 500
    assert changed == {"ho-openai-401-no-key", "ho-deepseek-401-auth-fails"}


FRAGMENTS = (
    "sk-", "hf-", "gsk-", "xai_", "AKIA", "eyJ", "ABCDEFGH12345678", ".", "bearer", "basic", " ", "  ", "\t", "\n", "api_key", "token",
    "password", "cookie", "secret", ":", "=", '"', "'", "://", "user:pass", "@", ",", "[redacted]", "x",
)  # fmt: skip


def test_the_cheap_marks_stand_in_every_text_the_pattern_matches():
    names = (
        "api_key",
        "apikey",
        "access-key",
        "token",
        "password",
        "pwd",
        "cookie",
        "authorization",
        "bearer",
        "basic",
    )
    prefixes = ("sk", "pk", "rk", "xai", "gsk", "hf", "pplx", "nvapi", "tgp", "csk", "fw", "r8")
    spaces = ("", " ", "  ", "\t", "\n")
    assigned = (
        "".join(parts) for parts in product(names, ("", '"'), spaces, (":", "=", ""), spaces, ("AbCd1234EfGh5678",))
    )
    keys = ("".join(parts) for parts in product(prefixes, "-_", ("AbCd1234EfGh5678",)))
    missed = [
        text for text in (*assigned, *keys) if REDACTOR.text(text) != module._any_secret().sub(module._mask, text)
    ]
    assert missed == []


PIECES = (
    *(text for text, _ in CANARIES.values()), *(secret for _, secret in CANARIES.values()), "api key", "apiKey", "dbpassword", "tokens", "token",
    "credentials", "Authorization", "Set-Cookie", "Bearer", "://", "@", ":", "=", " ", "\\", "'", '"', "\\n", "\u00a0", "é", "sk-", "hf_", "eyJ",
    "a1B2c3D4e5F6g7", "x", "-", "_", "[redacted]", "key" * 40,
)  # fmt: skip


@settings(max_examples=1_500, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=8).map("".join))
def test_what_is_not_searched_holds_nothing_the_search_would_find(text: str):
    assert module._may_hold_one(text) or module._any_secret().search(text) is None


_WORDS = st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=6).map("".join)
_NAMES = st.sampled_from(
    ["password", "apiKey", "id-token", "AUTHORIZATION", "author\u0131zation", "to\u212aen", "content", "max_tokens"]
)


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**63)
        | st.floats(allow_nan=False, allow_infinity=False)
        | _WORDS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS | _NAMES, inner, max_size=3),
        max_leaves=8,
    ),
    st.sampled_from([(), ('hunter2\n"quoted"',), ("Bäume und Blätter", "x" * 12)]),
    st.booleans(),
)
@example({"content": 'hunter2\n"quoted"'}, ('hunter2\n"quoted"',), False)
@example({"author\u0131zation": "x"}, (), False)
@settings(max_examples=400, deadline=None)
def test_what_is_kept_as_it_is_written_would_not_be_changed_by_masking(
    value: object, secrets: tuple[str, ...], has_one: bool
):
    value = {"content": value, "more": "a " + secrets[0]} if has_one and secrets else value
    redactor = Redactor.knowing(secrets)
    try:
        written = msgspec.json.encode(value)
    except UnicodeEncodeError:
        return
    assert not redactor.keeps(written) or redactor.value(value) == value


@pytest.mark.parametrize(
    "value",
    [[0] * 2_001, "x" * (CAP_BYTES + 1), functools.reduce(lambda inner, _: [inner], range(25), 1), {"password": 1}],
    ids=["wide", "long", "deep", "named"],
)
def test_what_is_cut_or_masked_is_not_kept(value: object):
    assert REDACTOR.value(value) != value
    assert not REDACTOR.keeps(msgspec.json.encode(value))


def test_an_ordinary_message_is_kept_as_it_is_written():
    said = {"content": "Please répare the build in /work/app", "message_id": str(UUID(int=7)), "turn": 3}
    assert REDACTOR.keeps(msgspec.json.encode(said))


def test_a_key_that_begins_where_another_ends_is_masked_with_it():
    assert REDACTOR.text("AKIAABCDEFGH12345678sk-ABCDEFGH12345678") == "[redacted]"


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join))
@settings(max_examples=200, deadline=None)
@example("://api_key://[redacted]@")
@example("api_key://:,@")
@example("cookie: ]-----BEGIN PRIVATE KEY-----[-----END PRIVATE KEY-----a=b&")
@example("[redactedtoken://::@,api_key")
def test_masking_twice_masks_no_more(text):
    once = REDACTOR.text(text)
    assert REDACTOR.text(once) == once


# By name

SECRET_NAMES = [
    "api_key", "apikey", "apiKey", "API-Key", "x-api-key", "OPENAI_API_KEY", "secret", "client_secret", "clientSecret", "password",
    "passwd", "pwd", "DB_PASSWORD", "private_key", "privateKey", "access_key", "aws_secret_access_key", "credential", "token",
    "access_token", "id-token", "authorization", "Authorization", "Proxy-Authorization", "cookie", "Set-Cookie",
    "accessToken", "refreshToken", "secret_key", "SECRET_KEY", "credentials", "passphrase", "AccountKey", "signing_key",
]  # fmt: skip
ORDINARY_NAMES = [
    "max_tokens", "tokens", "prompt_tokens", "token_count", "token_type", "key", "keys", "keyword", "monkey", "author", "authority",
    "next_page_token", "nextPageToken", "page_token", "continuationToken", "sync-token",
    "model", "path", "password_policy", "cookies_enabled", "retry_after", "secretary",
]  # fmt: skip


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_what_stands_under_a_secrets_name_is_masked_whatever_it_is(name):
    for value in ("x", 7, 1.5, True, ["x"], {"a": "x"}, b"x", object()):
        assert REDACTOR.value({name: value}) == {name: MASK}
    assert REDACTOR.value({name: None}) == {name: None}, "that there is none may be known"


@pytest.mark.parametrize("name", ORDINARY_NAMES)
def test_what_stands_under_an_ordinary_name_stays(name):
    assert REDACTOR.value({name: "short", "n": 1}) == {name: "short", "n": 1}


def test_names_are_looked_for_at_every_depth():
    nested = {"request": [{"headers": {"Authorization": "abc", "accept": "json"}}]}
    assert REDACTOR.value(nested) == {"request": [{"headers": {"Authorization": MASK, "accept": "json"}}]}


@pytest.mark.parametrize(
    "value",
    [
        "npm_AbCd1234EfGh5678IjKl9012MnOp3456",
        "DefaultEndpointsProtocol=https;AccountName=x;AccountKey=abcdef123456==",
        {"api_key": ["hunter2hunter2"]},
        {"api_key": {"value": "hunter2hunter2"}},
        {"outer": [{"inner": {"password": 73_911_234}}]},
        '{"outer": {"api_key": ["hunter2hunter2"]}}',
    ],
)
def test_FD4_secrets_that_used_to_pass_are_masked(value):
    shown = repr(REDACTOR.value({"value": value}))
    assert MASK in shown
    for secret in ("AbCd1234", "abcdef123456", "hunter2", "73911234"):
        assert secret not in shown


def test_a_secret_that_is_a_name_is_masked_too():
    assert REDACTOR.value({"sk-ant-api03-AbCd1234": 1}) == {MASK: 1}


# By value


def test_a_known_secret_is_masked_wherever_it_stands():
    redactor = Redactor.knowing(["correct-horse"])
    assert redactor.text("login correct-horse! correct-horse") == "login [redacted]! [redacted]"
    assert redactor.value({"a": ["correct-horse"], "correct-horse": 1}) == {"a": [MASK], MASK: 1}


def test_the_longest_known_secret_goes_first_so_that_none_shows_through():
    redactor = Redactor.knowing(["correct-horse", "correct-horse-battery"])
    assert redactor.text("correct-horse-battery") == MASK


def test_a_short_secret_would_mask_ordinary_words():
    assert Redactor.knowing(["dev", "  test  ", "", "1234567"]).secrets == ()
    assert Redactor.knowing(["  12345678\n"]).secrets == ("12345678",)


def test_a_known_secret_does_not_show_its_head_where_the_text_is_cut():
    secret = "correct-horse-battery-staple"
    for kept in range(8, len(secret)):
        text = "x" * (CAP_BYTES - 28 - kept) + secret + "y" * 1_000
        assert secret[:8] not in Redactor.knowing([secret]).text(text)


# Whatever it is given


class Hostile:
    def __getattr__(self, name):
        raise RuntimeError(name)

    def __repr__(self):
        raise RuntimeError("no repr")

    __str__ = __repr__


class NoText(str):
    __slots__ = ()

    def __str__(self):
        raise RuntimeError("no text")


class NoItems(dict):
    def items(self):
        raise RuntimeError("no items")


class NoIteration(list):
    def __iter__(self):
        raise RuntimeError("no iteration")


class Real(float):
    """As numpy.float64 is one."""


class Whole(int):
    pass


class Colour(enum.Enum):
    RED = "red"


class Point(msgspec.Struct):
    x: int
    api_key: str = "abcdef"


def _cycle() -> list:
    ring: list = [1]
    ring.append(ring)
    return ring


STRANGE = {
    "hostile object": Hostile(),
    "class": Hostile,
    "function": len,
    "lock": threading.Lock(),
    "exception": ValueError("no"),
    "generator": (n for n in range(3)),
    "text without text": NoText("x"),
    "mapping without items": NoItems(a=1),
    "list without iteration": NoIteration([1]),
    "float of another class": Real(1.5),
    "int of another class": Whole(3),
    "enum": Colour.RED,
    "struct": Point(x=1),
    "cycle": _cycle(),
    "nan": math.nan,
    "inf": -math.inf,
    "big": 10**400,
    "bytes": b"\xff\x00",
    "surrogate": "\ud800",
    "surrogate key": {"\udce9": 1},
    "set": {1, 2},
    "complex": 1j,
    "uuid": UUID(int=1),
    "range": range(3),
}


@pytest.mark.parametrize("value", STRANGE.values(), ids=STRANGE)
def test_the_answer_is_json_whatever_is_given(value):
    shown = REDACTOR.value({"value": value, "values": [value]})
    json.dumps(shown, allow_nan=False).encode()
    msgspec.json.encode(shown)


def test_an_objects_own_words_are_not_trusted():
    class Talkative:
        def __repr__(self):
            return "Talkative(password is hunter2)"

    assert "hunter2" not in json.dumps(REDACTOR.value(Talkative()))
    assert REDACTOR.value(Point(x=1)) == {"x": 1, "api_key": MASK}


def test_bytes_are_counted_not_shown():
    assert REDACTOR.value([b"abc", bytearray(5)]) == ["[3 bytes]", "[5 bytes]"]


def test_numbers_that_json_has_no_word_for_are_told_as_text():
    assert REDACTOR.value([math.inf, -math.inf]) == ["inf", "-inf"]
    assert REDACTOR.value(math.nan) == "nan"


def test_lone_surrogates_are_replaced():
    assert REDACTOR.text("caf\udce9") == "caf?"


def test_keys_that_are_numbers_stay_apart():
    assert sorted(REDACTOR.value({1: "a", 2: "b"}).values()) == ["a", "b"]


def test_depth_is_bounded():
    deep: object = "end"
    for _ in range(10_000):
        deep = [deep]
    assert "[too deep]" in json.dumps(REDACTOR.value(deep))
    assert REDACTOR.value([[["x"]]]) == [[["x"]]]


@pytest.mark.parametrize("size", [1_999, 2_000, 2_001, 100_000])
def test_width_is_bounded_and_the_rest_is_told(size):
    items = REDACTOR.value(list(range(size)))
    pairs = REDACTOR.value({str(n): n for n in range(size)})
    if size <= 2_000:
        assert (len(items), len(pairs)) == (size, size)
    else:
        assert (len(items), items[-1]) == (2_001, "[more]")
        assert (len(pairs), pairs["…"]) == (2_001, f"[{size - 2_000} more]")


def test_a_graph_that_meets_itself_twice_is_not_written_out_a_million_times():
    """Parents know their children and children their parent: 2 to the 24th without a bound on the whole."""
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29))\n"
        "from holdfast.faults import REDACTOR\n"
        "node = {}; node['left'] = node['right'] = node\n"
        "REDACTOR.value(node)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 0, done.stderr[-200:]


keys = st.text(max_size=8) | st.integers() | st.none() | st.sampled_from(SECRET_NAMES)
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=12)
    | st.text(st.characters(categories=["Cs"]), max_size=2)
    | st.binary(max_size=8)
    | st.sampled_from([text for text, _ in CANARIES.values()])
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(keys, inner, max_size=4)
        | st.sets(st.integers() | st.text(max_size=3), max_size=3)
    ),
    max_leaves=12,
)


@given(values)
@settings(max_examples=200, deadline=None)
def test_law_json_and_idempotent(value):
    shown = REDACTOR.value(value)
    json.dumps(shown, allow_nan=False).encode()
    msgspec.json.encode(shown)
    assert REDACTOR.value(shown) == shown


@given(st.sampled_from(["openai", "anthropic", "github", "slack", "google", "jwt", "aws id"]), values, values)
@settings(max_examples=100, deadline=None)
def test_law_a_key_does_not_leave_whatever_stands_around_it(shape, before, after):
    text, secret = CANARIES[shape]
    shown = json.dumps(REDACTOR.value([before, {"told": (text, before)}, after]), ensure_ascii=False)
    assert secret not in shown


# Bulk


@pytest.mark.parametrize("letter", ["x", "é", "…", "💥"])
def test_N2_16_a_text_at_the_limit_stays_and_one_byte_more_is_cut(letter):
    width = len(letter.encode())
    whole = letter * (CAP_BYTES // width)
    assert cap(whole) == whole
    shown = cap(whole + letter)
    assert len(shown.encode()) <= CAP_BYTES
    assert "�" not in shown, "no letter is cut in two"
    assert shown.startswith(letter)


@pytest.mark.parametrize("size", [CAP_BYTES + 1, 100_000, 3_000_000])
def test_N2_16_the_marker_says_how_much_is_gone(size):
    kept, _, marker = cap("x" * size).partition("…")
    assert marker == f"[{size - len(kept)} bytes truncated]"


@given(st.text(max_size=60), st.integers(0, 60))
@settings(max_examples=200, deadline=None)
def test_law_a_cut_text_fits_where_its_marker_does(text, limit):
    shown = cap(text, limit)
    if len(text.encode()) <= limit:
        assert shown == text
    else:
        assert len(shown.encode()) <= max(limit, len("…[60 bytes truncated]".encode()) + 1)


@pytest.mark.parametrize("text", ["pwd=abcdef " * 6_000, "x" * (CAP_BYTES - 12) + " pwd=abcdef", "12345678 " * 8_000])
def test_N2_16_masking_does_not_push_a_text_over_the_limit(text):
    shown = Redactor.knowing(["12345678"]).text(text[:CAP_BYTES])
    assert len(shown.encode()) <= CAP_BYTES


RUNS = [
    "a-", "a.", "a_", "eyJ", "-eyJ", "sk-eyJ", "sk-", "hf_", "://a:b", "://:", "bearer ", "Cookie: ", "x=y; ", "cookie:a=b;",
    "://a/hook/", "://hooks.a", "http://a/b/c/hook/", "sig=", "authorization: a ", ":AA", "token:", "password = ", "-----BEGIN PRIVATE KEY-----", "-----BEGIN ", "\\", " ", "[redacted]",
]  # fmt: skip


@pytest.mark.parametrize("run", RUNS)
def test_a_long_run_of_anything_is_looked_through_in_no_time(run):
    """A remote side chooses this text: the search must not go back over it again and again."""
    text = (run * CAP_BYTES)[: CAP_BYTES - 8] + " secret"
    began = time.process_time()
    REDACTOR.text(text)
    assert time.process_time() - began < 0.5, "some 20 ms where the cost is linear"


# --- text that comes in pieces ---


def test_a_secret_that_is_cut_over_pieces_is_masked_and_other_text_is_not_delayed():
    mask = PieceMask(["canary-7f3b91"])
    shown = [
        mask.add(piece) for piece in ("The key is ", "can", "ary-7", "f3b91", ". It can", "not be", " seen: can", "")
    ]
    assert shown == ["The key is ", "", "", "[redacted]", ". It ", "cannot be", " seen: ", ""]
    assert mask.end() == "can"
    assert mask.end() == ""


def test_a_longer_secret_that_begins_with_a_shorter_one_is_masked_whole():
    mask = PieceMask(["canary-7f3b91-longer", "canary-7f3b91"])
    assert [mask.add("canary-7f3b91"), mask.add("-longer!"), mask.end()] == ["", "[redacted]!", ""]
    assert [mask.add("canary-7f3b91"), mask.add(" is short"), mask.end()] == ["", "[redacted] is short", ""]


def test_a_text_that_begins_anew_leaves_nothing_of_the_old_one():
    mask = PieceMask(["canary-7f3b91"])
    mask.add("It is canary-7")
    mask.drop()
    assert mask.add("f3b91") == "f3b91"


def test_without_secrets_nothing_is_held_back():
    mask = PieceMask()
    assert (mask.add("canary"), mask.end()) == ("canary", "")


@given(
    st.lists(st.text("ab-", min_size=2, max_size=6), min_size=1, max_size=3, unique=True),
    st.lists(st.text("ab-x", max_size=8), max_size=12),
)
def test_pieces_together_are_the_masked_text_however_it_is_cut(secrets: list[str], pieces: list[str]):
    ordered = sorted(secrets, key=len, reverse=True)
    whole = "".join(pieces)
    for secret in ordered:
        whole = whole.replace(secret, "[redacted]")
    mask = PieceMask(ordered)
    shown = [mask.add(piece) for piece in pieces]
    assert "".join([*shown, mask.end()]) == whole


# --- long texts that must come out whole ---


@pytest.mark.parametrize("at", [0, 8_190, 65_536, 100_000, 299_980])
@pytest.mark.parametrize(
    "secret",
    [
        "ghp_abcdefghij1234567890ABCDEF",
        "password: hunter22222",
        "-----BEGIN PRIVATE KEY-----\n" + "Ab1\n" * 9_000 + "-----END PRIVATE KEY-----",
    ],
)
def test_a_secret_in_a_long_text_is_masked_wherever_it_stands(secret, at):
    words = "some words " * 27_300
    text = f"{words[:at]} {secret} {words[at:]}"
    shown = REDACTOR.uncut().text(text)
    assert secret not in shown
    assert shown.count("[redacted]") == 1
    if "BEGIN" not in secret:
        # Nothing else is changed, and nothing is cut.
        assert shown == module.mask_secrets(text)


def test_a_long_text_of_nothing_but_secrets_is_cut_and_takes_no_longer_than_a_short_one():
    shown = REDACTOR.uncut().text("a_key=1 password: hunter22222 " * 30_000)
    assert "hunter" not in shown
    assert len(shown) < 100_000


@given(
    st.recursive(
        st.none() | st.integers() | st.text(st.characters(categories=["L", "Cs", "P", "Cc", "So"])),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
@example(["\ud83d\ude00", "\ud83d", "\ude00\ud83d", "\\ud83d", "\\\ud83d", "\ud83d\ud83d\ude00"])
def test_a_json_text_without_halves_of_characters_says_the_same(value):
    text = json.dumps(value)
    plain = json.loads(whole_characters(json.dumps(value, ensure_ascii=False)))
    assert msgspec.json.decode(whole_escapes(text)) == plain
