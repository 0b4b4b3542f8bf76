"""The fault of a tool's exception, for the model that called the tool.

Invariant: only text that the tool's author wrote for its callers is shown. It has no secrets and no paths of files.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar

from holdfast.classify.readers.exceptions import leaves
from holdfast.faults import Fault, HoldfastError
from holdfast.runtime.fault_of import fault_of
from holdfast.runtime.secrets import process_redactor

if TYPE_CHECKING:
    from holdfast.faults import Code

__all__ = ["ToolError", "fault_of_tool", "in_own_words"]

_DEFECTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    IndexError,
    KeyError,
    NameError,
    SyntaxError,
    TypeError,
)
"""Exceptions that Python raises for a mistake in the tool's code. Their texts are not for the model."""
_OWN_WORDS = frozenset({"SYS_PROGRAMMING_ERROR", "SYS_UNKNOWN", "TOOL_EXECUTION_FAILED"})
"""Codes of a failure whose text the tool's author has written."""
_PATH = re.compile(
    r"(?<![\w:/.~\\-])(?:[A-Za-z]:)?(?:[\w.~-]*[/\\])+[\w.-]*\.[A-Za-z]\w{0,4}\b|(?<![\w:/.])[/~][\w.~/-]{2,}"
)
"""A path of a file: it ends in a file's name, or it begins at the root or at home. It is looked for where a word begins, so that a long
line of dashes takes no longer than other text."""
_FOR_THE_MODEL = frozenset({"ToolException", "ToolError"})
"""Exceptions whose text is always meant for the model: those of LangChain and of MCP."""


class ToolError(HoldfastError):
    """A tool tells the model why it cannot do what was asked: `raise ToolError("no product Z-9; the list has A-1 to F-7")`.

    The model gets the text as it is and decides what to do; the call is not retried.
    """

    code: ClassVar[Code] = "TOOL_EXECUTION_FAILED"

    def __init__(self, given: Fault | str) -> None:
        super().__init__(Fault.of(self.code, context={"reason": given}) if isinstance(given, str) else given)


def fault_of_tool(error: Exception) -> Fault:
    """Return the fault of a tool's exception, with the tool's own words for the model where its author wrote them.

    `raise ValueError("unknown city; known are Oslo and Bergen")` is an answer to the model, and not a defect. The texts of
    failures that are known by themselves, such as those of connections, may name hosts, so they are not shown. Secrets and
    the paths of files are masked.
    """
    return in_own_words(error, fault_of(error))


def in_own_words(error: Exception, fault: Fault) -> Fault:
    """Return the fault of a tool's exception as `fault_of_tool` does, for a caller that has the fault of the exception."""
    if isinstance(error, HoldfastError):
        return fault
    # Masked first, which also cuts it: megabytes are not searched for paths.
    said = _said_in(error) if isinstance(error, ExceptionGroup) else ""
    text = _PATH.sub("[path]", process_redactor().text(said or str(error).strip()))
    is_written = any(cls.__name__ in _FOR_THE_MODEL for cls in type(error).__mro__)
    # The name of an exception such as NoSuchCityError says that a thing is missing. The tool itself was found: it raised this.
    is_own = fault.code in _OWN_WORDS or (fault.code == "TOOL_NOT_FOUND" and fault.rule == "python.by_name")
    is_own = is_own and not isinstance(error, _DEFECTS)
    if not text or not (is_written or is_own):
        return fault
    # What a recovery found out about an unsafe call stays. That of a failure that nobody knows is only a default.
    happened = fault.maybe_executed and fault.code != "SYS_UNKNOWN"
    context = {"reason": text}
    shown = Fault.of(
        "TOOL_EXECUTION_FAILED", context=context, cause=fault.cause, partial=fault.partial, maybe_executed=happened
    )
    return shown.with_attempts(fault.attempts).masked(process_redactor())


def _said_in(group: ExceptionGroup[Exception]) -> str:
    """Return the words of the failures in a group: its own are those of `asyncio.TaskGroup`, and say nothing."""
    told = (fault_of_tool(each).context.get("reason") for each in leaves(group) if isinstance(each, Exception))
    return "; ".join(dict.fromkeys(each for each in told if isinstance(each, str)))
