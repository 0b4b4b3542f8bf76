"""Extensions by entry point: rules, sinks and providers that other packages bring.

from holdfast.extensions import Extensions

with Extensions() as extensions:
    for one in extensions.skipped:
        print(one.id, one.fault.message)
"""

from __future__ import annotations

from holdfast.extensions.extensions import GROUPS, Extension, Extensions
from holdfast.extensions.order import CONTRACT, Described, Skipped

__all__ = ["CONTRACT", "GROUPS", "Described", "Extension", "Extensions", "Skipped"]
