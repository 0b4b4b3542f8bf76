"""Effects: which calls may be repeated, which must not be, and the error when the outcome is unknown."""

from __future__ import annotations

from typing import Any

import pytest
from recover_kit import LOOSE, Always, Flaky, World, reset

from holdfast import (
    Backoff,
    Budget,
    InvalidError,
    OutcomeUnknownError,
    Policy,
    Target,
    Tries,
    fault_of,
    recover,
    tool,
)
from holdfast.events import Failed, Retry
from holdfast.runtime.runtime import use_runtime
from holdfast.runtime.tool import call_key, contract_of
from holdfast.testing import ScriptedHTTPError


class Strange(Exception):
    """No rule recognises it."""


@pytest.mark.parametrize(("effect", "calls"), [("read", 2), ("idempotent", 2), ("keyed", 2), ("unsafe", 1), (None, 1)])
@pytest.mark.parametrize("attempts", [None, 9])
def test_S2_10_an_unknown_failure_is_retried_once_if_that_is_harmless(
    effect: Any, calls: int, attempts: int | None
) -> None:
    world = World()
    work = Always(lambda: Strange("what is this?"))
    with pytest.raises(Exception) as failed:
        world.recover("a", Policy(attempts=attempts), effect=effect).call(work)
    assert work.calls == calls
    assert isinstance(failed.value, OutcomeUnknownError if effect == "unsafe" else Strange)


@pytest.mark.parametrize("effect", ["read", "idempotent", "keyed", "unsafe", None])
@pytest.mark.parametrize("defect", [TypeError("x"), KeyError("x"), AttributeError("x"), NameError("x"), IndexError()])
def test_R74_programming_errors_are_never_retried(effect: Any, defect: Exception) -> None:
    work = Flaky(defect)
    with pytest.raises((type(defect), OutcomeUnknownError)):
        World().recover("a", Policy(attempts=9), effect=effect).call(work)
    assert work.calls == 1


def test_an_unsafe_call_that_may_have_happened_is_never_repeated() -> None:
    world = World()
    work = Always(reset)
    with pytest.raises(OutcomeUnknownError) as failed:
        world.recover("tool:deploy", effect="unsafe").call(work)
    assert work.calls == 1
    assert failed.value.__cause__ is work.raised[0]
    fault = failed.value.fault
    assert fault.code == "TOOL_OUTCOME_UNKNOWN"
    assert fault.context["failed_with"] == "CONN_RESET"
    assert failed.value.key == fault.context["key"]
    assert [attempt.code for attempt in fault.attempts] == ["CONN_RESET"]
    assert fault_of(failed.value).retryable is False
    assert len(world.of(Failed)) == 1


def test_an_unsafe_call_that_cannot_have_happened_is_retried() -> None:
    world = World()
    work = Flaky(ConnectionRefusedError(111, "Connection refused"), ScriptedHTTPError(429))
    assert world.recover("tool:deploy", effect="unsafe").call(work) == "ok"
    assert len(world.of(Retry)) == 2


def test_an_unsafe_call_that_times_out_is_outcome_unknown() -> None:
    world = World()
    with pytest.raises(OutcomeUnknownError):
        world.run(world.recover("tool:deploy", Policy(timeout=1), effect="unsafe").call(Flaky(takes=9).acall))
    assert world.now == 1


def test_per_code_numbers_do_not_make_an_unsafe_call_repeatable() -> None:
    work = Always(reset)
    policy = Policy(per_code={"CONN_RESET": Tries(attempts=5)})
    with pytest.raises(OutcomeUnknownError):
        World().recover("a", policy, effect="unsafe").call(work)
    assert work.calls == 1


def test_the_effect_declared_on_the_function_wins_over_the_recoverys() -> None:
    @tool(effect="unsafe")
    def deploy() -> None:
        raise reset()

    class Tools:
        @tool(effect="unsafe")
        def deploy(self) -> None:
            raise reset()

    world = World()
    for fn in (deploy, Tools().deploy, world.recover("inner", Policy(attempts=1))(deploy)):
        with pytest.raises(OutcomeUnknownError):
            world.recover("a", effect="read").call(fn)


def test_declaring_an_effect_does_not_change_the_function() -> None:
    def plain(value: int) -> int:
        return value

    assert tool(effect="read")(plain) is plain
    contract = contract_of(plain)
    assert contract is not None
    assert contract.effect == "read"
    assert contract_of(lambda: None) is None


def test_a_key_follows_the_logical_call_over_its_attempts() -> None:
    world = World()
    keys: list[str] = []

    @tool(effect="keyed")
    def pay() -> None:
        keys.append(call_key())
        if len(keys) % 3:
            raise reset()

    recovery = world.recover("tool:pay", Policy(circuit=LOOSE))
    recovery.call(pay)
    recovery.call(pay)
    assert len(keys) == 6
    assert len(set(keys[:3])) == len(set(keys[3:])) == 1
    assert keys[0] != keys[3]
    assert call_key() == ""


def test_a_budget_inside_the_call_does_not_hide_its_key() -> None:
    world = World()
    keys: list[str] = []

    def pay() -> None:
        keys.append(call_key())
        with Budget(usd=1):
            keys.append(call_key())

    with use_runtime(world.runtime):
        world.recover("tool:pay", effect="keyed").call(pay)
    assert keys[0] == keys[1] != ""


def test_S2_16_a_tools_timeout_and_tries_win() -> None:
    world = World()

    @tool(effect="idempotent", timeout=5, retry=Tries(attempts=4, backoff=Backoff(initial=1, curve="fixed", jitter=0)))
    async def search() -> None:
        await Flaky(takes=60).acall()

    with pytest.raises(TimeoutError):
        world.run(world.recover("tool:search", Policy(timeout=1, deadline=100, circuit=LOOSE)).call(search))
    assert world.now == 4 * 5 + 3


@pytest.mark.parametrize(
    ("make", "where"),
    [
        (lambda: tool(effect="writes"), "tool.effect"),  # type: ignore[arg-type]
        (lambda: tool(effect=None), "tool.effect"),  # type: ignore[arg-type]
        (lambda: tool(len), "tool"),  # type: ignore[arg-type]
        (tool, "tool"),
        (lambda: tool(effect="read", timeout=0), "tool.timeout"),
        (lambda: tool(effect="read", timeout=-1), "tool.timeout"),
        (lambda: tool(effect="read", timeout=float("nan")), "tool.timeout"),
        (lambda: tool(effect="read", retry=3), "tool.retry"),  # type: ignore[arg-type]
        (lambda: tool(effect="read")(5), "tool"),  # type: ignore[type-var]
        (lambda: tool(effect="read")(len), "tool"),
        (lambda: recover("a", effect="writes"), "effect"),  # type: ignore[call-overload]
        (lambda: recover("a", 5), "recover.policy"),  # type: ignore[call-overload]
        (lambda: recover(5), "recover.target"),  # type: ignore[call-overload]
        (lambda: recover("a", accept=5), "recover.accept"),  # type: ignore[call-overload]
        (lambda: recover("a", needs="vision"), "recover.needs"),  # type: ignore[call-overload]
        (lambda: recover("a", needs={5}), "recover.needs"),  # type: ignore[call-overload]
        (lambda: recover("a", threads="yes"), "recover.threads"),  # type: ignore[call-overload]
        (lambda: recover("a", runtime="x"), "recover.runtime"),  # type: ignore[call-overload]
        (lambda: recover("a")(5), "recover"),  # type: ignore[call-overload]
        (lambda: Target(provider=5), "target.provider"),  # type: ignore[arg-type]
    ],
)
def test_R71_bad_options_fail_where_they_are_written(make: Any, where: str) -> None:
    with pytest.raises(InvalidError, match=where) as failed:
        make()
    assert isinstance(failed.value, ValueError)


def test_FU10_a_tool_without_parentheses_says_what_to_write():
    with pytest.raises(InvalidError) as caught:

        @tool  # type: ignore[arg-type]
        def search() -> None: ...

    assert caught.value.fault.message == (
        "tool: expected @tool(effect=…) with read, idempotent, keyed or unsafe, got @tool without an effect"
    )
