"""What a process prints: chunks as they come, lines of any length, and a bounded part that is kept.

Invariant: what is kept of a stream never takes more memory than its limit and a fixed share on top. The beginning and the end are
kept, and a mark between them counts what was cut.
"""

from __future__ import annotations

import codecs
from typing import Literal, TypeAlias

import msgspec

__all__ = ["Chunk", "KeptOutput", "LineSplitter", "StreamName", "cut_text"]

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
    kept = KeptOutput(limit)
    kept.add(text.encode("utf-8", "replace"))
    return kept.text() if kept.truncated else text


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
