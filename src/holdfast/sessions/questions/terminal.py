"""`TerminalInteractor`: answers the questions of sessions at the terminal of the program.

Invariant: the terminal is left as it was found, also if a question is cancelled. What was typed before a question was shown is no answer to
it. Foreign text in a question cannot move the cursor or hide a part of the question.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

from holdfast import options
from holdfast._platform import need_posix, need_selector_loop
from holdfast.faults import Fault, HoldfastError, visible
from holdfast.sessions.questions.question import Answer

if TYPE_CHECKING:
    import termios
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from holdfast.sessions.questions.question import Notice, Question

else:
    try:
        import termios
    except ModuleNotFoundError:  # Windows has no such terminals; `TerminalInteractor` says so when it is made
        termios = None

__all__ = ["TerminalInteractor"]

_OWN = "/dev/tty"
"""The terminal that the program was started at, wherever its input and output go."""
_LONGEST = 65_536
_YES, _NO = frozenset({"y", "yes"}), frozenset({"n", "no"})
_SHOWN = 2_000
"""The most characters of a question that are shown without being opened: about a screen."""


class TerminalInteractor:
    """Asks the person at the terminal: yes or no, a text, one of several choices, a sign-in, a password (which is not shown).

        from holdfast.sessions import Session, TerminalInteractor

        async with Session.open("release-42", interactors=[TerminalInteractor()]) as session:
            if await session.approve("Deploy?"): ...

    A no may have a reason (`n too risky`), which the model learns. Ctrl-D dismisses the question, which cancels its turn. If somebody else
    answers first, the prompt is withdrawn.

    terminal: the path of a terminal; by default the one that the program was started at, even if its input is a pipe.
    around: returns a block that is held while a question is shown, for a program that draws on the same terminal.

    A wrong option raises `InvalidError`.

    Raises `HoldfastError` (SESS_NO_INTERACTOR) if there is no terminal: questions are then kept, and `holdfast sessions answer` answers
    them. One interactor serves several sessions, one question at a time.
    """

    name = "terminal"
    """Who answered, in the log and in the audit trail."""

    @options.suggests
    def __init__(
        self, terminal: str = _OWN, *, around: Callable[[], AbstractContextManager[Any]] = nullcontext
    ) -> None:
        need_posix("a terminal to ask in")
        self._path = terminal
        self._around = around
        self._asking = asyncio.Lock()
        os.close(self._opened())

    async def ask(self, question: Question) -> Answer:
        """Show the question and return the person's answer."""
        need_selector_loop("a terminal to ask in", asyncio.get_running_loop())
        async with self._asking:
            file = self._opened()
            try:
                with self._around():
                    return await _answer(file, question)
            except asyncio.CancelledError:
                with suppress(OSError):  # the cancellation matters, and not its notice
                    _write(file, "\n(no answer is needed any more)\n")
                raise
            except OSError as error:
                raise _no_terminal(self._path, error) from error
            finally:
                os.close(file)

    async def notify(self, notice: Notice) -> None:
        """Show a text, after the question that is shown now."""
        async with self._asking:
            file = self._opened()
            try:
                with self._around():
                    _write(file, f"{visible(notice.text)}\n")
            finally:
                os.close(file)

    def _opened(self) -> int:
        try:
            file = os.open(self._path, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError as error:
            raise _no_terminal(self._path, error) from error
        if os.isatty(file):
            return file
        os.close(file)
        raise _no_terminal(self._path, "it is not a terminal")


def _no_terminal(path: str, reason: object) -> HoldfastError:
    message = (
        f"There is no terminal to ask in: {path}: {reason}. Start the program at a terminal, attach another interactor, or answer "
        "questions that are kept with `holdfast sessions answer`"
    )
    return HoldfastError(Fault.of("SESS_NO_INTERACTOR", message))


async def _answer(file: int, question: Question) -> Answer:
    """Show a question until there is an answer that fits."""
    text = whole_text(question)
    is_open = len(text) <= _SHOWN
    _write(file, _shown(question, text if is_open else text[:_SHOWN]))
    if not is_open:
        _write(file, f"… {len(text) - _SHOWN} characters more: o shows them, and only then you can say yes\n")
    hint = _hint(question)
    while True:
        line = await _line(file, hint, is_hidden=question.kind == "Auth.Password")
        if line is None:
            _write(file, "\n")
            return Answer.dismissed("the person ended the input")
        if not is_open and line.strip().lower() == "o":
            is_open = True
            # A terminal takes a few kilobytes at once, and this loop has other work.
            await asyncio.to_thread(_write, file, f"{text[_SHOWN:]}\n")
            continue
        answer = _read(question, line)
        if answer is not None and answer.value is True and not is_open:
            _write(file, "Read the rest first: o shows it.\n")
            continue
        if answer is not None:
            return answer
        _write(file, f"Please answer {_expected(question)}.\n")


def whole_text(question: Question) -> str:
    """Return all that a question asks, as a person reads it who decides: for a tool call its arguments, whole."""
    tool, arguments = question.details.get("tool"), question.details.get("arguments")
    if question.kind == "Approve" and isinstance(tool, str) and isinstance(arguments, str):
        prompt = f"Run {tool}({arguments})?"
        # A program may have a sentence of its own, which says more.
        return visible(prompt if question.prompt.startswith(f"Run {tool}(") else f"{question.prompt}\n{prompt}")
    return visible(question.prompt)


def _shown(question: Question, text: str) -> str:
    lines = [text]
    if question.url:
        lines.append(f"  {visible(question.url)}")
    if question.user_code:
        lines.append(f"  code: {visible(question.user_code)}")
    lines += [f"  {number}. {visible(choice)}" for number, choice in enumerate(question.choices, 1)]
    return "\n".join(lines) + "\n"


def _hint(question: Question) -> str:
    match question.kind:
        case "Approve" | "Confirm":
            return "[y/n] "
        case "Auth.DeviceCode":
            return "Done? [y/n] "
        case "Select":
            return f"[1-{len(question.choices)}] "
        case _:
            return "> "


def _expected(question: Question) -> str:
    return "with the number of a choice" if question.kind == "Select" else "yes or no; a no may have a reason after it"


def _read(question: Question, line: str) -> Answer | None:
    """Return the answer that a line is; None if it is none."""
    if question.kind == "Auth.Password":
        return Answer(line)
    text = line.strip()
    if question.kind == "Ask":
        return Answer(text)
    if question.kind == "Select":
        return _choice(question, text)
    word, _, reason = text.partition(" ")
    word = word.rstrip(",:;.").lower()
    if word in _YES and not reason:
        return Answer(value=True)
    return Answer.no(reason.strip()) if word in _NO else None


def _choice(question: Question, text: str) -> Answer | None:
    if text in question.choices:
        return Answer(text)
    if text.isdecimal() and 1 <= int(text) <= len(question.choices):
        return Answer(question.choices[int(text) - 1])
    return None


async def _line(file: int, hint: str, *, is_hidden: bool) -> str | None:
    """Show the hint and return the line that is typed then, without its end; None if the person ends the input."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[bytes] = loop.create_future()
    typed = bytearray()

    def read() -> None:
        if ready.done():
            return
        try:
            data = os.read(file, 4096)
            if not data:
                # Ctrl-D ends the input. So does a terminal that is gone, but that has no mode any more.
                termios.tcgetattr(file)
        except (OSError, termios.error) as error:
            ready.set_exception(OSError(*error.args))
            return
        typed.extend(data)
        if not data or data.endswith(b"\n") or len(typed) > _LONGEST:
            ready.set_result(bytes(typed))

    with _line_mode(file, is_hidden=is_hidden):
        _write(file, hint)
        loop.add_reader(file, read)
        try:
            line = await ready
        finally:
            loop.remove_reader(file)
    return line.decode("utf-8", "replace").removesuffix("\n") if line else None


@contextmanager
def _line_mode(file: int, *, is_hidden: bool) -> Iterator[None]:
    """Let the terminal pass whole lines, and show what is typed or hide it. Leave it as it was."""
    before = termios.tcgetattr(file)
    mode = termios.tcgetattr(file)
    # The program may have switched the terminal to single keys.
    mode[0] |= termios.ICRNL
    mode[3] |= termios.ICANON | termios.ISIG | termios.ECHO | termios.ECHONL
    if is_hidden:
        mode[3] &= ~termios.ECHO
    # FLUSH drops what was typed before: an answer to the last question must not approve this one.
    termios.tcsetattr(file, termios.TCSAFLUSH, mode)
    try:
        yield
    finally:
        with suppress(OSError, termios.error):  # the terminal has gone
            termios.tcsetattr(file, termios.TCSADRAIN, before)


def _write(file: int, text: str) -> None:
    data = text.encode("utf-8", "replace")
    while data:
        data = data[os.write(file, data) :]
