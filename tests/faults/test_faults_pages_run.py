"""Every page's example is run, and what the page says of its code is compared with the catalog."""

from __future__ import annotations

import re
import shlex

import pytest
from typer.testing import CliRunner

from holdfast import INTERACTIVE
from holdfast.cli.app import app
from holdfast.faults import CATALOG, CODES, NextActor, Schedule
from holdfast.policies.circuit import GRADED
from holdfast.policies.profiles import HOLDFAST
from holdfast.runtime import page_of

# What a page says in numbers, and the schedule these numbers are (words.py).
SPOKEN_SCHEDULES = {
    Schedule.TRANSIENT: r"for two minutes, 1 to 8 s apart",
    Schedule.RATE_LIMIT: r"for two minutes, 1 to 8 s apart|until it is the call's turn",
    Schedule.STORE: r"three attempts, 2 and 4 s apart",
    Schedule.CONNECT: r"to connect three times, 1 and 2 s apart",
    Schedule.RECONNECT: r"after 1, 2, 5, 10 and 30 s",
    Schedule.TOOL_SERVER: r"at once, then after 250 ms, doubling up to 4 s; five attempts",
    Schedule.TOOL: r"tool's own contract",
    Schedule.ONCE: r"(?:retries|tries|asks|repeats|sends)(?: the call)? once|once more",
    Schedule.MATCHING: r"one more attempt under every profile",
}
ASKED_AGAIN_DIFFERENTLY = {"AUTH_TOKEN_EXPIRED"}
"""Not retried, yet their pages tell of one more call: with another token."""
OTHER_CLOSE_CODES = {("PROTO_INVALID_MESSAGE", "4508")}
"""A close code that is another failure's: ten of these close the connection as too many errors."""


@pytest.mark.parametrize("code", CODES)
def test_what_a_page_tells_to_run_gives_its_code(code):
    language, example = re.findall(r"^```(\w+)\n(.*?)^```$", page_of(code), re.MULTILINE | re.DOTALL)[0]
    if language == "python":
        exec(compile(example, f"{code}.md", "exec"), {})
        return
    dollar, command, *arguments = shlex.split(example)
    assert (dollar, command) == ("$", "holdfast")
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert result.stdout.split()[0] == code


def what_holdfast_does(code: str) -> str:
    section = page_of(code).partition("## What Holdfast does\n")[2].partition("\n## ")[0]
    return " ".join(section.split())


@pytest.mark.parametrize(
    ("trait", "spoken"),
    [
        ("scope", r"(?i)\bscope(?: is)?(?: the)? `(\w+)`"),
        ("kind", r"(?i)\bkind(?: is)? `(\w+)`"),
        ("severity", r"(?i)\bseverity(?: is)? `(\w+)`"),
        ("category", r"(?i)\bcategory(?: is)? `(\w+)`"),
        ("layer", r"(?i)\blayer(?: is)? `(\w+)`"),
        ("schedule", r"(?i)\bschedule(?: is)? `(\w+)`"),
        (
            "http_status",
            r"\bHTTP(?: callers get| callers see| clients with)?(?: status)?(?: is| of the code is)? (\d{3})\b",
        ),
        ("exit_code", r"\bexit code(?: is)? (\d+)\b"),
        ("next_actor", rf"(?i)\bnext actor(?: is|:)?(?: the)? ({'|'.join(NextActor)})\b"),
        ("next_actor", rf"(?i)\bthe ({'|'.join(NextActor)})(?: of the hook)? (?:must act|is (?:the )?next to act)\b"),
        ("next_actor", rf"(?i)\bnames the ({'|'.join(NextActor)}) as next\b"),
    ],
)
def test_what_a_page_says_of_its_code_is_what_the_catalog_says(trait, spoken):
    stated = [(code, value) for code in CODES for value in re.findall(spoken, what_holdfast_does(code))]
    assert [(code, value) for code, value in stated if value != str(getattr(CATALOG[code], trait))] == []
    assert stated, "the pattern finds what pages say"


def test_a_pages_close_code_is_the_catalogs():
    spoken = (
        r"(?i)(?:close code|closed? (?:the (?:connection|socket) )?with(?: code)?|closes with|normal close) (\d{4})\b"
    )
    stated = [(code, value) for code in CODES for value in re.findall(spoken, what_holdfast_does(code))]
    wrong = {(code, value) for code, value in stated if value != str(CATALOG[code].close_code)}
    assert wrong == OTHER_CLOSE_CODES
    assert len(stated) > len(wrong)


def _numbers(schedule):
    """Return what a page can tell of a schedule: in whole seconds."""
    tries = HOLDFAST.schedules[schedule]
    return tries and (tries.attempts, round(tries.backoff.initial), tries.backoff.cap)


@pytest.mark.parametrize("schedule", SPOKEN_SCHEDULES)
def test_a_page_that_tells_of_a_schedule_tells_of_its_own(schedule):
    spoken = re.compile(SPOKEN_SCHEDULES[schedule], re.IGNORECASE)
    stated = {code for code in CODES if spoken.search(what_holdfast_does(code))}
    others = {code for code in stated if _numbers(CATALOG[code].schedule) != _numbers(schedule)}
    assert others - ASKED_AGAIN_DIFFERENTLY == set()
    assert stated


def test_the_numbers_that_pages_tell_are_those_of_the_default_policy():
    for schedule in (Schedule.TRANSIENT, Schedule.RATE_LIMIT):
        assert _numbers(schedule) == (None, 1, 8)
    connect = HOLDFAST.schedules[Schedule.CONNECT]
    assert (connect.attempts, connect.backoff.wait(1), connect.backoff.wait(2)) == (3, 1, 2)
    assert (INTERACTIVE.patience, INTERACTIVE.deadline) == (120, None)
    assert (GRADED.failures, GRADED.open_for, GRADED.open_cap) == (12, 1, 5)


def test_a_page_of_a_code_that_is_retried_says_how_often():
    silent = {
        code
        for code, entry in CATALOG.items()
        if entry.retryable and not re.search(SPOKEN_SCHEDULES[entry.schedule], what_holdfast_does(code), re.IGNORECASE)
    }
    assert silent == set()


def test_a_page_of_a_code_that_is_not_retried_says_so():
    refusals = re.compile(
        r"not retr(?:ied|y|yable)|never retr|never (?:repeat|send)|not repeat|retries are spent|schedule `none`",
        re.IGNORECASE,
    )
    silent = {
        code for code, entry in CATALOG.items() if not entry.retryable and not refusals.search(what_holdfast_does(code))
    }
    assert silent == set()


def test_a_page_of_a_code_that_is_retried_does_not_deny_it():
    denials = r"(?i)\b(?:is|are|be) not retried\b|\bnever retried\b|\bdoes not retry\b"
    assert {
        code for code, e in CATALOG.items() if e.retryable and re.search(denials, what_holdfast_does(code))
    } == set()
