"""The word an HTTP error body calls its status by (S0-17: 404 is `NotFound`).

Invariant: every status the catalog uses has a word. Our own list, since Python's phrases change between versions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["WORDS"]

WORDS: Mapping[int, str] = {
    400: "BadRequest",
    401: "Unauthorized",
    402: "PaymentRequired",
    403: "Forbidden",
    404: "NotFound",
    408: "RequestTimeout",
    409: "Conflict",
    410: "Gone",
    413: "ContentTooLarge",
    415: "UnsupportedMediaType",
    422: "UnprocessableContent",
    426: "UpgradeRequired",
    429: "TooManyRequests",
    499: "ClientClosedRequest",
    500: "InternalServerError",
    501: "NotImplemented",
    502: "BadGateway",
    503: "ServiceUnavailable",
    504: "GatewayTimeout",
    507: "InsufficientStorage",
    529: "Overloaded",
}
