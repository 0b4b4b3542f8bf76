"""Agents of three frameworks, as their documentation shows them, killed around two payments: alone, and with durable tools.

The payment service is real and local, and every run sends its requests to it. What it performed is compared with what the report counts.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from crashtest_kit import EXAMPLES, Payments, serving

from holdfast.testing import CrashTest
from holdfast.testing.crashtest import Report
from holdfast.testing.provider import read_file

FRAMEWORKS = ("order_langgraph.py", "order_pydantic_ai.py", "order_agents_sdk.py")
PLAIN = "order_plain.py"


@pytest.fixture
def payments() -> Iterator[Payments]:
    with serving() as server:
        yield server


def crash_order(payments: Payments, *command: str, kills: int | None) -> Report:
    """Kill an agent of the examples around its payments."""
    test = CrashTest(
        [sys.executable, *command],
        folder=EXAMPLES,
        effects=[payments.url],
        fake_model=read_file(EXAMPLES / "model.toml"),
        live=True,
        kills=kills,
        expect="Order 42 is paid.",
        timeout=300,
        environment={"PAYMENTS_URL": payments.url},
    )
    return test.run()


def performed_too_often(payments: Payments, report: Report) -> int:
    """How many payments the service made that the orders did not need: two runs without a kill, and one trial for each kill."""
    return payments.performed.total() - 2 * (2 + len(report.rows))


def test_an_agent_without_a_framework_pays_twice_and_the_service_counts_the_same(payments: Payments):
    report = crash_order(payments, PLAIN, kills=4)
    assert [row.verdict for row in report.rows] == ["ok", "doubled", "ok", "doubled"]
    assert performed_too_often(payments, report) == report.doubled == 2


@pytest.mark.soak
@pytest.mark.parametrize("agent", FRAMEWORKS)
def test_a_framework_pays_twice(agent: str, payments: Payments, capsys: pytest.CaptureFixture[str]):
    report = crash_order(payments, agent, kills=8)
    with capsys.disabled():
        sys.stdout.write(f"\n{agent}\n{report.text()}\n")
    assert {row.verdict for row in report.rows if row.killed == "after POST /charges"} == {"doubled"}
    assert performed_too_often(payments, report) == report.doubled > 0


@pytest.mark.soak
@pytest.mark.parametrize("agent", FRAMEWORKS)
def test_a_framework_with_durable_tools_pays_once(agent: str, payments: Payments, capsys: pytest.CaptureFixture[str]):
    report = crash_order(payments, agent, "--holdfast", kills=8)
    with capsys.disabled():
        sys.stdout.write(f"\n{agent} --holdfast\n{report.text()}\n")
    assert [row for row in report.damage if row.verdict != "fails"] == []
    assert report.doubled == report.lost == 0
    for path in ("/charges", "/receipts"):
        keys = [key for received, key in payments.received if received == path]
        # The two runs without a kill and each trial send it once, from a fresh state. Only a kill between the service's answer and its
        # place in the store makes a trial send it once more, and then with the key of the first request.
        cut = sum(row.killed == f"after POST {path}" for row in report.rows)
        assert cut > 0, "no trial shows that an answer that was lost is not a second payment"
        assert len(keys) == 2 + len(report.rows) + cut
        assert len(set(keys)) == 1
        assert all(keys)
    # Each trial is the same order again, so its keys are the same: the service made one charge and one receipt in all.
    assert payments.performed == {"/charges": 1, "/receipts": 1}
