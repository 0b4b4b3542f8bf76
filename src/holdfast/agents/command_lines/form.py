"""The forms of lines that command-line agents print, as data, and how the form of a program is found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import msgspec

from holdfast.agents.command_lines import acp, claude, codex
from holdfast.agents.command_lines.plain import PlainLines
from holdfast.agents.command_lines.report import LineReader, json_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.agents.parts import AgentPart

__all__ = ["FORMS", "Form", "FormName", "Guessing", "form_of"]

FormName: TypeAlias = Literal["claude", "codex", "acp", "plain"]


class Form(NamedTuple):
    """What differs between programs."""

    name: FormName
    reader: type[LineReader]
    resume: tuple[str, ...] = ()
    """Arguments that let the program go on with a conversation of its own; `{session}` is the id."""
    secrets: tuple[str, ...] = ()
    """Environment variables with the program's own keys. They are passed on."""
    lost: tuple[str, ...] = ()
    """What the program prints, in lower case, if it does not know the conversation that it should resume."""
    shows_calls: bool = True
    """Whether every tool call is in the lines. Otherwise a program that printed anything may have done anything."""
    talks: bool = False
    """Whether the form is a conversation: the prompt goes into it, and the program says whether it can be resumed."""


FORMS: dict[FormName, Form] = {
    "claude": Form("claude", claude.ClaudeLines, claude.RESUME, claude.SECRETS, claude.LOST),
    "codex": Form("codex", codex.CodexLines, codex.RESUME, codex.SECRETS, codex.LOST),
    "acp": Form("acp", acp.AcpLines, lost=acp.LOST, talks=True),
    "plain": Form("plain", PlainLines, shows_calls=False),
}


def form_of(argv: Sequence[str]) -> Form | None:
    """Return the form that the arguments of a program ask for; None: its first line shows it."""
    if "stream-json" in argv or "--output-format=stream-json" in argv:
        return FORMS["claude"]
    if acp.is_spoken(argv):
        return FORMS["acp"]
    is_codex = any(part.rpartition("/")[2] == "codex" for part in argv)
    return FORMS["codex"] if is_codex and ("--json" in argv or "--experimental-json" in argv) else None


class Guessing(LineReader):
    """Reads lines whose form is not known yet. The first one that shows it decides, else all is text."""

    def __init__(self) -> None:
        super().__init__()
        self.form: Form | None = None
        self._reader: LineReader | None = None

    def read(self, line: str) -> list[AgentPart]:
        """Take one line, and choose the form if it is the first with content."""
        if self._reader is None:
            if not line.strip():
                return []
            self._choose(line)
            assert self._reader is not None
        return self._reader.read(line)

    def end(self) -> None:
        """The program has ended by itself."""
        if self._reader is None:
            self._choose("")
        assert self._reader is not None
        self._reader.end()

    def _choose(self, line: str) -> None:
        self.form = FORMS[_guessed(line)]
        self._reader = self.form.reader()
        self.report = self._reader.report


def _guessed(line: str) -> FormName:
    try:
        found: Any = json_of(line)
    except (msgspec.DecodeError, RecursionError):
        return "plain"
    if not isinstance(found, dict):
        return "plain"
    return "claude" if claude.recognises(found) else "codex" if codex.recognises(found) else "plain"
