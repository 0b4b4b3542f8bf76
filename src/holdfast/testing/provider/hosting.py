"""`FaultProvider`: the provider where you want it, in your event loop, in a thread, or in memory."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from holdfast.faults import InvalidError
from holdfast.testing.provider.core import Provider
from holdfast.testing.provider.server import Server
from holdfast.testing.provider.transport import memory_transport
from holdfast.testing.threads import LoopThread

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from holdfast.clock import Clock
    from holdfast.testing.provider.script import Script

__all__ = ["HOST", "FaultProvider", "serve_in_thread"]

HOST = "127.0.0.1"


class FaultProvider(Provider):
    """A provider that misbehaves on script: `async with FaultProvider("429, ok") as provider: provider.url`.

    It listens on loopback for as long as the block runs. `transport()` needs no block and no socket.
    """

    def __init__(
        self,
        script: str | Script = "",
        *,
        seed: int | None = None,
        clock: Clock | None = None,
        limit: int = 4_000,
        port: int = 0,
    ) -> None:
        super().__init__(script, seed=seed, clock=clock, limit=limit)
        self._server = Server(self)
        self._wanted = port
        self._port: int | None = None

    async def __aenter__(self) -> Self:
        self._port = await self._server.start(HOST, self._wanted)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._port = None
        await self._server.stop()

    @property
    def port(self) -> int:
        """The port it listens on."""
        if self._port is None:
            raise InvalidError.saying(
                "provider", "one that listens: async with, or serve_in_thread", "one that does not"
            )
        return self._port

    @property
    def url(self) -> str:
        """Where it listens, as Anthropic's clients want it."""
        return f"http://{HOST}:{self.port}"

    @property
    def openai_url(self) -> str:
        """The same as OpenAI's clients want it."""
        return f"{self.url}/v1"

    @property
    def tls_url(self) -> str:
        """Where every TLS handshake fails."""
        return f"https://{HOST}:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables that lead the SDKs here."""
        return {
            "ANTHROPIC_BASE_URL": self.url,
            "ANTHROPIC_API_KEY": "test",
            "OPENAI_BASE_URL": self.openai_url,
            "OPENAI_API_KEY": "test",
        }

    def transport(self, library: ModuleType | None = None) -> Any:
        """Return a transport for the clients of `httpx2`, or of `httpx` if that is given, that leads here without a socket."""
        return memory_transport(self, library)


@contextmanager
def serve_in_thread(
    script: str | Script = "",
    *,
    seed: int | None = None,
    clock: Clock | None = None,
    limit: int = 4_000,
    port: int = 0,
) -> Iterator[FaultProvider]:
    """Serve from a thread for as long as the block runs: for blocking code, and for loops of your own."""
    provider = FaultProvider(script, seed=seed, clock=clock, limit=limit, port=port)
    thread = LoopThread("holdfast-fault-provider")
    try:
        thread.run(provider.__aenter__())
        try:
            yield provider
        finally:
            thread.run(provider.__aexit__())
    finally:
        thread.close()
