"""Reading an SDK's request: its model, its effect, its time, and whether it can be sent again.

Invariant: a request is changed on a copy only.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.policies import Effect

__all__ = ["copied", "effect_of", "limited_to", "model_of", "replayable"]

_EFFECTS: Mapping[str, Effect] = {"get": "read", "put": "idempotent", "delete": "idempotent"}
_PARTS = ("connect", "read", "write", "pool")


def model_of(options: Any) -> str:
    body = options.json_data
    model = body.get("model") if isinstance(body, Mapping) else None
    return model if isinstance(model, str) else ""


def effect_of(options: Any) -> Effect | None:
    return _EFFECTS.get(options.method.lower())


def copied(client: Any, options: Any) -> Any:
    """Return the request without retries of the SDK's own, with one idempotency key for all attempts."""
    options = copy.copy(options)
    options.max_retries = 0
    if options.idempotency_key is None and options.method.lower() != "get":
        options.idempotency_key = client._idempotency_key()  # noqa: SLF001 - what the SDK's own loop does
    return options


def limited_to(seconds: float | None, options: Any, client: Any) -> Any:
    """Return the request with no part of its time limit above `seconds`: what blocks a thread has no other limit."""
    if seconds is None:
        return options
    given = options.timeout if _is_limit(options.timeout) else client.timeout
    options = copy.copy(options)
    if given is None or isinstance(given, (int, float)):
        options.timeout = seconds if given is None else min(given, seconds)
    else:
        parts = {part: getattr(given, part) for part in _PARTS}
        options.timeout = type(given)(**{p: seconds if t is None else min(t, seconds) for p, t in parts.items()})
    return options


def replayable(options: Any) -> bool:
    """Whether sending the request again sends the same: not where its body is read from something that runs dry."""
    return _lasts(options.json_data) and _lasts(getattr(options, "content", None)) and _files_last(options.files)


def _is_limit(timeout: Any) -> bool:
    return timeout is None or isinstance(timeout, (int, float)) or all(hasattr(timeout, part) for part in _PARTS)


def _lasts(value: Any) -> bool:
    if isinstance(value, (str, bytes, bytearray, int, float)) or value is None:
        return True
    if isinstance(value, Mapping):
        return all(_lasts(item) for item in value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(_lasts(item) for item in value)
    # An iterator is its own iterator; so is an open file. Anything else is walked anew each time.
    return not hasattr(value, "__next__") and not hasattr(value, "__anext__")


def _files_last(files: Any) -> bool:
    if files is None:
        return True
    given = files.values() if isinstance(files, Mapping) else [file for _, file in files]
    # A tuple is (name, content, …). The HTTP library rewinds whatever can be rewound.
    contents = [file[1] if isinstance(file, tuple) else file for file in given]
    return all(_can_rewind(content) or _lasts(content) for content in contents)


def _can_rewind(content: Any) -> bool:
    seekable = getattr(content, "seekable", None)
    return bool(callable(seekable) and seekable())
