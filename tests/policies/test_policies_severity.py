"""S0-4: what is done about a failure of each severity."""

from __future__ import annotations

from itertools import pairwise

import pytest

from holdfast.faults import Severity
from holdfast.policies.severity import REACTIONS, Reaction, reactions_to

DOCUMENT = {
    "info": {"log"},
    "warning": {"log", "metrics"},
    "error": {"log", "notify", "retry"},
    "critical": {"log", "alert", "circuit"},
    "fatal": {"log", "terminate"},
}


@pytest.mark.parametrize("severity", list(Severity))
def test_S0_4_every_severity_does_what_the_document_says(severity):
    assert set(reactions_to(severity)) >= DOCUMENT[severity]


def test_a_graver_one_does_what_the_milder_do():
    grave = [REACTIONS[severity] for severity in Severity]
    for milder, graver in pairwise(grave):
        assert milder - {Reaction.RETRY} <= graver


def test_only_a_fatal_failure_terminates_and_it_is_not_retried():
    assert [severity for severity in Severity if Reaction.TERMINATE in REACTIONS[severity]] == [Severity.FATAL]
    assert Reaction.RETRY not in REACTIONS[Severity.FATAL]
    assert Reaction.CIRCUIT not in REACTIONS[Severity.ERROR]


def test_they_come_in_order_the_log_first_and_the_end_last():
    assert reactions_to(Severity.FATAL)[0] is Reaction.LOG
    assert reactions_to(Severity.FATAL)[-1] is Reaction.TERMINATE


def test_the_table_cannot_be_changed():
    with pytest.raises(TypeError):
        REACTIONS[Severity.INFO] = frozenset()
