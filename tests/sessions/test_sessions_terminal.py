"""`TerminalInteractor` at a real pseudo terminal: every kind of question, cancellation, hostile text, and no terminal at all."""

from __future__ import annotations

import asyncio
import os
import pty
import subprocess
import sys
import termios
from contextlib import contextmanager

import pytest

from holdfast.faults import HoldfastError
from holdfast.sessions import Notice, Question, Session, TerminalInteractor
from holdfast.stores import MemoryStore


class Person:
    """The other side of a pseudo terminal: what a person sees and types."""

    def __init__(self) -> None:
        self._hand, self._program = pty.openpty()
        self.path = os.ttyname(self._program)
        self.seen = ""
        self._changed = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._hand, self._read)

    def _read(self) -> None:
        self.seen += os.read(self._hand, 65_536).decode("utf-8", "replace")
        self._changed.set()

    async def sees(self, text: str, times: int = 1) -> None:
        async with asyncio.timeout(10):
            while self.seen.count(text) < times:
                self._changed.clear()
                await self._changed.wait()

    def type(self, text: str) -> None:
        os.write(self._hand, text.encode())

    @property
    def mode(self):
        return termios.tcgetattr(self._program)

    def leave(self) -> None:
        asyncio.get_running_loop().remove_reader(self._hand)
        os.close(self._hand)
        os.close(self._program)


def at_terminal(scene):
    """Run a scene with a person, a terminal and an interactor there, and check that the terminal is as it was."""

    async def main():
        person = Person()
        before = person.mode
        try:
            await asyncio.wait_for(scene(person, TerminalInteractor(person.path)), 20)
            assert person.mode == before
        finally:
            person.leave()

    asyncio.run(main())


def question(kind, prompt="Go on?", **more):
    return Question(id="q-1", session="s", turn=0, kind=kind, prompt=prompt, **more)


@pytest.mark.parametrize(
    ("typed", "outcome", "reason"),
    [
        ("y\n", "accepted", ""),
        ("YES\n", "accepted", ""),
        ("n\n", "rejected", ""),
        ("no, too risky\n", "rejected", "too risky"),
        ("n wait for Ann\n", "rejected", "wait for Ann"),
    ],
)
@pytest.mark.parametrize("kind", ["Approve", "Confirm", "Auth.DeviceCode"])
def test_yes_or_no(kind, typed, outcome, reason):
    async def scene(person, interactor):
        asked = asyncio.ensure_future(interactor.ask(question(kind, "Deploy 4.2?")))
        await person.sees("[y/n] ")
        person.type(typed)
        answer = await asked
        assert (answer.outcome, answer.reason) == (outcome, reason)
        assert "Deploy 4.2?" in person.seen

    at_terminal(scene)


def test_what_is_no_answer_is_asked_again():
    async def scene(person, interactor):
        asked = asyncio.ensure_future(interactor.ask(question("Approve")))
        for number, typed in enumerate(("\n", "maybe\n", "yes but later\n", "y\n"), 1):
            await person.sees("[y/n] ", times=number)
            person.type(typed)
        assert (await asked).value is True
        assert person.seen.count("Please answer yes or no") == 3

    at_terminal(scene)


@pytest.mark.parametrize(("typed", "chosen"), [("2\n", "production"), ("staging\n", "staging")])
def test_one_of_several_choices(typed, chosen):
    async def scene(person, interactor):
        asked = asyncio.ensure_future(interactor.ask(question("Select", "Where?", choices=("staging", "production"))))
        await person.sees("[1-2] ")
        assert "1. staging\r\n  2. production" in person.seen
        person.type("3\n")
        await person.sees("[1-2] ", times=2)
        person.type(typed)
        assert (await asked).value == chosen

    at_terminal(scene)


def test_a_text_is_taken_as_it_is_typed_and_may_be_empty():
    async def scene(person, interactor):
        for typed, value in (("  næste gren \n", "næste gren"), ("\n", "")):
            asked = asyncio.ensure_future(interactor.ask(question("Ask", "Which branch?")))
            await person.sees("> ")
            person.type(typed)
            assert (await asked).value == value
            person.seen = ""

    at_terminal(scene)


def test_a_password_is_not_shown_and_the_terminal_shows_text_again_after_it():
    async def scene(person, interactor):
        asked = asyncio.ensure_future(interactor.ask(question("Auth.Password", "Password?")))
        await person.sees("> ")
        assert not person.mode[3] & termios.ECHO
        person.type(" hunter2 \n")
        assert (await asked).value == " hunter2 "
        assert "hunter2" not in person.seen
        assert person.mode[3] & termios.ECHO

    at_terminal(scene)


def test_where_to_sign_in_is_shown():
    async def scene(person, interactor):
        asked = asyncio.ensure_future(
            interactor.ask(question("Auth.DeviceCode", "Sign in", url="https://example.com/d", user_code="AB-12"))
        )
        await person.sees("Done? [y/n] ")
        person.type("y\n")
        await asked
        assert "https://example.com/d" in person.seen
        assert "code: AB-12" in person.seen

    at_terminal(scene)


def test_the_end_of_the_input_dismisses_the_question():
    async def scene(person, interactor):
        asked = asyncio.ensure_future(interactor.ask(question("Approve")))
        await person.sees("[y/n] ")
        person.type("\x04")
        assert (await asked).outcome == "dismissed"

    at_terminal(scene)


@pytest.mark.parametrize("kind", ["Approve", "Auth.Password"])
def test_a_question_that_is_cancelled_says_so_and_restores_the_terminal(kind):
    async def scene(person, interactor):
        asked = asyncio.ensure_future(interactor.ask(question(kind)))
        await person.sees("> " if kind == "Auth.Password" else "[y/n] ")
        person.type("half an ans")
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        await person.sees("no answer is needed any more")

    at_terminal(scene)


def test_what_was_typed_before_the_question_is_no_answer():
    async def scene(person, interactor):
        person.type("y\ny\ny\n")
        await person.sees("y\r\ny\r\ny\r\n")  # the echo: the terminal has them, which takes a moment on a busy machine
        asked = asyncio.ensure_future(interactor.ask(question("Approve")))
        await person.sees("[y/n] ")
        person.type("n\n")
        assert (await asked).outcome == "rejected"

    at_terminal(scene)


def test_a_terminal_in_another_mode_is_used_and_left_in_that_mode():
    async def scene(person, interactor):
        raw = termios.tcgetattr(person._program)
        raw[3] &= ~(termios.ICANON | termios.ECHO)
        termios.tcsetattr(person._program, termios.TCSANOW, raw)
        single_keys = person.mode
        asked = asyncio.ensure_future(interactor.ask(question("Ask")))
        await person.sees("> ")
        person.type("first\n")
        assert (await asked).value == "first"
        assert person.mode == single_keys
        raw[3] |= termios.ICANON | termios.ECHO
        termios.tcsetattr(person._program, termios.TCSANOW, raw)

    at_terminal(scene)


def test_hostile_text_cannot_hide_what_is_asked():
    async def scene(person, interactor):
        text = "Run rm(\x1b[2K\x1b[1A\r\x9b2J\u202e/tmp)?\x07"
        asked = asyncio.ensure_future(interactor.ask(question("Select", text, choices=("a\x1b[8m", "b"))))
        await person.sees("[1-2] ")
        person.type("2\n")
        await asked
        assert not set("\x1b\x07\x9b\u202e") & set(person.seen)
        assert "/tmp)?" in person.seen

    at_terminal(scene)


def test_two_questions_at_once_are_shown_one_after_the_other_and_a_notice_waits():
    async def scene(person, interactor):
        first = asyncio.ensure_future(interactor.ask(question("Ask", "First?")))
        await person.sees("> ")
        second = asyncio.ensure_future(interactor.ask(question("Ask", "Second?")))
        notice = asyncio.ensure_future(interactor.notify(Notice(session="s", text="The build is red.")))
        person.type("1\n")
        assert (await first).value == "1"
        await person.sees("> ", times=2)
        person.type("2\n")
        assert (await second).value == "2"
        await notice
        await person.sees("The build is red.")
        assert person.seen.index("First?") < person.seen.index("Second?") < person.seen.index("The build")

    at_terminal(scene)


def test_the_block_around_is_held_while_a_question_is_shown():
    async def main():
        person, held = Person(), []

        @contextmanager
        def around():
            held.append("begin")
            yield
            held.append("end")

        asked = asyncio.ensure_future(TerminalInteractor(person.path, around=around).ask(question("Ask")))
        await person.sees("> ")
        assert held == ["begin"]
        person.type("x\n")
        await asked
        assert held == ["begin", "end"]
        person.leave()

    asyncio.run(main())


def test_a_terminal_that_is_gone_keeps_the_question():
    async def main():
        person = Person()
        interactor = TerminalInteractor(person.path)
        async with Session.open("s", store=MemoryStore(), interactors=[interactor]) as session:
            asked = asyncio.ensure_future(session.approve("Deploy?"))
            await person.sees("[y/n] ")
            asyncio.get_running_loop().remove_reader(person._hand)
            os.close(person._hand)
            with pytest.raises(HoldfastError, match="no terminal to ask in") as gone:
                await asked
            assert gone.value.fault.code == "SESS_NO_INTERACTOR"
            assert [question.prompt for question in session.pending] == ["Deploy?"]
        os.close(person._program)

    asyncio.run(main())


def test_a_session_asks_at_the_terminal_and_names_it_in_its_log():
    async def scene(person, interactor):
        async with Session.open("s", store=MemoryStore(), interactors=[interactor]) as session:
            asked = asyncio.ensure_future(session.approval("Pay?", details={"amount": 5}))
            await person.sees("[y/n] ")
            person.type("n too much\n")
            answer = await asked
        assert (answer.by, answer.outcome, answer.reason) == ("terminal", "rejected", "too much")

    at_terminal(scene)


def test_an_answer_from_elsewhere_withdraws_the_prompt():
    async def scene(person, interactor):
        async with Session.open("s", store=MemoryStore(), interactors=[interactor]) as session:
            asked = asyncio.ensure_future(session.approve("Deploy?"))
            await person.sees("[y/n] ")
            await session.answer(session.pending[0].id, approved=True, by="phone")
            assert await asked
            await person.sees("no answer is needed any more")

    at_terminal(scene)


@pytest.mark.parametrize("path", ["/dev/null", "/no/such/terminal"])
def test_without_a_terminal_it_is_refused_at_once_and_says_what_to_do(path):
    with pytest.raises(HoldfastError, match=r"no terminal to ask in.*holdfast sessions answer") as refused:
        TerminalInteractor(path)
    assert refused.value.fault.code == "SESS_NO_INTERACTOR"


def test_a_program_that_was_started_without_a_terminal_is_refused():
    program = "from holdfast.sessions import TerminalInteractor\nTerminalInteractor()"
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, start_new_session=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    assert "There is no terminal to ask in: /dev/tty" in ended.stderr


def test_XB5_a_call_that_does_not_fit_is_opened_before_it_can_be_approved():
    async def scene(person, interactor):
        arguments = '{"text":"' + "x" * 20_000 + '; rm -rf /\u202e"}'
        asked = asyncio.ensure_future(
            interactor.ask(
                question("Approve", f"Run bash({arguments[:100]})?", details={"tool": "bash", "arguments": arguments})
            )
        )
        await person.sees("o shows them")
        assert "rm -rf" not in person.seen
        # What is typed before a prompt stands there is dropped, so each line waits for its own prompt.
        await person.sees("[y/n] ")
        person.type("y\n")
        await person.sees("Read the rest first")
        await person.sees("[y/n] ", times=2)
        person.type("o\n")
        await person.sees("; rm -rf /⟨U+202E⟩")
        await person.sees("[y/n] ", times=3)
        person.type("y\n")
        assert (await asked).value is True

    at_terminal(scene)
