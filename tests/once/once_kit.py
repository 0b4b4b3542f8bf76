"""Calls and log entries, as the tests of `once/` need them."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.once.identity import Identity, step_name
from holdfast.once.records import StepEnded, StepStarted
from holdfast.once.replay import Calling


def identity(fn: str = "bank:pay", args: str = "a" * 64, **facts: Any) -> Identity:
    return Identity(fn, args, **{"is_full": True, **facts})


def calling(of: Identity, task: str = "", attempts: dict[str, int] | None = None, **facts: Any) -> Calling:
    return Calling(of, attempts or {}, task=task, **facts)


def started(of: Identity, use: int = 1, **facts: Any) -> StepStarted:
    return StepStarted(**_of(of, use), **{"effect": "unsafe", **facts})


def ended(of: Identity, use: int = 1, *, ok: bool = True, **facts: Any) -> StepEnded:
    return StepEnded(ok=ok, **_of(of, use), **{"effect": "unsafe", **facts})


def failed(of: Identity, document: Any, **facts: Any) -> StepEnded:
    return ended(of, ok=False, unknown=True, result=msgspec.Raw(msgspec.json.encode(document)), **facts)


def _of(known: Identity, use: int) -> dict[str, Any]:
    # A step with a key is recorded with the name of its function.
    fn = known.fn if known.is_full else "pay" if known.key else ""
    return {"turn": 0, "step": step_name(known, use), "args": known.args, "fn": fn, "place": known.place}
