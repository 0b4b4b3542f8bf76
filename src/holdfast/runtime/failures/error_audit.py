"""What an audit keeps of an exception: everything that its fault knows, and where it was raised."""

from __future__ import annotations

from typing import Any

from holdfast.classify.readers.exceptions import cause_of
from holdfast.faults import HoldfastError
from holdfast.runtime.fault_of import fault_of
from holdfast.runtime.secrets import process_redactor

__all__ = ["audit_shape"]

_FRAMES = 50


def audit_shape(error: BaseException) -> dict[str, Any]:
    """Return `for_audit()` of an exception's fault, with its `cause` and its `stack`: the innermost frames, the last one where it was raised.

    It is for an audit only: neither a user nor a model may see a stack.

        audit_shape(error)["stack"][-1]      # "/srv/app/tools.py:41 in fetch"
    """
    fault, redactor = fault_of(error), process_redactor()
    frames, place = [], error.__traceback__
    while place is not None:
        code = place.tb_frame.f_code
        frames.append(f"{code.co_filename}:{place.tb_lineno} in {code.co_qualname}")
        place = place.tb_next
    shape = fault.for_audit(redactor=redactor)
    shape["cause"] = shape["fault"].get("cause")
    if shape["cause"] is None and not isinstance(error, HoldfastError):
        # An exception of the program around an error of ours: the fault is the inner one's, and the words of the outer one are added here.
        shape["cause"] = redactor.value(cause_of(error))
    shape["stack"] = redactor.value(frames[-_FRAMES:])
    return shape
