"""The classed view: `{class, code, message, context, cause?}`; `payload` and `errors[]` for a partial result.

Invariant: callers compare class and code, so wrapping never changes them. The code decides whether a
failure is retryable, not the class: an adapter may give a 401 a class named transient.

This document is for code in the same process. Use `fault.for_model()` for a model and `fault.for_audit()` for an audit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.faults import CATALOG, Cause, Fault, ItemError, Partial
from holdfast.views.view import View, code_for, facts, given

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.faults import Code, Redactor

__all__ = ["read", "write"]

_STAND_INS: Mapping[str, Code] = {
    "Validation": "CONFIG_INVALID",
    "ProviderCapability": "PROVIDER_CAPABILITY_MISSING",
    "ToolTerminal": "TOOL_EXECUTION_FAILED",
    "Session": "SESS_ILLEGAL_TRANSITION",
    "Cancellation": "SYS_CANCELLED",
    "ExtensionHost": "SYS_LIFECYCLE_FAILURE",
}
"""The code that replaces an unknown code, by class. Transient classes are left out on purpose: a class alone must not allow
a retry."""

# Several codes may share a pair of class and code. The catalog's aliases decide first, see `_code`.
_PAIRS: Mapping[str, Code] = {entry.classed: entry.code for entry in CATALOG.values()}


def write(fault: Fault, *, with_fault: bool = False, redactor: Redactor | None = None) -> dict[str, Any]:
    """Return the typed error of `fault`.

    >>> classed.write(Fault.of("PROVIDER_RATE_LIMITED"))["class"]
    'ProviderTransient'
    """
    return _VIEW.write(fault, with_fault=with_fault, redactor=redactor)


def read(document: object) -> Fault:
    """Return the fault of a typed error, with or without a message; raises `InvalidError` for any other document."""
    return _VIEW.read(document)


class _TypedError(msgspec.Struct, kw_only=True, rename={"failure": "class"}):
    failure: str
    code: str
    message: str | UnsetType = UNSET
    """The shape for a model has no message (N2-1)."""
    context: dict[str, Any] | UnsetType = UNSET
    cause: Any = UNSET
    payload: Any = UNSET
    """The partial result, in the shape the tool declares (S2-20)."""
    errors: list[_TypedError] | UnsetType = UNSET
    """One typed error for each missing item. The context of the error names the item."""


def _show(fault: Fault) -> _TypedError:
    failure, code = fault.entry.class_and_code
    partial = fault.partial
    return _TypedError(
        failure=failure,
        code=code,
        message=fault.message,
        context=facts(fault.context),
        cause=UNSET if fault.cause is None else fault.cause,
        payload=UNSET if partial is None else partial.payload,
        errors=UNSET if partial is None else [_show_item(item) for item in partial.errors],
    )


def _build(document: _TypedError) -> Fault:
    return Fault.of(
        _code(document),
        given(document.message, None),
        context=facts(given(document.context, {})),
        cause=_cause(document.cause),
        partial=_partial(document),
    )


def _code(document: _TypedError) -> Code:
    pair = f"{document.failure}/{document.code}"
    return code_for(pair, _PAIRS.get(pair) or _STAND_INS.get(document.failure, "SYS_UNKNOWN"))


def _partial(document: _TypedError) -> Partial | None:
    if document.payload is UNSET and document.errors is UNSET:
        return None
    return Partial(
        payload=given(document.payload, None),
        errors=tuple(_build_item(item) for item in given(document.errors, [])),
    )


# An item error may come from a newer catalog, so its own class and code are used, not those of our catalog.
def _show_item(item: ItemError) -> _TypedError:
    failure, code = item.class_and_code
    return _TypedError(failure=failure, code=code, message=item.message, context={"item": item.item})


def _build_item(document: _TypedError) -> ItemError:
    fault = Fault.of(_code(document), given(document.message, None))
    item = ItemError.of(given(document.context, {}).get("item"), fault)
    return msgspec.structs.replace(item, classed=f"{document.failure}/{document.code}")


def _cause(cause: Any) -> Cause | None:
    """Return the cause: our own value, another typed error, a JavaScript Error or a text."""
    match cause:
        case str(message):
            return Cause(type="Error", message=message)
        case {"class": str(failure), "code": str(code)}:
            kind = f"{failure}/{code}"
        case {"type": str(kind)} | {"name": str(kind)}:
            pass
        case _:
            return None
    message = cause.get("message")
    return Cause(type=kind, message=message if isinstance(message, str) else "", chain=_chain(cause))


def _chain(cause: dict[str, Any]) -> tuple[Cause, ...]:
    """Return the causes of a cause, nearest first. Other formats nest causes; a fault lists them."""
    listed = cause.get("chain")
    if isinstance(listed, list):
        return tuple(link for link in map(_cause, listed) if link is not None)
    # JavaScript nests `cause`. A fault lists the chain, so that the depth stays bounded.
    nested = _cause(cause.get("cause"))
    return () if nested is None else (msgspec.structs.replace(nested, chain=()), *nested.chain)


_VIEW = View(name="classed", shape=_TypedError, show=_show, build=_build, leaves_process=False)
