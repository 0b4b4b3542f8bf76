"""Extensions: rules, sinks and providers that other installed packages bring, found by their entry points.

    from holdfast.extensions import Extensions

    with Extensions() as extensions:
        for one in extensions.skipped:
            print(one.id, one.fault.message)

    extensions     `Extensions` starts and stops them, each step in a thread with a time limit
    entry_points   finds the entry points and reads what each extension declares
    order          decides which extensions start, in which order, and which are skipped

Nothing starts by itself: importing Holdfast runs no code of other packages. The room may import runtime and what stands before it.
"""

from __future__ import annotations

from holdfast.extensions.entry_points import GROUPS, Extension
from holdfast.extensions.extensions import Extensions
from holdfast.extensions.order import CONTRACT, Described, Skipped

__all__ = ["CONTRACT", "GROUPS", "Described", "Extension", "Extensions", "Skipped"]
