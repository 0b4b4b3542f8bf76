"""A view: one document's shape of a fault, read and written so that nothing either side said is lost.

A document says things a fault has no field for: an old code's name, a verdict against the catalog, a field nobody
knows. Reading compares the document with what we would write for the fault it became, and keeps only the difference, in
`fault.context["said"]` under the view's name. Writing lays the difference over.

Invariant: for every document a view accepts, `write(read(document))` is that document, short of what the redactor masks
or cuts on the way out; and what was said never bends what `write` returns out of the view's shape.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from holdfast.faults import REDACTOR, Code, Fault, InvalidError, Redactor
from holdfast.views._document import HOLDFAST, checked, jsonable, shaped

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["View", "facts"]

S = TypeVar("S")

_SAID = "said"
_NOTHING = object()


class View(msgspec.Struct, Generic[S], frozen=True, kw_only=True):
    """How one kind of document tells a fault."""

    name: str
    shape: type[S]
    """What a document must have; it may have more."""
    show: Callable[[Fault], object]
    """The document of a fault that nobody else has told before. It must not look at what was said."""
    build: Callable[[S], Fault]
    """The fault a document tells."""
    refuses: Code = "PROTO_INVALID_MESSAGE"
    """The code for what is no such document."""
    leaves_process: bool = True
    """Whether secrets must be masked and long texts capped."""

    def read(self, document: object) -> Fault:
        """Return the fault `document` tells, remembering what a fault has no field for."""
        said = checked(document, self.refuses)
        carried = _carried(said)
        if carried is not None:
            del said[HOLDFAST]
        shape = shaped(said, self.shape, self.refuses)
        fault = self.build(shape) if carried is None else carried
        # Compared before anything is noted, so that a fault that came whole stays exactly as it was.
        told = self.told(fault)
        if carried is not None:
            told.pop(HOLDFAST, None)
        return fault if _same(told, said) else self._noted(fault, said)

    def told(self, fault: Fault, redactor: Redactor | None = None) -> dict[str, Any]:
        """Return the document of `fault` with what was said laid over it, not yet fit to leave the process."""
        if redactor is not None:
            # Before its texts are taken apart: half a secret is one nobody recognises.
            fault = fault.masked(redactor)
        shown: dict[str, Any] = jsonable(self.show(fault))
        patch = _patch(fault, self.name)
        if patch is None:
            return shown
        laid = patch.over(shown)
        try:
            shaped(laid, self.shape, self.refuses)
        except InvalidError:  # what was said came from outside, inside a whole fault: it may not bend the shape
            return shown
        return laid

    def sealed(
        self, document: dict[str, Any], carrying: Fault | None = None, redactor: Redactor | None = None
    ) -> dict[str, Any]:
        """Return `document` fit to be handed out, with the whole fault beside it if one is given.

        A redactor that knows more is used instead of the common one, and also where none is by default.
        """
        if carrying is not None:
            document = {**document, HOLDFAST: carrying}
        if redactor is None and self.leaves_process:
            redactor = REDACTOR
        sealed: dict[str, Any] = jsonable(document)
        return sealed if redactor is None else redactor.value(sealed)

    def write(self, fault: Fault, *, with_fault: bool, redactor: Redactor | None) -> dict[str, Any]:
        """Return the document of `fault`."""
        return self.sealed(self.told(fault, redactor), fault if with_fault else None, redactor)

    def _noted(self, fault: Fault, said: dict[str, Any]) -> Fault:
        patch = _Patch.between(jsonable(self.show(fault)), said)
        before = fault.context.get(_SAID)
        notes = {**(before if isinstance(before, dict) else {}), self.name: msgspec.to_builtins(patch)}
        return msgspec.structs.replace(fault, context={**fault.context, _SAID: notes})


def facts(context: Mapping[str, Any]) -> dict[str, Any]:
    """Return a fault's context, or what will become one, without our own notes in it."""
    return {name: value for name, value in context.items() if name != _SAID}


class _Patch(msgspec.Struct, frozen=True, omit_defaults=True):
    """What turns one JSON object into another. Unlike a JSON merge patch it can say null."""

    put: dict[str, Any] = {}
    drop: list[str] = []
    within: dict[str, _Patch] = {}

    @classmethod
    def between(cls, shown: dict[str, Any], said: dict[str, Any]) -> _Patch:
        put: dict[str, Any] = {}
        within: dict[str, _Patch] = {}
        for name, value in said.items():
            known = shown.get(name, _NOTHING)
            if _same(known, value):
                continue
            if isinstance(known, dict) and isinstance(value, dict):
                within[name] = cls.between(known, value)
            else:
                put[name] = value
        return cls(put=put, drop=[name for name in shown if name not in said], within=within)

    def over(self, shown: dict[str, Any]) -> dict[str, Any]:
        laid = {name: value for name, value in shown.items() if name not in self.drop} | self.put
        for name, inner in self.within.items():
            known = laid.get(name)
            laid[name] = inner.over(known if isinstance(known, dict) else {})
        return laid


def _patch(fault: Fault, name: str) -> _Patch | None:
    notes = fault.context.get(_SAID)
    if not isinstance(notes, dict) or name not in notes:
        return None
    try:
        return msgspec.convert(notes[name], _Patch)
    except msgspec.ValidationError:  # not written by us
        return None


def _carried(document: dict[str, Any]) -> Fault | None:
    """Return the fault that travels along. One we cannot read, from a newer Holdfast say, is a field like any other."""
    try:
        return msgspec.convert(document[HOLDFAST], Fault)
    except (KeyError, msgspec.ValidationError):
        return None


def _same(one: Any, other: Any) -> bool:
    """Whether two values are the same JSON; to Python `1`, `1.0` and `True` are equal, on the wire they are not."""
    match one, other:
        case dict(), dict():
            return one.keys() == other.keys() and all(_same(value, other[name]) for name, value in one.items())
        case list(), list():
            return len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and one == other
