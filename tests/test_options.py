"""Checks of options: what is wrong is named, with what was expected, what came and where."""

from __future__ import annotations

import asyncio
import copy
import importlib
import inspect
import math
import pickle
import re
from collections.abc import Callable
from enum import Enum
from typing import Any

import msgspec
import pytest
from scripts.docs_site.api import MODULES

import holdfast
from holdfast import (
    Agent,
    Backoff,
    Budget,
    Circuit,
    Client,
    CommandAgent,
    Hedge,
    InvalidError,
    Policy,
    Quota,
    Session,
    Supervisor,
    Task,
    Tries,
    options,
    recover,
    tool,
)
from holdfast.actors import VirtualRef
from holdfast.agents import ToolCalls
from holdfast.bridge import Bridge, RemoteSession
from holdfast.config import ConfigError, read
from holdfast.extensions import Extensions
from holdfast.mcp import RecoveringSession
from holdfast.policies import Ledger
from holdfast.providers import RecoveringModel
from holdfast.sessions import Scope
from holdfast.sessions.later import LaterSteps
from holdfast.sinks import AuditTrail
from holdfast.stores import MemoryStore
from holdfast.tasks import ContextIndex
from holdfast.tasks.stages import StageContext, StageWork
from holdfast.testing import VirtualClock, VirtualLoop
from holdfast.testing.postgres import PrivateServer
from holdfast.tools import Tool
from holdfast.workflow import Machine

KINDS = (Policy, Circuit, Backoff, Hedge, Quota, Tries)


@pytest.mark.parametrize("value", [math.nan, math.inf, -1, "3", True, None, 10**400])
def test_seconds_are_a_finite_number(value: Any) -> None:
    with pytest.raises(InvalidError, match=r"x\.y: expected a finite number of seconds > 0, got"):
        options.seconds("x.y", value)


def test_zero_and_none_are_valid_only_where_they_have_a_meaning() -> None:
    options.seconds("x", 0, zero=True)
    options.seconds("x", None, optional=True)
    with pytest.raises(InvalidError, match="> 0 or None, got 0"):
        options.seconds("x", 0, optional=True)


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: options.count("x", 1.0), "x: expected a whole number ≥ 1, got 1.0"),
        (lambda: options.count("x", True), "x: expected a whole number ≥ 1, got True"),
        (lambda: options.share("x", 1.1), "x: expected a number above 0 to 1, got 1.1"),
        (lambda: options.share("x", -1, zero=True), "x: expected a number from 0 to 1, got -1"),
        (lambda: options.at_least("x", 1, 2), "x: expected a finite number ≥ 2, got 1"),
        (lambda: options.one_of("x", "c", ("b", "a")), "x: expected one of a, b, got 'c'"),
        (lambda: options.names("x", "abc"), "x: expected a set of names, got 'abc'"),
        (lambda: options.flag("x", 1), "x: expected True or False, got 1"),
    ],
)
def test_a_check_says_what_it_expected_and_what_came(check: Any, message: str) -> None:
    with pytest.raises(InvalidError) as failed:
        check()
    assert failed.value.fault.message == message


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (
            Policy,
            {"retries": 3},
            (
                "unknown option `retries` of Policy; did you mean `attempts=4`? "
                "(attempts count calls: 3 retries are 4 attempts)"
            ),
        ),
        (
            Tries,
            {"max_retries": 1},
            (
                "unknown option `max_retries` of Tries; did you mean `attempts=2`? "
                "(attempts count calls: 1 retry is 2 attempts)"
            ),
        ),
        (
            Policy,
            {"retries": None},
            (
                "unknown option `retries` of Policy; did you mean `attempts`? "
                "(attempts count calls: 3 retries are 4 attempts)"
            ),
        ),
        (Policy, {"deadlin": 3}, "unknown option `deadlin` of Policy; did you mean `deadline`?"),
        (Circuit, {"failure": 3}, "unknown option `failure` of Circuit; did you mean `failures`?"),
        (Hedge, {"afer": 3}, "unknown option `afer` of Hedge; did you mean `after`?"),
        (Quota, {"shares": 0.1}, "unknown option `shares` of Quota; did you mean `share`?"),
        (Backoff, {"max_delay": 3}, "unknown option `max_delay` of Backoff; did you mean `cap=3`?"),
        (Quota, {"nonsense": 3}, "unknown option `nonsense` of Quota; use one of share, floor, window"),
    ],
)
def test_an_unknown_option_is_named_and_the_right_one_suggested(kind: Any, given: Any, message: str) -> None:
    with pytest.raises(InvalidError) as failed:
        kind(**given)
    assert failed.value.fault.message == message
    assert failed.value.fault.context["path"] == f"{kind.__name__.lower()}.{next(iter(given))}"
    assert failed.value.__suppress_context__, "msgspec's own error would only repeat the name"


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        # tenacity
        (lambda: Policy(stop_after_attempt=3), "did you mean `attempts=3`?"),
        (lambda: Policy(stop=object()), "did you mean `attempts`?"),
        (lambda: Policy(wait=object()), "did you mean `backoff`?"),
        (lambda: Policy(stop_after_delay=90), "did you mean `deadline=90`?"),
        (lambda: recover("claude", retry=ValueError), "did you mean `retry_on`?"),
        # stamina
        (lambda: recover("claude", on=ValueError), "did you mean `retry_on`?"),
        (lambda: recover("claude", attempts=3), "did you mean `policy=Policy(attempts=3)`?"),
        (lambda: recover("claude", timeout=3.5), "did you mean `policy=Policy(timeout=3.5)`?"),
        (lambda: recover("claude", wait_max=30), "did you mean `policy=Policy(backoff=Backoff(cap=30))`?"),
        (lambda: Policy(wait_initial=1), "did you mean `backoff=Backoff(initial=1)`?"),
        # LiteLLM and the SDKs
        (lambda: Policy(num_retries=2), "did you mean `attempts=3`?"),
        (lambda: Policy(cooldown_time=30), "did you mean `circuit=Circuit(open_for=30)`?"),
        (lambda: Policy(fallbacks=[]), "decorate it with `@answer.fallback`"),
        (lambda: Agent("a", "claude-sonnet", max_retries=2), "did you mean `policy=Policy(attempts=3)`?"),
        # circuit breakers, and the frameworks of agents and workflows
        (lambda: Circuit(fail_max=3), "did you mean `failures=3`?"),
        (lambda: Circuit(reset_timeout=30), "did you mean `open_for=30`?"),
        (lambda: Policy(window=5), "`circuit=Circuit(window=5)` or `retry_quota=Quota(window=5)`?"),
        (lambda: Policy(retry_on=ValueError), "it is an option of `recover`"),
        (lambda: Backoff(backoff_coefficient=3), "did you mean `factor=3`?"),
        (lambda: Agent("a", "claude-sonnet", system_prompt="be brief"), "did you mean `instructions`?"),
        (lambda: Agent("a", "claude-sonnet", max_iterations=9), "did you mean `max_turns=9`?"),
        (lambda: Budget(max_cost=2), "did you mean `usd=2`?"),
        (lambda: Supervisor("team", intensity=3), "did you mean `max_restarts=3`?"),
        (lambda: Task("x", max_turns=3), "did you mean `turns=3`?"),
        (lambda: Task("x", max_retries=3), "a policy has them: `Policy(attempts=…)`"),
        (lambda: tool(retries=1), "did you mean `retry=Tries(attempts=2)`?"),
        (lambda: tool(idempotent=True), "did you mean `effect`?"),
        (lambda: CommandAgent(["claude"], timeout=60), "did you mean `total=60`?"),
        (lambda: Session.open("s", database="work.db"), "did you mean `store`?"),
        (lambda: Client("wss://host", retries=4), "did you mean `reconnect=Schedule(attempts=5)`?"),
    ],
)
def test_FU10_the_words_of_other_libraries_lead_to_our_options(wrong: Any, hint: str) -> None:
    with pytest.raises(InvalidError) as failed:
        wrong()
    assert hint in failed.value.fault.message


def test_FU10_in_a_toml_file_the_suggestion_is_written_as_toml() -> None:
    with pytest.raises(ConfigError) as failed:
        read({"policy": {"wait_max": 30, "retries": 2, "circuit": {"reset_timeout": 9}}})
    assert [problem.hint for problem in failed.value.problems] == [
        "did you mean `backoff.cap = 30`?",
        "did you mean `attempts = 3`? (attempts count calls: 2 retries are 3 attempts)",
        "did you mean `open_for = 9`?",
    ]


def test_a_suggestion_never_repeats_a_text_because_it_may_be_a_key() -> None:
    with pytest.raises(InvalidError) as failed:
        Client("wss://host", api_key="sk-ant-api03-secret")  # type: ignore[call-arg]
    assert "did you mean `token`?" in failed.value.fault.message
    assert "secret" not in str(failed.value)


def _public() -> dict[str, Any]:
    """Every public class and function, by the module and name that users import it from."""
    found: dict[str, Any] = {}
    for module in (module for modules in MODULES.values() for module in modules):
        if module == "holdfast.compat.tenacity":
            continue  # its errors are tenacity's
        offered = importlib.import_module(module)
        for name in offered.__all__:
            value = getattr(offered, name)
            if (inspect.isclass(value) or inspect.isfunction(value)) and value not in found.values():
                found[f"{module}.{name}"] = value
    return found


def _options_of(value: Any) -> list[str]:
    """The options that can be given by name only; none if a class takes no arguments of its own."""
    try:
        parameters = inspect.signature(value).parameters.values()
    except ValueError:
        return []
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return []
    return [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]


# Objects that users get and do not make, and records of what happened or came.
OURS = (BaseException, Enum, holdfast.Ref, holdfast.Session, VirtualRef, Scope, RemoteSession, ToolCalls, Tool, Machine)
OURS += (
    RecoveringSession,
    LaterSteps,
    StageContext,
    StageWork,
    ContextIndex,
    RecoveringModel,
    AuditTrail,
    Extensions,
    Ledger,
)
OURS += (VirtualClock, VirtualLoop, PrivateServer)
CONSTRUCTORS = {
    name: value
    for name, value in _public().items()
    if inspect.isclass(value)
    and not issubclass(value, OURS)
    and (not issubclass(value, msgspec.Struct) or issubclass(value, options.Options))
    and _options_of(value)
}


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_FU10_every_public_constructor_suggests_the_right_option(name: str) -> None:
    right = _options_of(CONSTRUCTORS[name])[-1]
    with pytest.raises(InvalidError) as failed:
        CONSTRUCTORS[name](**{f"{right}x": 1})
    assert f"did you mean `{right}`?" in failed.value.fault.message


SWITCHES = (
    "holdfast.sinks",
    "holdfast.tools",
    "holdfast.stores",
    "holdfast.live",
    "holdfast.mcp",
    "holdfast.langchain",
)
FUNCTIONS = {
    name: value
    for name, value in _public().items()
    if inspect.isfunction(value)
    and not inspect.iscoroutinefunction(value)
    and name.rpartition(".")[0] in SWITCHES
    and _options_of(value)
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_FU10_functions_that_make_sinks_tools_stores_and_clients_suggest_the_right_option(name: str) -> None:
    right = _options_of(FUNCTIONS[name])[-1]
    with pytest.raises(InvalidError) as failed:
        FUNCTIONS[name](**{f"{right}x": 1})
    assert f"did you mean `{right}`?" in failed.value.fault.message


def test_FU10_an_option_of_the_settings_of_a_bridge_is_suggested_with_the_settings() -> None:
    with pytest.raises(InvalidError, match=r"did you mean `settings=BridgeSettings\(port=4000\)`\?"):
        Bridge(port=4000)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]


def test_the_constructors_and_functions_with_options_are_found() -> None:
    assert len(CONSTRUCTORS) > 40
    assert len(FUNCTIONS) > 15


def _takes_options(name: str) -> bool:
    """Whether a public name is something that is called with options: not an exception, an enum or a record of ours."""
    value = getattr(holdfast, name)
    if isinstance(value, type):
        ours = (BaseException, Enum, holdfast.Fault, holdfast.Attempt, holdfast.Partial, holdfast.ItemError)
        # An actor's class has the options of its author. A Ref is made by a supervisor, and Ok, Err and Happened are results.
        others = (holdfast.Actor, holdfast.Ref, holdfast.Ok, holdfast.Err, holdfast.Happened, holdfast.Changed)
        return not issubclass(value, ours + others)
    return inspect.isfunction(value) and bool(inspect.signature(value).parameters)


OPTIONED = [name for name in holdfast.__all__ if _takes_options(name)]


@pytest.mark.parametrize("name", OPTIONED)
def test_FU10_every_public_name_with_options_suggests_the_right_one(name: str) -> None:
    value = Session.open if name == "Session" else getattr(holdfast, name)
    keywords = [each.name for each in inspect.signature(value).parameters.values() if each.kind is each.KEYWORD_ONLY]
    right = (keywords or list(inspect.signature(value).parameters))[0]
    with pytest.raises(InvalidError) as failed:
        value(**{f"{right}x": 1})
    assert f"did you mean `{right}`?" in failed.value.fault.message


def test_options_are_found_in_most_of_the_public_names() -> None:
    assert len(OPTIONED) >= 20, "the test above must not become empty"


def test_a_type_error_inside_a_function_with_options_stays_as_it_is() -> None:
    @options.suggests
    def wrong(*, count: int) -> int:
        return count + "1"  # type: ignore[operator]

    with pytest.raises(TypeError, match="unsupported operand"):
        wrong(count=1)
    with pytest.raises(TypeError, match="missing 1 required"):
        wrong()  # type: ignore[call-arg]


@pytest.mark.parametrize("value", [Policy(), Circuit()])
def test_replace_names_an_unknown_option_too(value: Any) -> None:
    with pytest.raises(InvalidError, match="unknown option `nonsense`"):
        value.replace(nonsense=1)


def test_other_mistakes_of_a_call_stay_a_type_error() -> None:
    with pytest.raises(TypeError, match="after"):
        Hedge()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="positional"):
        Policy(3)  # type: ignore[misc]


@pytest.mark.parametrize("kind", KINDS)
def test_options_are_still_plain_frozen_structs(kind: Any) -> None:
    value = kind(after=1.0) if kind is Hedge else kind()
    assert pickle.loads(pickle.dumps(value)) == value
    assert copy.deepcopy(value) == value
    assert msgspec.convert(msgspec.to_builtins(value), kind) == value
    assert list(inspect.signature(kind).parameters) == list(kind.__struct_fields__)
    with pytest.raises(AttributeError):
        value.anything = 1


@pytest.mark.parametrize(
    ("noun", "phrase"),
    [("object", "an object"), ("int", "an int"), ("Circuit", "a Circuit"), ("Unit", "a Unit")],
)
def test_FU10_an_article_fits_its_noun(noun, phrase):
    assert options.an(noun) == phrase


async def _work(item: Any = None) -> Any:
    return item


async def _first_of(items: Any) -> Any:
    return [item async for item in items]


DOORS: dict[str, Callable[[Any, Session, Supervisor], Any]] = {
    "step(f, …)": lambda called, session, _: session.step(called),
    "map(f, items)": lambda called, session, _: _first_of(session.map(called, [1])),
    "recover(…).call(f, …)": lambda called, _, __: recover("claude").call(called),
    "stream(f)(…)": lambda called, _, __: recover("claude").stream(called),
    "tool(effect=…)(f)": lambda called, _, __: tool(effect="unsafe")(called),
    "start(f, …)": lambda called, _, team: team.start(called),
    "map(f, items) ": lambda called, _, team: _first_of(team.map(called, [1])),
}


@pytest.mark.parametrize("form", DOORS)
def test_the_call_of_a_function_where_the_function_belongs_is_named_and_closed(form: str) -> None:
    called: Any = _work()

    async def main() -> None:
        async with Session.open("s", store=MemoryStore()) as session, Supervisor("team") as team:
            await DOORS[form](called, session, team)

    with pytest.raises(
        InvalidError, match=re.escape(f"pass the function and its arguments: {form.strip()}, got a call of _work")
    ):
        asyncio.run(main())
    assert inspect.getcoroutinestate(called) == inspect.CORO_CLOSED


def test_an_async_function_stays_one_and_names_the_option_that_was_meant() -> None:
    @options.suggests
    async def serve(port: int, *, name: str = "") -> str:
        return f"{name}:{port}"

    assert inspect.iscoroutinefunction(serve)
    assert asyncio.run(serve(1, name="a")) == "a:1"
    with pytest.raises(InvalidError, match=r"unknown option `nmae` .*did you mean `name`"):
        asyncio.run(serve(1, nmae="a"))  # type: ignore[call-arg]
