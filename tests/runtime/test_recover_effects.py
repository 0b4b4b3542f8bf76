"""Effects: which calls may be repeated, which must not be, and the error when the outcome is unknown."""

from __future__ import annotations

import asyncio
import functools
import io
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from recover_kit import LOOSE, Always, Flaky, World, reset

from holdfast import (
    Backoff,
    Budget,
    Circuit,
    Happened,
    Hedge,
    HoldfastError,
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


# --- tools without a declared effect ---


@pytest.mark.parametrize("form", ["sync", "async", "decorated", "stream"])
@pytest.mark.parametrize(
    "target", ["tool:charge", Target(tool="charge", provider="stripe"), Target(agent="a", tool="b")]
)
def test_FR18_a_tool_without_an_effect_is_not_repeated_if_it_may_have_happened(target: Any, form: str) -> None:
    world = World()
    work = Always(reset)
    recovery = world.recover(target)

    async def items() -> Any:
        yield await work.acall()

    async def read() -> None:
        async with recovery.stream(items)() as stream:
            async for _ in stream:
                pass

    with pytest.raises(ConnectionResetError) as failed:
        if form == "sync":
            recovery.call(work)
        elif form == "stream":
            world.run(read())
        else:
            world.run(recovery.call(work.acall) if form == "async" else recovery(work.acall)())
    assert work.calls == 1
    (failed_event,) = world.of(Failed)
    assert not failed_event.exhausted
    assert "no effect is declared" in "".join(failed.value.__notes__)


def test_FR18_a_tool_without_an_effect_is_repeated_if_it_cannot_have_happened() -> None:
    work = Flaky(ConnectionRefusedError(111, "Connection refused"), ScriptedHTTPError(429))
    assert World().recover("tool:charge").call(work) == "ok"


@pytest.mark.parametrize("options", [{"effect": "read"}, {"effect": "keyed"}, {"retry_on": ConnectionResetError}])
def test_FR18_a_tool_is_repeated_if_its_effect_or_its_caller_allows_it(options: Any) -> None:
    work = Flaky(reset(), reset())
    assert World().recover("tool:charge", **options).call(work) == "ok"


def test_FR18_calls_of_other_kinds_are_repeated_as_before() -> None:
    for target in ("claude", "agent:builder", None):
        assert World().recover(target).call(Flaky(reset(), reset())) == "ok"


def test_FR18_the_fallback_of_a_tool_without_an_effect_answers() -> None:
    world = World()
    work = Always(reset)
    charge = world.recover("tool:charge")(work)
    charge.fallback(lambda: "by hand")
    assert charge() == "by hand"
    assert work.calls == 1


# --- arguments that can be read only once ---


class Store:
    """Stores what it is given, and fails a number of times, before or after it has read."""

    def __init__(self, failures: int = 1, *, before: bool = False) -> None:
        self.failures, self.before = failures, before
        self.stored: list[Any] = []
        self.calls = 0

    def __call__(self, lines: Any, **_: Any) -> str:
        self.calls += 1
        fails = self.calls <= self.failures
        if fails and self.before:
            raise reset()
        self.stored.append(lines.read() if hasattr(lines, "read") else list(lines))
        if fails:
            raise reset()
        return "stored"

    async def acall(self, lines: Any) -> str:
        return self([line async for line in lines] if hasattr(lines, "__aiter__") else lines)


def lines() -> Any:
    yield "a"
    yield "b"


async def lines_later() -> Any:
    yield "a"
    yield "b"


class Numbers(Iterator[int]):
    left = 3

    def __next__(self) -> int:
        if not self.left:
            raise StopIteration
        self.left -= 1
        return self.left


ONE_SHOTS: dict[str, Any] = {
    "generator": lines,
    "iterator": lambda: iter(["a", "b"]),
    "map": lambda: map(str, [1, 2]),
    "chain": lambda: itertools.chain(["a"], ["b"]),
    "class": Numbers,
    "file": lambda: io.BytesIO(b"ab"),
}


@pytest.mark.parametrize("kind", ONE_SHOTS)
def test_FR18_an_argument_that_can_be_read_only_once_is_not_sent_again_empty(kind: str) -> None:
    world = World()
    store = Store()
    with pytest.raises(ConnectionResetError) as failed:
        world.recover("a").call(store, ONE_SHOTS[kind]())
    assert store.calls == 1
    assert "can be read only once" in "".join(failed.value.__notes__)
    assert fault_of(failed.value).attempts[0].then == "one-shot"
    assert world.state("provider:a")._breaker.failures == 1


def test_FR18_an_async_generator_is_not_sent_again_empty() -> None:
    world = World()
    store = Store()
    with pytest.raises(ConnectionResetError):
        world.run(world.recover("a").call(store.acall, lines_later()))
    assert store.calls == 1


@pytest.mark.parametrize("given", [["a", "b"], ("a",), {"a": 1}, "ab", range(3), io.StringIO(""), itertools.count])
def test_FR18_other_arguments_are_sent_again(given: Any) -> None:
    store = Store(2)
    if given is itertools.count:
        assert World().recover("a").call(lambda ids: store([next(ids)]), itertools.count()) == "stored"
    else:
        assert World().recover("a").call(store, given) == "stored"


@pytest.mark.parametrize("kind", ["generator", "file"])
def test_FR18_a_one_shot_argument_that_was_not_read_yet_is_sent_again(kind: str) -> None:
    store = Store(2, before=True)
    assert World().recover("a").call(store, ONE_SHOTS[kind]()) == "stored"
    assert store.stored in ([["a", "b"]], [b"ab"])


@pytest.mark.parametrize("wrap", [lambda it: [it], lambda it: {"file": it}])
def test_FR18_a_one_shot_inside_a_list_or_a_dict_is_recognised(wrap: Any) -> None:
    calls: list[int] = []

    def send(files: Any) -> None:
        calls.append(1)
        for part in files.values() if isinstance(files, dict) else files:
            list(part)
        raise reset()

    with pytest.raises(ConnectionResetError):
        World().recover("a").call(send, files=wrap(lines()))
    assert len(calls) == 1


def test_FR18_the_object_of_a_decorated_method_is_no_such_argument() -> None:
    world = World()

    class Pages(Iterator[str]):
        def __init__(self) -> None:
            self.fetch_flaky = Flaky(reset(), reset(), value="page")

        def __next__(self) -> str:
            return self.fetch()

        @world.recover("a", Policy(circuit=LOOSE))
        def fetch(self) -> str:
            return str(self.fetch_flaky())

        @world.recover("a", Policy(circuit=LOOSE))
        @classmethod
        def make(cls, flaky: Flaky) -> str:
            return str(flaky())

    assert next(Pages()) == "page"
    assert Pages.make(Flaky(reset(), value="made")) == "made"
    # A class is no iterator, even if its objects are.
    work = Flaky(reset())
    assert world.recover("b").call(lambda _: work(), Numbers) == "ok"


def test_FR18_a_rejected_answer_is_not_asked_for_again_with_a_used_argument() -> None:
    store = Store(0)
    with pytest.raises(HoldfastError):
        World().recover("a", accept=lambda _: False).call(store, lines())
    assert store.calls == 1


def test_FR18_a_fallback_does_not_get_a_used_argument() -> None:
    world = World()
    store, other = Store(), Store(0)
    put = world.recover("a")(store.__call__)
    put.fallback(other.__call__, name="other")
    with pytest.raises(ConnectionResetError) as failed:
        put(lines())
    assert other.calls == 0
    assert "fallback other: an argument" in "".join(failed.value.__notes__)
    assert put(["a"]) == "stored"


def test_FR18_a_circuit_that_is_waited_for_uses_no_argument_up() -> None:
    world = World()
    policy = Policy(wait_for_circuit=True, circuit=Circuit(failures=1), attempts=1)
    with pytest.raises(ConnectionResetError):
        world.recover("a", policy).call(Always(reset))
    assert world.recover("a", policy).call(Store(0), iter(["a"])) == "stored"


def test_FR18_a_stream_is_not_begun_again_with_a_used_argument() -> None:
    world = World()
    begun: list[int] = []

    async def echo(given: Any) -> Any:
        begun.append(1)
        for line in given:
            if line == "b":
                raise reset()
        yield "never"

    async def read(given: Any) -> None:
        async with world.recover("a").stream(echo).fallback(echo)(given) as stream:
            async for _ in stream:
                pass

    with pytest.raises(ConnectionResetError):
        world.run(read(lines()))
    assert len(begun) == 1


def test_FR18_a_one_shot_argument_is_not_hedged() -> None:
    world = World()
    calls: list[int] = []

    async def slow(given: Any) -> str:
        calls.append(1)
        await asyncio.sleep(10)
        return "".join(given)

    policy = Policy(hedge=Hedge(after=1))
    assert world.run(world.recover("a", policy, effect="read").call(slow, lines())) == "ab"
    assert len(calls) == 1


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("error", [KeyError("id"), ValueError("x")], ids=repr)
def test_XD20_verify_is_asked_after_any_failure_of_an_unsafe_call(error: Exception, is_async: bool) -> None:
    def find(key: str, amount: int) -> Happened:
        return Happened(f"receipt {amount}")

    @tool(effect="unsafe", verify=find)
    def pay(amount: int) -> str:
        raise error

    @tool(effect="unsafe", verify=find)
    async def pay_async(amount: int) -> str:
        raise error

    found = asyncio.run(recover("bank")(pay_async)(5)) if is_async else recover("bank")(pay)(5)
    assert found == "receipt 5"


# --- a function is declared once ---


def test_XD14_a_second_declaration_does_not_change_what_the_first_name_means():
    def post(path: str) -> str:
        return path

    charge = tool(effect="unsafe")(post)
    with pytest.raises(InvalidError, match="post, which is declared with") as error:
        tool(effect="read")(post)
    assert "write a second `def`" in str(error.value)
    assert contract_of(charge).effect == "unsafe"
    # The same again changes nothing, and neither does what a wrapper declares for itself.
    assert tool(effect="unsafe")(post) is post

    @functools.wraps(post)
    def search(path: str) -> str:
        return post(path)

    assert contract_of(tool(effect="read")(search)).effect == "read"
    assert contract_of(charge).effect == "unsafe"


class _Bank:
    """What a class may declare, in each order of the decorators."""

    paid: int = 0

    @classmethod
    def _pay(cls) -> None:
        cls.paid += 1
        raise ConnectionResetError

    @tool(effect="unsafe")
    @recover("bank")
    def method(self) -> None:
        self._pay()

    @tool(effect="unsafe")
    @recover("bank")
    async def coroutine(self) -> None:
        self._pay()

    @staticmethod
    @tool(effect="unsafe")
    @recover("bank")
    def static() -> None:
        _Bank._pay()

    @tool(effect="unsafe")
    @staticmethod
    @recover("bank")
    def outside_static() -> None:
        _Bank._pay()

    @tool(effect="unsafe")
    @classmethod
    @recover("bank")
    def outside_class(cls) -> None:
        cls._pay()


@pytest.mark.parametrize("name", ["method", "coroutine", "static", "outside_static", "outside_class"])
def test_a_recovery_under_the_declaration_of_an_unsafe_tool_does_not_repeat_it(name: str) -> None:
    _Bank.paid = 0
    pay = getattr(_Bank(), name)
    with pytest.raises(OutcomeUnknownError):
        asyncio.run(pay()) if name == "coroutine" else pay()
    assert _Bank.paid == 1


def test_a_static_or_class_method_has_what_is_declared_above_it() -> None:
    class Bank:
        @tool(effect="unsafe")
        @staticmethod
        def pay() -> str:
            return "paid"

        @tool(effect="read")
        @classmethod
        def look(cls) -> str:
            return cls.__name__

    assert [Bank.pay(), Bank().look()] == ["paid", "Bank"]
    found = [contract_of(Bank.pay), contract_of(Bank().pay), contract_of(Bank.look), contract_of(Bank().look)]
    assert [one and one.effect for one in found] == ["unsafe", "unsafe", "read", "read"]


@pytest.mark.parametrize("is_async", [False, True])
def test_an_effect_that_is_declared_above_the_recovery_is_obeyed(is_async: bool) -> None:
    world, work = World(), Always(reset)

    def pay() -> None:
        work()

    async def pay_async() -> None:
        work()

    decorated = tool(effect="unsafe")(world.recover("bank")(pay_async if is_async else pay))
    with pytest.raises(OutcomeUnknownError):
        asyncio.run(decorated()) if is_async else decorated()
    assert work.calls == 1


def test_an_effect_that_is_declared_above_a_recovered_method_is_obeyed() -> None:
    world, work = World(), Always(reset)

    class Bank:
        @tool(effect="unsafe")
        @world.recover("bank", effect="read")
        def pay(self) -> None:
            work()

        @world.recover("bank", effect="read")
        def look(self) -> None:
            work()

    with pytest.raises(OutcomeUnknownError):
        Bank().pay()
    assert work.calls == 1
    with pytest.raises(ConnectionResetError):
        Bank().look()
    assert work.calls > 2  # the declaration is that of one function


FINAL: list[Exception] = [
    ValueError("bad answer"),
    KeyError("id"),
    LookupError("no receipt"),
    PermissionError(13, "receipt"),
    FileNotFoundError(2, "receipt"),
    ScriptedHTTPError(409),
]


@pytest.mark.parametrize("error", FINAL)
def test_no_fallback_answers_for_an_unsafe_call_that_may_have_happened(error: Exception) -> None:
    world, paid = World(), []

    @world.recover("bank")
    @tool(effect="unsafe")
    def pay(amount: int) -> str:
        paid.append(amount)
        raise error

    @pay.fallback
    @tool(effect="unsafe")
    def by_another_bank(amount: int) -> str:
        paid.append(amount)
        return "paid"

    with pytest.raises(type(error)) as failed:
        pay(5)
    assert paid == [5]
    assert fault_of(failed.value).maybe_executed


@pytest.mark.parametrize("error", FINAL)
def test_no_further_fallback_answers_for_an_unsafe_one_that_may_have_happened(error: Exception) -> None:
    world, paid = World(), []

    @world.recover("bank", Policy(attempts=1))
    def pay(amount: int) -> str:
        raise ConnectionRefusedError(111, "refused")

    @pay.fallback
    @tool(effect="unsafe")
    def by_another_bank(amount: int) -> str:
        paid.append(amount)
        raise error

    @pay.fallback
    def by_hand(amount: int) -> str:
        paid.append(amount)
        return "paid"

    with pytest.raises(OutcomeUnknownError):
        pay(5)
    assert paid == [5]


@pytest.mark.parametrize("error", FINAL)
@pytest.mark.parametrize("options", [{"retry_on": Exception}, {"policy": "per_code"}])
def test_no_rule_of_the_callers_repeats_an_unsafe_call_that_may_have_happened(error: Exception, options: Any) -> None:
    work = Flaky(error)
    if "policy" in options:
        options = {"policy": Policy(per_code={fault_of(error).code: Tries(attempts=3)})}
    with pytest.raises(type(error)):
        World().recover("bank", effect="unsafe", **options).call(work)
    assert work.calls == 1


@pytest.mark.parametrize("verdict", [False, "PROVIDER_OVERLOADED", "PROVIDER_RATE_LIMITED", 1])
def test_a_rejected_answer_of_an_unsafe_call_is_not_asked_for_again(verdict: Any) -> None:
    paid: list[int] = []
    recovery = World().recover("bank", effect="unsafe", accept=lambda _: verdict)
    with pytest.raises(OutcomeUnknownError) as failed:
        recovery.call(paid.append, 5)
    assert paid == [5]
    assert failed.value.fault.partial is not None


class Payments:
    """A bank whose answers are lost, and the ways to call it without a declaration that `recover` can see."""

    def __init__(self, error: Exception) -> None:
        self.paid: list[int] = []
        self.error = error

    @tool(effect="unsafe")
    def pay(self, amount: int) -> None:
        self.paid.append(amount)
        raise self.error

    def pay_and_log(self, amount: int) -> None:
        try:
            self.pay(amount)
        except ConnectionError as error:
            raise RuntimeError("temporarily unavailable, try again") from error

    def with_call(self, recovery: Any) -> None:
        recovery.call(lambda: self.pay(5))

    def with_wrapper(self, recovery: Any) -> None:
        recovery.call(self.pay_and_log, 5)

    def with_block(self, recovery: Any) -> None:
        for attempt in recovery:
            with attempt:
                self.pay(5)


@pytest.mark.parametrize("way", ["with_call", "with_wrapper", "with_block"])
def test_an_unsafe_function_inside_of_what_is_recovered_is_not_repeated(way: str) -> None:
    bank = Payments(ConnectionResetError(104, "Connection reset by peer"))
    with pytest.raises((ConnectionResetError, RuntimeError)):
        getattr(bank, way)(World().recover("bank"))
    assert bank.paid == [5]


@pytest.mark.parametrize("way", ["with_call", "with_wrapper", "with_block"])
@pytest.mark.parametrize("error", [ConnectionRefusedError(111, "refused"), ScriptedHTTPError(429)])
def test_an_unsafe_function_inside_is_repeated_if_it_shows_that_nothing_happened(way: str, error: Exception) -> None:
    bank = Payments(error)
    with pytest.raises((type(error), RuntimeError)):
        getattr(bank, way)(World().recover("bank"))
    assert len(bank.paid) > 1 or (way == "with_wrapper" and isinstance(error, OSError))


def test_what_a_person_declares_about_the_whole_wins_over_an_unsafe_function_inside() -> None:
    bank = Payments(ConnectionResetError(104, "Connection reset by peer"))
    with pytest.raises(ConnectionResetError):
        bank.with_call(World().recover("bank", effect="keyed"))
    assert len(bank.paid) > 1


@pytest.mark.parametrize("other", ["read", "undeclared"])
def test_functions_of_one_factory_may_declare_different_effects(other: str) -> None:
    def made(effect: Any) -> tuple[Any, list[int]]:
        calls: list[int] = []

        def work() -> None:
            calls.append(1)
            raise reset()

        return work if effect == "undeclared" else tool(effect=effect)(work), calls

    (pay, paid), (look, looked) = made("unsafe"), made(other)
    for work in (pay, look):
        with pytest.raises(ConnectionResetError):
            World().recover("shop").call(lambda: work())  # noqa: PLW0108, B023 - the lambda hides the declaration
    assert len(paid) == 1 < len(looked)


@pytest.mark.parametrize("error", [*FINAL, ConnectionResetError(104, "Connection reset by peer")])
def test_no_fallback_answers_for_an_unsafe_function_inside(error: Exception) -> None:
    bank, elsewhere = Payments(error), []
    buying = World().recover("shop")(lambda: bank.pay(5))
    buying.fallback(lambda: elsewhere.append(5))
    with pytest.raises(type(error)):
        buying()
    assert (bank.paid, elsewhere) == ([5], [])


def test_a_fallback_answers_if_an_unsafe_function_inside_did_nothing() -> None:
    bank, elsewhere = Payments(ScriptedHTTPError(403)), []
    buying = World().recover("shop")(lambda: bank.pay(5))
    buying.fallback(lambda: elsewhere.append(5))
    buying()
    assert elsewhere == [5]
