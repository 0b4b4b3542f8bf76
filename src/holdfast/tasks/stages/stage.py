"""`Stage`: what one stage of a stage machine does, and its limits. It is a value, checked when it is made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeAlias, get_args

import msgspec

from holdfast import options
from holdfast.faults import Fault, HoldfastError, InvalidError
from holdfast.policies import Backoff, Tries
from holdfast.runtime.callables import is_generator
from holdfast.tools.schema import schema_mistake, schema_of
from holdfast.workflow.stage_plan import Go, PlanNode, Resolution

__all__ = ["Detail", "Stage", "StageFunction"]

if TYPE_CHECKING:
    from holdfast.tasks.stages.act import StageWork
    from holdfast.tasks.stages.context import StageContext
    from holdfast.tasks.stages.grants import Proposal

    StageFunction: TypeAlias = Callable[[StageContext], Any]
    """A function of the `StageContext`. It may be async."""
    _Act: TypeAlias = "Callable[[StageWork], Any] | _Runs"
    _Grant: TypeAlias = Callable[[Proposal], Any]
else:
    # These modules import this one. The annotations of a stage must be readable at run time all the same.
    StageFunction = _Act = _Grant = Callable[..., Any]

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")

Detail: TypeAlias = Literal["typed", "full"]
_FUNCTIONS = ("setup", "init", "check_gate", "assert_", "exit", "grant")


class _Runs(Protocol):
    """An agent, ours or another one."""

    @property
    def run(self) -> Callable[..., Any]: ...


class Stage(options.Options, Generic[T], frozen=True, omit_defaults=True, repr_omit_defaults=True):
    """One stage: what it does, which tools it may use, what it must return, and what happens if it fails.

        review = Stage(
            "review",
            Agent("reviewer", "claude-sonnet", [read_file, comment]),
            allowed_tools=["read_file"],
            body="Review the change {change}.",
            completion={"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]},
            turn_cap=20,
            retry=Tries(attempts=2),
            resolution="skip",
            assert_=lambda ctx: "ok" if ctx.act.value["ok"] else "retry",
        )

    id: its name in plans, results and events.
    act: an agent, or a function of `StageWork` that returns the result. It cannot see the context: `body`, or what `init` returns, is all
        that it gets. A function that must not run twice is declared with `@tool(effect="unsafe")`.
    allowed_tools: the names of the tools that may be called in Act; None: all that the agent has.
    completion: the form of the result: a JSON Schema, or a type. An agent ends Act by calling `completion_tool` with it. This checks the
        form, not the truth; that is the task of `assert_`.
    turn_cap: how many times the model may answer in one attempt. At the cap Act ends, which is no error: by default another attempt follows.
    retry: the attempts of one execution, and the delays between them. Each attempt begins with Setup. Failed requests are retried
        before that, by `recover`.
    resolution: what happens if the stage cannot recover: `skip` goes on without it, `retry-later` executes it again after a time of
        `later`, `abort-workflow` ends the run with `StageError`.
    body: what Act is to do. `{name}` is replaced by the value of that name in the context, or by the result of the stage of that name.
    setup, init, check_gate, assert_, exit: the functions of the other phases, each of the `StageContext`. `setup` may change it. `init` may
        return the text for Act. `check_gate` returns `proceed`, `retry` or `skip`. `assert_` returns `ok`, `retry`, `skip` or `fail`. `exit` may
        return `fail`.
    next: where it leads: an id, several ids, `Go(…)` or `END`; or a function that returns one of them. None: to the next stage of the list.
    grant: a function of a `Proposal`, which returns `approve`, `deny` or `defer` for exactly this tool call, or None.
    later: how often the stage is executed in all with `retry-later`, and the delays between. After that the run ends, or with `ask` the
        operator is asked whether it is executed again.
    detail: what the model gets of a failed tool call: the `typed` shape, or `full`, with everything that is known, for debugging.
    join: whether it runs only as the join of parallel stages.

    Raises TASK_TURN_CAP_TOO_LOW, TASK_COMPLETION_SCHEMA_INVALID, TASK_PARALLEL_INVALID, and `InvalidError` for other wrong options.
    """

    id: str
    act: _Act
    allowed_tools: Any = None
    completion: type[T] | Mapping[str, Any] | None = None
    turn_cap: int = 20
    retry: Tries = Tries(attempts=2, backoff=Backoff(initial=0))
    resolution: Resolution = "abort-workflow"
    name: str = ""
    """What people call it; by default its id."""
    body: str = ""
    completion_tool: str = "complete"
    setup: StageFunction | None = None
    init: StageFunction | None = None
    check_gate: StageFunction | None = None
    assert_: StageFunction | None = None
    exit: StageFunction | None = None
    next: str | Go | Iterable[str] | StageFunction | None = None
    grant: _Grant | None = None
    later: Tries = Tries(attempts=3, backoff=Backoff(initial=300, cap=3600))
    ask: bool = False
    detail: Detail = "typed"
    join: bool = False

    def __post_init__(self) -> None:
        where = f"stage {self.id}"
        options.name("stage.id", self.id)
        self._check_cap()
        if not callable(self.act) and not hasattr(self.act, "run"):
            raise InvalidError.at(f"{where}: act", "an agent, or a function of the work", self.act)
        for name in _FUNCTIONS:
            given = getattr(self, name)
            if given is not None and not callable(given):
                raise InvalidError.at(f"{where}: {name}", "a function", given)
        for name in ("act", "next", *_FUNCTIONS):
            if is_generator(getattr(self, name)):
                # A call of it would do nothing.
                raise InvalidError.saying(f"{where}: {name}", "a function that returns", "a generator function")
        for name in ("retry", "later"):
            tries: Any = getattr(self, name)
            if not isinstance(tries, Tries) or tries.attempts is None:
                raise InvalidError.at(f"{where}: {name}", "Tries with a number of attempts", tries)
        options.one_of(f"{where}: resolution", self.resolution, get_args(Resolution))
        options.one_of(f"{where}: detail", self.detail, get_args(Detail))
        options.tool_name(f"{where}: completion_tool", self.completion_tool)
        options.flag(f"{where}: join", self.join)
        options.flag(f"{where}: ask", self.ask)
        self._check_body(where)
        if not callable(self.next):
            Go.of(self.next, f"{where}: next")
        self._normalise(where)

    def _check_cap(self) -> None:
        cap: Any = self.turn_cap
        if not isinstance(cap, int) or isinstance(cap, bool):
            raise InvalidError.at(f"stage {self.id}: turn_cap", "a number of turns, at least 1", cap)
        if cap < 1:
            context = {"stage": self.id, "received": cap}
            raise HoldfastError(Fault.of("TASK_TURN_CAP_TOO_LOW", context=context))

    def _check_body(self, where: str) -> None:
        body: Any = self.body
        if not isinstance(body, str):
            raise InvalidError.at(f"{where}: body", "a text", body)

    def _normalise(self, where: str) -> None:
        given = self.allowed_tools
        if given is not None:
            if isinstance(given, str) or not isinstance(given, Iterable):
                raise InvalidError.at(f"{where}: allowed_tools", "names of tools", given)
            msgspec.structs.force_setattr(self, "allowed_tools", frozenset(given))
        if self.completion is not None:
            _schema(self.id, self.completion)

    @property
    def title(self) -> str:
        """What messages call it."""
        return self.name or self.id

    @property
    def completion_schema(self) -> dict[str, Any] | None:
        """The JSON Schema of its result; None: the result has any form."""
        return None if self.completion is None else _schema(self.id, self.completion)

    @property
    def attempts(self) -> int:
        """How often it is tried in one execution."""
        assert self.retry.attempts is not None
        return self.retry.attempts

    def node(self) -> PlanNode:
        """Return it as the plan knows it."""
        decides = callable(self.next)
        leads_to = None if decides else Go.of(self.next, f"stage {self.id}: next")
        return PlanNode(id=self.id, resolution=self.resolution, leads_to=leads_to, decides=decides, is_join=self.join)


def _schema(stage: str, given: Any) -> dict[str, Any]:
    """Return the JSON Schema of a completion, which must be that of an object: a tool gets it."""
    reason: str | None
    try:
        schema = dict(given) if isinstance(given, Mapping) else schema_of(given)
        reason = schema_mistake(schema)
    except TypeError as error:
        schema, reason = {}, str(error)
    if reason is None and schema.get("type") != "object":
        reason = f"$.type: expected 'object', because a tool gets the result; got {schema.get('type')!r}"
    if reason is not None:
        raise HoldfastError(Fault.of("TASK_COMPLETION_SCHEMA_INVALID", context={"stage": stage, "reason": reason}))
    return schema
