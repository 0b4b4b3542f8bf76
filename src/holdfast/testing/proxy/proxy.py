"""The fault proxy: a TCP server that forwards connections to another server, with toxics in between.

Invariant: toxics may be switched from any thread at any time. Open connections apply them to their next bytes. When the block
ends, no task, no socket and no thread is left.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

import msgspec

from holdfast import options
from holdfast.faults import InvalidError
from holdfast.testing.loop import LoopThread
from holdfast.testing.proxy.flow import ByteFlow
from holdfast.testing.proxy.link import ProxyLink, Side, reset
from holdfast.testing.proxy.toxics import DIRECTIONS, TOXICS, address_of, toxic_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.testing.proxy.toxics import Direction, Toxic


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """What a proxy has done so far: `assert proxy.counters.resets == 1`."""

    connections: int = 0
    """Connections accepted from clients."""
    open: int = 0
    """Accepted connections that are still open."""
    bytes_up: int = 0
    """Bytes delivered to the server."""
    bytes_down: int = 0
    """Bytes delivered to clients."""
    resets: int = 0
    """Connections reset by a toxic or by `cut`."""
    refused: int = 0
    """Connections reset because the server could not be reached."""


class FaultProxy:
    """A TCP proxy to `upstream` (`"host:port"`, a URL, or a pair), in a thread with `with` or in a task with `async with`.

    For example:
        with FaultProxy("127.0.0.1:8080", "latency=0.05") as proxy:
            call(proxy.address)
            with proxy.under("reset=100;direction=down"):
                call(proxy.address)

    Toxics are values or text. `listen` is the address for clients; port 0 takes a free port, which `address` shows. With the same
    seed, the n-th connection always has the same jitter and the same toxics (by `share`).

    Raises `InvalidError` for an address or a toxic that it cannot read, and `OSError` if the `listen` address is taken.
    """

    @options.suggests
    def __init__(
        self,
        upstream: str | tuple[str, int],
        *toxics: Toxic | str,
        listen: str | tuple[str, int] = ("127.0.0.1", 0),
        seed: int = 0,
    ) -> None:
        self._upstream = address_of("upstream", upstream)
        self._url = upstream if isinstance(upstream, str) and "://" in upstream else ""
        self._listen = address_of("listen", listen)
        options.count("seed", seed, least=0)
        self._seed = seed
        # Always replace the tuple and never change it in place, because other threads read it without a lock.
        self._toxics = _checked(toxics)
        # Only the loop's thread writes the counters, so a plain dict is safe to copy.
        self._counters: dict[str, int] = dict.fromkeys(Counters.__struct_fields__, 0)
        self._links: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._server: asyncio.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: LoopThread | None = None

    # --- address, counters, toxics ---

    @property
    def host(self) -> str:
        """The host that clients connect to."""
        return self._listen[0]

    @property
    def port(self) -> int:
        """The port that clients connect to. Raises `InvalidError` outside the block."""
        if self._server is None:
            raise InvalidError.saying("proxy", "a proxy that runs: use `async with` or `with`", "a proxy that does not")
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def address(self) -> str:
        """Host and port as in a URL: `127.0.0.1:40123`."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """The URL of `upstream` with the address of the proxy: `Client(proxy.url)`. Raises `InvalidError` if it was given no URL."""
        if not self._url:
            raise InvalidError.saying(
                "proxy.url", "a proxy to a URL, such as FaultProxy(bridge.ws_url)", "a proxy to HOST:PORT"
            )
        return urlsplit(self._url)._replace(netloc=self.address).geturl()

    @property
    def counters(self) -> Counters:
        """A snapshot of the counters."""
        return Counters(**self._counters)

    @property
    def toxics(self) -> tuple[Toxic, ...]:
        """The toxics that are on."""
        return self._toxics

    # --- switches ---

    def add(self, *toxics: Toxic | str) -> None:
        """Switch these toxics on, in addition to the toxics that are on already."""
        self._toxics = (*self._toxics, *_checked(toxics))

    def remove(self, *toxics: Toxic | str) -> None:
        """Switch these toxics off. Raises `InvalidError` for a toxic that is not on, which is a mistake in the test."""
        kept = list(self._toxics)
        for toxic in _checked(toxics):
            if toxic not in kept:
                raise InvalidError.saying("remove", "a toxic that is on", repr(toxic))
            kept.remove(toxic)
        self._toxics = tuple(kept)

    def clear(self) -> None:
        """Switch all toxics off."""
        self._toxics = ()

    @contextmanager
    def under(self, *toxics: Toxic | str) -> Iterator[Self]:
        """Switch these toxics on for a block."""
        self.add(*toxics)
        try:
            yield self
        finally:
            self.remove(*toxics)

    def cut(self) -> None:
        """Reset every open connection."""
        if self._loop is not None:
            # Sockets belong to the loop's thread, but `cut` may be called from any thread.
            self._loop.call_soon_threadsafe(self._cut)

    # --- start and stop ---

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._server = await asyncio.start_server(self._accept, *self._listen)
        return self

    async def __aexit__(self, *_: object) -> None:
        server, self._server = self._server, None
        self._loop = None
        if server is not None:
            server.close()
            for task in tuple(self._links):
                task.cancel()
            # Wait for the links, because their sockets are closed only when they have ended.
            await asyncio.gather(*self._links, return_exceptions=True)
            await server.wait_closed()

    def __enter__(self) -> Self:
        self._thread = LoopThread("holdfast fault proxy")
        try:
            return self._thread.run(self.__aenter__())
        except BaseException:
            # `with` does not call `__exit__` if `__enter__` fails.
            self._thread.close()
            raise

    def __exit__(self, *_: object) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.run(self.__aexit__())
            thread.close()

    # --- connections ---

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._counters["connections"] += 1
        number = self._counters["connections"]
        task = asyncio.current_task()
        assert task is not None
        self._links[task] = writer
        self._counters["open"] += 1
        try:
            await self._carry(number, (reader, writer))
        except asyncio.CancelledError:
            # The proxy ends, or `cut` was called. Catch this, because asyncio reports a cancelled handler as an error.
            pass
        finally:
            del self._links[task]
            self._counters["open"] -= 1
            writer.close()

    async def _carry(self, number: int, client: Side) -> None:
        try:
            # Connect for each client and not in advance, so that the server may start, stop and restart meanwhile.
            server = await asyncio.open_connection(*self._upstream)
        except OSError:
            self._counters["refused"] += 1
            reset(client[1])
            return
        flows: dict[Direction, ByteFlow] = {way: ByteFlow(way, self._chance(number, way)) for way in DIRECTIONS}
        link = ProxyLink(
            client, server, flows, toxics=lambda: self._toxics, passed=self._passed, resetting=self._resetting
        )
        await link.run()

    def _resetting(self) -> None:
        self._counters["resets"] += 1

    def _chance(self, number: int, way: Direction) -> Random:
        """Return a random source for one direction of one connection. Its draws do not depend on other connections."""
        return Random(f"{self._seed}:{number}:{way}")  # noqa: S311 - chance for tests, not for secrets

    def _passed(self, direction: Direction, size: int) -> None:
        self._counters[f"bytes_{direction}"] += size

    def _cut(self) -> None:
        for task, writer in tuple(self._links.items()):
            self._counters["resets"] += 1
            reset(writer)
            task.cancel()


def _checked(toxics: tuple[Toxic | str, ...]) -> tuple[Toxic, ...]:
    read = tuple(toxic_of(toxic) if isinstance(toxic, str) else toxic for toxic in toxics)
    for toxic in read:
        if not isinstance(toxic, TOXICS):
            raise InvalidError.at("toxics", "a toxic such as Latency(seconds=0.1), or its text", toxic)
    return read
