"""What a response has used whose body its caller reads, or never reads: `with_raw_response`, `with_streaming_response`.

The usage is in the body. A body that has come is read here as well. One that has not is watched while its caller reads it, and only what its
usage can be read from is kept: a JSON document, or the latest usage of an event stream and the number of its tokens.

Invariant: nobody reads a body because of this, and the caller gets each part as it comes.
"""

from __future__ import annotations

import json
import weakref
from typing import TYPE_CHECKING, Any

from holdfast.policies.models.quote import tokens_of
from holdfast.policies.models.usage import model_of, usage_of
from holdfast.runtime.streams.flow import Used

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from holdfast.runtime.budgets.charges import ChargeOfBody, Charges

__all__ = ["charge_when_read", "reported_by"]

_LONGEST = 16 * 1024 * 1024
"""Bytes of a document that are kept. No answer of a model is as long."""
_DATA = b"data:"


def reported_by(response: Any) -> Any:
    """Return the part of an SDK's response that reports its usage: the document of a raw response that was read, else the response."""
    http = _http_of(response)
    if http is None:
        return response
    # What the SDK has made of it is what the caller gets. A call around this one must know it again.
    made = (value for value in getattr(response, "_parsed_by_type", {}).values() if usage_of(value) is not None)
    try:
        return next(made, None) or json.loads(http.content)
    except Exception:  # noqa: BLE001 - it was not read, or is no JSON: then nobody knows
        return None


def charge_when_read(response: Any, charges: Charges | None) -> None:
    """Let the caller's own reading of a response charge what it has used, if its body has not come yet."""
    http = None if charges is None or charges.is_free else _http_of(response)
    if http is None or charges is None or http.is_stream_consumed or http.is_closed:
        return
    _Body(charges.charge_by_body()).watch(http)


def _http_of(response: Any) -> Any:
    """Return the HTTP response if the caller gets it in its raw form, else None."""
    http = getattr(response, "http_response", response)
    return http if hasattr(http, "iter_raw") and hasattr(http, "is_stream_consumed") else None


class _Body:
    """The body of one response. It refers to the response weakly: one that was dropped is settled, too."""

    def __init__(self, charge: ChargeOfBody) -> None:
        self._charge = charge
        self._is_events = False
        self._kept = bytearray()
        """The document, or the beginning of the next line."""
        self._used: Used | None = None
        self._said = 0
        self._open = 0
        """Iterators that are under way."""

    def watch(self, http: Any) -> None:
        """See each part that the caller reads, and the end."""
        self._is_events = "event-stream" in http.headers.get("content-type", "")
        response, kind = weakref.ref(http), type(http)
        weakref.finalize(http, self._settle, complete=False)

        def iter_bytes(chunk_size: int | None = None) -> Iterator[bytes]:
            return self._seen(kind.iter_bytes(response(), chunk_size))

        def aiter_bytes(chunk_size: int | None = None) -> AsyncIterator[bytes]:
            return self._seen_async(kind.aiter_bytes(response(), chunk_size))

        def close() -> None:
            try:
                kind.close(response())
            finally:
                self._closed()

        async def aclose() -> None:
            try:
                await kind.aclose(response())
            finally:
                self._closed()

        http.iter_bytes, http.aiter_bytes, http.close, http.aclose = iter_bytes, aiter_bytes, close, aclose

    def _seen(self, parts: Iterator[bytes]) -> Iterator[bytes]:
        self._open += 1
        complete = False
        try:
            for part in parts:
                self._add(part)
                yield part
            complete = True
        finally:
            self._open -= 1
            self._settle(complete=complete)

    async def _seen_async(self, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        self._open += 1
        complete = False
        try:
            async for part in parts:
                self._add(part)
                yield part
            complete = True
        finally:
            self._open -= 1
            self._settle(complete=complete)

    def _closed(self) -> None:
        # The HTTP library closes a response whose last bytes are still to be decoded.
        if not self._open:
            self._settle(complete=False)

    def _add(self, part: bytes) -> None:
        self._charge.read()
        if len(self._kept) <= _LONGEST:
            self._kept += part
        if not self._is_events:
            return
        *lines, rest = self._kept.split(b"\n")
        self._kept = rest
        for line in lines:
            if line.startswith(_DATA):
                self._look_at(_json(line[len(_DATA) :]))

    def _look_at(self, event: Any) -> None:
        if not isinstance(event, dict):
            return
        for report in (event, event.get("message"), event.get("response")):
            if isinstance(report, dict) and isinstance(usage := report.get("usage"), dict):
                used = Used(model_of(report), usage)
                self._used = used if self._used is None else self._used.then(used)
        self._said += tokens_of(event)

    def _settle(self, *, complete: bool) -> None:
        report = self._used if self._is_events else _json(self._kept)
        self._kept = bytearray()
        self._charge.over(report, self._said if self._is_events else None, complete=complete)


def _json(text: bytes | bytearray) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
