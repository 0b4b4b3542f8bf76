"""Runs of the real Claude Agent SDK, with a program in the place of its command that answers on script."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest
from claude_agent_sdk import AssistantMessage, ClaudeAgentOptions, ResultError, ResultMessage, query

from holdfast import Policy, StreamCutError, fault_of, recover
from holdfast.testing import no_waiting

COMMAND = """#!{python}
import json, sys
if "--version" in sys.argv or "-v" in sys.argv:
    print("99.0.0 (Claude Code)")
    sys.exit()
def say(**message):
    print(json.dumps(message), flush=True)
script = json.load(open({script!r}))
step = script.pop(0)
json.dump(script, open({script!r}, "w"))
for line in sys.stdin:
    message = json.loads(line)
    if message["type"] == "control_request":
        answer = {{"subtype": "success", "request_id": message["request_id"], "response": {{}}}}
        say(type="control_response", response=answer)
        continue
    say(type="system", subtype="init", session_id="s")
    result = dict(type="result", duration_ms=1, duration_api_ms=1, num_turns=1, session_id="s", subtype="success")
    def assistant(text, **more):
        say(type="assistant", session_id="s", message={{"model": "m", "content": [{{"type": "text", "text": text}}]}}, **more)
    if step == "ok":
        assistant("hello")
        say(**result, is_error=False, result="hello")
        sys.exit(0)
    if step == "late":
        assistant("half of")
    assistant("API Error: 529 Overloaded", error="server_error")
    say(**result, is_error=True, result="API Error: 529 Overloaded", api_error_status=529)
    sys.exit(1)
"""


@pytest.fixture
def ask(tmp_path, monkeypatch):
    """Ask a command that answers on script; return the kinds of the messages and the last one."""
    monkeypatch.setenv("CLAUDE_AGENT_SDK_SKIP_VERSION_CHECK", "1")
    script, command = tmp_path / "script.json", tmp_path / "claude"
    command.write_text(COMMAND.format(python=sys.executable, script=str(script)))
    command.chmod(0o755)
    options = ClaudeAgentOptions(cli_path=str(command))

    def asking(*steps, **recovering):
        script.write_text(json.dumps(steps))

        async def run():
            live = recover(f"claude-{steps}", Policy(attempts=3)).stream(query, **recovering)
            async with live(prompt="hello", options=options) as stream:
                return [message async for message in stream]

        with no_waiting():
            messages = asyncio.run(run())
        return messages, len(steps) - len(json.loads(script.read_text()))

    return asking


def test_FI11_an_error_result_before_any_content_is_retried_unseen(ask):
    messages, runs = ask("overloaded", "overloaded", "ok")
    assert [
        type(message) for message in messages if not hasattr(message, "subtype") or isinstance(message, ResultMessage)
    ] == [
        AssistantMessage,
        ResultMessage,
    ]
    assert (messages[-1].result, messages[-1].is_error, runs) == ("hello", False, 3)


def test_FI11_an_error_result_for_good_is_an_error_and_never_an_answer(ask):
    with pytest.raises(ResultError, match="529 Overloaded") as caught:
        ask(*["overloaded"] * 3)
    assert fault_of(caught.value).code == "PROVIDER_OVERLOADED"
    assert len(fault_of(caught.value).attempts) == 3


def test_FI11_an_error_result_after_content_is_a_cut_and_the_run_is_not_repeated(ask):
    with pytest.raises(StreamCutError) as caught:
        ask("late", "ok")
    assert caught.value.fault.code == "PROVIDER_OVERLOADED"
    assert isinstance(caught.value.__cause__, ResultError)
