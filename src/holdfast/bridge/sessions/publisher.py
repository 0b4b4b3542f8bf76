"""`Publisher`: stores what an agent says and does in its session's log, in order.

Invariant: the order of the calls is the order in the log. Pieces of text that come within some milliseconds become one message, so that a
model's tokens do not each cost a write. `flush` returns when everything is stored, and raises if something could not be.
"""

from __future__ import annotations

import asyncio
import json
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.faults.redaction import whole_characters
from holdfast.sessions.journal import fresh_id
from holdfast.stores import Claim, Commit, NewEntry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.stores import Store

__all__ = ["Publisher", "parts"]

DELAY_S = 0.03
"""How long a piece of text waits for the next one."""
_LONGEST_CHUNK = 32_768
"""The most characters of one piece."""
_LONGEST_WORD = 2_048
"""How far before that a space is looked for, to cut a text there."""
_MOST_WAITING = 256
"""Messages that wait to be stored, until whoever brings them waits too."""


class Publisher:
    """What is said in one session: `publisher.text("s-1", "Hel"); publisher.text("s-1", "lo"); await publisher.flush()`."""

    def __init__(self, store: Store, session: str, *, delay: float = DELAY_S) -> None:
        self._store = store
        self._session = session
        self._delay = delay
        self._waiting: list[tuple[str, dict[str, Any]]] = []
        self._pieces: list[str] = []
        """The text of the last message that waits, if that is a piece of text."""
        self._stream = ""
        self._timer: asyncio.TimerHandle | None = None
        self._writing = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._error: Exception | None = None

    def text(self, stream: str, text: str) -> None:
        """Add a piece of text to a stream. A long one becomes several messages."""
        *first, last = parts(text)
        for part in first:
            self._add(stream, part)
            self._end_chunk()
        self._add(stream, last)
        self._schedule(self._delay)

    def _add(self, stream: str, text: str) -> None:
        if self._pieces and (stream != self._stream or sum(map(len, self._pieces)) > _LONGEST_CHUNK):
            self._end_chunk()
        self._stream = stream
        self._pieces.append(text)

    def put(self, type_: str, payload: dict[str, Any]) -> None:
        """Add a message."""
        self._end_chunk()
        self._waiting.append((type_, payload))
        self._schedule(0.0)

    async def room(self) -> None:
        """Wait while much waits to be stored. Raises what storing raised."""
        if len(self._waiting) >= _MOST_WAITING or self._error is not None:
            await self.flush()

    async def flush(self) -> None:
        """Store everything that waits, and let others come first. Raises what the store raises."""
        await self._write()
        # A store in memory waits for nothing, and an agent that talks without an end would keep the event loop for itself.
        await asyncio.sleep(0)
        error, self._error = self._error, None
        if error is not None:
            raise error

    async def once(self, key: str, *messages: tuple[str, dict[str, Any]]) -> None:
        """Store messages once for a key, also if the program is run again."""
        await self.flush()
        digest = sha256(_encoded(messages)).digest()[:16]
        claim = Claim(client="bridge", id=f"{key}/{digest.hex()}", body_hash=digest)
        await self._store.commit(Commit(session=self._session, entries=_entries(messages), claim=claim))

    def _end_chunk(self) -> None:
        if self._pieces:
            text, self._pieces = "".join(self._pieces), []
            self._waiting.append(("stream_chunk", {"stream_id": self._stream, "text": text}))

    def _schedule(self, delay: float) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(delay, self._begin)

    def _begin(self) -> None:
        self._timer = None
        self._task = asyncio.ensure_future(self._write())

    async def _write(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        async with self._writing:
            self._end_chunk()
            while self._waiting and self._error is None:
                taken, self._waiting = self._waiting, []
                try:
                    await self._store.commit(Commit(session=self._session, entries=_entries(taken)))
                except Exception as error:  # noqa: BLE001 - the agent's turn gets it at its next message
                    self._error = error


def parts(text: str) -> Iterator[str]:
    """Yield a text in parts that are no longer than a message should be, cut between words: a secret must not be cut in two."""
    at = 0
    while len(text) - at > _LONGEST_CHUNK:
        end = at + _LONGEST_CHUNK
        space = max(text.rfind(" ", end - _LONGEST_WORD, end), text.rfind("\n", end - _LONGEST_WORD, end))
        end = end if space < 0 else space + 1
        yield text[at:end]
        at = end
    yield text[at:]


def _entries(messages: Any) -> tuple[NewEntry, ...]:
    return tuple(NewEntry(type=type_, body=_encoded(payload), id=fresh_id()) for type_, payload in messages)


def _encoded(payload: Any) -> bytes:
    try:
        return msgspec.json.encode(payload, enc_hook=str)
    except UnicodeEncodeError:
        # A model's stream may cut a character in two, and one such half must not lose what was said.
        return whole_characters(json.dumps(payload, default=str, ensure_ascii=False)).encode()
