"""Roles from settings: `holdfast.toml`, code, and the roles of document 001 as a preset (S1-14, S1-18, N1-7)."""

from __future__ import annotations

import pytest
from agents_roles_kit import Scripted, World, refused

from holdfast import Backoff, Circuit, InvalidError, Tries
from holdfast.agents import FunctionAgent, Roles
from holdfast.config import Config, ConfigError, load, read
from holdfast.profiles import AGENT_CHAINS, AGENTS, SPEC016_ROLES, RoleSettings

TOML = """
[roles.builder]
agent = "coder"
understudies = ["builder-simple", "manual-mode"]
timeout = 300
consent = "ask"
circuit = { failures = 3, open_for = 10 }
retry = { attempts = 2, backoff = { initial = 0.5 } }

[roles.reviewer]
circuit = "actor"
"""


def agents(*names: str) -> list[FunctionAgent]:
    return [FunctionAgent(name, str.upper) for name in names]


def test_a_file_names_the_agents_and_the_program_has_them(tmp_path, monkeypatch):
    (tmp_path / "holdfast.toml").write_text(TOML)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_CONFIG", raising=False)
    roles = Roles(agents("coder", "builder-simple", "manual-mode", "reviewer", "unused"))
    assert list(roles) == ["builder", "reviewer"]
    builder = roles["builder"].settings
    assert builder == RoleSettings(
        agent="coder",
        understudies=("builder-simple", "manual-mode"),
        timeout=300,
        consent="ask",
        circuit=Circuit(failures=3, open_for=10),
        retry=Tries(attempts=2, backoff=Backoff(initial=0.5)),
    )
    assert roles["reviewer"].settings.understudies == ()
    assert load().roles["reviewer"].circuit is not None


def test_the_role_has_the_circuit_and_the_agent_answers():
    world = World()
    coder, simple = Scripted("coder", refused()), Scripted("simple", "ok")
    settings = {"builder": RoleSettings(agent="coder", understudies=("simple",), retry=Tries(attempts=1))}
    roles = Roles([coder.agent, simple.agent], settings, runtime=world.runtime)
    assert world.run(roles["builder"].run("x")).agent == "simple"
    assert world.counted("builder", "coder", "simple") == [1, 0, 0]


def test_every_mistake_is_listed():
    with pytest.raises(ConfigError) as caught:
        Roles(
            agents("coder", "simple"),
            {
                "builder": RoleSettings(agent="codr", understudies=("simpel",)),
                "simple": RoleSettings(understudies=("simple",)),
                "a": RoleSettings(agent="coder", understudies=("b",)),
                "b": RoleSettings(agent="coder", understudies=("a",)),
            },
        )
    text = str(caught.value)
    assert "roles.builder.agent: unknown agent `codr`; did you mean `coder`?" in text
    assert "roles.builder.understudies: unknown agent `simpel`; did you mean `simple`?" in text
    assert text.count("agents that do not stand behind themselves") == 3


@pytest.mark.parametrize(
    ("tables", "paths"),
    [
        ({"roles": 3}, ["roles"]),
        ({"roles": {"builder": "coder"}}, ["roles.builder"]),
        ({"roles": {"builder": {"understudy": "x"}}}, ["roles.builder.understudy"]),
        (
            {"roles": {"builder": {"understudies": "x", "timeout": 0}}},
            ["roles.builder.understudies", "roles.builder.timeout"],
        ),
        (
            {"roles": {"builder": {"consent": "no", "retry": {"attempts": 0}}}},
            ["roles.builder.consent", "roles.builder.retry.attempts"],
        ),
        ({"roles": {"builder": {"understudies": ["x", "x"]}}}, ["roles.builder.understudies"]),
    ],
)
def test_mistakes_in_a_file_have_their_place(tables, paths):
    with pytest.raises(ConfigError) as caught:
        read(tables)
    assert sorted(problem.path for problem in caught.value.problems) == sorted(paths)


def test_a_config_in_code_is_checked():
    with pytest.raises(InvalidError, match=r"config\.roles\.builder: expected a RoleSettings"):
        Config(roles={"builder": "coder"})


def test_a_role_may_be_an_understudy():
    roles = Roles(
        agents("coder", "helper"),
        {"builder": RoleSettings(agent="coder", understudies=("support",)), "support": RoleSettings(agent="helper")},
    )
    assert roles["builder"].understudies[0].agent.name == "helper"


def test_an_unknown_role_says_which_there_are():
    roles = Roles(agents("coder"), {"coder": RoleSettings()})
    assert "coder" in roles
    assert "builder" not in roles
    assert len(roles) == 1
    with pytest.raises(InvalidError, match=r"a role of this program \(coder\)"):
        roles["builder"]


def test_S1_14_S1_18_N1_7_the_documents_roles_are_a_preset_that_nothing_uses_by_itself():
    assert (
        set(SPEC016_ROLES) == set(AGENTS) == {"builder", "reviewer", "planner", "error-analyzer", "scout", "architect"}
    )
    assert {name: role.understudies for name, role in SPEC016_ROLES.items() if role.understudies} == AGENT_CHAINS
    assert SPEC016_ROLES["error-analyzer"].understudies == ()
    assert {(role.timeout, role.retry.attempts) for role in SPEC016_ROLES.values()} == {(300.0, 3)}
    assert load(environ={"HOLDFAST_CONFIG": "none"}).roles == {}
    names = ("builder", "builder-simple", "manual-mode", "planner")
    roles = Roles(agents(*names), {"builder": SPEC016_ROLES["builder"], "planner": RoleSettings()})
    assert [one.name for one in roles["builder"].understudies] == ["builder-simple", "manual-mode"]
    assert roles["planner"].understudies == ()


def test_two_agents_of_one_name():
    with pytest.raises(InvalidError, match="'coder' twice"):
        Roles(agents("coder", "coder"), {})
