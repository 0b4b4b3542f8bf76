"""`make live`: it calls nobody without a key, and against the fault provider itself it finds no difference."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from holdfast.testing.provider import Rule, Script, serve_in_thread

ROOT = Path(__file__).parent.parent
LIVE = runpy.run_path(str(ROOT / "scripts" / "live.py"))
KEY = "sk-live-0123456789abcdef"
# What a real provider finds out by itself.
REAL = (
    Rule(steps="auth", loop=True, keys=(LIVE["WRONG_KEY"],)),
    Rule(steps="not-found", loop=True, models=(LIVE["NO_MODEL"],)),
)


def served(provider) -> dict[str, str]:
    names = ("ANTHROPIC", "OPENAI", "XAI")
    urls = {"ANTHROPIC": provider.url, "OPENAI": provider.openai_url, "XAI": provider.openai_url}
    return {f"{name}_API_KEY": KEY for name in names} | {f"{name}_BASE_URL": urls[name] for name in names}


def test_without_a_key_it_says_so_and_calls_nobody(capsys: pytest.CaptureFixture[str]):
    assert LIVE["main"]({}) == 0
    assert "No key is set" in capsys.readouterr().out


def test_the_fault_provider_does_not_differ_from_itself(capsys: pytest.CaptureFixture[str]):
    with serve_in_thread(Script(rules=REAL)) as provider:
        assert LIVE["main"](served(provider)) == 0
    out = capsys.readouterr().out
    assert "0 differences, 0 calls without an answer" in out
    assert out.count("the same") == 21
    assert KEY not in out


def test_what_differs_is_named_and_contents_are_not(capsys: pytest.CaptureFixture[str]):
    script = Script(rules=(*REAL, Rule(steps="429", loop=True, paths=("/v1/responses",))), replies=("secret words",))
    with serve_in_thread(script) as provider:
        assert LIVE["main"](served(provider)) == 0
    out = capsys.readouterr().out
    assert "answers 429 PROVIDER_RATE_LIMITED; the fault provider 200" in out
    # The list of replies holds no tool call.
    assert re.search(
        r"a tool call:\n(    .*\n)*    does not have stop_reason: tool_use|does not have .*stop_reason: tool_use", out
    )
    assert "secret" not in out


def test_a_provider_that_cannot_be_reached_is_a_failure(capsys: pytest.CaptureFixture[str]):
    with serve_in_thread() as provider:
        url = provider.url
    assert LIVE["main"]({"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": url}) == 1
    assert "no answer (ConnectError)" in capsys.readouterr().out
