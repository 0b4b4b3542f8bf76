"""The classes a transport and a body must have below them: httpx's, httpx2's, or both where both are installed."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from holdfast.extras import missing_extra

__all__ = ["AsyncBody", "AsyncTransport", "Body", "Transport"]

if TYPE_CHECKING:
    import httpx
    import httpx2

    class Transport(httpx.BaseTransport, httpx2.BaseTransport):  # type: ignore[misc] # each wants its own Request
        """A transport of either library."""

    class AsyncTransport(httpx.AsyncBaseTransport, httpx2.AsyncBaseTransport):  # type: ignore[misc] # ditto
        """An async transport of either library."""

    class Body(httpx.SyncByteStream, httpx2.SyncByteStream):
        """A body of either library."""

    class AsyncBody(httpx.AsyncByteStream, httpx2.AsyncByteStream):
        """A body of either library that is read in a task."""
else:
    _LIBRARIES = [import_module(name) for name in ("httpx", "httpx2") if find_spec(name) is not None]
    if not _LIBRARIES:
        raise missing_extra("holdfast.httpx", "httpx or httpx2", "httpx")

    def _all(name: str) -> type:
        return type(name, tuple(getattr(library, name) for library in _LIBRARIES), {})

    Transport = _all("BaseTransport")
    AsyncTransport = _all("AsyncBaseTransport")
    Body = _all("SyncByteStream")
    AsyncBody = _all("AsyncByteStream")
