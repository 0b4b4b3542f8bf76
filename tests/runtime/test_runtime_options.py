"""Wrong options raise where they are written: the error names what was expected, what it got and where."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import InvalidError, Runtime, recover
from holdfast.events import Retry
from holdfast.manager import ExecutionOptions, FallbackStep, ResilienceManager


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Runtime(clock=3), r"runtime.clock: expected a Clock, with wall\(\) and monotonic\(\), got 3"),  # type: ignore[arg-type]
        (lambda: Runtime(rng=3), r"runtime.rng: expected a source of chance, with random\(\), got 3"),  # type: ignore[arg-type]
        (lambda: Runtime(waits=0), "runtime.waits: expected True or False, got 0"),  # type: ignore[arg-type]
        (lambda: Runtime(enabled="false"), "runtime.enabled: expected True or False or None, got 'false'"),  # type: ignore[arg-type]
        (lambda: Runtime(most_circuits=0), "runtime.most_circuits: expected a whole number ≥ 1, got 0"),
        (lambda: Runtime(consent=True), "runtime.consent: expected a function or None, got True"),  # type: ignore[arg-type]
        (lambda: Runtime().on(3), "on: expected a function of an event, got 3"),  # type: ignore[arg-type]
        (lambda: Runtime().on(print, int), "on: expected kinds of events, such as Retry, got type"),  # type: ignore[arg-type]
        (lambda: recover(""), "recover.target: expected a name such as 'claude' or 'tool:bash', or a Target, got ''"),
        (lambda: recover("  "), "recover.target: expected a name such as 'claude' or 'tool:bash', or a Target, got '  '"),
        (lambda: recover("tool:"), "recover.target: expected a name after 'tool:', got 'tool:'"),
        (lambda: ResilienceManager(3), "manager.runtime: expected a Runtime or None, got 3"),  # type: ignore[arg-type]
        (lambda: ResilienceManager().execute(3), "execute: expected a function, got 3"),  # type: ignore[call-overload]
        (lambda: ResilienceManager().execute(int, {}), "execute.options: expected ExecutionOptions, got dict"),  # type: ignore[call-overload]
        (lambda: ExecutionOptions(provider=3), "options.provider: expected a name, got 3"),  # type: ignore[arg-type]
        (lambda: FallbackStep(name="b", operation=3), "fallback.operation: expected a function, got 3"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_wrong_options_of_runtime_and_manager(make: Any, message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        make()


def test_right_options_are_accepted() -> None:
    runtime = Runtime(waits=False, enabled=True, most_circuits=1)
    with runtime.on(lambda _: None, Retry):
        assert ResilienceManager(runtime).execute(lambda: 1) == 1


@pytest.mark.parametrize("slip", ["tols:bash", "agnt:builder", "modle:opus"])
def test_a_misspelled_kind_of_target_is_an_error(slip):
    with pytest.raises(InvalidError, match=r"recover\.target: expected a name such as"):
        recover(slip)


def test_a_provider_may_have_a_colon_in_its_name():
    assert recover("ollama:llama3").call(lambda: 1) == 1
