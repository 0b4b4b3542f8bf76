"""Bodies: read until it is known how the request ended, then handed on with nothing held back.

Invariant: a body that failed, or was read to its end, is closed; one that is handed on closes what it came from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.integrations.httpx.bases import AsyncBody, Body

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

__all__ = ["read", "read_async"]

_MOST_OF_AN_ERROR = 1024 * 1024
"""Bytes of an error's body that are worth reading to learn what failed; a longer one is an answer like any other."""


class _Rest(Body):
    """What was read already, then the rest."""

    def __init__(self, held: list[bytes], rest: Iterator[bytes], source: Any) -> None:
        self._held = held
        self._rest = rest
        self._source = source

    def __iter__(self) -> Iterator[bytes]:
        yield from self._held
        yield from self._rest

    def close(self) -> None:
        self._source.close()


class _AsyncRest(AsyncBody):
    """The same in a task."""

    def __init__(self, held: list[bytes], rest: AsyncIterator[bytes], source: Any) -> None:
        self._held = held
        self._rest = rest
        self._source = source

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._held:
            yield chunk
        async for chunk in self._rest:
            yield chunk

    async def aclose(self) -> None:
        await self._source.aclose()


def read(response: Any, *, whole: bool) -> bytes | None:
    """Read the first bytes of a body, or all of it, and put them back; return it where it was read to its end."""
    if hasattr(response, "_content"):
        return bytes(response.content)
    source = response.stream
    held: list[bytes] = []
    rest = iter(source)
    try:
        for chunk in rest:
            held.append(chunk)
            if _enough(held, whole=whole):
                response.stream = _Rest(held, rest, source)
                return None
    except BaseException:
        source.close()
        raise
    source.close()
    response.stream = _Rest(held, rest, source)
    return b"".join(held)


async def read_async(response: Any, *, whole: bool) -> bytes | None:
    """The same in a task."""
    if hasattr(response, "_content"):
        return bytes(response.content)
    source = response.stream
    held: list[bytes] = []
    rest = aiter(source)
    try:
        async for chunk in rest:
            held.append(chunk)
            if _enough(held, whole=whole):
                response.stream = _AsyncRest(held, rest, source)
                return None
    except BaseException:
        await source.aclose()
        raise
    await source.aclose()
    response.stream = _AsyncRest(held, rest, source)
    return b"".join(held)


def _enough(held: list[bytes], *, whole: bool) -> bool:
    return sum(map(len, held)) > _MOST_OF_AN_ERROR if whole else bool(held[-1])
