"""`@tool`: the effect of a function on the world, declared once and read by recoveries, steps and agents.

Invariant: the declared function is the same object and is called in the same way.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from enum import Enum
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, Never, TypeAlias, TypeVar, cast
from weakref import WeakKeyDictionary, WeakSet

import msgspec

from holdfast import options
from holdfast.faults import CATALOG, InvalidError
from holdfast.faults.catalog import suggested_codes
from holdfast.policies.backoff import Tries
from holdfast.policies.decide import EFFECTS, Effect
from holdfast.runtime.ambient import AMBIENT
from holdfast.runtime.callables import PLAN_ATTRIBUTE, is_async, name_of
from holdfast.runtime.locks import new_lock

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from types import CodeType, FrameType

    from holdfast.faults import Code

__all__ = [
    "CANNOT_TELL",
    "NOT_HAPPENED",
    "Happened",
    "ToolContract",
    "Verdict",
    "call_key",
    "calls_named_tool",
    "contract_of",
    "contract_of_call",
    "declare",
    "declare_by_call",
    "takes_arguments",
    "tool",
    "unsafe_tool_in",
]

F = TypeVar("F", bound="Callable[..., Any]")

_ATTRIBUTE = "__holdfast_tool__"
_BY_CALL = "__holdfast_tool_of_call__"
"""Where a method that calls one of several tools keeps the function that finds the contract of that tool."""
# `help(tool)` shows this default, so it reads as what it means.
_MISSING = cast("Effect", "required")


class Happened(msgspec.Struct, frozen=True):
    """The call happened, with this result: what a `verify` function returns.

    async def find(key: str, amount: int) -> Verdict:
        found = await bank.payment(key)
        return Happened(found.id) if found else NOT_HAPPENED
    """

    result: Any = None


class _Verdict(Enum):
    NOT_HAPPENED = "not happened"
    CANNOT_TELL = "cannot tell"

    def __repr__(self) -> str:
        return self.name


NOT_HAPPENED: Final = _Verdict.NOT_HAPPENED
"""The call did not happen: it may be made again. A `verify` function returns it."""
CANNOT_TELL: Final = _Verdict.CANNOT_TELL
"""Nobody can tell yet whether the call happened: a person has to find out. A `verify` function returns it."""
Verdict: TypeAlias = Happened | _Verdict
"""What a `verify` function returns: `Happened(result)`, `NOT_HAPPENED` or `CANNOT_TELL`."""


class ToolContract(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """The declaration of one tool, as `@tool` writes it. Wrong options raise `InvalidError`."""

    effect: Effect
    timeout: float | None = None
    """Seconds that one call may take. It wins over the policy's timeout."""
    retry: Tries | None = None
    """Attempts and backoff of this tool. They win over the policy's."""
    codes: Mapping[str, bool] = {}
    """Which failures of this tool are retried and which are not, by code. All others as their code says."""
    name: str = ""
    """The name that a model calls it by; empty: the function's own."""
    description: str = ""
    """What a model reads about it; empty: the first part of the function's docstring."""
    input: Any = None
    """The shape of the arguments: a JSON Schema, or a type; None: as the signature says."""
    output: Any = None
    """The shape of the result: a JSON Schema, or a type that results are checked against; None: as the signature says."""
    output_cap: int | None = None
    """The most bytes of a result that a model gets. The middle of a longer text is cut."""
    operation: str = ""
    """The kind of operation, such as `web-fetch`. It names a timeout for tools that declare none."""
    service: str = ""
    """What it depends on besides itself, such as `file-system`: that has a circuit of its own."""
    verify: Callable[..., Any] | None = None
    """Finds out whether a call with unknown outcome happened."""
    check: Callable[..., Any] | None = None
    """Looks at a result: whether the tool did what it says."""
    checks_arguments: bool = False
    """Whether `check` takes the arguments of the call after the result."""

    @property
    def about_repeating(self) -> ToolContract:
        """Only what says whether a call may be made again: its effect and its `verify`."""
        return ToolContract(effect=self.effect, verify=self.verify)

    @property
    def settles(self) -> bool:
        """Whether it has something to say about the outcome of a call."""
        return self.verify is not None or self.check is not None

    def __post_init__(self) -> None:
        options.one_of("tool.effect", self.effect, EFFECTS)
        options.seconds("tool.timeout", self.timeout, optional=True)
        if not isinstance(self.retry, Tries | None):
            raise InvalidError.at("tool.retry", "a Tries or None", self.retry)
        options.count("tool.output_cap", self.output_cap, optional=True)
        _check_codes(self.codes)
        for name, given in (("verify", self.verify), ("check", self.check)):
            if given is not None and not callable(given):
                raise InvalidError.at(f"tool.{name}", "a function", given)
        if self.verify is not None and self.effect != "unsafe":
            raise InvalidError.saying(
                "tool.verify",
                'effect="unsafe", because every other call is simply made again',
                f"effect={self.effect!r}",
            )


def _check_codes(codes: Any) -> None:
    if not isinstance(codes, Mapping):
        raise InvalidError.at("tool.codes", "a mapping of codes to True or False", codes)
    for code, retried in codes.items():
        if code not in CATALOG:
            raise InvalidError.at("tool.codes", f"a code of the catalog ({suggested_codes(code)})", code)
        options.flag(f"tool.codes[{code}]", retried)


@options.suggests
def tool(
    *bare: Never,
    effect: Effect = _MISSING,
    timeout: float | None = None,
    retry: Tries | None = None,
    codes: Mapping[Code, bool] | None = None,
    name: str = "",
    description: str = "",
    input: Any = None,  # noqa: A002 - the word of every tool API
    output: Any = None,
    output_cap: int | None = None,
    service: str = "",
    verify: Callable[..., Verdict | Awaitable[Verdict]] | None = None,
    check: Callable[..., Any] | None = None,
) -> Callable[[F], F]:
    """Declare what a function does to the world, so that recoveries know whether they may repeat it.

        from holdfast import tool

        @tool(effect="unsafe", timeout=60)
        def deploy(plan): ...

    effect: `read` changes nothing. `idempotent` may be repeated. `keyed` may be repeated with the same `call_key()`, which
        the function sends along. `unsafe` must not happen twice: if it may have happened, `OutcomeUnknownError` is raised.
    timeout: seconds that one call may take. It wins over the policy's timeout.
    retry: a `Tries` with attempts and backoff. They win over the policy's. Without it, a failure of the tool itself is not retried.
    codes: which failures are retried, such as `{"TOOL_RESOURCE_BUSY": True, "TOOL_TIMEOUT": False}`; others as their code says.
    name, description, input, output, output_cap: what a `Toolbox` shows to a model, where the function's own name, docstring
        and signature do not say it; and how many bytes of a result the model gets.
    service: what it depends on, such as `agent-sdk`; that has a circuit of its own in a `Toolbox`.
    verify: for unsafe tools: a function that finds out whether a call happened, after a crash or a failure that leaves it open. It
        gets the call's `call_key()` and its arguments, and returns `Happened(result)`, `NOT_HAPPENED` or `CANNOT_TELL`. It is retried
        like a read; if it fails, the outcome stays unknown.
    check: a function of the result, or of the result and the arguments, that catches a call which says done and did nothing. None or
        True accepts the result; False, a sentence, a code or a `Fault` makes it a failure (TOOL_EXECUTION_FAILED).

    `verify` and `check` may be async if the tool is.

    The function itself is returned, unchanged. Wrong options, `@tool` without parentheses, and a function that is already declared
    otherwise raise `InvalidError`.
    """
    _need_effect(bare, effect)
    contract = ToolContract(
        effect=effect,
        timeout=timeout,
        retry=retry,
        codes={str(code): wanted for code, wanted in (codes or {}).items()},
        name=name,
        description=description,
        input=input,
        output=output,
        output_cap=output_cap,
        service=service,
        verify=verify,
        check=check,
        checks_arguments=takes_arguments(check),
    )

    return _declaring(contract)


def _need_effect(bare: tuple[Any, ...], effect: Effect) -> None:
    # `@tool` without parentheses passes the function itself. Python's own TypeError would not say what to write instead.
    if bare or effect is _MISSING:
        raise InvalidError.saying(
            "tool", "@tool(effect=…) with read, idempotent, keyed or unsafe", "@tool without an effect"
        )


def _declaring(contract: ToolContract) -> Callable[[F], F]:
    """Return a decorator that leaves the contract on a function."""

    def decorate(fn: F) -> F:
        # Python calls the function inside, which does not have what is left on the method.
        declared: Any = fn.__func__ if isinstance(fn, staticmethod | classmethod) else fn
        options.function("tool", declared, "tool(effect=…)(f)")
        for option, given in (("verify", contract.verify), ("check", contract.check)):
            if given is not None and is_async(given) and not is_async(declared):
                raise InvalidError.saying(f"tool.{option}", "a plain function, as the tool is one", "an async function")
        _check_not_declared_otherwise(declared, contract)
        if (plan := getattr(declared, PLAN_ATTRIBUTE, None)) is not None:
            # `@tool` stands above `@recover`, which must know what it may repeat.
            plan.declare(contract)
        try:
            declare(declared, contract)
        except AttributeError:
            raise InvalidError.at(
                "tool", "a function with attributes; write a `def` that calls this one, and declare that", fn
            ) from None
        return fn

    return decorate


def _check_not_declared_otherwise(fn: Any, contract: ToolContract) -> None:
    """Raise `InvalidError` if another name of this function already has another contract: that name would mean something else then."""
    known = getattr(fn, "__dict__", {}).get(_ATTRIBUTE)
    # A wrapper has a copy of what its function declares, and may declare something of its own.
    if known is None or known == contract or known is getattr(getattr(fn, "__wrapped__", None), _ATTRIBUTE, None):
        return
    raise InvalidError.saying(
        "tool",
        "a function that is declared once; write a second `def` that calls this one, and declare that",
        f"{name_of(fn)}, which is declared with {known!r}",
    )


def takes_arguments(check: Callable[..., Any] | None) -> bool:
    """Whether a check takes more than the result."""
    if not callable(check):
        return False
    try:
        parameters = list(inspect.signature(check).parameters.values())
    except (TypeError, ValueError):
        # A function of C without a signature, such as `bool`.
        return False
    required = [one for one in parameters if one.default is one.empty]
    return len(required) > 1 or any(one.kind is one.VAR_POSITIONAL for one in parameters)


def declare(fn: Any, contract: ToolContract) -> None:
    """Leave a contract on a function or a callable object. Raises AttributeError if it takes no attributes."""
    setattr(fn, _ATTRIBUTE, contract)
    inner = getattr(fn, "__wrapped__", fn)
    # All functions that one decorator wraps have the code of its wrapper, whatever they declare.
    if contract.effect == "unsafe" and (inner is fn or hasattr(fn, PLAN_ATTRIBUTE)):
        function = getattr(inner, "__func__", inner)
        if isinstance(function, FunctionType):
            with _LOCK:
                _UNSAFE.setdefault(function.__code__, WeakSet()).add(function)


_UNSAFE: WeakKeyDictionary[CodeType, WeakSet[FunctionType]] = WeakKeyDictionary()
"""The functions that are declared unsafe, by their code. Functions that a factory makes have one code, and may not all be unsafe."""
_LOCK = new_lock()
"""A set that another thread adds to cannot be read."""


def unsafe_tool_in(error: BaseException) -> str:
    """Return the name of a function that is declared unsafe, if the error came out of it; empty if it came out of none."""
    traceback = error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        with _LOCK:
            unsafe = tuple(_UNSAFE.get(frame.f_code, ()))
        if any(_may_be_of(frame, function) for function in unsafe):
            return frame.f_code.co_qualname
        traceback = traceback.tb_next
    return ""


def _may_be_of(frame: FrameType, function: FunctionType) -> bool:
    """Return whether a frame with the code of a function refers to the same objects outside of it, as far as both can be seen."""
    seen = frame.f_locals
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            its_own = cell.cell_contents
        except ValueError:
            # Nothing is in it yet, or nothing any more.
            continue
        if seen.get(name, its_own) is not its_own:
            return False
    return True


def contract_of(fn: Any) -> ToolContract | None:
    """Return the contract of a function, method, partial or callable object; None if it has none."""
    for candidate in (fn, getattr(fn, "func", None), getattr(fn, "__wrapped__", None), getattr(fn, "__call__", None)):  # noqa: B004 - a callable object may declare its __call__
        contract = getattr(candidate, _ATTRIBUTE, None)
        if isinstance(contract, ToolContract):
            return contract
    return None


def declare_by_call(find: Callable[..., ToolContract | None]) -> Callable[[F], F]:
    """Declare a method that calls one of several tools: `find` gets what the method gets, and returns the contract of that tool."""

    def decorate(method: F) -> F:
        setattr(method, _BY_CALL, find)
        return method

    return decorate


def calls_named_tool(fn: Any) -> bool:
    """Whether it calls one of several tools, which an argument names."""
    return _finder(_whole(fn, (), {})[0]) is not None


def contract_of_call(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ToolContract | None:
    """Return the contract of a call: of its function, or of the tool that an argument names."""
    method, args, kwargs = _whole(fn, args, kwargs)
    find = _finder(method)
    if find is None:
        return contract_of(fn)
    try:
        found = find(method.__self__, *args, **kwargs)
    except TypeError:
        # The call itself says which argument is wrong.
        return None
    return found if isinstance(found, ToolContract) else None


def _finder(method: Any) -> FunctionType | None:
    # Some objects have every attribute that they are asked for.
    find = getattr(method, _BY_CALL, None)
    return find if isinstance(find, FunctionType) and hasattr(method, "__self__") else None


def _whole(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, tuple[Any, ...], Mapping[str, Any]]:
    while isinstance(fn, functools.partial):
        fn, args, kwargs = fn.func, (*fn.args, *args), {**fn.keywords, **kwargs}
    return fn, args, kwargs


def call_key() -> str:
    """Return the idempotency key of the call under way: every attempt gets the same one. Outside of a recovery it is empty.

    A function with `effect="keyed"` sends it along, and the other side recognises a call that it has already done:

        from holdfast import call_key, tool

        @tool(effect="keyed")
        def pay(amount):
            return http.post("/payments", json={"amount": amount}, headers={"Idempotency-Key": call_key()})

    In a step of a session the key is the same after a crash, too.
    """
    around = AMBIENT.get()
    if around is None:
        return ""
    step: Any = around
    while step is not None and not hasattr(step, "key_of"):
        step = step.around
    # In a durable step the key survives a crash of the process. Elsewhere it lives as long as the call.
    return around.run if step is None else str(step.key_of(around.run))
