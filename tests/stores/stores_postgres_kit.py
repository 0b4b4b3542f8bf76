"""A proxy before PostgreSQL that loses answers, and stores behind it."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import tempfile
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.stores.postgres import PostgresStore

if TYPE_CHECKING:
    from collections.abc import Iterable

SYNC = b"S\0\0\0\4"
READY = b"Z\0\0\0\5I"
COMMIT, BIND = b"COMMIT\0", b"B"
GROUPS = (b"\0holdfast_one\0", b"\0holdfast_group\0", b"\0holdfast_group_audit\0")
"""The statements of group commits. Each is a transaction of its own."""
UNNAMED = b"\0WITH turn AS"
"""How one begins that is not prepared, behind a pooler."""
SOCKET = ".s.PGSQL.5432"
_LAST_WORDS = b"SFATAL\0VFATAL\0C57P01\0Mterminating connection due to unexpected postmaster exit\0\0"
ENDING = b"E" + (len(_LAST_WORDS) + 4).to_bytes(4, "big") + _LAST_WORDS


class LosingProxy:
    """Passes everything on, until a test makes it lose the next COMMIT, or be away.

    "before": the server never hears of it. "after": it does, and its answer is lost. "late": the client is cut off, and the
    server hears of it a moment later. "never": the client is cut off, and the server waits for ever. "ending": it is done, and
    the server ends before it hears that nothing follows; its last words come a moment before the end of the connection.
    """

    def __init__(self, upstream: str, folder: str) -> None:
        self.upstream = upstream
        self.folder = folder
        self.lose: str | None = None
        self.away = False
        self.lost = 0
        self._kept_open: asyncio.StreamWriter | None = None
        self._tasks: set[asyncio.Task] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self):
        self._server = await asyncio.start_unix_server(self._serve, str(Path(self.folder, SOCKET)))
        return self

    async def __aexit__(self, *_):
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self, but: Iterable[asyncio.StreamWriter] = ()) -> None:
        """Cut every connection there is, except `but`."""
        for writer in self._writers - set(but):
            writer.transport.abort()

    @property
    def url(self) -> str:
        return f"postgresql://holdfast@/postgres?host={self.folder}"

    async def _serve(self, reader, writer):
        task = asyncio.current_task()
        self._tasks.add(task)
        try:
            if not self.away:
                await self._pass_on(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            self._tasks.discard(task)

    async def _pass_on(self, reader, writer):
        up_reader, up_writer = await asyncio.open_unix_connection(str(Path(self.upstream, SOCKET)))
        self._writers |= {writer, up_writer}
        answering = asyncio.create_task(self._copy(up_reader, writer))
        try:
            while data := await reader.read(65_536):
                if self.lose is not None and _ends_a_transaction(data):
                    how, self.lose = self.lose, None
                    self.lost += 1
                    if self.away:
                        # Nothing else gets through either, so nobody can look up the outcome.
                        self.cut(but={writer, up_writer})
                    await self._lose(how, data, answering, up_reader, up_writer, writer)
                    return
                up_writer.write(data)
                await up_writer.drain()
        finally:
            answering.cancel()
            self._writers.discard(writer)
            if up_writer is not self._kept_open:
                self._writers.discard(up_writer)
                up_writer.transport.abort()

    async def _lose(self, how, data, answering, up_reader, up_writer, writer):
        answering.cancel()
        with suppress(asyncio.CancelledError):
            await answering
        if how == "before":
            return
        if how in ("late", "never"):
            writer.transport.abort()
        if how == "never":
            self._kept_open = up_writer
            return
        if how == "late":
            await asyncio.sleep(0.1)
        # The client's own Sync may come in a write of its own, and nothing is answered before it. A second one would be answered after
        # this connection is gone, and PgBouncer then takes that answer for the one of its next check: nobody gets a session any more.
        up_writer.write(data if _is_whole(data) else data + SYNC)
        answer = b""
        while READY not in answer:
            more = await up_reader.read(65_536)
            assert more, "the server hung up on a COMMIT"
            answer += more
        if how == "ending":
            writer.write(answer[: answer.index(READY)] + ENDING)
            await asyncio.sleep(0.1)

    @staticmethod
    async def _copy(reader, writer):
        with suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


def _is_whole(data: bytes) -> bool:
    """Whether the last of these messages is one that the server answers: a query, or a Sync."""
    kind, at = b"", 0
    while at < len(data):
        kind = data[at : at + 1]
        at += 1 + int.from_bytes(data[at + 1 : at + 5], "big")
    return kind in {b"Q", b"S"}


def _ends_a_transaction(data: bytes) -> bool:
    is_group = data[5:].startswith(UNNAMED) or (data[:1] == BIND and any(name in data for name in GROUPS))
    return COMMIT in data or is_group


_NUMBERS = itertools.count()


def new_schema() -> str:
    return f"k{next(_NUMBERS)}_{secrets.token_hex(4)}"


@asynccontextmanager
async def behind_a_proxy(server, **options):
    """Give a proxy, an open store behind it, and one that is not."""
    options = {"schema": new_schema(), "busy": 2.0, **options}
    upstream = server.url.partition("host=")[2]
    with tempfile.TemporaryDirectory(prefix="holdfast-px-") as folder:
        async with (
            LosingProxy(upstream, folder) as proxy,
            PostgresStore(server.url, **options) as plain,
            PostgresStore(proxy.url, **options) as store,
        ):
            yield proxy, store, plain
