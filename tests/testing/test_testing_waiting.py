"""The switch that turns waiting off, on anything that has one."""

from __future__ import annotations

import pytest

from holdfast.testing import no_waiting


class Runtime:
    """What the switch asks of a runtime (`holdfast.testing.waiting.Waits`)."""

    def __init__(self, *, waits: bool = True) -> None:
        self.waits = waits


def test_as_a_function_it_holds_until_it_is_restored():
    runtime = Runtime()
    off = no_waiting(runtime)
    assert runtime.waits is False
    off.restore()
    assert runtime.waits is True


def test_in_a_with_statement_it_holds_for_the_block_however_that_ends():
    runtime = Runtime()
    waited = []

    def fail():
        waited.append(runtime.waits)
        raise KeyError

    with pytest.raises(KeyError), no_waiting(runtime):
        fail()
    assert (waited, runtime.waits) == ([False], True)


def test_blocks_nest_and_a_runtime_that_did_not_wait_still_does_not():
    runtime = Runtime()
    with no_waiting(runtime):
        with no_waiting(runtime):
            pass
        assert runtime.waits is False
    assert runtime.waits is True
    already = Runtime(waits=False)
    with no_waiting(already):
        pass
    assert already.waits is False
