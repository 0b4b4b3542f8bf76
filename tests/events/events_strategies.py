"""Events of every kind, with everything they can hold."""

from __future__ import annotations

import typing
from typing import get_args

from hypothesis import strategies as st

from holdfast.events import Correction, Event, HookState, HookType, WaitBegan, WaitReason
from holdfast.faults import CODES, Attempt, Cause, Fault, Partial, Scope

__all__ = ["KINDS", "events"]

KINDS: tuple[type, ...] = typing.get_args(Event)

_texts = st.text(max_size=12)
_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_texts, inner, max_size=2),
    max_leaves=5,
)
_seconds = st.floats(0, 1e10)
_counts = st.integers(1, 99)
_faults = st.builds(
    Fault,
    code=st.sampled_from(CODES),
    message=_texts,
    retryable=st.booleans(),
    scope=st.sampled_from(Scope),
    retry_after=st.none() | _seconds,
    context=st.dictionaries(_texts, _json, max_size=2),
    partial=st.none() | st.builds(Partial, payload=_json),
    cause=st.none() | st.builds(Cause, type=_texts, message=_texts),
    attempts=st.lists(st.builds(Attempt, number=_counts), max_size=2).map(tuple),
)
_fields: dict[str, st.SearchStrategy] = {
    "at": _seconds,
    "run": _texts,
    "operation": _texts,
    "key": _texts,
    "v": st.integers(1, 9),
    "session": _texts,
    "turn": st.integers(0, 9),
    "step": _texts,
    "attempt": _counts,
    "max_attempts": st.none() | _counts,
    "left": st.none() | _seconds,
    "attempts": _counts,
    "delay": _seconds,
    "after": _seconds,
    "took": _seconds,
    "used": _seconds,
    "limit": _seconds,
    "requested": st.booleans(),
    "exhausted": st.booleans(),
    "circuit": _texts,
    "within": _texts,
    "root": _texts,
    "request": _texts,
    "began": st.none() | _seconds,
    "target": _texts,
    "model": _texts,
    "tokens_in": st.none() | _counts,
    "tokens_out": st.none() | _counts,
    "tokens_cached": st.none() | _counts,
    "maybe_billed": st.booleans(),
    "via": _texts,
    "unit": _texts,
    "items": st.integers(0, 9),
    "rule": _texts,
    "command": st.sampled_from(["retry-now", "fall-back", "cancel"]),
    "by": _texts,
    "how": st.sampled_from(["continue", "restart"]),
    "cause": _texts,
    "until": st.none() | _seconds,
    "because": st.sampled_from(CODES),
    "action": _texts,
    "actor": _texts,
    "message": _texts,
    "level": st.sampled_from(["none", "long", "high"]),
    "size": _counts,
    "capacity": _counts,
    "code": st.none() | st.sampled_from(CODES),
    "supervisor": _texts,
    "agent": _texts,
    "tried": st.lists(_texts, max_size=3).map(tuple),
    "people": st.integers(min_value=0, max_value=9),
    "child": _texts,
    "incarnation": _counts,
    "restarts": _counts,
    "window": _seconds,
    "child_only": st.booleans(),
    "server": _texts,
    "place": _texts,
    "usd": st.none() | _seconds,
    "why": _texts,
    "failed": _texts,
    "number": _counts,
    "stages": st.lists(_texts, max_size=3).map(tuple),
    "stage": _texts,
    "phase": _texts,
    "outcome": _texts,
    "depth": st.integers(0, 9),
    "max_reasks": _counts,
    "parts": _counts,
    "again": st.booleans(),
    "would": st.sampled_from(["nothing", "retry", "repair", "fall-back", "give-up", "wait", "reject"]),
    "waits": _seconds,
    "stops": st.none() | _seconds,
    "requests": _counts,
    "unwanted": st.integers(0, 9),
    "saved": _seconds,
    "accepted": st.booleans(),
    "unjudged": st.tuples(_texts),
    "before": _texts,
    "edge": _texts,
    "skipped_extensions": st.lists(st.dictionaries(_texts, _texts, max_size=2), max_size=2).map(tuple),
    "what": st.sampled_from(get_args(HookState)),
    "hook": st.sampled_from(get_args(HookType)),
    "validator": _texts,
    "call": _texts,
    "path": _texts,
    "exit_code": st.none() | st.integers(0, 2),
    "correction": st.none() | st.builds(Correction, before=_texts, after=_texts),
}


def _events_of(kind: type) -> st.SearchStrategy:
    hints = typing.get_type_hints(kind)
    own: dict[str, st.SearchStrategy] = {}
    for field in kind.__struct_fields__:
        if field == "fault":
            own[field] = st.none() | _faults if type(None) in typing.get_args(hints[field]) else _faults
        elif field in ("from_", "to"):
            own[field] = _texts if hints[field] is str else st.sampled_from(hints[field])
        elif field == "reason" and kind is WaitBegan:
            own[field] = st.sampled_from(get_args(WaitReason))
        elif field == "reason":
            own[field] = st.none() | st.sampled_from(CODES) if hints[field] is not str else _texts
        elif field == "outcome" and hints[field] is not str:
            own[field] = st.sampled_from(typing.get_args(hints[field]))
        else:
            own[field] = _fields[field]
    return st.builds(kind, **own)


events = st.one_of([_events_of(kind) for kind in KINDS])
