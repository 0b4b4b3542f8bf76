"""Wrong options fail where they are written, with what was expected, what came and where; zero means zero."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from holdfast.faults import InvalidError
from holdfast.policies.circuit import Circuit

NAN, INF = math.nan, math.inf
HUGE = 10**400
"""An int that no float can hold."""

NO_COUNT: tuple[Any, ...] = (-1, 2.5, NAN, INF, "5", True, [5])
NO_SECONDS: tuple[Any, ...] = (-1.0, 0, NAN, INF, -INF, HUGE, "30", True, [30])
NO_SHARE: tuple[Any, ...] = (-0.1, 0, 1.1, NAN, INF, HUGE, "half", True, [0.5])
NO_FLAG: tuple[Any, ...] = (0, 1, None, "yes")
NO_WORD: tuple[Any, ...] = ("", "open", None, 1, True, ["normal"])

WRONG: dict[str, tuple[Any, ...]] = {
    "failures": (*NO_COUNT, 0),
    "counted": NO_WORD,
    "rate": NO_SHARE,
    "window": (*NO_SECONDS, None, 1e-4),
    "volume": (*NO_COUNT, None),
    "slow": NO_SECONDS,
    "slow_rate": NO_SHARE,
    "open_for": (*NO_SECONDS, None),
    "reopen_for": NO_SECONDS,
    "open_growth": (-1.0, 0, 0.5, NAN, INF, HUGE, "2", True, None),
    "open_cap": (*NO_SECONDS, None),
    "probes": (*NO_COUNT, 0, None),
    "successes": (*NO_COUNT, 0, None),
    "probe_limit": (*NO_SECONDS, None),
    "graded": NO_FLAG,
    "adaptive": NO_FLAG,
    "count_all": NO_FLAG,
    "mode": NO_WORD,
}


def short(value: object) -> str:
    return repr(value)[:12]


def invalid(**options: Any) -> InvalidError:
    with pytest.raises(InvalidError) as caught:
        Circuit(**options)
    return caught.value


def test_the_table_of_wrong_options_has_every_option():
    assert list(WRONG) == [field.name for field in msgspec.structs.fields(Circuit)]


@pytest.mark.parametrize(
    ("option", "value"), [(option, value) for option in WRONG for value in WRONG[option]], ids=short
)
def test_a_wrong_option_is_named_with_what_was_expected_and_what_came(option, value):
    context = invalid(**{option: value}).fault.context
    assert context["path"] == f"circuit.{option}"
    assert context["expected"]
    assert context["received"] == (repr(value) if isinstance(value, (str, int, float)) else type(value).__name__)


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"slow_rate": 0.5}, "circuit.slow"),
        ({"slow": 5.0}, "circuit.slow_rate"),
        ({"rate": 0.5, "window": 0}, "circuit.window"),
        ({"counted": "window", "failures": None}, "circuit.failures"),
        ({"failures": None, "rate": None}, "circuit.failures"),
        ({"open_for": 700.0}, "circuit.open_cap"),
        ({"open_cap": 29.0}, "circuit.open_cap"),
    ],
    ids=str,
)
def test_options_that_contradict_each_other_are_invalid(options, path):
    assert invalid(**options).fault.context["path"] == path


@pytest.mark.parametrize("mode", ["disabled", "metrics-only", "forced-open"])
def test_a_circuit_that_never_opens_by_itself_needs_no_rule(mode):
    assert Circuit(failures=None, rate=None, mode=mode).mode == mode


@pytest.mark.parametrize(
    "options",
    [
        {"volume": 0},
        {"failures": 1},
        {"rate": 1},
        {"rate": 1.0},
        {"window": 1},
        {"open_for": 1, "open_cap": 1},
        {"open_growth": 1},
        {"failures": None},
        {"rate": None},
        {"slow": 1, "slow_rate": 1},
        {"failures": None, "rate": None, "slow": 0.5, "slow_rate": 0.1},
    ],
    ids=str,
)
def test_options_at_their_limits_are_taken_as_they_are(options):
    circuit = Circuit(**options)
    assert {name: getattr(circuit, name) for name in options} == options


def test_replace_changes_some_options_and_checks_all():
    assert Circuit().replace(failures=3) == Circuit(failures=3)
    with pytest.raises(InvalidError, match=r"circuit\.open_cap"):
        Circuit().replace(open_for=700.0)


def test_an_unknown_option_is_invalid():
    with pytest.raises(InvalidError, match="failure_threshold"):
        Circuit(failure_threshold=5)  # type: ignore[call-arg]
    with pytest.raises(msgspec.ValidationError, match="failure_threshold"):
        msgspec.json.decode(b'{"failure_threshold": 5}', type=Circuit)


def test_a_circuit_is_plain_json_without_its_defaults():
    circuit = Circuit(failures=3, slow=2.0, slow_rate=0.5)
    assert msgspec.json.encode(circuit) == b'{"failures":3,"slow":2.0,"slow_rate":0.5}'
    assert msgspec.json.decode(msgspec.json.encode(circuit), type=Circuit) == circuit
