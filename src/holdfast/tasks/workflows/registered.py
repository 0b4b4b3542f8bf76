"""What a program may call: tasks, tools, functions, an agent for templates, the context, and programs.

Invariant: a program reaches nothing of Python that is not registered here. A call gives back plain JSON values, the same ones in the first
run and after a restart.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import msgspec

from holdfast import options
from holdfast.faults import HoldfastError, InvalidError
from holdfast.policies.profiles import TASK
from holdfast.runtime.callables import is_async, name_of
from holdfast.runtime.operation.postconditions import check_plain_call
from holdfast.runtime.runtime import default_runtime
from holdfast.runtime.tool import ToolContract, contract_of
from holdfast.tools import Toolbox, run
from holdfast.tools.threads import call_function
from holdfast.workflow.failure import misfit
from holdfast.workflow.frames import SPECIAL
from holdfast.workflow.primitives import PRIMITIVES
from holdfast.workflow.requests import Operators

if TYPE_CHECKING:
    from holdfast.runtime.runtime import Runtime
    from holdfast.sessions.session import Session
    from holdfast.workflow.requests import CallRequest

__all__ = ["REQUEST", "Callables", "Registered", "Scripts"]

Callables: TypeAlias = Mapping[str, Any] | Iterable[Any]
"""Functions or agents by name, or a list of functions that are called by their own names."""
Scripts: TypeAlias = Literal["unsafe", "idempotent"]
REQUEST = "__holdfast_request__"
"""The attribute of a function that performs a task: the request for that task."""
_SCRIPT_S = TASK.timeout("script")
"""Seconds that a program of `system:run_script` may take."""


class _Entry(NamedTuple):
    name: str
    fn: Any
    contract: ToolContract | None
    params: tuple[str, ...] | None


class Registered:
    """The registered names of a workflow, and how each is performed."""

    def __init__(
        self,
        tasks: Callables,
        tools: Toolbox | Iterable[Any],
        functions: Callables,
        primitives: Mapping[str, Callable[..., Any]],
        *,
        agent: Any,
        context: Callable[..., Any] | None,
        scripts: Scripts | None,
        runtime: Runtime | None,
    ) -> None:
        self._tasks = _entries("workflow.tasks", tasks)
        self._functions = _entries("workflow.functions", functions)
        self._tools = tools if isinstance(tools, Toolbox) else Toolbox(list(tools))
        for tool in self._tools:
            _check_free("workflow.tools", tool.name)
        self._agent = agent
        self._context = context
        self._scripts: Scripts | None = scripts
        if scripts is not None:
            options.one_of("workflow.scripts", scripts, ("unsafe", "idempotent"))
        _check_primitives(primitives)
        self.operators = Operators(
            tasks={name: entry.params for name, entry in self._tasks.items()},
            tools={tool.name: _properties(tool.arguments.schema) for tool in self._tools},
            functions=frozenset(self._functions),
            primitives=dict(primitives),
            context=context is not None,
            scripts=scripts is not None,
            fault_of=(runtime or default_runtime()).fault_of,
        )

    def contract(self, call: CallRequest) -> ToolContract | None:
        """Return what a call declares about its effect; None if it declares nothing."""
        match call.kind:
            case "task":
                return self._tasks[call.name].contract
            case "function":
                return self._functions[call.name].contract
            case "tool":
                return self._tools[call.name].contract
            case "script":
                return ToolContract(effect="idempotent" if self._scripts == "idempotent" else "unsafe")
        return None

    def whole(self, call: CallRequest) -> CallRequest:
        """Return the call with what its registered function holds: the arguments of a `functools.partial`, and the request of a task."""
        entries = {"task": self._tasks, "function": self._functions}.get(call.kind, {})
        fn = entries[call.name].fn if call.name in entries else None
        if isinstance(fn, partial):
            call = msgspec.structs.replace(call, args=(*fn.args, *call.args), inputs={**fn.keywords, **call.inputs})
            fn = fn.func
        return msgspec.structs.replace(call, request=getattr(fn, REQUEST, {}))

    async def perform(self, call: CallRequest, session: Session | None) -> Any:
        """Make a call and return its result. It raises what is called raises."""
        if call.misfit is not None:
            raise HoldfastError(call.misfit)
        match call.kind:
            case "task":
                return await _call(self._tasks[call.name].fn, call, session)
            case "function":
                return await _call(self._functions[call.name].fn, call, session)
            case "tool":
                return await self._tools.call(call.name, call.inputs)
            case "context":
                return await _call(self._context, call, session)
            case "script":
                return await _run_script(call)
        return await self._ask(call, session)

    async def _ask(self, call: CallRequest, session: Session | None) -> Any:
        assert call.template is not None
        if self._agent is None:
            expected = (
                f"an agent for the tasks of defatom, such as Workflow.load(…, agent=Agent(…)), to perform {call.name}"
            )
            raise InvalidError.saying("workflow.agent", expected, "none")
        reply = await self._agent.run(call.template.prompt(call.inputs), session=session)
        return getattr(reply, "text", reply)


def _entries(where: str, given: Callables) -> dict[str, _Entry]:
    named = given.items() if isinstance(given, Mapping) else [(name_of(fn).rpartition(".")[2], fn) for fn in given]
    found: dict[str, _Entry] = {}
    for name, fn in named:
        options.name(where, name)
        if not callable(fn) and not _is_agent(fn):
            raise InvalidError.at(f"{where}.{name}", "a function or an agent", fn)
        _check_free(where, name)
        entry = _Entry(name, fn, contract_of(fn), _params(fn))
        found[name] = entry
        # Names in workflows have hyphens, names in Python have underscores.
        if not isinstance(given, Mapping) and "_" in name:
            found.setdefault(name.replace("_", "-"), entry)
    return found


def _check_free(where: str, name: str) -> None:
    if name in SPECIAL or name in PRIMITIVES:
        raise InvalidError.saying(f"{where}.{name}", "a name that the language does not have", f"the form {name}")


def _is_agent(fn: Any) -> bool:
    return callable(getattr(fn, "run", None)) and hasattr(fn, "name")


def _params(fn: Any) -> tuple[str, ...] | None:
    if _is_agent(fn) and not inspect.isfunction(fn):
        return ("prompt",)
    signature = _signature(fn)
    if signature is None:
        return None
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    if inspect.Parameter.VAR_KEYWORD in kinds or inspect.Parameter.VAR_POSITIONAL in kinds:
        return None
    return tuple(name for name in signature.parameters if name != "session")


def _properties(schema: Any) -> tuple[str, ...] | None:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return tuple(properties) if isinstance(properties, dict) else None


def _check_primitives(primitives: Mapping[str, Any]) -> None:
    for name, fn in primitives.items():
        if not callable(fn) or is_async(fn):
            raise InvalidError.saying(
                f"workflow.primitives.{name}",
                "a plain function of values; register a function that waits as a task",
                "a coroutine function" if callable(fn) else type(fn).__name__,
            )
        if name in SPECIAL:
            raise InvalidError.saying(f"workflow.primitives.{name}", "a name that no form has", name)


async def _call(fn: Any, call: CallRequest, session: Session | None) -> Any:
    if _is_agent(fn) and not inspect.isfunction(fn):
        reply = await fn.run(str(call.inputs.get("prompt", "")), session=session)
        return getattr(reply, "text", reply)
    signature, given = _signature(fn), dict(call.inputs)
    if signature is not None:
        if "session" in signature.parameters:
            given["session"] = session
        try:
            signature.bind(*call.args, **given)
        except TypeError as error:
            raise HoldfastError(misfit(f"{call.name}: {error}")) from error
    value = await call_function(fn, call.args, given)
    return await check_plain_call(fn, value, call.args, call.inputs)


def _signature(fn: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(fn)
    except (TypeError, ValueError):
        return None


async def _run_script(call: CallRequest) -> dict[str, Any]:
    """Run a program; a failed one is a result, because the workflow decides about it."""
    command = call.inputs.get("command", call.args[0] if call.args else "")
    words = ["bash", "-c", command] if isinstance(command, str) else [str(word) for word in command]
    if not command:
        raise InvalidError.saying("system:run_script", "a command", "nothing")
    finished = await run(words, timeout=_SCRIPT_S, check=False)
    return {"stdout": finished.stdout, "stderr": finished.stderr, "exit_code": finished.exit_code}
