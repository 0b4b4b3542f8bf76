"""What a step is known by: its function with its module, and its arguments as the function takes them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sessions_kit import Crash, code_of, killed, next_run

from holdfast import tool
from holdfast.events import StepNotReplayed
from holdfast.faults import HoldfastError
from holdfast.runtime.runtime import default_runtime
from holdfast.sessions import Session
from holdfast.sessions.history import history_of
from holdfast.stores import MemoryStore
from holdfast.testing import Capture, run

DONE: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    DONE.clear()


@tool(effect="unsafe")
async def send(to: str, cc: str | None = None, *, tries: int = 3) -> str:
    DONE.append((to, cc, tries))
    return f"sent to {to}"


def module(name: str, source: str) -> Any:
    """Return a module of this name with this source."""
    made = ModuleType(name)
    made.__dict__["DONE"] = DONE
    exec(source, made.__dict__)
    return made


FETCH = """
from holdfast import tool
from holdfast.events import StepNotReplayed
def fetch(who):
    DONE.append((__name__, who))
    return f"{__name__} of {who}"
@tool(effect="unsafe")
def pay(who):
    DONE.append((__name__, who))
    return f"{__name__} paid {who}"
"""


@pytest.mark.parametrize("name", ["fetch", "pay"])
def test_XD4_functions_of_one_name_in_two_modules_are_two_steps(name: str) -> None:
    billing, mail = (getattr(module(one, FETCH), name) for one in ("billing", "mail"))

    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            first = await session.step(billing, "ada"), await session.step(mail, "ada")
        # The second run calls them in the other order.
        async with Session.open("s", store=store) as session:
            second = await session.step(mail, "ada"), await session.step(billing, "ada")
        assert second == (first[1], first[0])

    run(main())
    assert DONE == [("billing", "ada"), ("mail", "ada")]


@pytest.mark.parametrize(
    "call",
    [
        lambda session: session.step(send, "ada"),
        lambda session: session.step(send, to="ada"),
        lambda session: session.step(send, "ada", None),
        lambda session: session.step(send, cc=None, to="ada", tries=3),
    ],
)
def test_XD8_one_call_written_in_several_ways_is_one_step(call: Any) -> None:
    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            await session.step(send, "ada")
        async with Session.open("s", store=store) as session:
            assert await call(session) == "sent to ada"

    run(main())
    assert DONE == [("ada", None, 3)]


def test_XD8_another_value_of_a_default_is_another_call() -> None:
    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            await session.step(send, "ada")
        next_run()
        with pytest.raises(HoldfastError) as raised:
            async with Session.open("s", store=store) as session:
                await session.step(send, "ada", tries=4)
        assert code_of(raised.value) == "SESS_STEP_DRIFT"

    run(main())
    assert DONE == [("ada", None, 3)]


def test_XD8_variable_arguments_markers_and_methods_are_bound_too() -> None:
    marker = object()

    def gather(first: int, *rest: int, sep: Any = marker, **more: int) -> list[Any]:
        DONE.append((first, rest, more))
        return [first, *rest, *more.values()]

    class Till:
        def take(self, amount: int, note: str = "") -> int:
            DONE.append((amount, note))
            return amount

    async def program(session: Session) -> list[Any]:
        return [
            await session.step(gather, 1, 2, x=3),
            await session.step(Till().take, 5),
            await session.step("ada".upper),
        ]

    async def again(session: Session) -> list[Any]:
        return [
            await session.step(gather, *[1, 2], x=3),
            await session.step(Till().take, amount=5, note=""),
            await session.step("ada".upper),
        ]

    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            first = await program(session)
        async with Session.open("s", store=store) as session:
            assert await again(session) == first

    run(main())
    assert len(DONE) == 2


def test_XD8_a_tool_with_a_name_is_known_by_it_wherever_its_function_is() -> None:
    @tool(effect="unsafe", name="charge")
    def charge(amount: int) -> int:
        DONE.append(amount)
        return amount

    @tool(effect="unsafe", name="charge")
    def charge_card(amount: int) -> int:
        DONE.append(amount)
        return amount

    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            await session.step(charge, 5)
        async with Session.open("s", store=store) as session:
            assert await session.step(charge_card, 5) == 5

    run(main())
    assert DONE == [5]


def test_XD4_a_message_names_the_function_without_its_module() -> None:
    @tool(effect="unsafe")
    def cut(plan: str) -> None:
        raise Crash

    async def main() -> str:
        store = MemoryStore()
        await killed(store, lambda session: session.step(cut, "p"))
        async with Session.open("s", store=store) as session:
            with pytest.raises(HoldfastError) as raised:
                await session.step(cut, "p")
            return raised.value.fault.message

    assert 'cut("p") was started' in run(main())


PROGRAM = """
import asyncio, sys
from holdfast import Session, tool

@tool(effect="unsafe")
def pay(amount):
    print("paid")
    return amount

async def main():
    async with Session.open("s", store=f"sqlite:{sys.argv[1]}") as session:
        await session.step(pay, 5)

def begin():
    asyncio.run(main())

if __name__ == "__main__":
    begin()
"""


@pytest.mark.parametrize("folder", ["", "shop", "shop/jobs"])
def test_XD4_a_program_is_one_whether_it_is_started_as_a_file_as_a_module_or_is_imported(
    folder: str, tmp_path: Path
) -> None:
    place = tmp_path / folder
    place.mkdir(parents=True, exist_ok=True)
    (place / "nightly.py").write_text(PROGRAM)
    package = folder.replace("/", ".")
    for depth in range(1, len(folder.split("/")) + 1 if folder else 1):
        (tmp_path / "/".join(folder.split("/")[:depth]) / "__init__.py").touch()
    name = f"{package}.nightly" if package else "nightly"
    store = str(tmp_path / "work.db")
    commands = [
        [str(place / "nightly.py"), store],
        ["-m", name, store],
        ["-c", f"import {name}; {name}.begin()", store],
    ]
    printed = [
        subprocess.run([sys.executable, *command], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
        for command in commands
    ]
    assert printed == ["paid\n", "", ""]


def test_XD8_an_unsafe_step_that_a_run_did_not_call_is_reported_and_stays_visible() -> None:
    @tool(effect="unsafe")
    def charge(amount: int) -> int:
        DONE.append(amount)
        return amount

    @tool(effect="unsafe")
    def charge_card(amount: int) -> int:
        DONE.append(amount)
        return amount

    async def main() -> None:
        store, capture = MemoryStore(), Capture()
        with default_runtime().on(capture):
            for renamed in (charge, charge, charge_card):
                assert not capture.of(StepNotReplayed)
                next_run()
                async with Session.open("s", store=store) as session:
                    await session.step(renamed, 5)
        (event,) = capture.of(StepNotReplayed)
        assert event.operation.endswith("charge(5)")
        assert event.session == "s"
        first, second = (await history_of(store, "s")).steps()
        assert (first.not_replayed, second.not_replayed) == (True, False)
        assert first.key == event.key

    run(main())


def test_a_name_that_a_tool_is_given_later_is_drift_and_no_second_payment() -> None:
    def version(**contract: Any) -> Any:
        @tool(effect="unsafe", **contract)
        async def charge(amount: int) -> int:
            DONE.append(amount)
            return amount

        return charge

    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            await session.step(version(), 5)
        next_run()
        async with Session.open("s", store=store) as session:
            with pytest.raises(HoldfastError, match="another name") as drift:
                await session.step(version(name="charge"), 5)
            await session.accept(drift.value.fault.context["key"])
            assert await session.step(version(name="charge"), 5) == 5
        assert DONE == [5]

    run(main())


def test_XD4_a_function_that_was_given_another_name_is_known_by_it() -> None:
    def named() -> Any:
        async def call(*_seen: int) -> int:
            DONE.append("called")
            return 5

        call.__qualname__ = "task:default"
        return call

    async def main() -> None:
        store = MemoryStore()
        for _ in range(2):
            async with Session.open("s", store=store) as session:
                assert await session.step(named(), 1) == 5
        (step,) = (await history_of(store, "s")).steps()
        assert step.call == "task:default"

    run(main())
    assert DONE == ["called"]
