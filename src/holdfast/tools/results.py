"""A tool's result as a model gets it: as text, and as JSON values of a bounded size.

Invariant: any value that a tool can return has a text, which can be encoded, is cut to its limit, and holds no secret of this process.
"""

from __future__ import annotations

import base64
import json
from functools import lru_cache
from math import isfinite
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.faults import Partial
from holdfast.faults.redaction import MASK, encodable
from holdfast.runtime.secrets import process_redactor
from holdfast.tools.output import ShownResult, cut_text, show_result

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["as_text", "masked", "masked_document", "show", "structured", "written"]

_PLAIN = frozenset((dict, list, tuple, int, float, bool, type(None)))
_LEAST = 16
"""A text or a list that is cut shorter than this tells nothing."""


def written(value: Any) -> str | bytes:
    """Return a result as a text, or as bytes where it is bytes. Large values are not copied."""
    if isinstance(value, Partial):
        return as_text({"result": value.payload, "errors": [error.for_model() for error in value.errors]})
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    return value if isinstance(value, bytes) else as_text(value)


def as_text(value: Any) -> str:
    """Return a value as text: a text as it is, everything else as JSON, and what JSON does not have in the words of Python."""
    if isinstance(value, str):
        return value
    if type(value) in _PLAIN:
        try:
            return msgspec.json.encode(value).decode()
        except (TypeError, ValueError, RecursionError):
            # Something inside of it needs another way.
            pass
    for write in (_model_json, _json, _json_of_the_library, str):
        # The code of the value's own class may raise anything. The tool has done its work.
        try:
            if (text := write(value)) is not None:
                return text
        except (Exception, SystemExit):  # noqa: BLE001, S112 - the next way is tried
            continue
    return f"[a {type(value).__qualname__} that cannot be shown as text]"


def _model_json(value: Any) -> str | None:
    return str(value.model_dump_json()) if hasattr(type(value), "model_dump_json") else None


def _json(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()


def _json_of_the_library(value: Any) -> str:
    # It takes lone surrogates, and integers of any length.
    return json.dumps(value, default=str, ensure_ascii=False, separators=(",", ":"))


def show(value: str | bytes, limit: int) -> ShownResult:
    """Return a written result as a model gets it: about `limit` bytes, without the secrets of this process."""
    forms = _forms()
    if type(value) is str and value.isascii() and len(value) <= limit and not any(form in value for form in forms):
        # Most results are short, and hold nothing to mask.
        return ShownResult(value, 0, len(value))
    margin = max(map(len, forms), default=0)
    shown = show_result(value, limit, masked, margin)
    return shown._replace(text=encodable(shown.text))


def masked(text: str) -> str:
    """Return a text without the secrets of this process.

    What only looks like a secret stays: a model that edits a file must see what is in it.
    """
    for form in _forms():
        text = text.replace(form, MASK)
    return text


def masked_document(document: Any) -> Any:
    """Return JSON values without the secrets of this process: a schema, whose defaults and descriptions may hold one."""
    return _shortened(document, None) if _forms() else document


def structured(value: Any, limit: int) -> Any:
    """Return a result as JSON values of at most `limit` bytes, without the secrets of this process. Long texts and lists are cut.

    Raises `ValueError` if it is no JSON value, or too large in another way.
    """
    try:
        plain = value.model_dump(mode="json") if hasattr(type(value), "model_dump") else None
        plain = msgspec.to_builtins(value if plain is None else plain, str_keys=True, enc_hook=str)
        most = limit
        while most >= _LEAST:
            shown = _shortened(plain, most)
            if len(msgspec.json.encode(shown)) <= limit:
                return shown
            most //= 2
    except (Exception, SystemExit) as error:
        raise ValueError(type(error).__name__) from error
    raise ValueError(f"more than {limit} bytes")


def _shortened(value: Any, most: int | None) -> Any:
    """Return JSON values without secrets, with texts of at most `most` bytes and lists of at most so many items."""
    if isinstance(value, str):
        text = masked(encodable(value))
        return text if most is None else cut_text(text, most)
    if isinstance(value, dict):
        return {masked(encodable(str(name))): _shortened(each, most) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_shortened(each, most) for each in value[:most]]
    return None if isinstance(value, float) and not isfinite(value) else value


def _forms() -> tuple[str, ...]:
    return _forms_of(process_redactor().secrets)


@lru_cache(maxsize=4)
def _forms_of(secrets: tuple[str, ...]) -> tuple[str, ...]:
    """Return secrets as they stand in a text, in JSON, in the words of Python, and in base64, as JSON shows bytes."""
    found: dict[str, None] = {}
    for secret in secrets:
        found[secret] = None
        if not secret.isalnum():
            found.update(dict.fromkeys((json.dumps(secret, ensure_ascii=False)[1:-1], repr(secret)[1:-1])))
            found[repr(secret.encode("utf-8", "replace"))[2:-1]] = None
        found.update(dict.fromkeys(_in_base64(secret.encode("utf-8", "replace"))))
    return tuple(found)


def _in_base64(secret: bytes) -> Iterator[str]:
    """Yield what a secret looks like within longer bytes: what comes before shifts it by 0, 1 or 2 bytes."""
    for shift in range(3):
        # The characters at both ends also hold bits of what is beside it.
        begin, end = (0, 2, 3)[shift], (shift + len(secret)) * 8 // 6
        form = base64.b64encode(bytes(shift) + secret).decode()[begin:end]
        yield form
        yield form.replace("+", "-").replace("/", "_")
