"""The exceptions of workflows.

    WorkflowError               a workflow failed; `.environment`, `.expression` and `.position` say where it stood
    ├── WorkflowSyntaxError     the source cannot be read: `.position`
    └── UnboundSymbolError      the workflow uses a name that nothing has: `.symbol`

Invariant: what an error carries is masked and short enough to be stored, before it is raised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

from holdfast.faults import Fault, HoldfastError
from holdfast.views.task import TaskDocumentFields
from holdfast.workflow.syntax import Position

if TYPE_CHECKING:
    from holdfast.faults import Code


class WorkflowError(TaskDocumentFields, HoldfastError):
    """A workflow failed. The values that it had bound are kept. `type`, `reason`, `message` and `details` are those of its task document.

    For example:
        except WorkflowError as error:
            print(error.reason, error.position, error.environment)
    """

    code: ClassVar[Code] = "TASK_EVALUATION_FAILED"

    @property
    def expression(self) -> str:
        """The expression that failed, as text."""
        return str(self.fault.context.get("failing_expression", ""))

    @property
    def position(self) -> Position:
        """Where that expression stands in the source."""
        at = self.fault.context
        return Position(int(at.get("line", 1)), int(at.get("column", 1)))

    @property
    def environment(self) -> dict[str, Any]:
        """What was bound when it failed, masked and cut. Older values are left out first."""
        payload = None if self.fault.partial is None else self.fault.partial.payload
        return payload if isinstance(payload, dict) else {}


class WorkflowSyntaxError(WorkflowError):
    """The source of a workflow cannot be read. The message names the line and the column.

    >>> read("(list 1")
    WorkflowSyntaxError: TASK_SYNTAX_ERROR  line 1, column 1: expected a ) that closes this list, got the end of the source
    """

    code = "TASK_SYNTAX_ERROR"

    @classmethod
    def at_position(cls, position: Position, expected: str, received: str, source: str = "") -> Self:
        """Return the error of a place in a source; `source` is the name of its file."""
        where = f"{source}:{position.line}:{position.column}" if source else str(position)
        context = {"line": position.line, "column": position.column, "expected": expected, "received": received}
        context |= {"source": source} if source else {}
        return cls(Fault.of(cls.code, f"{where}: expected {expected}, got {received}", context=context))


class UnboundSymbolError(WorkflowError):
    """A workflow uses a name that is neither bound nor registered.

    For example:
        except UnboundSymbolError as error:
            print(error.symbol)
    """

    code = "TASK_UNBOUND_SYMBOL"

    @property
    def symbol(self) -> str:
        """The name."""
        return str(self.fault.context.get("symbol", ""))
