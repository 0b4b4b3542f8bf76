"""`Toolbox`: the tools of an agent, as a model sees them and as it calls them.

    schemas for the SDK ◀─ Toolbox ◀─ the model's call ─▶ arguments checked ─▶ recover ─▶ the tool ─▶ result checked ─▶ answer

Invariant: a call of a model never raises something that is not classified, and `answer` never raises for a failed tool: the model
gets a typed shape and decides.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import secrets
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from holdfast import options
from holdfast.faults import (
    CODES,
    Err,
    Fault,
    HoldfastError,
    InvalidError,
    ItemError,
    Ok,
    Outcome,
    OutcomeUnknownError,
    Partial,
)
from holdfast.faults.redaction import encodable
from holdfast.once.identity import call_key_in
from holdfast.policies import INTERACTIVE, Policy
from holdfast.policies.circuit import BRIDGE
from holdfast.policies.policy import DEFAULT_CIRCUIT
from holdfast.policies.profiles import PROFILES
from holdfast.policies.target import Target
from holdfast.runtime.acts import acted
from holdfast.runtime.callables import is_async, is_generator, name_of
from holdfast.runtime.failures.evidence import in_doubt
from holdfast.runtime.failures.tool_fault import fault_of_tool
from holdfast.runtime.fault_of import fault_of, found_not_to_have_happened
from holdfast.runtime.recover import recover
from holdfast.runtime.runtime import default_runtime
from holdfast.runtime.secrets import process_redactor
from holdfast.runtime.suppress import suppressed
from holdfast.runtime.tool import ToolContract, contract_of, declare, declare_by_call, takes_arguments
from holdfast.stores.failpoints import FAILPOINTS
from holdfast.tools.results import as_text, masked_document, show, structured, written
from holdfast.tools.schema import arguments_of, check_document, description_of, result_of
from holdfast.tools.threads import call_function
from holdfast.views import wire

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from holdfast.faults import Code
    from holdfast.policies.profiles import ProfileName
    from holdfast.runtime.runtime import Runtime

__all__ = ["TIME_LIMIT", "Answer", "Tool", "Toolbox", "as_tool", "collect", "shown_result", "structured_result"]

TIME_LIMIT: ContextVar[float | None] = ContextVar("holdfast_tool_limit", default=None)
"""The seconds that the call under way may take, for tools that keep their time limit themselves."""

SchemaStyle: TypeAlias = Literal["anthropic", "openai", "openai-responses", "mcp"]
_STYLES: tuple[SchemaStyle, ...] = ("anthropic", "openai", "openai-responses", "mcp")
_OUTPUT_CAP = 65_536
"""The most bytes of a result that a model gets, where the tool declares no other number."""
_UNDECLARED = ToolContract(effect="unsafe")
"""A function that declares nothing may do anything."""


class Tool:
    """One tool: a function with a name, a schema and a contract. `process_tool`, `http_tool` and the bundled tools are of this kind.

    It is called like an async function, and a session's `step` takes it, too:

        read = read_file("docs")
        text = await read(path="README.md")
    """

    def __init__(
        self, fn: Callable[..., Any], contract: ToolContract, *, ends_itself: float = 0.0, place: str = ""
    ) -> None:
        self.name = contract.name or name_of(fn).rpartition(".")[2]
        options.name("tool.name", self.name)
        if is_generator(fn):
            # A call would do nothing, and the model would get the name of an object as its success.
            expected = "a function that returns its result; collect what it yields in a list"
            raise InvalidError.saying(f"tool {self.name}", expected, "a generator function")
        if contract.verify is not None and not is_async(fn):
            contract = msgspec.structs.replace(contract, verify=_in_a_thread(contract.verify))
        self.contract = contract
        self.description = contract.description or description_of(fn)
        self.fn = fn
        self.ends_itself = ends_itself
        """It keeps its time limit itself, and tells what it had done by then. It needs so many seconds more for that."""
        self.place = place
        """What the tool works on, such as its directory. What fails there says nothing about another one, so each has its circuit."""
        self._owner = f"tool {self.name} {name_of(fn)} {place}"
        self.arguments = arguments_of(self.name, fn, contract.input)
        self.result = result_of(self.name, fn, contract.output)
        self.__qualname__ = self.__name__ = self.name
        declare(self, contract)

    async def __call__(self, **arguments: Any) -> Any:
        """Call the tool once, without recovery."""
        FAILPOINTS.reach(f"calling {self.name}")
        value = await self._called(arguments)
        FAILPOINTS.reach(f"called {self.name}")
        return value

    async def _called(self, arguments: dict[str, Any]) -> Any:
        try:
            return await call_function(self.fn, (), arguments, owner=self._owner)
        except BaseException as error:
            if not ends_only_its_call(error):
                raise
            # A tool may end its call, and neither the task of its caller nor the program.
            context = {"tool": self.name, "reason": f"it raised {type(error).__name__}"}
            stray = isinstance(error, asyncio.CancelledError)
            code: Code = "TOOL_CANCELLED" if stray else "TOOL_EXECUTION_FAILED"
            raise HoldfastError(Fault.of(code, context=context, maybe_executed=True)) from error

    def inside_step(self, arguments: dict[str, Any]) -> ToolContract:
        """Return what a step declares that makes one call of the tool, with these arguments: its effect and its `verify`."""
        contract, verify = self.contract.about_repeating, self.contract.verify
        if verify is None:
            return contract

        def found(key: str, **_: Any) -> Any:
            # The tool is the first call inside of its step, and sends that call's key.
            return verify(call_key_in(key), **self.arguments.read(arguments))

        return msgspec.structs.replace(contract, verify=found)

    def __repr__(self) -> str:
        return f"<tool {self.name} ({self.contract.effect})>"


def _in_a_thread(verify: Callable[..., Any]) -> Callable[..., Any]:
    """Return the `verify` of a plain function as one that runs where the function does: it may block, and must not block the loop."""

    @functools.wraps(verify)
    async def found(*args: Any, **kwargs: Any) -> Any:
        return await call_function(verify, args, kwargs)

    return found


def ends_only_its_call(error: BaseException) -> bool:
    """Whether a tool called `sys.exit()`, its library panicked, or what it waited for was closed, or cancelled while nobody cancelled the call.

    The caller's cancellation, Ctrl-C and what a program made to end itself are not the tool's to raise.
    """
    if isinstance(error, asyncio.CancelledError):
        return is_stray(error)
    if isinstance(error, GeneratorExit):
        # It comes from inside of the tool. If the call itself is closed, it is raised in the caller's own frame.
        return error.__traceback__ is not None and error.__traceback__.tb_next is not None
    if isinstance(error, BaseExceptionGroup):
        return not isinstance(error, Exception) and all(
            isinstance(each, Exception) or ends_only_its_call(each) for each in error.exceptions
        )
    # The panic of an extension in Rust. Each extension has a class of its own with this name.
    return isinstance(error, SystemExit) or any(cls.__name__ == "PanicException" for cls in type(error).__mro__)


def is_stray(error: BaseException) -> bool:
    """Whether a cancellation is not that of the present task: nobody has cancelled it."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and not task.cancelling()


def as_tool(given: Any) -> Tool:
    """Return the tool of a function. A function without `@tool` counts as unsafe."""
    if isinstance(given, Tool):
        return given
    if not callable(given) or inspect.isclass(given):
        raise InvalidError.at("toolbox", "functions with @tool(effect=…), or tools", given)
    return Tool(given, contract_of(given) or _UNDECLARED)


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a model gets for its call: text, and whether the call failed.

    answer = await toolbox.answer("search", {"pattern": "TODO"})
    reply = {"type": "tool_result", "tool_use_id": call.id, "content": answer.content, "is_error": answer.is_error}
    """

    content: str
    is_error: bool = False
    value: Any = None
    """The result, or what there was of it."""
    fault: Fault | None = None
    """Why it failed; None if it did not."""

    @classmethod
    def failed(cls, fault: Fault) -> Answer:
        """Return the answer for a call that failed: the shape of the fault that a model may see."""
        shown = fault.for_model(redactor=process_redactor())
        value = None if fault.partial is None else fault.partial.payload
        content = encodable(as_text(shown))
        if len(content) > _OUTPUT_CAP:
            # JSON writes a backslash as two, and a control character as six.
            content = as_text(structured(shown, _OUTPUT_CAP))
        return cls(content=content, is_error=True, fault=fault, value=value)

    @classmethod
    def not_made(cls, fault: Fault, tool: str) -> Answer:
        """Return the answer for a call that failed, and of which the tool's `verify` found that it did not happen."""
        code = fault.context.get("failed_with", fault.code)
        known: Any = code if code in CODES and code != OutcomeUnknownError.code else "TOOL_EXECUTION_FAILED"
        return cls.failed(found_not_to_have_happened(Fault.of(known, context={"tool": tool})))


class Toolbox:
    """The tools of an agent.

        from holdfast.tools import Toolbox, bash, read_file

        toolbox = Toolbox([read_file("."), bash("."), my_function])
        reply = client.messages.create(…, tools=toolbox.schemas())
        answer = await toolbox.answer(call.name, call.input)

    tools: functions with `@tool(effect=…)`, and what `process_tool`, `http_tool` and the bundled tools return. A function that
        declares no effect counts as unsafe. A plain function runs in a thread.
    policy: for all calls; by default the one that is configured for `tool:NAME`, else one with the numbers of `profile`. A tool's own
        contract wins.
    profile, actor: where a tool declares no timeout and none is configured for `tool:NAME`, the profile's for its name, its kind of
        operation, then for the kind of actor. By default the runtime's profile.
        With the profiles `spec016` and `actor` a tool over its time is tried again, if its effect allows that.
    prefix: before the tool's name in circuits and events: two agents' tools of one name need not share a circuit.
    keep: a folder for results that are too large for a model. Each gets a file there, which only its owner may read, and the model
        learns its name; nobody removes the files. By default only what the model gets is kept.

    Two tools of one name raise `InvalidError`, and so does a name that providers reject. They take 1 to 64 of A-Z, a-z, 0-9, `_` and `-`:
    a lambda needs `tool(name=…)`.
    """

    @options.suggests
    def __init__(
        self,
        tools: Iterable[Any],
        *,
        policy: Policy | None = None,
        profile: ProfileName | None = None,
        actor: str = "",
        prefix: str = "",
        keep: str | Path | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        if profile is None:
            profile = (runtime or default_runtime()).profile.name
        options.one_of("toolbox.profile", profile, PROFILES)
        self._keep = None if keep is None else Path(keep)
        self._tools: dict[str, Tool] = {}
        self._calls: dict[str, Any] = {}
        for given in options.listed("toolbox", tools, "functions with @tool(effect=…), or tools"):
            tool = as_tool(given)
            options.tool_name("tool.name", tool.name)
            if tool.name in self._tools:
                raise InvalidError.saying("toolbox", "tools with different names", f"two tools named {tool.name!r}")
            self._tools[tool.name] = tool
            target = Target(tool=f"{prefix}{tool.name}", service=tool.contract.service)
            limit = _timeout(tool, target, profile, actor, runtime or default_runtime())
            chosen = policy or _policy_for(target, profile, runtime or default_runtime())
            if tool.place:
                target = msgspec.structs.replace(target, tool=f"{target.tool}@{tool.place}")
            self._calls[tool.name] = _recovering(tool, limit, target, chosen, runtime)

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __getitem__(self, name: str) -> Tool:
        """Return a tool by its name. An unknown name raises `HoldfastError` (TOOL_NOT_FOUND), which lists the known ones."""
        found = self._tools.get(name)
        if found is None:
            known = tuple(self._tools)
            hint = options.suggestion(str(name), known) if known else "the toolbox is empty"
            context = {"tool": str(name), "supported": list(known)}
            raise HoldfastError(Fault.of("TOOL_NOT_FOUND", f"unknown tool `{name}`; {hint}", context=context))
        return found

    def schemas(self, style: SchemaStyle = "anthropic") -> list[dict[str, Any]]:
        """Return the tools as the SDK takes them: `anthropic`, `openai` (chat), `openai-responses` or `mcp`.

        client.chat.completions.create(…, tools=toolbox.schemas("openai"))
        """
        options.one_of("toolbox.style", style, _STYLES)
        return [masked_document(_shown(tool, style)) for tool in self]

    def _effect_of_call(self, name: str, arguments: Any = None) -> ToolContract | None:
        """Return what a step that calls this tool by its name does to the world."""
        del arguments
        tool = self._tools.get(name)
        return None if tool is None else ToolContract(effect=tool.contract.effect)

    def _contract_of_call(self, name: str, arguments: Any = None) -> ToolContract | None:
        """Return the same, with what finds out the result of the call."""
        tool = self._tools.get(name)
        return None if tool is None else ToolContract(effect=tool.contract.effect, verify=_verify_in(tool, arguments))

    @declare_by_call(_contract_of_call)
    async def call(self, name: str, arguments: Any = None) -> Any:
        """Call a tool with the arguments of a model (an object, or its JSON), and return the result.

            matches = await toolbox.call("search", {"pattern": "TODO"})

        Raises `HoldfastError` for an unknown tool (TOOL_NOT_FOUND), `InvalidError` for arguments that do not fit
        (TOOL_INPUT_INVALID), `OutcomeUnknownError` if an unsafe tool may have happened, and what the tool raises. A result of which a
        part is missing is a `Partial`.
        """
        tool = self[name]
        return tool.result.check(await self._calls[name](**tool.arguments.read(arguments)))

    @declare_by_call(_effect_of_call)
    async def outcome(self, name: str, arguments: Any = None) -> Outcome[Any]:
        """Call a tool and return `Ok` or `Err`. It raises only cancellations.

        match await toolbox.outcome("deploy", {"plan": "v2"}):
            case Ok(value=value): ...
            case Err(fault=fault): print(fault.for_model())
        """
        try:
            tool = self[name]
            ended: Outcome[Any] = await self._calls[name].outcome(**tool.arguments.read(arguments))
            if isinstance(ended, Ok):
                tool.result.check(ended.value)
        except HoldfastError as error:
            return Err(error.fault, error)
        except Exception as error:  # noqa: BLE001 - a value's own code may raise anything, and a model reads what went wrong
            return Err(fault_of(error), error)
        return _for_caller(ended, tool) if isinstance(ended, Err) else ended

    @declare_by_call(_effect_of_call)
    async def answer(self, name: str, arguments: Any = None) -> Answer:
        """Call a tool for a model: its result as text, or the typed shape of its failure. It raises only cancellations.

        answer = await toolbox.answer(call.name, call.input)
        """
        match await self.outcome(name, arguments):
            case Ok(value=value):
                return await self._answered(self._tools[name], value)
            case Err(fault=fault):
                return Answer.failed(fault)
        raise AssertionError

    async def _answered(self, tool: Tool, value: Any) -> Answer:
        whole = written(value)
        shown = show(whole, _cap_of(tool))
        text = shown.text
        if shown.cut and self._keep is not None:
            text += await self._kept(tool.name, whole, shown.total, self._keep)
        return Answer(content=text, value=value)

    @staticmethod
    async def _kept(name: str, whole: str | bytes, size: int, folder: Path) -> str:
        """Keep the whole of a result that is only shown in part; return where it is, as the model learns it."""
        path = folder / f"{name}-{secrets.token_hex(6)}{'.bin' if isinstance(whole, bytes) else '.txt'}"
        try:
            await asyncio.to_thread(_keep, path, whole)
        except OSError as error:
            # The call has happened. That its result could not be kept must not make it a failure.
            suppressed(error, "the whole result of a tool could not be kept")
            return f"\n[the whole result, {size} bytes, could not be kept]"
        return f"\n[the whole result, {size} bytes, is in {path}]"

    def tool_error(self, fault: Fault, *, tool: str, tool_call_id: str = "") -> dict[str, Any]:
        """Return the message that tells a remote client about a failed call: type `tool_error`, as the bridge sends it.

        `retryable` and `max_retries` are what the tool's contract allows.
        """
        contract = self[tool].contract
        named = msgspec.structs.replace(fault, context={**fault.context, "tool": tool, "tool_call_id": tool_call_id})
        retried = contract.codes.get(fault.code, fault.retryable)
        attempts = None if contract.retry is None else contract.retry.attempts
        most = None if attempts is None or not retried else attempts - 1
        return wire.tool_error(named, retryable=retried, max_retries=most, literal=True)


def _verify_in(tool: Tool, arguments: Any) -> Callable[..., Any] | None:
    """Return the tool's `verify` for a step that calls the tool. The tool sends the key of the first call inside of the step."""
    verify = tool.contract.verify
    if verify is None:
        return None
    return lambda key, *_, **__: verify(f"{key}/1", **tool.arguments.read(arguments))


def shown_result(tool: Tool, value: Any) -> str:
    """Return a tool's result as the text that a model gets: without our secrets, and cut to the tool's limit."""
    return show(written(value), _cap_of(tool)).text


def structured_result(tool: Tool, value: Any) -> Any:
    """Return a tool's result as JSON values of its schema: without our secrets, and cut to the tool's limit.

    Raises `InvalidError` (TOOL_OUTPUT_MALFORMED) for a value that does not fit, and `HoldfastError` (TOOL_OUTPUT_TOO_LARGE) where
    nothing that fits is short enough.
    """
    shown = value.payload if isinstance(value, Partial) else value
    try:
        found = structured(shown, _cap_of(tool))
        check_document(tool.result.schema or {}, found)
    except ValueError as error:
        if show(written(shown), _cap_of(tool)).cut:
            raise HoldfastError(
                Fault.of("TOOL_OUTPUT_TOO_LARGE", context={"tool": tool.name}, maybe_executed=True)
            ) from error
        raise tool.result.misfit(str(error)) from error
    return found


def _cap_of(tool: Tool) -> int:
    return tool.contract.output_cap or _OUTPUT_CAP


async def collect(
    fn: Callable[[Any], Awaitable[Any]], items: Iterable[Any], *, concurrency: int = 8
) -> list[Any] | Partial:
    """Call `fn` for each item: return the list of results, or a `Partial` with the results and an error for each item that failed.

        @tool(effect="read")
        async def fetch_all(urls: list[str]) -> list[str]:
            return await collect(fetch, urls)

    If every item fails, the first failure is raised.
    """
    options.count("collect.concurrency", concurrency)
    gate = asyncio.Semaphore(concurrency)

    async def one(item: Any) -> Ok[Any] | Err:
        async with gate:
            try:
                return Ok(value=await fn(item))
            except Exception as error:  # noqa: BLE001 - it becomes the entry of this item
                return Err(fault_of(error), error)

    given = list(items)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(item)) for item in given]
    ended = [task.result() for task in tasks]
    good = [each.value for each in ended if isinstance(each, Ok)]
    bad = [(item, each) for item, each in zip(given, ended, strict=True) if isinstance(each, Err)]
    if not bad:
        return good
    if not good:
        bad[0][1].unwrap()
    errors = tuple(ItemError.of(item, each.fault) for item, each in bad)
    return Partial(payload=good, errors=errors, complete=len(good), expected=len(given))


def _timeout(tool: Tool, target: Target, profile: str, actor: str, runtime: Runtime) -> float:
    """Return the seconds that a call may take: what the tool declares, else what its target names, else the profile's."""
    if tool.contract.timeout is not None:
        return tool.contract.timeout
    named = runtime.timeout_named_for(target)
    if named is not None:
        return named
    names = (tool.name, tool.contract.operation or "tool-execution", actor)
    return PROFILES[profile].timeout(*filter(None, names))


def _policy_for(target: Target, profile: ProfileName, runtime: Runtime) -> Policy:
    """Return the configured policy of a tool. Where none is, a model waits for it: three attempts at what passes by itself."""
    configured = runtime.policy_for(target)
    if configured is not INTERACTIVE:
        return configured
    # A model can do something else meanwhile, so it learns at once that a circuit is open.
    return Policy(profile="stud" if profile == "holdfast" else profile, wait_for_circuit=False)


def _recovering(tool: Tool, limit: float, target: Target, policy: Policy, runtime: Runtime | None) -> Any:
    """Return the tool as a function that recovers."""
    contract = tool.contract
    # The outer limit stands behind the tool's own: a tool that was cancelled from outside could not tell what it had done.
    contract = msgspec.structs.replace(
        contract, timeout=limit + tool.ends_itself, checks_arguments=takes_arguments(contract.check)
    )

    async def call(**arguments: Any) -> Any:
        token = TIME_LIMIT.set(limit)
        try:
            value = await tool(**arguments)
        except BaseException as error:
            is_cut = contract.effect == "unsafe" and not isinstance(error, Exception)
            if is_cut or in_doubt(error, fault_of(error), contract):
                acted(tool.name)
            raise
        finally:
            TIME_LIMIT.reset(token)
        if contract.effect == "unsafe":
            acted(tool.name)
        return value

    call.__name__ = call.__qualname__ = tool.name
    declare(call, contract)
    if (contract.service or tool.place) and policy.circuit is DEFAULT_CIRCUIT:
        policy = policy.replace(circuit=BRIDGE)
    return recover(target, policy, runtime=runtime)(call)


def _shown(tool: Tool, style: SchemaStyle) -> dict[str, Any]:
    schema = tool.arguments.schema
    match style:
        case "anthropic":
            return {"name": tool.name, "description": tool.description, "input_schema": schema}
        case "openai":
            function = {"name": tool.name, "description": tool.description, "parameters": schema}
            return {"type": "function", "function": function}
        case "openai-responses":
            return {"type": "function", "name": tool.name, "description": tool.description, "parameters": schema}
        case "mcp":
            shown = {"name": tool.name, "description": tool.description, "inputSchema": schema}
            output = tool.result.schema
            # MCP knows only objects as structured results.
            return {**shown, "outputSchema": output} if output and output.get("type") == "object" else shown


def _for_caller(ended: Err, tool: Tool) -> Err:
    """Return the failure of a tool with the words that its author wrote, also where recovery is off."""
    error = ended.error
    if not isinstance(error, Exception) or isinstance(error, HoldfastError):
        return ended
    fault = fault_of_tool(error)
    if in_doubt(error, ended.fault, tool.contract):
        # It raised, and nobody but its author knows what it had done by then.
        fault = msgspec.structs.replace(fault, maybe_executed=True)
    return Err(fault, error)


def _keep(path: Path, written: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        if isinstance(written, bytes):
            file.write(written)
            return
        for at in range(0, len(written), _PART):
            file.write(written[at : at + _PART].encode("utf-8", "replace"))


_PART = 1_048_576
