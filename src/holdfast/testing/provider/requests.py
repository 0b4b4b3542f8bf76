"""A request as it reached the provider."""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["Request"]

_BEARER = "bearer "


class Request:
    """Method, path, headers (names in lower case) and body; model, key and the like are read off them."""

    __slots__ = ("_document", "body", "headers", "method", "path")

    def __init__(self, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> None:
        self.method = method
        self.path = path.partition("?")[0]
        self.headers = headers
        self.body = body
        self._document: dict[str, Any] | None = None

    @property
    def document(self) -> dict[str, Any]:
        """The JSON object of the body; empty where there is none."""
        if self._document is None:
            try:
                read = msgspec.json.decode(self.body)
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                read = None
            self._document = read if isinstance(read, dict) else {}
        return self._document

    @property
    def model(self) -> str:
        """The model that was asked for."""
        model = self.document.get("model")
        return model if isinstance(model, str) else ""

    @property
    def stream(self) -> bool:
        """Whether a stream was asked for."""
        return self.document.get("stream") is True

    @property
    def key(self) -> str:
        """The API key, however it was sent."""
        bearer = self.headers.get("authorization", "")
        if bearer[: len(_BEARER)].lower() == _BEARER:
            return bearer[len(_BEARER) :].strip()
        return self.headers.get("x-api-key", "")

    def list_of(self, name: str) -> list[dict[str, Any]]:
        """Return the objects in a list of the document."""
        found = self.document.get(name)
        return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []

    def __repr__(self) -> str:
        return f"Request({self.method!r}, {self.path!r}, model={self.model!r}, stream={self.stream})"
