"""The base of the five views. `View` reads and writes one format without losing anything.

A document may contain facts that a fault has no field for: the old name of a code, a verdict that differs from the
catalog, an unknown field. `read` compares the document with the document that we would write for its fault. It keeps
only the difference, in `fault.context["said"]` under the view's name. `write` applies that difference again.

Invariant: for every document that a view accepts, `write(read(document))` is that document, except for text that the
redactor masks or cuts. A kept difference never breaks the view's shape. `read` returns a fresh copy of any input, or
raises an `InvalidError` that names the place, what was expected and what was received.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.faults import REDACTOR, Code, Fault, InvalidError, ItemError, Partial, Redactor, resolve

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

S = TypeVar("S")
T = TypeVar("T")

HOLDFAST = "holdfast"
"""The extra field of a document that holds the whole fault."""

MS = 1000
"""Milliseconds per second."""

# The redactor shows 24 levels. The extra field holds a fault, and the fault keeps values of a document. There the
# values are nine levels deeper and must still be whole.
_DEPTH = 15
_CARRIED_DEPTH = 23
_KEPT = "said"
"""The context field that keeps the differences. The name is stored in old faults, so it stays."""
_MISSING = object()
_FINAL = frozenset({"", "permanent", "unknown", "unwanted"})
"""What an attempt's `then` holds if the failure itself must not be retried. All other reasons are limits of the operation, or
facts about the call, such as an effect that nobody declared."""


class View(msgspec.Struct, Generic[S], frozen=True, kw_only=True):
    """One format: it turns a fault into a document, and a document into a fault."""

    name: str
    shape: type[S]
    """The fields a document must have; it may have more."""
    show: Callable[[Fault], object]
    """Returns the document of a fault. It must not read the kept differences, because they are applied later."""
    build: Callable[[S], Fault]
    """Returns the fault of a document."""
    invalid: Code = "PROTO_INVALID_MESSAGE"
    """The code of the error for a document that is not in this format."""
    leaves_process: bool = True
    """Whether secrets must be masked and long texts capped."""
    wording: Callable[[Fault, dict[str, Any]], dict[str, Any]] | None = None
    """Returns a document of `show` with the sentence and the fields of the format's own specification."""

    def read(self, document: object) -> Fault:
        """Return the fault of `document`, and keep what a fault has no field for."""
        received = checked(document, self.invalid)
        # If the document holds a whole fault, that fault is used: it has fields that the format lacks.
        carried = _carried(received)
        if carried is not None:
            del received[HOLDFAST]
        shape = shaped(received, self.shape, self.invalid)
        fault = self.build(shape) if carried is None else carried
        # The comparison comes before anything is kept, so that a whole fault from the document stays exactly as it was.
        ours = self.draft(fault)
        if carried is not None:
            ours.pop(HOLDFAST, None)
        return fault if _same(ours, received) else self._keeping(fault, received)

    def draft(self, fault: Fault, redactor: Redactor | None = None, *, literal: bool = False) -> dict[str, Any]:
        """Return the document of `fault` with the kept difference applied, `literal` in the specification's own words.

        `sealed` makes it safe to send out of the process.
        """
        if redactor is not None:
            # Secrets are masked before texts are split over fields, because half a secret is not recognised.
            fault = fault.masked(redactor)
        shown: dict[str, Any] = jsonable(self.show(fault))
        if literal and self.wording is not None:
            shown = self.wording(fault, shown)
        patch = _patch(fault, self.name)
        if patch is None:
            return shown
        patched = patch.over(shown)
        try:
            shaped(patched, self.shape, self.invalid)
        except InvalidError:  # a foreign program may have written the difference, so it must not break the shape
            return shown
        return patched

    def sealed(
        self, document: dict[str, Any], carrying: Fault | None = None, redactor: Redactor | None = None
    ) -> dict[str, Any]:
        """Return `document` ready for the caller, with the whole fault in it if a fault is given.

        A given redactor replaces the common redactor. It is used even if the document does not leave the process.
        """
        if carrying is not None:
            document = {**document, HOLDFAST: carrying}
        # Documents for code in this process keep everything. Only documents that leave the process are masked.
        if redactor is None and self.leaves_process:
            redactor = REDACTOR
        sealed: dict[str, Any] = jsonable(document)
        return sealed if redactor is None else redactor.value(sealed)

    def write(
        self, fault: Fault, *, with_fault: bool, redactor: Redactor | None, literal: bool = False
    ) -> dict[str, Any]:
        """Return the document of `fault`."""
        return self.sealed(self.draft(fault, redactor, literal=literal), fault if with_fault else None, redactor)

    def _keeping(self, fault: Fault, received: dict[str, Any]) -> Fault:
        patch = _Patch.between(jsonable(self.show(fault)), received)
        before = fault.context.get(_KEPT)
        kept = {**(before if isinstance(before, dict) else {}), self.name: msgspec.to_builtins(patch)}
        return msgspec.structs.replace(fault, context={**fault.context, _KEPT: kept})


def facts(context: Mapping[str, Any]) -> dict[str, Any]:
    """Return a fault's context, or a dict that will become one, without the kept differences."""
    return {name: value for name, value in context.items() if name != _KEPT}


class _Patch(msgspec.Struct, frozen=True, omit_defaults=True):
    """The difference between two JSON objects. Unlike a JSON merge patch, it can contain null."""

    put: dict[str, Any] = {}
    drop: list[str] = []
    within: dict[str, _Patch] = {}

    @classmethod
    def between(cls, shown: dict[str, Any], received: dict[str, Any]) -> _Patch:
        put: dict[str, Any] = {}
        within: dict[str, _Patch] = {}
        for name, value in received.items():
            known = shown.get(name, _MISSING)
            if _same(known, value):
                continue
            if isinstance(known, dict) and isinstance(value, dict):
                within[name] = cls.between(known, value)
            else:
                put[name] = value
        return cls(put=put, drop=[name for name in shown if name not in received], within=within)

    def over(self, shown: dict[str, Any]) -> dict[str, Any]:
        patched = {name: value for name, value in shown.items() if name not in self.drop} | self.put
        for name, inner in self.within.items():
            known = patched.get(name)
            patched[name] = inner.over(known if isinstance(known, dict) else {})
        return patched


def _patch(fault: Fault, name: str) -> _Patch | None:
    kept = fault.context.get(_KEPT)
    if not isinstance(kept, dict) or name not in kept:
        return None
    try:
        return msgspec.convert(kept[name], _Patch)
    except msgspec.ValidationError:  # Holdfast did not write this value
        return None


def _carried(document: dict[str, Any]) -> Fault | None:
    """Return the whole fault in the document.

    If it cannot be read (a newer Holdfast wrote it), it is an ordinary field.
    """
    try:
        return msgspec.convert(document[HOLDFAST], Fault)
    except (KeyError, msgspec.ValidationError):
        return None


def _same(one: Any, other: Any) -> bool:
    """Whether two values are the same JSON. In Python `1`, `1.0` and `True` are equal, on the wire they are not."""
    match one, other:
        case dict(), dict():
            return one.keys() == other.keys() and all(_same(value, other[name]) for name, value in one.items())
        case list(), list():
            return len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and one == other


# Checks of every document: JSON values, not too deep, in the view's shape


def checked(document: object, code: Code) -> dict[str, Any]:
    """Return a copy of `document`, which must be an object of JSON values."""
    if not isinstance(document, dict):
        raise InvalidError.saying("$", "an object", _kind(document), code)
    # The whole fault may be deeper, because it contains the kept differences of other views.
    depths = {key: _CARRIED_DEPTH if key == HOLDFAST else _DEPTH for key in document}
    return {_key(key, "$", code): _copy(document[key], f"$.{key}", depths[key], code) for key in document}


def shaped(document: dict[str, Any], shape: type[S], code: Code) -> S:
    """Return `document` as a `shape`; fields that the shape does not name are allowed and left out."""
    try:
        return msgspec.convert(document, shape)
    except msgspec.ValidationError as error:
        raise InvalidError.from_msgspec(error, code) from None


def jsonable(value: Any) -> Any:
    """Return a copy of `value` made of JSON values only."""
    return _listed(msgspec.to_builtins(value, enc_hook=REDACTOR.value))


def given(value: T | UnsetType, default: T) -> T:
    """Return the value of an optional field, or the default if the document does not have the field."""
    return default if isinstance(value, UnsetType) else value


def code_for(name: str, stand_in: Code) -> Code:
    """Return the code that `name` means in any of its spellings; `stand_in` for an unknown name."""
    entry = resolve(name)
    return stand_in if entry is None else entry.code


def milliseconds(context: Mapping[str, Any], *names: str) -> int | None:
    """Return the first of the named durations as milliseconds. The names end in `_s` or `_ms`, as the values' unit."""
    for name in names:
        value = context.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value):
            return round(value if name.endswith("_ms") else value * MS)
    return None


def is_retryable(fault: Fault) -> bool:
    """Whether the failure itself may be retried.

    An operation that has used up its attempts marks its fault as not retryable, so that nobody around it retries again. A
    format that describes the failure, and not the operation, still shows a temporary failure.
    """
    return fault.retryable or is_exhausted(fault)


def is_exhausted(fault: Fault) -> bool:
    """Whether an operation gave up on a failure that may be retried, for a reason that is not the failure itself."""
    return (
        not fault.retryable and fault.entry.retryable and bool(fault.attempts) and fault.attempts[-1].then not in _FINAL
    )


def renamed(facts: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return `facts` with some of their names replaced."""
    return {names.get(name, name): value for name, value in facts.items()}


def objects(value: Any) -> list[dict[str, Any]] | UnsetType:
    """Return `value` if it is a list of objects, otherwise UNSET."""
    if isinstance(value, (list, tuple)) and all(isinstance(item, dict) for item in value):
        return list(value)
    return UNSET


def read_delay(delay: float | UnsetType, per_second: int = 1) -> float | None:
    """Return the delay that a document requests, in seconds; None if it requests none."""
    if isinstance(delay, UnsetType) or delay <= 0:
        return None
    try:
        return delay / per_second
    except OverflowError:  # an integer larger than any float is not a delay
        return None


def write_delay(delay: float | None, per_second: int = 1) -> int | float | UnsetType:
    """Return a fault's delay as documents write it: as an integer if it is a whole number."""
    if delay is None or not isfinite(exact := round(delay * per_second, 3)):
        return UNSET
    return int(exact) if exact == int(exact) else exact


def _copy(value: Any, path: str, depth: int, code: Code) -> Any:
    match value:
        case None | bool():
            return value
        case int():
            return int(value)
        case str():
            return _text(value, path, code)
        case float():
            if not isfinite(value):
                raise InvalidError.saying(path, "a finite number", repr(float(value)), code)
            return float(value)
        case dict() | list() if depth == 0:
            raise InvalidError.saying(path, "less nesting", "too deep a value", code)
        case dict():
            return {_key(key, path, code): _copy(item, f"{path}.{key}", depth - 1, code) for key, item in value.items()}
        case list():
            return [_copy(item, f"{path}[{index}]", depth - 1, code) for index, item in enumerate(value)]
    raise InvalidError.saying(path, "a JSON value", _kind(value), code)


def _key(key: object, path: str, code: Code) -> str:
    if not isinstance(key, str):
        raise InvalidError.saying(path, "names that are text", _kind(key), code)
    return _text(key, path, code)


def _text(text: str, path: str, code: Code) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair is possible in Python, but not in UTF-8
        raise InvalidError.saying(path, "valid Unicode", "half a surrogate pair", code) from None
    return str(text)


def _kind(value: object) -> str:
    return "null" if value is None else type(value).__name__


def _listed(value: Any) -> Any:
    match value:
        case dict():
            return {key: _listed(item) for key, item in value.items()}
        case list() | tuple():
            return [_listed(item) for item in value]
        # JSON has no infinity and no nan.
        case float() if not isfinite(value):
            return str(value)
    return value


# The partial result in a document's details: the payload, and an error for each missing item (C26)

_ERRORS = "errors"
_TRUNCATED = "truncated"


def spread_partial(partial: Partial, place: str | None) -> dict[str, Any]:
    """Return the details that describe `partial`, with its payload under `place`.

    If it is None, the payload is left out.
    """
    details: dict[str, Any] = {} if place is None or partial.payload is None else {place: partial.payload}
    if partial.errors:
        details[_ERRORS] = partial.errors
    if partial.truncated:
        details[_TRUNCATED] = True
    return details


def take_partial(details: dict[str, Any], places: Iterable[str], payload: Any = None) -> Partial | None:
    """Remove a partial result from `details` and return it. Without a given payload, the first of `places` holds it."""
    for place in places:
        if payload is None:
            payload = details.pop(place, None)
    # Holdfast writes only True. Any other value is a field of the document.
    truncated = details.get(_TRUNCATED) is True and details.pop(_TRUNCATED)
    partial = Partial(payload=payload, errors=_items(details), truncated=truncated)
    return None if partial == Partial() else partial


def _items(details: dict[str, Any]) -> tuple[ItemError, ...]:
    """Remove and return the item errors if they have our shape. Any document may have a field with the same name."""
    try:
        errors = msgspec.convert(details[_ERRORS], tuple[ItemError, ...])
    except (KeyError, msgspec.ValidationError):
        return ()
    del details[_ERRORS]
    return errors
