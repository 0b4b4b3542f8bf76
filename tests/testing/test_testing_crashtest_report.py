"""What a trial after a kill says, compared with the run without one."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.testing.crashtest import Kill, Mark, Report, Row, Run, Sent, Trial
from holdfast.testing.crashtest.report import judge, path_name

KILL = Kill(Mark("after", "effect", "POST /charges"))
ENDED = Run(how="ended", exit_code=0)
KILLED = Run(how="killed")


def charge(body: str = "a", **other: Any) -> Sent:
    return Sent(
        **{"kind": "effect", "target": "pay", "method": "POST", "path": "/charges", "body": body, "status": 200} | other
    )


MODEL = charge(kind="model", path="/v1/messages")


def trial(*sent: Sent, last: Run = ENDED, **other: Any) -> Trial:
    return Trial(runs=(KILLED, last), sent=sent, kill=KILL, **other)


def judged(observed: list[Sent], *sent: Sent, last: Run = ENDED, same_bodies: bool = True, **other: Any) -> Row:
    alone = Trial(runs=(ENDED,), sent=tuple(observed))
    return judge(alone, trial(*sent, last=last, **other), same_bodies=same_bodies)


def test_the_same_effects_are_ok():
    row = judged([charge("a"), charge("b")], charge("a"), charge("b"))
    assert (row.verdict, row.doubled, row.lost, row.runs) == ("ok", 0, 0, 2)


def test_an_effect_too_many_is_doubled_whatever_its_body_is():
    assert judged([charge("a")], charge("a"), charge("a")).doubled == 1
    assert judged([charge("a")], charge("a"), charge("other")).doubled == 1
    assert judged([charge("a")], charge("x"), charge("y"), same_bodies=False).doubled == 1


def test_one_payment_twice_and_another_never_is_both():
    row = judged([charge("a"), charge("b")], charge("a"), charge("a"))
    assert (row.verdict, row.doubled, row.lost) == ("doubled", 1, 1)


def test_an_effect_with_another_body_in_its_place_is_lost():
    row = judged([charge("a")], charge("z"))
    assert (row.verdict, row.doubled, row.lost) == ("lost", 0, 1)
    assert row.detail == "an effect with another body was sent in its place"
    row = judged([charge("a"), charge("b")], charge("b"), charge("z"))
    assert (row.verdict, row.doubled, row.lost) == ("lost", 0, 1)


def test_another_body_says_nothing_if_each_run_sends_other_bodies():
    row = judged([charge("a")], charge("z"), same_bodies=False)
    assert (row.verdict, row.doubled, row.lost) == ("ok", 0, 0)


def test_the_same_idempotency_key_is_one_effect():
    assert judged([charge(key="k")], charge(key="k"), charge(key="k")).verdict == "ok"
    assert judged([charge(key="k")], charge(key="k"), charge(key="l")).verdict == "doubled"


def test_a_request_that_the_server_rejected_is_no_effect_and_one_without_answer_may_be():
    assert judged([charge()], charge(status=503), charge()).verdict == "ok"
    assert judged([charge()], charge(status=None), charge()).verdict == "doubled"


def test_a_missing_effect_is_lost():
    row = judged([charge("a"), charge("b")], charge("a"))
    assert (row.verdict, row.lost) == ("lost", 1)


def test_ids_in_paths_do_not_make_effects_different():
    assert judged([charge(path="/orders/1/pay")], charge(path="/orders/2/pay"), same_bodies=False).verdict == "ok"
    assert path_name("/orders/017/items/4f9c1d2ab09d3e4f71?x=1") == "/orders/{id}/items/{id}"
    assert path_name("/v1/messages") == "/v1/messages"


def test_model_requests_are_money_and_not_damage():
    row = judged([MODEL], MODEL, MODEL, MODEL)
    assert (row.verdict, row.paid, row.doubled) == ("ok", 2, 0)


@pytest.mark.parametrize(
    ("last", "verdict", "detail"),
    [
        (Run(how="timed out", seconds=30), "never ends", "no end after 30 s"),
        (Run(how="ended", exit_code=1, errors="Traceback …\nKeyError: 'x'\n"), "fails", "KeyError: 'x'"),
        (Run(how="ended", exit_code=-11), "fails", ""),
        (
            Run(
                how="ended", exit_code=1, errors="holdfast.OutcomeUnknownError: TOOL_OUTCOME_UNKNOWN  may have happened"
            ),
            "asks",
            "holdfast.OutcomeUnknownError: TOOL_OUTCOME_UNKNOWN  may have happened",
        ),
    ],
)
def test_a_bad_end_has_its_verdict_and_its_reason(last: Run, verdict: str, detail: str):
    row = judged([], last=last)
    assert (row.verdict, row.detail) == (verdict, detail)


def test_what_is_left_to_a_person_is_not_lost():
    asks = Run(how="ended", exit_code=1, errors="OutcomeUnknownError")
    assert Run(how="ended", exit_code=7).asks, "the status of our own verbs where a person must answer first"
    assert judged([charge()], last=asks).lost == 0


def test_a_doubled_effect_is_worse_than_a_bad_end():
    assert judged([charge()], charge(), charge(), last=Run(how="timed out", seconds=9)).verdict == "doubled"


def test_a_kill_that_was_not_reached_says_nothing_about_the_program():
    alone = Trial(runs=(ENDED,), sent=())
    row = judge(alone, Trial(runs=(ENDED,), sent=(), kill=KILL), same_bodies=True)
    assert row.verdict == "not reached"


def test_a_report_knows_its_damage_and_says_it_in_one_line():
    rows = (
        Row(killed="before POST /charges", runs=2),
        Row(killed="after POST /charges", runs=2, doubled=1, paid=2, verdict="doubled"),
        Row(killed="after commit state.db", runs=2, verdict="asks"),
    )
    report = Report(command=("a",), rows=rows, points=2, effects=1, model_requests=1, seconds=0.1, notes=("a note",))
    assert report.damage == (rows[1],)
    assert report.summary == (
        "killed 3 times: 1 of them did damage; 1 effects doubled, 0 lost; 1 times a person is asked; 2 model requests paid again"
    )
    assert report.text().splitlines()[2] == "after POST /charges    2     1              2           doubled"
    assert report.text().endswith("a note")
