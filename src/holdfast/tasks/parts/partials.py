"""The size of the partial results of a failed task: the newest ones stay whole, older ones are put in short or cut.

Invariant: what is bounded says so, and a summary that fails hides nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from holdfast.tasks.limits import in_time
from holdfast.tasks.task import as_json

if TYPE_CHECKING:
    from holdfast.faults import Fault
    from holdfast.runtime.runtime import Runtime

__all__ = ["MOST_BYTES", "Summary", "bounded"]

Summary: TypeAlias = Callable[[Sequence[Any]], Any]
"""Returns a short text in the place of the older partial results. It may be async."""

MOST_BYTES = 65_536
"""Of partial results; older ones are cut first."""
_CUT = "[older results were cut]"
_SUMMARY_CHARS = 4_096
"""Of the text that stands for older results."""


async def bounded(fault: Fault, summary: Summary | None, runtime: Runtime) -> Fault:
    """Return the fault with partial results of at most 65,536 bytes. Older ones are summarised or cut first, with a mark."""
    partial = fault.partial
    if partial is None or len(as_json(partial.payload)) <= MOST_BYTES:
        return fault
    payload: Any = partial.payload
    if isinstance(payload, list):
        older, kept = _newest(payload)
        payload = [await _mark_of(older, summary, runtime), *kept]
    if len(as_json(payload)) > MOST_BYTES:
        text = payload if isinstance(payload, str) else as_json(payload)
        payload = _CUT + text.encode("utf-8", "replace")[-(MOST_BYTES - len(_CUT)) :].decode("utf-8", "ignore")
    return msgspec.structs.replace(fault, partial=msgspec.structs.replace(partial, payload=payload, truncated=True))


async def _mark_of(older: list[Any], summary: Summary | None, runtime: Runtime) -> str:
    """Return what stands in the place of older results: their summary, or that they were cut."""
    if summary is None or not older:
        return _CUT
    try:
        text = summary(older)
        text = await in_time(text) if isinstance(text, Awaitable) else text
    except Exception as error:  # noqa: BLE001 - the task has failed already, and that must not be hidden
        runtime.bus.hook_raised(summary, "tasks.summary", error, at=runtime.clock.wall())
        return _CUT
    return f"[{len(older)} older results in short] {str(text)[:_SUMMARY_CHARS]}"


def _newest(results: list[Any]) -> tuple[list[Any], list[Any]]:
    """Return the older results, and the newest ones that have room beside what stands for the others."""
    kept: list[Any] = []
    # Brackets, and the mark with its quotes and comma.
    left = MOST_BYTES - _SUMMARY_CHARS - len(_CUT) - 5
    for each in reversed(results):
        left -= len(as_json(each)) + 1
        if left < 0 and kept:
            break
        kept.append(each)
    return results[: len(results) - len(kept)], kept[::-1]
