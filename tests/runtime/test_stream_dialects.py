"""Streams of other libraries that are known by their items. The real libraries run in an environment of their own (`make
soak`); here their items are built by hand, with the fields that the real ones have."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from recover_kit import LOOSE, World

from holdfast import Policy, StreamCutError, fault_of
from holdfast.runtime.operation.plan import Plan
from holdfast.runtime.recover import Recovery


def made(module: str, name: str, **fields: Any) -> Any:
    return type(name, (SimpleNamespace,), {"__module__": module})(**fields)


def gemini(*texts: str, finish: str | None = None) -> Any:
    content = SimpleNamespace(parts=[SimpleNamespace(text=text, function_call=None) for text in texts])
    candidate = SimpleNamespace(content=content, finish_reason=finish)
    return made("google.genai.types", "GenerateContentResponse", candidates=[candidate], prompt_feedback=None)


def agent(name: str, **fields: Any) -> Any:
    return made("claude_agent_sdk.types", name, **fields)


INIT = agent("SystemMessage", subtype="init")
FAILED = agent("AssistantMessage", content=[], error="server_error")
ERROR = agent("ResultMessage", is_error=True, result="Overloaded", subtype="success", api_error_status=529, errors=None)
ANSWER = agent("AssistantMessage", content=[SimpleNamespace(text="hi")], error=None)
RESULT = agent("ResultMessage", is_error=False, result="hi", subtype="success")


def read(*scripts: list[Any], into: list[Any] | None = None, **options: Any) -> tuple[list[Any], int]:
    """Read a stream whose attempts yield these items; return the items and how many attempts it took."""
    got: list[Any] = [] if into is None else into
    left = list(scripts)

    def items() -> Any:
        yield from left.pop(0)

    plan = Plan("it", Policy(attempts=3, circuit=LOOSE), runtime=World().runtime)
    with Recovery(plan).stream(items, **options)() as stream:
        got.extend(stream)
    return got, len(scripts) - len(left)


def test_FI11_an_error_result_of_an_agent_is_a_failure_and_not_an_answer() -> None:
    assert read([INIT, FAILED, ERROR], [INIT, ANSWER, RESULT]) == ([INIT, ANSWER, RESULT], 2)
    # It is the SDK's own class of exception if the SDK is imported, as it is beside the tests of its integration.
    with pytest.raises(Exception, match=r"(?i)overloaded") as failed:
        read(*[[INIT, FAILED, ERROR]] * 3)
    assert fault_of(failed.value).code == "PROVIDER_OVERLOADED"


def test_FI11_after_content_the_run_is_not_repeated() -> None:
    got: list[Any] = []
    with pytest.raises(StreamCutError):
        read([INIT, ANSWER, FAILED, ERROR], [INIT, ANSWER, RESULT], into=got)
    assert ERROR not in got


def test_FI11_after_a_tool_ran_nothing_restarts() -> None:
    tool = agent("AssistantMessage", content=[made("claude_agent_sdk.types", "ToolUseBlock")], error=None)
    with pytest.raises(StreamCutError):
        read([INIT, tool, ERROR], [INIT, ANSWER, RESULT], after_first="restart")
    assert read([INIT, ANSWER, ERROR], [INIT, ANSWER, RESULT], after_first="restart")[1] == 2


def test_FI11_geminis_stream_is_whole_only_with_its_finish_reason() -> None:
    whole = [gemini("You "), gemini("said", finish="STOP")]
    assert read(whole) == (whole, 1)
    with pytest.raises(StreamCutError):
        read(whole[:1])
    # Nothing but an empty head arrived, so the request is sent again.
    assert read([gemini()], whole) == (whole, 2)


def test_a_blocked_prompt_is_a_complete_answer() -> None:
    feedback = SimpleNamespace(block_reason="SAFETY")
    blocked = made("google.genai.types", "GenerateContentResponse", candidates=None, prompt_feedback=feedback)
    assert read([blocked]) == ([blocked], 1)


def test_items_of_other_modules_pass_as_before() -> None:
    items = [SimpleNamespace(is_error=True), "text", None]
    assert read(items) == (items, 1)
