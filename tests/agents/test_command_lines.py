"""What command-line agents print: recorded lines of the real programs, broken ones, and lines of a future version."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.agents import Retrying, Text, ToolCalled, ToolReturned
from holdfast.agents.command_faults import command_fault
from holdfast.agents.command_lines import FORMS, Guessing, Report, form_of
from holdfast.agents.command_lines.report import number
from holdfast.policies.models.usage import Usage
from holdfast.tools.process_error import Finished

LINES = Path(__file__).with_name("lines")
ID = "00000000-0000-4000-8000-000000000001"


def read(form: str, lines: list[str]) -> tuple[list, Report]:
    reader = FORMS[form].reader()
    return [part for line in lines for part in reader.read(line)], reader.report


def recorded(name: str) -> list[str]:
    return (LINES / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()


def finished(exit_code: int = 0, stderr: str = "") -> Finished:
    return Finished(command=("x",), exit_code=exit_code, stdout="", stderr=stderr, took=1.5)


def fault_of_lines(form: str, lines: list[str], exit_code: int = 1, stderr: str = ""):
    _, report = read(form, lines)
    ended = finished(exit_code, stderr)
    return command_fault(report, FORMS[form], ended, None, agent="a", resumes=True, now=0)


# --- recorded ---


@pytest.mark.parametrize("value", [-1, 1e308, 10**400, True, "5", None, float("nan"), float("inf")])
def test_what_is_no_amount_is_unknown(value):
    assert number(value) is None
    assert (number(0), number(2**53), number(0.5)) == (0.0, 2.0**53, 0.5)


@pytest.mark.parametrize("form", ["claude", "codex"])
def test_a_recorded_answer_is_read_whole(form):
    parts, report = read(form, recorded(f"{form}-answer"))
    assert (parts, report.answer, report.ended, report.failure) == ([Text(text="Hello.")], "Hello.", True, None)
    assert report.session == ID
    assert report.usage is not None
    assert report.usage.input > 0
    assert (report.usd is not None) is (form == "claude")


@pytest.mark.parametrize(("form", "tool"), [("claude", "Bash"), ("codex", "command_execution")])
def test_a_recorded_tool_call_and_its_result_are_parts(form, tool):
    (call, result, text), report = read(form, recorded(f"{form}-tool"))
    assert isinstance(call, ToolCalled)
    assert isinstance(result, ToolReturned)
    assert (call.name, call.id, result.name, result.is_error) == (tool, result.id, tool, False)
    assert "echo hi" in json.dumps(call.arguments)
    assert result.content.strip() == "hi"
    assert (text, report.answer, report.tool_calls, report.worked) == (Text(text="Done."), "Done.", 1, True)


@pytest.mark.parametrize("form", ["claude", "codex"])
@pytest.mark.parametrize(
    ("case", "code", "retryable"),
    [
        ("overloaded", "PROVIDER_OVERLOADED", True),
        ("denied", "AUTH_FAILED", False),
        ("overflow", "PROVIDER_CONTEXT_OVERFLOW", False),
    ],
)
def test_a_recorded_failure_has_the_providers_code(form, case, code, retryable):
    fault = fault_of_lines(form, recorded(f"{form}-{case}"))
    assert fault is not None
    assert (fault.code, fault.retryable, fault.maybe_executed) == (code, retryable, False)
    assert fault.context["duration_ms"] == 1500


@pytest.mark.parametrize("name", sorted(path.stem for path in LINES.glob("*.jsonl")))
def test_the_form_of_recorded_lines_is_found_without_a_word_about_it(name):
    reader, form = Guessing(), name.partition("-")[0]
    for line in recorded(name):
        reader.read(line)
    assert reader.form is FORMS[form]
    assert reader.report.session


@pytest.mark.parametrize("name", sorted(path.stem for path in LINES.glob("*.jsonl")))
def test_a_recording_that_is_cut_anywhere_is_never_an_answer(name):
    form = name.partition("-")[0]
    lines = recorded(name)
    whole = "\n".join(lines)
    for end in range(0, len(whole) - 1, 97):
        fault = fault_of_lines(form, whole[:end].splitlines(), exit_code=0)
        assert fault is not None, end


# --- odd lines ---


@pytest.mark.parametrize("form", sorted(FORMS))
@settings(max_examples=30, deadline=None, derandomize=True)
@given(data=st.data())
def test_no_line_makes_a_reader_raise(form, data):
    json_values = st.recursive(
        st.none() | st.booleans() | st.floats(allow_nan=False) | st.integers(-(2**70), 2**70) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
        max_leaves=12,
    )
    objects = st.dictionaries(st.sampled_from(WORDS), json_values | st.sampled_from(KINDS), max_size=8)
    lines = data.draw(st.lists(objects.map(json.dumps) | st.text(max_size=30), max_size=6))
    reader = FORMS[form].reader()
    for line in lines:
        reader.read(line)
    reader.end()
    command_fault(reader.report, FORMS[form], finished(), None, agent="a", resumes=True, now=0)


WORDS = (  # noqa: SIM905 - words
    "type subtype session_id message content id name input text usage result is_error num_turns total_cost_usd item thread_id error "
    "event delta attempt max_retries error_status rate_limit_info status errors aggregated_output exit_code arguments usd turns"
).split()
KINDS = (  # noqa: SIM905 - words
    "system assistant user result stream_event rate_limit_event api_retry init success thread.started item.completed item.started "
    "turn.completed turn.failed error text tool_use tool_result agent_message command_execution session tool-call tool-result"
).split()


@pytest.mark.parametrize("form", ["claude", "codex"])
def test_unknown_lines_are_ignored_and_broken_ones_are_kept_as_text(form):
    lines = [
        '{"type": "hologram", "depth": 3}',
        "[1, 2]",
        "Warning: odd",
        '{"type": "resu',
        *recorded(f"{form}-answer"),
    ]
    parts, report = read(form, lines)
    assert parts == [Text(text="Hello.")]
    assert report.stray.startswith('[1, 2]\nWarning: odd\n{"type": "resu')


def test_a_line_of_20_MB_is_read_and_what_is_kept_of_text_is_bounded():
    text = "x" * 20_000_000
    message = {"id": "m", "content": [{"type": "text", "text": text}]}
    parts, report = read("claude", [json.dumps({"type": "assistant", "session_id": ID, "message": message}), text])
    assert len(parts[0].text) == 20_000_000
    assert len(report.stray) <= 8_192


def said(form: str, text: str) -> str:
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    message = {"method": "session/update", "params": {"sessionId": "s", "update": update}}
    return json.dumps(message if form == "acp" else {"type": "text", "text": text})


@pytest.mark.parametrize("form", ["acp", "plain"])
def test_an_answer_of_3_MB_in_pieces_is_kept_whole(form):
    _, report = read(form, [said(form, "é" * 1_500), *[said(form, "x" * 100_000)] * 30, said(form, "The end.")])
    assert report.text == "é" * 1_500 + "x" * 3_000_000 + "The end."


@pytest.mark.parametrize("form", ["acp", "plain"])
@pytest.mark.parametrize("size", [3_000, 100_000])
def test_the_text_of_an_answer_is_bounded_with_its_last_words_and_a_mark_where_it_was_cut(form, size, monkeypatch):
    monkeypatch.setattr("holdfast.agents.command_lines.report._ANSWER_BYTES", 20_000)
    pieces = [said(form, "Begin. "), *[said(form, "x" * size)] * (300_000 // size), said(form, " The end.")]
    _, report = read(form, pieces)
    assert report.text.startswith("Begin. xxx")
    assert report.text.endswith("xxx The end.")
    assert "\n…[280016 bytes cut]…\n" in report.text
    assert len(report.text) < 21_000


def test_what_a_fault_keeps_of_a_long_text_is_bounded_with_its_last_words():
    fault = fault_of_lines(
        "plain", [said("plain", "Begin."), said("plain", "x" * 3_000_000), said("plain", "The end.")]
    )
    assert fault is not None
    assert fault.partial is not None
    text = fault.partial.payload["text"]
    assert text.startswith("Begin.xxx")
    assert text.endswith("xxxThe end.")
    assert len(text) < 1_100_000


def test_pieces_of_a_message_are_told_once_although_the_whole_follows():
    def piece(**event):
        return json.dumps({"type": "stream_event", "session_id": ID, "event": event})

    lines = [
        piece(type="message_start", message={"id": "m-1"}),
        piece(type="content_block_delta", delta={"type": "text_delta", "text": "Hel"}),
        piece(type="content_block_delta", delta={"type": "text_delta", "text": "lo."}),
        json.dumps(
            {
                "type": "assistant",
                "session_id": ID,
                "message": {"id": "m-1", "content": [{"type": "text", "text": "Hello."}]},
            }
        ),
    ]
    parts, report = read("claude", lines)
    assert (parts, report.text) == ([Text(text="Hel"), Text(text="lo.")], "Hello.")


def test_a_subagents_words_are_not_the_answer_but_its_calls_count_as_work():
    blocks = [{"type": "text", "text": "inside"}, {"type": "tool_use", "id": "t", "name": "Edit", "input": {}}]
    line = {
        "type": "assistant",
        "session_id": ID,
        "parent_tool_use_id": "t-0",
        "message": {"id": "m", "content": blocks},
    }
    parts, report = read("claude", [json.dumps(line)])
    assert (parts, report.text, report.worked) == ([], "", True)


def test_the_programs_own_retries_are_parts_with_a_fault():
    retry = {"type": "system", "subtype": "api_retry", "attempt": 1, "max_retries": 10, "retry_delay_ms": 594}
    (part,), _ = read("claude", [json.dumps({**retry, "error_status": 529, "error": "overloaded", "session_id": ID})])
    assert isinstance(part, Retrying)
    assert (part.line, part.delay, part.fault.code) == ("Retrying... (2/11)", 0.594, "PROVIDER_OVERLOADED")
    message = "Reconnecting... 2/5 (stream disconnected before completion: network error)"
    (part,), report = read("codex", [json.dumps({"type": "error", "message": message})])
    assert isinstance(part, Retrying)
    assert (part.line, part.fault.retryable, report.failure) == ("Reconnecting... 2/5", True, None)


def test_codex_usage_keeps_the_four_kinds_apart():
    usage = {"input_tokens": 100, "cached_input_tokens": 60, "cache_write_input_tokens": 10, "output_tokens": 7}
    _, report = read("codex", [json.dumps({"type": "turn.completed", "usage": usage})])
    assert report.usage == Usage(input=30, output=7, cached=60, written=10)


def test_codex_calls_of_mcp_tools_and_failed_commands_are_parts():
    failed = {"id": "i-1", "type": "command_execution", "command": "false", "exit_code": 1, "status": "failed"}
    asked = {"id": "i-2", "type": "mcp_tool_call", "server": "docs", "tool": "search", "arguments": {"q": "x"}}
    lines = [
        json.dumps({"type": "item.completed", "item": item}) for item in (failed, {**asked, "result": {"hits": 1}})
    ]
    parts, report = read("codex", lines)
    assert [type(part).__name__ for part in parts] == ["ToolCalled", "ToolReturned"] * 2
    assert (parts[1].is_error, parts[2].name, parts[2].arguments) == (True, "docs/search", {"q": "x"})
    assert (parts[3].content, report.tool_calls) == ('{"hits":1}', 2)


# --- the plain form ---


def plain(*lines: str | dict) -> tuple[list, Report]:
    reader = FORMS["plain"].reader()
    parts = [part for line in lines for part in reader.read(line if isinstance(line, str) else json.dumps(line))]
    reader.end()
    return parts, reader.report


def test_plain_text_is_the_answer_with_its_empty_lines():
    parts, report = plain("one", "", "two", '{"a": 1}')
    assert report.answer == 'one\n\ntwo\n{"a":1}'
    assert "".join(part.text for part in parts) == report.answer


def test_the_documented_lines_of_the_plain_form():
    parts, report = plain(
        {"type": "session", "id": "s-1"},
        {"type": "tool-call", "id": "c-1", "name": "search", "arguments": {"q": "x"}},
        {"type": "tool-result", "id": "c-1", "name": "search", "content": "hit", "isError": True},
        {"type": "text", "text": "Hello"},
        {"type": "result", "text": "Hello.", "usd": 0.1, "turns": 2, "model": "m", "usage": {"input": 3, "output": 1}},
    )
    assert parts == [
        ToolCalled(id="c-1", name="search", arguments={"q": "x"}),
        ToolReturned(id="c-1", name="search", content="hit", is_error=True),
        Text(text="Hello"),
    ]
    assert (report.session, report.answer, report.usd, report.turns, report.model) == ("s-1", "Hello.", 0.1, 2, "m")
    assert report.usage == Usage(input=3, output=1)


def test_an_error_line_of_the_plain_form_is_a_failure_with_its_end():
    lines = [json.dumps({"type": "error", "message": "usage limit reached", "status": 429, "retryAt": 7200})]
    fault = fault_of_lines("plain", lines, exit_code=0)
    assert fault is not None
    assert (fault.code, fault.retry_after) == ("PROVIDER_QUOTA_EXHAUSTED", 7200)


# --- which form ---


@pytest.mark.parametrize(
    ("argv", "form"),
    [
        (["claude", "-p", "--output-format", "stream-json", "--verbose"], "claude"),
        (["npx", "claude", "-p", "--output-format=stream-json"], "claude"),
        (["/opt/bin/codex", "exec", "--json"], "codex"),
        (["codex", "exec"], None),
        (["claude", "-p"], None),
        (["my-agent", "--json"], None),
    ],
)
def test_the_arguments_show_the_form(argv, form):
    assert form_of(argv) is (None if form is None else FORMS[form])


WITH_HALF = {
    "claude": [
        {"type": "system", "subtype": "init", "session_id": ID},
        {
            "type": "assistant",
            "message": {"content": [{"type": "tool_use", "id": "t", "name": "Bash", "input": {"command": "@"}}]},
        },
        {"type": "result", "subtype": "success", "result": "@", "is_error": False, "session_id": ID},
    ],
    "codex": [
        {"type": "thread.started", "thread_id": ID},
        {"type": "item.started", "item": {"id": "t", "type": "command_execution", "command": "@"}},
        {"type": "item.completed", "item": {"type": "agent_message", "text": "@"}},
        {"type": "turn.completed", "usage": {}},
    ],
    "plain": [
        {"type": "session", "id": ID},
        {"type": "tool-call", "id": "t", "name": "run", "arguments": {"command": "@"}},
        {"type": "result", "text": "@"},
    ],
}


@pytest.mark.parametrize("form", WITH_HALF)
@pytest.mark.parametrize("half", [r"cut \ud83d", r"cut \uDE00 \\ud83d", r"\ud83d\ud83d\ude00"])
def test_a_line_with_half_a_character_is_read(form: str, half: str):
    lines = [json.dumps(line).replace("@", half) for line in WITH_HALF[form]]
    parts, report = read(form, lines)
    assert (report.ended, report.session, report.tool_calls) == (True, ID, 1)
    assert report.answer == json.loads(f'"{half}"').encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert [part for part in parts if isinstance(part, ToolCalled)]
    guessing = Guessing()
    guessing.read(lines[0])
    assert guessing.form == FORMS[form]


@pytest.mark.parametrize("line", [r'{"type": "result", "text": "\ud83d"', r"[\ud83d", '"\\ud8'])
def test_a_broken_line_with_half_a_character_is_text(line: str):
    parts, _ = read("plain", [line])
    assert parts == [Text(text=line)]
