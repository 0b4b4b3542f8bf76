"""What a model is told when a tool failed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from agents import ModelBehaviorError

from holdfast.faults import Fault
from holdfast.runtime.fault_of import fault_of

if TYPE_CHECKING:
    from agents import RunContextWrapper

__all__ = ["tool_failure"]


def tool_failure(context: RunContextWrapper[Any], error: Exception) -> str:  # noqa: ARG001 - the SDK's signature
    """Tell the model what failed, whether to try again and when: `@function_tool(failure_error_function=tool_failure)`.

    The text is `fault.for_model()` as JSON: no stack, path, host or secret. Of a call that may have happened it says so,
    where the SDK's own text asks the model to try again.
    """
    return json.dumps(_fault(error).for_model(), default=str, ensure_ascii=False)


def _fault(error: Exception) -> Fault:
    if isinstance(error, ModelBehaviorError):
        # The arguments were no JSON, or not those of the tool.
        return Fault.of("TOOL_INPUT_INVALID", context={"reason": str(error)})
    # The SDK hands a cancelled tool over inside an exception of its own.
    return fault_of(getattr(error, "cancelled_error", error))
