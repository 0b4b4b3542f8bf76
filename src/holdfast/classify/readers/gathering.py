"""What every reader of an answer does in the end: findings of a body and its envelope become `Evidence`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.classify.evidence import Evidence, Source, fold
from holdfast.classify.phrases import ENDED, PAGE, codes_in, overhear

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.classify.body import Findings

__all__ = ["gather", "lower_headers"]

_NO_HEADERS: dict[str, str] = {}
_TEXT_CHARS = 4_096


def gather(
    found: Findings,
    source: Source,
    *,
    status: int | None = None,
    headers: dict[str, str] = _NO_HEADERS,
    provider: str = "",
    now: float | None = None,
    stream: str = "",
    rpc_code: int | None = None,
) -> Evidence:
    """Return the evidence that a body's findings and its envelope add up to."""
    # Innermost first: a gateway says "provider returned error", the provider says what.
    codes = [*reversed(found.codes)]
    error_type = headers.get("x-amzn-errortype")
    if error_type:
        # AWS appends a namespace: `ThrottlingException:http://…`.
        codes.insert(0, error_type.partition(":")[0].lower())
    message = _join(found.messages)
    text = fold(message)
    heard = codes_in(codes) | (overhear(text) if text else 0) | (ENDED if stream else 0) | (PAGE if found.html else 0)
    return Evidence(
        source=source,
        provider=provider.lower(),
        status=_telling_status(status, found.status),
        headers=found.headers | headers if found.headers else headers,
        codes=tuple(codes),
        message=message,
        text=text,
        heard=heard,
        waits=tuple(found.waits),
        resets=tuple(found.resets),
        html=found.html,
        stream=stream,
        rpc_code=rpc_code,
        now=now,
    )


def lower_headers(headers: Mapping[Any, Any]) -> dict[str, str]:
    """Return the headers as plain strings, their names in lower case."""
    try:
        # Joining tells at once whether all of them are strings, and whether any name has to be changed.
        names = "\n".join(headers)
        "\n".join(headers.values())
    except TypeError:
        return _decoded_headers(headers)
    return dict(headers) if names == names.lower() else {name.lower(): value for name, value in headers.items()}


def _decoded_headers(headers: Mapping[Any, Any]) -> dict[str, str]:
    lowered: dict[str, str] = {}
    for name, value in headers.items():
        key = name if isinstance(name, str) else name.decode("latin-1") if isinstance(name, bytes) else str(name)
        text = value if isinstance(value, str) else value.decode("latin-1") if isinstance(value, bytes) else str(value)
        lowered[key.lower()] = text
    return lowered


def _telling_status(outer: int | None, inner: int | None) -> int | None:
    """The wrapped failure's status where a success or a plain refusal wraps another failure."""
    if inner is None or inner == outer:
        return outer
    if outer is None or outer < 400 or outer in (400, 500):
        return inner
    return outer


def _join(messages: list[str]) -> str:
    if len(messages) <= 1:
        return messages[0][:_TEXT_CHARS] if messages else ""
    # Innermost first, each once: wrappers repeat what they wrap.
    kept: list[str] = []
    for message in reversed(messages):
        if not any(message in other for other in kept):
            kept.append(message)
    return "\n".join(kept)[:_TEXT_CHARS]
