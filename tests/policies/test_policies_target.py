"""What a call goes to: the names of its circuits, and targets given as text."""

from __future__ import annotations

import pytest

from holdfast import InvalidError, Target
from holdfast.policies.target import target_of


@pytest.mark.parametrize(
    ("text", "target", "circuit"),
    [
        ("claude", Target(provider="claude"), "provider:claude"),
        ("provider:claude", Target(provider="claude"), "provider:claude"),
        ("tool:bash", Target(tool="bash"), "tool:bash"),
        ("agent:builder", Target(agent="builder"), "agent:builder"),
        ("credential:team-a", Target(credential="team-a"), "key:team-a"),
        ("service:fs", Target(service="fs"), "service:fs"),
        ("actor:claude-1", Target(actor="claude-1"), "actor:claude-1"),
        ("localhost:8080", Target(provider="localhost:8080"), "provider:localhost:8080"),
    ],
)
def test_N1_6_a_text_names_a_target_and_its_main_circuit(text: str, target: Target, circuit: str) -> None:
    assert target_of(text) == target
    assert target_of(target) is target
    assert target.names[0][1] == circuit


def test_N1_6_each_part_has_a_circuit_and_the_first_is_the_main_one() -> None:
    target = Target(agent="builder", actor="a-1", service="fs", provider="claude", model="opus", credential="team-a")
    assert [name for _, name in target.names] == [
        "agent:builder",
        "actor:a-1",
        "service:fs",
        "provider:claude",
        "model:claude/opus",
        "key:claude/team-a",
    ]
    assert Target().names == ()


@pytest.mark.parametrize(
    ("target", "shown"),
    [
        (Target(), ""),
        (Target(provider="claude"), "claude"),
        (Target(provider="claude", model="opus"), "claude/opus"),
        (Target(tool="bash", provider="claude"), "tool:bash"),
        (Target(service="fs", provider="claude", model="opus"), "service:fs"),
    ],
)
def test_the_name_in_events(target: Target, shown: str) -> None:
    assert str(target) == shown


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("", r"option: expected a name such as 'claude' or 'tool:bash', or a Target, got ''"),
        ("  ", r"option: expected a name such as"),
        (3, r"option: expected a name such as .*, got 3"),
        ("tool:", r"option: expected a name after 'tool:', got 'tool:'"),
        ("tol:bash", r"option: expected a name such as 'tool:bash', or Target\(provider=…\), got 'tol:bash'"),
    ],
)
def test_a_wrong_target_names_the_option_it_is_given_for(wrong: object, message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        target_of(wrong, "option")  # type: ignore[arg-type]


def test_the_parts_of_a_target_are_names() -> None:
    with pytest.raises(InvalidError, match=r"target\.model: expected a name, got 5"):
        Target(provider="claude", model=5)  # type: ignore[arg-type]
