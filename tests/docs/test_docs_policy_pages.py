"""Each policy has one page on one skeleton, and its tables say what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast import Backoff, Policy
from holdfast.faults import Schedule
from holdfast.policies.profiles import HOLDFAST, PROFILES

PAGES = Path(__file__).parents[2] / "docs" / "reference" / "policies"
WRITTEN = ("retry", "backoff", "timeout", "fallback", "streams", "profiles")


def rows(page: str) -> list[list[str]]:
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line.startswith("|")
    ]


@pytest.mark.parametrize("page", WRITTEN)
def test_a_page_answers_the_same_questions_in_the_same_order(page):
    headings = re.findall(r"^## (.+)$", (PAGES / f"{page}.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[:3] == ["What it does", "When to use", "Options"]
    assert re.search("[Dd]iagram|Sequence", headings[3])
    assert headings[4:] == ["Events", "Patterns", "Anti-patterns"]


def test_the_options_of_a_backoff_are_all_told_with_their_defaults():
    told = {
        row[0].strip("`"): row[1].strip("`")
        for row in rows("backoff")
        if row[0].startswith("`") and row[0].strip("`") in Backoff.__struct_fields__
    }
    assert told == {name: str(getattr(Backoff(), name)) for name in Backoff.__struct_fields__}


@pytest.mark.parametrize("page", ["retry", "timeout"])
def test_the_options_of_a_policy_have_the_defaults_that_are_told(page):
    told = {row[0].strip("`").removeprefix("Policy."): row[1].strip('`"') for row in rows(page) if "`Policy." in row[0]}
    assert told
    assert told == {name: str(getattr(Policy(), name)) for name in told}


def test_every_profile_and_every_schedule_is_told():
    first = {word for row in rows("profiles") for word in re.findall(r"`(\w+)`", row[0])}
    assert set(PROFILES) <= first
    assert {schedule.value for schedule in Schedule} <= first


def test_a_schedules_attempts_and_waits_are_the_codes():
    for row in rows("profiles"):
        for word in re.findall(r"`(\w+)`", row[0]):
            if word in set(Schedule) and len(row) == 3:
                tries = HOLDFAST.schedules[Schedule(word)]
                waits = [float(wait) for wait in re.findall(r"[\d.]+", row[2].partition(" s")[0])]
                attempts = None if row[1].startswith("any number") else int(row[1])
                assert attempts == tries.attempts
                assert waits == [
                    round(tries.backoff.wait(retry), 2 if attempts else 1) for retry in range(1, len(waits) + 1)
                ]
                assert attempts == len(waits) + 1 if attempts else waits[-1] == tries.backoff.cap
