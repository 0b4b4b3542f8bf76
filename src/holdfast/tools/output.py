"""What a process prints: chunks as they come, lines of any length, and a bounded part that is kept.

Invariant: what is kept of a stream never takes more memory than its limit and a fixed share on top. The beginning and the end are
kept, and a mark between them counts what was cut.
"""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Chunk", "KeptOutput", "LineSplitter", "ShownResult", "StreamName", "cut_text", "show_result"]

StreamName: TypeAlias = Literal["stdout", "stderr"]
"""The two streams that a process writes to."""


class Chunk(msgspec.Struct, frozen=True):
    """A piece of output, as it was read: `chunk.data` is bytes, and `chunk.text` shows them as text."""

    stream: StreamName
    data: bytes

    @property
    def text(self) -> str:
        """The data as text. A character that lies on the edge of two chunks is shown as a question mark; `lines` avoids that."""
        return self.data.decode("utf-8", "replace")


class KeptOutput:
    """The beginning and the end of one stream."""

    __slots__ = ("_half", "_head", "_tail", "total")

    def __init__(self, limit: int) -> None:
        self._half = max(1, limit // 2)
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0
        """How many bytes the stream had."""

    @property
    def truncated(self) -> bool:
        """Whether a part in the middle was cut."""
        return self.total > 2 * self._half

    def add(self, data: bytes) -> None:
        """Add what was read."""
        self.total += len(data)
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data:
            self._tail += data
            # Cut only when it has doubled: cutting for each chunk would copy the whole tail each time.
            if len(self._tail) > 2 * self._half:
                del self._tail[: -self._half]

    def text(self) -> str:
        """Return the stream as text, with a mark where it was cut."""
        if not self.truncated:
            return bytes(self._head + self._tail).decode("utf-8", "replace")
        head = _decoded_head(bytes(self._head))
        tail = bytes(self._tail[-self._half :])
        cut = self.total - len(self._head) - len(tail)
        return f"{head}\n…[{cut} bytes cut]…\n{_decoded_tail(tail)}"


def cut_text(text: str, limit: int) -> str:
    """Return a text with at most `limit` UTF-8 bytes of its own: its beginning, a mark, and its end."""
    # No character has more than four bytes.
    if len(text) * 4 <= limit:
        return text
    kept = KeptOutput(limit)
    # In parts: the bytes of the whole text would take as much memory again.
    for at in range(0, len(text), _PART):
        kept.add(text[at : at + _PART].encode("utf-8", "replace"))
    return kept.text() if kept.truncated else text


_PART = 65_536


class ShownResult(NamedTuple):
    """A result as a model gets it, and how much of it is missing there."""

    text: str
    cut: int
    """Bytes that are not shown."""
    total: int
    """Bytes of the whole."""


def show_result(value: str | bytes, limit: int, mask: Callable[[str], str], margin: int) -> ShownResult:
    """Return a result of any size as a text of about `limit` bytes, with the secrets masked.

    Only the parts that are shown are decoded and masked, so a large result takes little memory besides its own. `margin` is the length of
    the longest secret: so much is looked at beyond the cut, because half a secret would not be recognised.
    """
    if isinstance(value, bytes):
        if _is_binary(value):
            return ShownResult(f"[{len(value)} bytes of binary data]", len(value), len(value))
        total = len(value)
    else:
        total = (
            len(value)
            if value.isascii()
            else sum(len(value[at : at + _PART].encode("utf-8", "replace")) for at in range(0, len(value), _PART))
        )
    half = max(1, limit // 2)
    near = half + margin * 4
    if total <= limit or len(value) <= 2 * near:
        text = mask(_decoded(value))
        shown = cut_text(text, limit)
        return ShownResult(shown, 0 if shown is text else max(1, total - limit), total)
    head = mask(_decoded(value[:near])).encode("utf-8", "replace")[:half]
    tail = mask(_decoded(value[-near:])).encode("utf-8", "replace")[-half:]
    cut = total - len(head) - len(tail)
    return ShownResult(f"{_decoded_head(head)}\n…[{cut} bytes cut]…\n{_decoded_tail(tail)}", cut, total)


def _decoded(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


def _is_binary(value: bytes) -> bool:
    """Whether bytes are no text, judged by their beginning."""
    begin = value[:4096]
    try:
        codecs.getincrementaldecoder("utf-8")("strict").decode(begin, final=len(value) <= len(begin))
    except UnicodeDecodeError:
        return True
    return b"\0" in begin


class LineSplitter:
    """Splits one stream into lines, however long they are and wherever the chunks end."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that `data` completes, without their ends."""
        if b"\n" not in data:
            # The parts of a long line are joined once, when it ends. Joining them for each chunk would take quadratic time.
            self._parts.append(data)
            return []
        *whole, rest = data.split(b"\n")
        whole[0] = b"".join([*self._parts, whole[0]])
        self._parts = [rest] if rest else []
        return [line.removesuffix(b"\r").decode("utf-8", "replace") for line in whole]

    def end(self) -> list[str]:
        """Return the last line, if the stream ended without a line end."""
        rest, self._parts = b"".join(self._parts), []
        return [rest.decode("utf-8", "replace")] if rest else []


def _decoded_head(data: bytes) -> str:
    """Return the text without the part of a character at its end."""
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data)


def _decoded_tail(data: bytes) -> str:
    """Return the text without the part of a character at its beginning."""
    start = 0
    while start < min(3, len(data)) and data[start] & 0xC0 == 0x80:
        start += 1
    return data[start:].decode("utf-8", "replace")
