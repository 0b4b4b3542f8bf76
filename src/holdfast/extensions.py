"""Extensions by entry point: rules, sinks and providers that other packages bring.

from holdfast.extensions import Extensions

with Extensions() as extensions:
    for one in extensions.skipped:
        print(one.id, one.fault.message)
"""

from __future__ import annotations

from holdfast.policies.extensions import CONTRACT, Described, Skipped
from holdfast.runtime.extensions import GROUPS, Extension, Extensions

__all__ = ["CONTRACT", "GROUPS", "Described", "Extension", "Extensions", "Skipped"]
