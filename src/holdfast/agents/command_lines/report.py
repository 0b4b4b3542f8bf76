"""What is known from the lines of a command-line agent so far, and what every reader of lines shares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.faults import Code
from holdfast.faults.redaction import whole_escapes
from holdfast.tools.output import KeptOutput

if TYPE_CHECKING:
    from holdfast.agents.parts import AgentPart
    from holdfast.policies.models.usage import Usage

__all__ = ["LineReader", "ProgramFailure", "Report", "json_of", "number", "text_of"]

_STRAY_CHARS = 8_192
"""How much text that is not part of the form is kept: its end, because a program prints last how it failed."""
_ANSWER_BYTES = 16_777_216
"""How much of the text of an answer is kept: its beginning and its end, with a mark between them."""
_EARLIER_CHARS = 1_048_576
"""How much is kept of the text before a tool call."""


class ProgramFailure(msgspec.Struct, frozen=True, kw_only=True):
    """How the program itself says that its run failed."""

    text: str
    status: int | None = None
    """The status of the provider's answer, if that was the failure."""
    reason: str = ""
    """The form's own word for it, such as `error_max_turns`."""
    retry_at: float | None = None
    """When a usage limit ends (wall clock)."""
    code: Code | None = None
    """The code of a failure that the form itself names; None: its text is classified."""


class Report:
    """What is known about one run of a program. Readers write it; everybody else reads."""

    def __init__(self) -> None:
        self.session = ""
        """The program's own id of the conversation."""
        self.model = ""
        self.turns = 0
        self.tool_calls = 0
        self.usage: Usage | None = None
        self.usd: float | None = None
        self.answer: str | None = None
        """The whole answer, as the last line has it; None: no last line has come."""
        self.failure: ProgramFailure | None = None
        self.rejected = ""
        """What the program said last about a request of its own that failed. It may go on and wait, or hang."""
        self.ended = False
        """The last line of the form has come."""
        self.can_resume = False
        """The program said that it can go on with a conversation. Most forms do not say it, and have arguments for it."""
        self.is_lost = False
        """The program said that it does not know the conversation that it should go on with."""
        self._text = KeptOutput(_ANSWER_BYTES)
        self._earlier = ""
        self._stray = ""

    @property
    def text(self) -> str:
        """The text of the answer that arrived. Of a very long one the middle is cut, and a mark says so."""
        return self._text.text()

    @property
    def all_text(self) -> str:
        """All text that arrived, also the text before a tool call."""
        return _joined(self._earlier, self.text)

    @property
    def stray(self) -> str:
        """The end of what was printed and is not part of the form, such as a sentence before a crash."""
        return self._stray

    @property
    def worked(self) -> bool:
        """Whether the program may have done something: it called a tool, or its form does not show such calls."""
        return self.tool_calls > 0

    def say(self, text: str) -> None:
        """Add a piece of the answer."""
        self.rejected = ""
        self._text.add(text.encode("utf-8", "replace"))

    def begin_anew(self) -> None:
        """The pieces so far belong to an earlier message: the answer is what comes after the last tool call."""
        # Its end is kept: the latest text says best how far the work is.
        self._earlier = self.all_text[-_EARLIER_CHARS:]
        self._text = KeptOutput(_ANSWER_BYTES)

    def keep(self, line: str) -> None:
        """Keep a line that is not part of the form."""
        self._stray = f"{self._stray}\n{line}"[-_STRAY_CHARS:].lstrip("\n")


class LineReader:
    """Reads the lines of one run. A form derives a class from it and reads objects; text is the same for all."""

    def __init__(self) -> None:
        self.report = Report()
        self.outgoing: list[bytes] = []
        """What has to be written to the program. Only a form that is a conversation writes."""

    def read(self, line: str) -> list[AgentPart]:
        """Take one line and return the parts that it holds."""
        if not line.strip():
            return []
        try:
            found = json_of(line)
        except (msgspec.DecodeError, RecursionError):
            return self.read_text(line)
        return self.read_object(found) if isinstance(found, dict) else self.read_text(line)

    def read_text(self, line: str) -> list[AgentPart]:
        """Take a line that is not a JSON object."""
        self.report.keep(line)
        return []

    def read_object(self, found: dict[str, Any]) -> list[AgentPart]:
        """Take a JSON object. A form that knows no objects keeps them as text."""
        return self.read_text(msgspec.json.encode(found).decode())

    def end(self) -> None:
        """The program has ended by itself, with exit code 0."""


def json_of(line: str) -> Any:
    """Return the value of a line of JSON. Raises `msgspec.DecodeError` and `RecursionError`."""
    try:
        return msgspec.json.decode(line)
    except msgspec.DecodeError:
        # The line may be the answer, or a tool call.
        return msgspec.json.decode(whole_escapes(line))


def _joined(first: str, second: str) -> str:
    """Return two messages as one text. They are not one sentence, so at least a space stands between them."""
    return f"{first}\n{second}" if first and second and not first[-1].isspace() else first + second


_MOST = 2**53
"""The largest number that JSON can hold in every language."""


def number(value: Any) -> float | None:
    """Return a number of JSON that is not negative; None for anything else, and for what is no count of anything: 1e308 dollars."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value <= _MOST else None


def text_of(content: Any) -> str:
    """Return the text of a content that may be a text, a list of blocks, or any JSON."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        blocks = [block.get("text") for block in content if isinstance(block, dict)]
        return "\n".join(text for text in blocks if isinstance(text, str))
    return "" if content is None else msgspec.json.encode(content).decode()
