"""Fallbacks: the steps after a call has failed for good, their order, and the error when all of them fail."""

from __future__ import annotations

import asyncio
import functools
import threading
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from recover_kit import LOOSE, Always, Flaky, World, reset

from holdfast import (
    INTERACTIVE,
    Circuit,
    DeadlineError,
    Err,
    Fault,
    InvalidError,
    Ok,
    OutcomeUnknownError,
    Policy,
    fault_of,
    recover,
)
from holdfast.classify import Verdict
from holdfast.events import Cancelled, Degraded, Failed, Fallback, Recovered, SuppressedError, write_document
from holdfast.events.lines import LogLines
from holdfast.runtime.fallbacks.cache import MemoryCache, Missing, key_of
from holdfast.testing import ScriptedHTTPError, script

ONCE = Policy(attempts=1, circuit=LOOSE)
FORMS = pytest.mark.parametrize("form", ["sync", "async"])


class Chained:
    """A decorated function that always fails, in either form."""

    def __init__(self, world: World, form: str, fails: Any = None, policy: Policy = ONCE, **options: Any) -> None:
        self.world = world
        self.sync = form == "sync"
        self.work = fails or Always(reset)
        self.fn = world.recover("a", policy, **options)(self._as(self.work))

    def _as(self, step: Any) -> Any:
        return step if self.sync or not hasattr(step, "acall") else step.acall

    def add(self, step: Any, **options: Any) -> Any:
        self.fn.fallback(**options)(self._as(step)) if options else self.fn.fallback(self._as(step))
        return step

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs) if self.sync else self.world.run(self.fn(*args, **kwargs))

    def outcome(self, *args: Any) -> Any:
        return self.fn.outcome(*args) if self.sync else self.world.run(self.fn.outcome(*args))


@FORMS
def test_R73_steps_are_tried_in_order_and_the_first_answer_counts(form: str) -> None:
    world = World()
    chained = Chained(world, form)
    first, second, third = chained.add(Always(reset)), chained.add(Flaky(value="second")), chained.add(Flaky())
    assert chained() == "second"
    assert (chained.work.calls, first.calls, second.calls, third.calls) == (1, 1, 1, 0)
    assert [(event.from_, event.to) for event in world.of(Fallback)] == [
        ("primary", "acall"),
        ("primary", "acall"),
    ] or (form == "sync")
    (recovered,) = world.of(Recovered)
    assert recovered.attempts == 3
    assert not world.of(Failed)


@FORMS
def test_R73_if_all_fail_the_primarys_error_surfaces_with_every_step_on_it(form: str) -> None:
    world = World()
    chained = Chained(world, form)
    chained.add(Always(lambda: ScriptedHTTPError(503)), name="second")
    chained.add(Flaky(), name="never", when="PROVIDER_BILLING")
    chained.add(Always(TimeoutError), name="third")
    with pytest.raises(ConnectionResetError) as failed:
        chained()
    assert failed.value is chained.work.raised[0]
    fault = fault_of(failed.value)
    assert fault.code == "CONN_RESET"
    assert [attempt.via for attempt in fault.attempts] == ["primary", "second", "third"]
    assert fault.attempts[0].code == "CONN_RESET"
    steps = fault.context["fallbacks"]
    assert [step["step"] for step in steps] == ["second", "never", "third"]
    assert steps[1]["skipped"] == "its condition is not met"
    assert len([note for note in failed.value.__notes__ if "fallback" in note]) == 3
    assert len(world.of(Failed)) == 1


@FORMS
def test_R73_a_condition_looks_at_the_latest_and_the_primary_failure(form: str) -> None:
    world = World()
    chained = Chained(world, form, Always(lambda: ScriptedHTTPError(401)))
    chained.add(Always(lambda: ScriptedHTTPError(529)), name="second", when="auth")
    overloaded = chained.add(Always(reset), name="overloaded", when="PROVIDER_OVERLOADED")
    both = chained.add(Flaky(value="both"), name="both", when=lambda latest, primary: (latest.code, primary.category) == ("CONN_RESET", "auth"))  # fmt: skip
    assert chained() == "both"
    assert (overloaded.calls, both.calls) == (1, 1)


@FORMS
def test_R73_a_step_whose_circuit_is_open_is_skipped_and_the_next_is_tried(form: str) -> None:
    world = World()
    broken = Always(reset)
    second = world.recover("b", Policy(attempts=1, circuit=Circuit(failures=1)))(broken)
    with pytest.raises(ConnectionResetError):
        second()
    chained = Chained(world, form)
    chained.add(second, name="second")
    chained.add(Flaky(value="third"), name="third")
    assert chained() == "third"
    assert broken.calls == 1
    assert [event.to for event in world.of(Fallback)] == ["third"]


@FORMS
def test_R73_a_step_without_a_needed_capability_is_skipped(form: str) -> None:
    world = World()
    chained = Chained(world, form, needs=frozenset({"vision"}))
    blind = chained.add(Flaky(), offers=frozenset({"tools"}))
    capable = chained.add(Flaky(value="seen"), offers=frozenset({"vision", "tools"}))
    assert chained() == "seen"
    assert (blind.calls, capable.calls) == (0, 1)


@FORMS
@pytest.mark.parametrize("defect", [TypeError("a defect"), KeyError("gone"), AttributeError("no such thing")])
def test_R74_a_programming_error_in_a_step_surfaces_at_once(form: str, defect: Exception) -> None:
    world = World()
    chained = Chained(world, form)
    chained.add(Flaky(defect))
    later = chained.add(Flaky())
    with pytest.raises(type(defect)) as failed:
        chained()
    assert failed.value is defect
    assert later.calls == 0
    assert len(world.of(Failed)) == 1


@FORMS
def test_R74_a_programming_error_of_the_primary_is_not_answered_by_a_fallback(form: str) -> None:
    world = World()
    chained = Chained(world, form, Always(lambda: TypeError("a defect")))
    step = chained.add(Flaky())
    with pytest.raises(TypeError):
        chained()
    assert step.calls == 0


@FORMS
@pytest.mark.parametrize("error", [ValueError("the xref table is broken"), LookupError("no product Z-9")])
def test_what_may_be_wrong_data_is_answered_by_the_next_step(form: str, error: Exception) -> None:
    world = World()
    chained = Chained(world, form, Always(lambda: error))
    broken = chained.add(Always(lambda: error))
    chained.add(Flaky(value="by hand"))
    assert chained() == "by hand"
    assert broken.calls == 1


@FORMS
def test_what_retry_on_names_is_no_defect_and_reaches_a_fallback(form: str) -> None:
    world = World()
    chained = Chained(world, form, Always(lambda: KeyError("not there yet")), retry_on=KeyError)
    chained.add(Flaky(value="from the copy"))
    assert chained() == "from the copy"


def _takes_one(_: str) -> str:
    return "ok"


@FORMS
def test_R74_a_step_that_does_not_take_the_calls_arguments_is_a_mistake_too(form: str) -> None:
    world = World()
    chained = Chained(world, form)
    chained.add(_takes_one)
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        chained()


@FORMS
def test_R74_a_call_with_wrong_arguments_is_the_models_mistake_only_where_a_tool_was_called(form: str) -> None:
    def wrongly() -> None:
        _takes_one()  # type: ignore[call-arg]

    async def wrongly_async() -> None:
        wrongly()

    for target, answer in (("claude", None), ("tool:bash", "ok")):
        world = World()
        fn: Any = world.recover(target, ONCE)(wrongly if form == "sync" else wrongly_async)
        fn.fallback(Flaky(value="ok"))
        outcome = fn.outcome() if form == "sync" else world.run(fn.outcome())
        assert outcome.value == answer if isinstance(outcome, Ok) else answer is None


@FORMS
def test_S2_16_an_unsafe_call_that_may_have_happened_does_not_fall_back(form: str) -> None:
    world = World()
    chained = Chained(world, form, effect="unsafe")
    step = chained.add(Flaky())
    with pytest.raises(OutcomeUnknownError):
        chained()
    assert step.calls == 0
    assert len(world.of(Failed)) == 1


@FORMS
def test_S1_29_an_open_circuit_falls_back_at_once(form: str) -> None:
    world = World()
    chained = Chained(world, form, policy=Policy(attempts=1, circuit=Circuit(failures=1)))
    chained.add(Flaky(value="other"))
    assert [chained(), chained(), chained()] == ["other"] * 3
    assert chained.work.calls == 1
    assert world.now == 0


@FORMS
def test_S1_15_the_cache_answers_the_very_same_call_until_its_time_is_over(form: str) -> None:
    world = World()
    answers = {"one": "first", "two": "second"}

    def look(question: str) -> str:
        if not answers:
            raise reset()
        return answers[question]

    async def look_later(question: str) -> str:
        return look(question)

    decorated = world.recover("a", ONCE)(look if form == "sync" else look_later)
    decorated.cached(ttl=60)

    def ask(question: str) -> str:
        return decorated(question) if form == "sync" else world.run(decorated(question))

    assert ask("one") == "first"
    world.clock.advance(1)
    answers.clear()
    assert ask("one") == "first"
    assert [event.via for event in world.of(Degraded)] == ["cached"]
    with pytest.raises(ConnectionResetError):
        ask("two")
    world.clock.advance(58.9)
    assert ask("one") == "first"
    world.clock.advance(0.2)
    with pytest.raises(ConnectionResetError):
        ask("one")


class Model(msgspec.Struct):
    """An answer that its caller may change."""

    roles: list[str]


@pytest.mark.parametrize("make", [lambda: {"roles": ["reader"]}, lambda: Model(roles=["reader"])])
def test_a_kept_answer_is_not_changed_by_those_who_got_it(make: Any) -> None:
    world = World()
    failing: list[bool] = []

    @world.recover("a", Policy(attempts=1))
    def profile(user: str) -> Any:
        if failing:
            raise reset()
        return make()

    profile.cached(ttl=600)

    def roles(answer: Any) -> list[str]:
        found: list[str] = answer["roles"] if isinstance(answer, dict) else answer.roles
        return found

    roles(profile("ann")).append("admin")
    failing.append(True)
    kept = profile("ann")
    assert roles(kept) == ["reader"]
    roles(kept).append("admin")
    assert roles(profile("ann")) == ["reader"]


def test_an_answer_that_cannot_be_copied_is_kept_as_it_is() -> None:
    cache, answer = MemoryCache(), threading.Lock()
    cache.put("key", answer, 0.0, 60.0)
    assert cache.get("key", 1.0) is answer


def test_S1_15_the_answer_None_is_cached_too() -> None:
    world = World()
    work = Flaky(value=None)
    decorated = world.recover("a", ONCE)(work)
    decorated.cached(60)
    assert decorated() is None
    work.failures = [reset()] * 9
    assert decorated() is None


def test_S1_15_a_given_key_and_arguments_without_a_key() -> None:
    world = World()
    work = Flaky()
    decorated = world.recover("a", ONCE)(work)
    decorated.cached(ttl=60)
    decorated(object())
    work.failures = [reset()] * 9
    with pytest.raises(ConnectionResetError):
        decorated(object())
    # A cache that never keeps anything must not look like one. It is reported once, not with every call.
    (suppressed,) = world.of(SuppressedError)
    assert "Flaky" in suppressed.cause
    assert "key=" in suppressed.cause
    keyed_work = Flaky()
    keyed = world.recover("b", ONCE)(keyed_work)
    keyed.cached(ttl=60, key=lambda thing: type(thing).__name__)
    keyed(object())
    keyed_work.failures = [reset()] * 9
    assert keyed(object()) == "ok"


def test_S1_15_two_functions_may_share_a_store() -> None:
    world = World()
    store = MemoryCache(most=2)
    works = [Flaky(value=1), Flaky(value=2)]

    def first() -> Any:
        return works[0]()

    def second() -> Any:
        return works[1]()

    decorated = [world.recover("a", ONCE)(fn) for fn in (first, second)]
    for fn in decorated:
        fn.cached(ttl=60, store=store)
        fn()
    for work in works:
        work.failures = [reset()] * 9
    assert [fn() for fn in decorated] == [1, 2]


def test_S1_15_the_memory_of_the_cache_is_bounded() -> None:
    cache = MemoryCache(most=10)
    for number in range(1000):
        cache.put(str(number), number, 0.0, 60)
    assert len(cache._kept) == 10
    assert cache.get("999", 1.0) == 999
    assert cache.get("0", 1.0) is Missing


@pytest.mark.parametrize(
    "value", [b"aGk=", Decimal("1.5"), datetime(2026, 1, 1, tzinfo=UTC), float("nan"), {1: 2}, {3}, object()]
)
def test_arguments_that_json_would_confuse_with_text_have_no_key(value):
    assert key_of(None, "ask", (value,), {}) is None
    assert key_of(None, "ask", (), {"q": [value]}) is None


def test_different_plain_arguments_have_different_keys():
    calls = [("1",), (1,), (1.0,), (True,), (None,), ([1],), ({"a": 1},)]
    assert len({key_of(None, "ask", args, {}) for args in calls}) == len(calls)


class BrokenStore:
    def get(self, key: str, now: float) -> Any:
        raise OSError("the store is down")

    def put(self, key: str, value: Any, now: float, ttl: float) -> None:
        raise OSError("the store is down")


def _bad_key(*_: Any) -> str:
    raise LookupError("a defect of the key")


@FORMS
@pytest.mark.parametrize("options", [{"store": BrokenStore()}, {"key": _bad_key}])
def test_R25_a_failing_cache_is_reported_and_changes_nothing(form: str, options: dict[str, Any]) -> None:
    world = World()
    chained = Chained(world, form, Flaky(value="fine"))
    chained.fn.cached(ttl=60, **options)
    assert chained() == "fine"
    assert len(world.of(SuppressedError)) == 1
    failing = Chained(world, form)
    failing.fn.cached(ttl=60, **options)
    with pytest.raises(ConnectionResetError):
        failing()
    assert len(world.of(SuppressedError)) == 2


@FORMS
def test_R25_a_condition_that_raises_skips_its_step_and_is_reported_once(form: str) -> None:
    world = World()
    chained = Chained(world, form)

    def broken(latest: Fault, primary: Fault) -> bool:
        raise LookupError("a defect of the condition")

    skipped = chained.add(Flaky(), when=broken)
    chained.add(Flaky(value="next"))
    for _ in range(2):
        assert chained() == "next"
    assert skipped.calls == 0
    assert len(world.of(SuppressedError)) == 1


@FORMS
def test_S1_4_a_step_that_must_ask_is_skipped_without_consent_and_used_with_it(form: str) -> None:
    questions: list[tuple[str, str, str]] = []

    def consent(operation: str, step: str, fault: Fault) -> bool:
        questions.append((operation, step, fault.code))
        return len(questions) == 2

    world = World(consent=consent)
    chained = Chained(world, form)
    step = chained.add(Flaky(value="other"), name="other", consent="ask")
    with pytest.raises(ConnectionResetError) as failed:
        chained()
    assert fault_of(failed.value).context["fallbacks"] == [{"step": "other", "skipped": "consent was not given"}]
    assert chained() == "other"
    assert step.calls == 1
    assert questions == [("a", "other", "CONN_RESET")] * 2


@FORMS
def test_S1_4_without_a_consent_function_the_answer_is_no(form: str) -> None:
    chained = Chained(World(), form)
    step = chained.add(Flaky(), consent="ask")
    with pytest.raises(ConnectionResetError):
        chained()
    assert step.calls == 0


@FORMS
def test_R25_a_consent_that_raises_is_a_no_and_is_reported(form: str) -> None:
    def consent(*_: Any) -> bool:
        raise LookupError("a defect of the question")

    world = World(consent=consent)
    chained = Chained(world, form)
    step = chained.add(Flaky(), consent="ask")
    with pytest.raises(ConnectionResetError):
        chained()
    assert step.calls == 0
    assert len(world.of(SuppressedError)) == 1


def test_S1_4_the_consent_function_may_be_async() -> None:
    async def consent(*_: Any) -> bool:
        await asyncio.sleep(3)
        return True

    world = World(consent=consent)
    chained = Chained(world, "async")
    chained.add(Flaky(value="other"), consent="ask")
    assert chained() == "other"
    assert world.now == 3


def test_S1_4_async_consent_in_sync_code_is_a_no_and_leaks_no_coroutine() -> None:
    async def consent(*_: Any) -> bool:
        return True

    world = World(consent=consent)
    chained = Chained(world, "sync")
    step = chained.add(Flaky(), consent="ask")
    with pytest.raises(ConnectionResetError):
        chained()
    assert step.calls == 0


@FORMS
def test_S1_16_degraded_gets_the_fault_and_the_arguments(form: str) -> None:
    world = World()
    chained = Chained(world, form)
    chained.add(Always(reset))
    chained.fn.degraded(lambda fault, question: f"{fault.code}: {question}")
    assert chained("hi") == "CONN_RESET: hi"
    (event,) = world.of(Degraded)
    assert (event.via, event.reason) == ("degraded", event.fault.message)
    assert chained.outcome("hi").via == "degraded"
    assert not world.of(Failed)


def test_FR28_S1_16_the_reason_of_a_degraded_answer_is_the_message_of_the_primary_error() -> None:
    world = World()
    chained = Chained(world, "sync")
    chained.add(Always(TimeoutError))
    chained.fn.degraded(lambda _fault: "less")
    assert chained() == "less"
    (event,) = world.of(Degraded)
    assert event.fault.code == "CONN_RESET"
    assert "Connection reset by peer" in event.reason
    assert write_document(event) == {"type": "degraded", "reason": event.reason}


def test_FR28_a_recovery_by_a_fallback_took_as_long_as_the_whole_call() -> None:
    world = World()

    @world.recover("claude", Policy(attempts=1))
    async def primary() -> str:
        await asyncio.sleep(2.8)
        raise reset()

    @primary.fallback
    async def other() -> str:
        return "ok"

    assert world.run(primary()) == "ok"
    (event,) = world.of(Recovered)
    assert (event.after, event.took) == (0.0, pytest.approx(2.8))
    assert LogLines().of(event)[1] == "claude recovered via other after 2 attempts in 2.8 s"


@FORMS
def test_S1_16_a_degraded_answer_that_fails_is_one_more_failed_step(form: str) -> None:
    world = World()
    chained = Chained(world, form)
    chained.fn.degraded(lambda _: Always(TimeoutError)())
    with pytest.raises(ConnectionResetError) as failed:
        chained()
    assert [step["step"] for step in fault_of(failed.value).context["fallbacks"]] == ["degraded"]


@FORMS
def test_S1_16_a_defect_of_the_degraded_function_does_not_hide_the_primarys_error(
    form: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    chained = Chained(world, form)

    def sorry(fault: Any, *_: Any) -> Any:
        return fault.no_such_attribute

    chained.fn.degraded(sorry)
    for _ in range(2):
        with pytest.raises(ConnectionResetError) as failed:
            chained()
        assert failed.value is chained.work.raised[-1]
        (note,) = [note for note in failed.value.__notes__ if "degraded" in note]
        assert sorry.__qualname__ in note
        assert "no_such_attribute" in note
    (logged,) = [record.message for record in caplog.records]
    assert logged.startswith(f"the degraded function {sorry.__qualname__} raised and the error is ignored: Attrib")
    assert len(world.of(SuppressedError)) == 1
    assert len(world.of(Failed)) == 2


class Shop:
    """Its methods always fail."""

    currency = "EUR"
    recovered = World().recover("shop", ONCE)

    @recovered
    def price(self, item: str, *, count: int = 1) -> str:
        raise reset()

    @price.degraded
    def price_unknown(self, fault: Fault, item: str, *, count: int = 1) -> str:
        return f"{count} {item} in {self.currency}: {fault.code}"

    @recovered
    async def stock(self, item: str) -> str:
        raise reset()

    @stock.degraded
    async def stock_unknown(self, fault: Fault, item: str) -> str:
        return f"{item} in {self.currency}: {fault.code}"

    @recovered
    @classmethod
    def make(cls, name: str) -> str:
        raise reset()

    @recovered
    @staticmethod
    def rate(currency: str) -> str:
        raise reset()

    @rate.degraded
    @staticmethod
    def rate_unknown(fault: Fault, currency: str) -> str:
        return f"{currency}: {fault.code}"

    @recovered
    def tax(self, item: str) -> str:
        raise reset()

    @tax.degraded
    @staticmethod
    def tax_unknown(fault: Fault, self: Shop, item: str) -> str:
        return f"{item} in {self.currency}: {fault.code}"


@Shop.make.degraded
def make_nothing(cls: type[Shop], fault: Fault, name: str) -> str:
    return f"{name} of {cls.__name__}: {fault.code}"


def test_S1_16_the_degraded_function_of_a_method_gets_self_then_the_fault() -> None:
    shop = Shop()
    assert shop.price("tea") == "1 tea in EUR: CONN_RESET"
    assert shop.price(item="tea", count=2) == "2 tea in EUR: CONN_RESET"
    assert Shop.price(shop, "tea") == "1 tea in EUR: CONN_RESET"
    assert shop.price.outcome("tea").value == "1 tea in EUR: CONN_RESET"
    assert asyncio.run(shop.stock("tea")) == "tea in EUR: CONN_RESET"
    assert Shop.make("x") == shop.make("x") == "x of Shop: CONN_RESET"


def test_S1_16_the_fault_comes_first_where_there_is_no_self_and_where_the_function_says_so() -> None:
    assert Shop.rate("EUR") == Shop().rate("EUR") == "EUR: CONN_RESET"
    assert Shop().tax("tea") == "tea in EUR: CONN_RESET"


def _shape(kind: str) -> Any:
    def method(self: Any, question: str, *, deep: bool) -> None: ...

    def function(question: str, style: str = "short") -> None: ...

    method.__qualname__ = "Agent.ask"
    return {"method": method, "function": function, "anything": lambda *_: None, "nothing": lambda: None}[kind]


@pytest.mark.parametrize(
    ("kind", "degraded", "expected"),
    [
        ("function", lambda question: None, "(fault, question, style), got"),
        ("function", lambda: None, "(fault, question, style), got"),
        ("function", lambda question, fault: None, "(fault, question, style)"),
        ("function", lambda a, b, c, d: None, "(fault, question, style)"),
        ("function", lambda fault, question: None, None),
        ("function", lambda fault, question, style="x": None, None),
        ("function", lambda *_: None, None),
        ("method", lambda self, question, deep: None, "(self, fault, question, deep)"),
        ("method", lambda self, fault, question: None, "(self, fault, question, deep)"),
        ("method", lambda self, fault, question, *, deep: None, None),
        ("method", lambda fault, self, question, deep: None, None),
        ("method", lambda self, question, *, deep: None, "(self, fault, question, deep)"),
        ("anything", lambda: None, "(fault, _)"),
        ("anything", lambda fault, a, b: None, None),
        ("nothing", lambda: None, "(fault)"),
        ("nothing", lambda _: None, None),
        ("nothing", str, None),
    ],
)
def test_R71_a_degraded_function_whose_parameters_cannot_fit_is_rejected(
    kind: str, degraded: Any, expected: str | None
) -> None:
    fn = recover("a")(_shape(kind))
    if expected is None:
        assert fn.degraded(degraded) is degraded
        return
    with pytest.raises(InvalidError) as failed:
        fn.degraded(degraded)
    assert f"a function with the parameters {expected}" in str(failed.value)


@FORMS
def test_S1_31_when_all_steps_fail_notify_is_called_and_the_first_error_raised(form: str) -> None:
    world = World()
    notified: list[Fault] = []
    chained = Chained(world, form)
    chained.add(Always(TimeoutError), name="second")
    chained.fn.notify(notified.append)
    with pytest.raises(ConnectionResetError):
        chained()
    (fault,) = notified
    assert fault.code == "SYS_FALLBACKS_EXHAUSTED"
    assert fault.context["steps"] == ["second"]
    assert fault.context["primary"] == "CONN_RESET"


@FORMS
def test_R25_a_notification_that_raises_changes_nothing(form: str) -> None:
    world = World()
    chained = Chained(world, form)

    @chained.fn.notify
    def broken(_: Fault) -> None:
        raise LookupError("a defect of the notification")

    with pytest.raises(ConnectionResetError):
        chained()
    assert len(world.of(SuppressedError)) == 1
    assert len(world.of(Failed)) == 1


@FORMS
@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_R18_an_interrupt_in_a_step_ends_the_operation(form: str, stop: type[BaseException]) -> None:
    world = World()
    chained = Chained(world, form)
    chained.add(Flaky(stop()))
    later = chained.add(Flaky())
    with pytest.raises(stop):
        chained()
    assert later.calls == 0
    assert not world.of(Failed)
    assert len(world.of(Cancelled)) == 1


def test_a_step_has_the_time_limit_of_an_attempt() -> None:
    world = World()
    chained = Chained(world, "async", policy=Policy(attempts=1, timeout=5, circuit=LOOSE))
    chained.add(Flaky(takes=60), name="slow")
    chained.add(Flaky(value="quick"), name="quick")
    assert chained() == "quick"
    assert world.now == 5


@FORMS
def test_the_deadline_holds_for_the_steps_too(form: str) -> None:
    """A step that recovers by itself sees the deadline of the whole operation."""
    world = World()
    work = Always(reset)
    policy = Policy(patience=None, timeout=None, attempts=50, circuit=LOOSE)
    step = world.recover("b", policy)(work if form == "sync" else work.acall)
    chained = Chained(world, form, policy=Policy(attempts=1, timeout=None, deadline=10, circuit=LOOSE))
    chained.fn.fallback(step)
    with pytest.raises(ConnectionResetError):
        chained()
    assert world.now == 7
    assert work.calls == 4


def test_outcome_names_the_fallback_that_answered() -> None:
    world = World()
    chained = Chained(world, "sync")
    chained.add(Flaky(value="other"), name="other")
    outcome = chained.outcome()
    assert isinstance(outcome, Ok)
    assert (outcome.value, outcome.via) == ("other", "other")
    assert [attempt.via for attempt in outcome.attempts] == ["primary", "other"]
    failing = Chained(world, "sync")
    failing.add(Always(reset), name="other")
    failed = failing.outcome()
    assert isinstance(failed, Err)
    assert [attempt.via for attempt in failed.fault.attempts] == ["primary", "other"]
    assert failing.fn.steps() == ("other",)


def test_fallbacks_added_later_and_after_a_change_count() -> None:
    world = World()
    chained = Chained(world, "sync")
    with pytest.raises(ConnectionResetError):
        chained()
    world.runtime.on(lambda _: None)
    with pytest.raises(ConnectionResetError):
        chained()
    chained.add(Flaky(value="late"))
    assert chained() == "late"


def test_S1_24_all_providers_down_the_user_gets_a_degraded_message_and_may_retry() -> None:
    world = World()
    policy = Policy(attempts=1, circuit=Circuit(failures=1))
    claude = world.recover("claude", policy)(script("503*2, ok:claude is back"))
    gpt = world.recover("openai", policy)(script("503*2, ok"))
    claude.fallback(gpt)
    claude.degraded(lambda fault: fault.for_user())
    texts = [claude(), claude()]
    assert world.circuit_state("provider:claude") == world.circuit_state("provider:openai") == "open"
    assert all(texts)
    world.clock.advance(60)
    claude()
    world.clock.advance(60)
    assert claude() == "claude is back"


# --- bad input ---


async def _async_step() -> None: ...


@pytest.mark.parametrize(
    ("add", "where"),
    [
        (lambda fn: fn.fallback(5), "fallback"),
        (lambda fn: fn.fallback("text"), "fallback"),
        (lambda fn: fn.fallback(when="NO_SUCH_CODE")(len), "when"),
        (lambda fn: fn.fallback(when=5)(len), "when"),
        (lambda fn: fn.fallback(consent="maybe")(len), "consent"),
        (lambda fn: fn.fallback(offers="vision")(len), "offers"),
        (lambda fn: fn.fallback(name=5)(len), "name"),
        (lambda fn: fn.fallback(_async_step), "plain function"),
        (lambda fn: fn.degraded(5), "degraded"),
        (lambda fn: fn.degraded(_async_step), "plain function"),
        (lambda fn: fn.notify(5), "notify"),
        (lambda fn: fn.cached(ttl=0), "ttl"),
        (lambda fn: fn.cached(ttl=-1), "ttl"),
        (lambda fn: fn.cached(ttl=float("nan")), "ttl"),
        (lambda fn: fn.cached(ttl=float("inf")), "ttl"),
        (lambda fn: fn.cached(ttl="60"), "ttl"),
        (lambda fn: fn.cached(ttl=60, key="name"), "key"),
        (lambda fn: fn.cached(ttl=60, store={}), "store"),
        (lambda fn: MemoryCache(most=0), "most"),
    ],
)
def test_R71_bad_options_fail_where_they_are_written(add: Any, where: str) -> None:
    fn = recover("a")(lambda: None)
    with pytest.raises(InvalidError, match=where):
        add(fn)
    assert fn.steps() == ()


def test_a_primary_that_hung_until_the_deadline_leaves_its_fallback_the_time_of_an_attempt() -> None:
    """A hanging provider uses up the whole deadline, and that is when fallbacks are needed."""
    world = World()
    chained = Chained(world, "async", Flaky(takes=1_000), policy=Policy(timeout=60, deadline=120))
    chained.add(Flaky(takes=50, value="other"), name="other")
    assert chained() == "other"
    assert world.now == 120 + 50


def test_a_degraded_answer_may_take_time_after_the_deadline() -> None:
    world = World()
    chained = Chained(world, "async", Flaky(takes=1_000), policy=Policy(timeout=None, deadline=10))
    chained.fn.degraded(Flaky(takes=5, value="sorry").acall)
    assert chained() == "sorry"


def test_the_deadline_around_a_call_clips_its_fallbacks() -> None:
    world = World()
    chained = Chained(world, "async", Flaky(takes=1_000), policy=INTERACTIVE)
    chained.add(Flaky(takes=50), name="other")

    async def within() -> None:
        await chained.fn("q")

    with pytest.raises(DeadlineError):
        world.run(world.recover("outer", Policy(timeout=None, deadline=130)).call(within))
    assert world.now == 130


@pytest.mark.parametrize("form", ["sync", "async"])
def test_FU3_everything_that_a_decorated_function_has_is_documented(form: str) -> None:
    fn = Chained(World(), form).fn
    for name in ("fallback", "cached", "degraded", "notify", "repair", "outcome", "steps"):
        assert getattr(fn, name).__doc__, name


# --- StopIteration ---


def test_FR14_a_stop_iteration_surfaces_itself_where_there_are_fallbacks() -> None:
    world = World()
    failing = Always(lambda: StopIteration("the value"))
    chained = Chained(world, "sync", failing)
    backup = chained.add(Flaky())
    for _ in range(2):
        with pytest.raises(StopIteration) as failed:
            chained()
        assert failed.value is failing.raised[-1]
        assert fault_of(failed.value).code == "SYS_PROGRAMMING_ERROR"
    assert backup.calls == 0
    assert len(world.of(Failed)) == 2


def test_FR14_a_stop_iteration_of_a_fallback_surfaces_itself() -> None:
    world = World()
    chained = Chained(world, "sync")
    backup = chained.add(Always(StopIteration))
    with pytest.raises(StopIteration) as failed:
        chained()
    assert failed.value is backup.raised[0]
    assert len(world.of(Failed)) == 1


def test_FR14_a_stop_iteration_of_the_degraded_answer_does_not_hide_the_primarys_error() -> None:
    world = World()
    chained = Chained(world, "sync")
    sorry = chained.fn.degraded(Always(StopIteration))
    with pytest.raises(ConnectionResetError) as failed:
        chained()
    assert failed.value is chained.work.raised[0]
    assert len(sorry.raised) == 1


def test_FR14_a_stop_iteration_that_may_fall_back_surfaces_when_every_step_fails() -> None:
    """A rule of the user can declare it a failure of the network."""
    world = World()
    world.runtime.rules.add((lambda evidence: Verdict(code="CONN_RESET") if "the end" in str(evidence.text) else None,))
    primary = Always(lambda: StopIteration("the end"))
    chained = Chained(world, "sync", primary)
    chained.add(Always(lambda: StopIteration("the end")))
    chained.fn.notify(Always(lambda: StopIteration("the end")))
    with pytest.raises(StopIteration) as failed:
        chained()
    assert failed.value is primary.raised[0]
    chained.add(Flaky(value="backup"))
    assert chained() == "backup"


# --- the time of all fallbacks ---


def hanging(world: World, count: int, policy: Policy | None = None) -> tuple[Any, list[str]]:
    """A call that hangs, with fallbacks that hang; and what was called."""
    called: list[str] = []

    async def hangs(name: str = "primary") -> None:
        called.append(name)
        await asyncio.sleep(1_000)

    answer = world.recover("a", policy or Policy(timeout=60, deadline=120))(hangs)
    for number in range(1, count + 1):
        answer.fallback(functools.partial(hangs, f"{number}"), name=f"{number}")
    return answer, called


def test_FR18_hanging_fallbacks_have_the_deadline_once_more_in_all() -> None:
    world = World()
    answer, called = hanging(world, 5)
    with pytest.raises(DeadlineError) as failed:
        world.run(answer())
    assert world.now == 240
    assert called == ["primary", "primary", "1", "2"]
    notes = "".join(failed.value.__notes__)
    for number in (3, 4, 5):
        assert f"fallback {number}: the time of the fallbacks is over" in notes


def test_FR18_a_fallback_has_at_least_the_limit_of_an_attempt() -> None:
    world = World()
    answer, _ = hanging(world, 1)

    @answer.fallback
    async def slow() -> str:
        await asyncio.sleep(55)
        return "slow"

    assert world.run(answer()) == "slow"
    assert world.now == 120 + 60 + 55


@pytest.mark.parametrize("hangs", [False, True])
def test_FR18_a_degraded_answer_comes_also_after_fallbacks_that_hung(hangs: bool) -> None:
    world = World()
    answer, _ = hanging(world, 5)
    notified: list[str] = []

    @answer.degraded
    async def sorry(fault: Any) -> str:
        await asyncio.sleep(1_000 if hangs else 1)
        return "sorry"

    @answer.notify
    async def notify(fault: Any) -> None:
        await asyncio.sleep(1)
        notified.append(fault.code)

    if not hangs:
        assert world.run(answer()) == "sorry"
        assert world.now == 241
        return
    with pytest.raises(DeadlineError):
        world.run(answer())
    assert world.now == 246
    assert notified == ["SYS_FALLBACKS_EXHAUSTED"]


def test_FR18_the_fallbacks_of_a_slow_plain_function_are_called() -> None:
    world = World()

    def slow() -> None:
        world.clock.sleep(500)
        raise reset()

    answer = world.recover("a", Policy(timeout=60, deadline=120))(slow)
    answer.fallback(slow, name="slow too")
    answer.fallback(lambda: "never", name="late")
    with pytest.raises(ConnectionResetError) as failed:
        answer()
    assert world.now == 1_000
    assert "fallback late: the time of the fallbacks is over" in "".join(failed.value.__notes__)
    quick = world.recover("a", Policy(timeout=60, deadline=120))(slow)
    quick.fallback(lambda: "quick")
    assert quick() == "quick"


def test_FR18_fallbacks_that_answer_in_time_are_not_bounded_by_a_deadline_that_is_not_there() -> None:
    world = World()
    answer, called = hanging(world, 5, Policy(timeout=60, patience=None, attempts=1))
    with pytest.raises(DeadlineError):
        world.run(answer())
    assert called == ["primary", "1", "2", "3", "4", "5"]


def test_FR18_an_outer_deadline_still_ends_the_fallbacks() -> None:
    world = World()
    answer, _ = hanging(world, 3)
    with pytest.raises(DeadlineError):
        world.run(world.recover("outer", Policy(timeout=None, deadline=150, attempts=1)).call(answer))
    assert world.now == 150


def test_FR18_hanging_fallbacks_of_a_stream_have_the_deadline_once_more_in_all() -> None:
    world = World()
    begun: list[str] = []

    def hanging_source(name: str) -> Any:
        async def items() -> Any:
            begun.append(name)
            await asyncio.sleep(1_000)
            yield "never"

        return items

    live = world.recover("a", Policy(timeout=60, deadline=120)).stream(hanging_source("primary"))
    for number in range(1, 6):
        live.fallback(hanging_source(f"{number}"), name=f"{number}")

    async def read() -> None:
        async with live() as stream:
            async for _ in stream:
                pass

    with pytest.raises(DeadlineError):
        world.run(read())
    assert world.now == 240
    assert begun == ["primary", "primary", "1", "2"]


class _AsyncCondition:
    async def __call__(self, latest: Fault, primary: Fault) -> bool:
        return True


async def _async_condition(latest: Fault, primary: Fault) -> bool:
    return True


@pytest.mark.parametrize("when", [_async_condition, functools.partial(_async_condition), _AsyncCondition()])
def test_FR8_an_async_condition_is_an_error_when_the_fallback_is_added(when: Any) -> None:
    world = World()
    answer = world.recover("a")(Always(reset).acall)
    with pytest.raises(InvalidError, match="when: expected a plain function"):
        answer.fallback(when=when)(Flaky().acall)
    live = world.recover("a").stream(Always(reset).acall)  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match="when: expected a plain function"):
        live.fallback(Flaky().acall, when=when)  # type: ignore[arg-type]


def test_FR8_a_condition_that_returns_a_coroutine_is_not_met_and_reported_once(caplog: Any) -> None:
    world = World()
    answer = world.recover("a", ONCE)(Always(reset).acall)
    skipped = Flaky()
    answer.fallback(when=lambda latest, _: _async_condition(latest, latest), name="odd")(skipped.acall)  # type: ignore[arg-type, return-value]
    for _ in range(2):
        with pytest.raises(ConnectionResetError):
            world.run(answer())
    assert skipped.calls == 0
    assert caplog.text.count("the condition of fallback odd raised") == 1


def test_FR8_a_condition_of_a_stream_that_raises_is_reported_once_and_the_real_error_surfaces() -> None:
    world = World()

    async def fails() -> Any:
        raise reset()
        yield

    def broken(latest: Fault, primary: Fault) -> bool:
        raise LookupError("a defect of the condition")

    live = world.recover("a", ONCE).stream(fails).fallback(fails, when=broken)

    async def read() -> None:
        async with live() as stream:
            async for _ in stream:
                pass

    for _ in range(2):
        with pytest.raises(ConnectionResetError):
            world.run(read())
    assert len(world.of(SuppressedError)) == 1
