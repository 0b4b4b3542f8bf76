"""Turn a live exception and its chain of causes into evidence. Optional libraries are never imported.

Invariant: nothing here performs I/O or raises. A response's body is used only if it was already read. Every attribute
access is guarded. Chains are bounded.
"""

from __future__ import annotations

from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from holdfast.classify.body import MAX_CHARS, Findings, read_object
from holdfast.classify.evidence import Evidence, Raised, Source
from holdfast.classify.phrases import codes_in
from holdfast.classify.readers.responses import gather, lower_headers, read_grpc
from holdfast.classify.readers.text import read_named, read_process
from holdfast.faults import REDACTOR, Cause, HoldfastError
from holdfast.faults.redaction import LONGEST_SECRET

if TYPE_CHECKING:
    from collections.abc import Iterator

# Bounds: a chain may be circular, and a group may hold thousands of leaves.
_MAX_CHAIN = 12
_MAX_LEAVES = 10_000
_CAUSE_CHARS = 4_096

# These libraries raise their wrappers inside an `except` without `from`, so the __context__ is the cause.
_WRAPPERS = ("openai", "anthropic", "litellm", "httpx", "httpx2", "requests", "urllib3", "aiohttp", "botocore", "google",
             "langchain", "langchain_core", "instructor", "pydantic_ai", "mcp", "urllib")  # fmt: skip


# The attribute in which each library keeps the underlying exception.
_REASONS = {"requests": "reason", "urllib3": "reason", "urllib": "reason", "aiohttp": "os_error"}
_CODE_IS_STATUS = frozenset({"google", "urllib", "starlette", "werkzeug", "tornado"})
"""Libraries whose `code` attribute is the HTTP status. In other libraries it is deprecated or means something else."""
_GRPC_ROOTS = frozenset({"grpc", "google"})
_TYPED = frozenset({*_WRAPPERS, *_GRPC_ROOTS, "json", "msgspec", "pydantic", "pydantic_core", "subprocess", "asyncio", "websockets",
    "sqlite3", "psycopg", "asyncpg", "sqlalchemy", "pymysql", "aiomysql", "mysql", "pymongo", "redis", "oracledb"})  # fmt: skip
"""Libraries whose errors tell what failed: their classes are not those that a program raises for reasons of its own."""

Shape: TypeAlias = tuple[Any, ...]
"""All that an exception and its causes consist of, as one hashable value."""

_PLAIN_BASES = frozenset({object, BaseException, Exception, RuntimeError, RecursionError, NotImplementedError, TypeError,
    ValueError, LookupError, KeyError, IndexError, ArithmeticError, ZeroDivisionError, OverflowError, AssertionError,
    EOFError, MemoryError, OSError, BlockingIOError, ChildProcessError, ConnectionError, BrokenPipeError,
    ConnectionAbortedError, ConnectionRefusedError, ConnectionResetError, FileExistsError, FileNotFoundError,
    InterruptedError, IsADirectoryError, NotADirectoryError, PermissionError, ProcessLookupError, TimeoutError,
})  # fmt: skip
"""Classes without state besides `args` and, for an OSError, its numbers and names. An ImportError, for one, has more."""
_PLAIN_NAMES = frozenset({
    "__annotations__", "__dict__", "__doc__", "__firstlineno__", "__init__", "__module__", "__new__", "__qualname__",
    "__reduce__", "__slots__", "__static_attributes__", "__weakref__",
})  # fmt: skip
"""What the class of a plain exception may define. A property or a `__str__` could read anything."""
_PLAIN_VALUES = frozenset({str, int, type(None)})
_PLAIN_CHARS = 500
_PLAIN_CHAIN = 4


def read_exception(error: BaseException, *, provider: str = "", now: float | None = None) -> Evidence:
    """Return the evidence of one exception without its causes."""
    provider = provider or _provider(error)
    raised = Raised(_module(error), type(error).__name__, _names(error), _errno(error))
    # The exit code is checked first, because CalledProcessError has an exit code and no response.
    exit_code = _exit_code(error)
    if exit_code is not None:
        return _with_class(read_process(exit_code, _output(error), provider=provider, now=now), raised)
    grpc = _grpc_status(error)
    if grpc is not None:
        return _with_class(read_grpc(grpc, _details(error), provider=provider, now=now), raised)
    response = _attr(error, "response")
    body = _body(error, response)
    found = Findings() if body is None else read_object(body)
    if not found.messages:
        # The response has no message, so the exception's own text is read.
        return _by_text(error, raised, response, found, provider=provider, now=now)
    evidence = gather(
        found,
        Source.EXCEPTION,
        status=_status(error, response),
        headers=_headers(error, response),
        provider=provider,
        now=now,
    )
    return _with_class(evidence, raised)


def _by_text(
    error: BaseException, raised: Raised, response: Any, found: Findings, *, provider: str, now: float | None
) -> Evidence:
    named = read_named(
        raised.module,
        raised.type,
        _text(error),
        names=raised.names,
        errno=raised.errno,
        status=_status(error, response),
        headers=_headers(error, response),
        provider=provider,
        now=now,
    )
    if not found.codes:
        return named
    codes = (*reversed(found.codes), *named.codes)
    return msgspec.structs.replace(named, codes=codes, matched=named.matched | codes_in(codes))


def is_ordinary(error: BaseException) -> bool:
    """Whether only its class name and its words say what failed: a RuntimeError, a ValueError, a class of the program's own.

    An exception with a status, an exit code or a number of the system is not ordinary. Neither is one of our own, one of a
    library whose errors the rules know, or one that was caused by such an error.
    """
    if isinstance(error, BaseExceptionGroup):
        return any(is_ordinary(leaf) for leaf in leaves(error))
    return all(_is_ordinary(one) for one in causes(error))


def _is_ordinary(error: BaseException) -> bool:
    if not isinstance(error, Exception) or isinstance(error, (HoldfastError, OSError, MemoryError)):
        return False
    if isinstance(error, BaseExceptionGroup):
        return is_ordinary(error)
    if not _TYPED.isdisjoint(kind.__module__.partition(".")[0] for kind in type(error).__mro__):
        return False
    return (
        _exit_code(error) is None and _grpc_status(error) is None and _status(error, _attr(error, "response")) is None
    )


def read_class(error: BaseException) -> Evidence:
    """Return the evidence of an exception's class alone, without its words and its causes."""
    return read_named(_module(error), type(error).__name__, "", names=_names(error))


def shape_of(error: BaseException) -> Shape | None:
    """Return all that a plain exception consists of; None if it is not plain. Two of one shape are read the same way.

    Reading an exception takes a hundred times as long as computing its shape. In an outage every call raises one of the
    same shape.
    """
    shape: list[Any] = []
    one: BaseException | None = error
    while one is not None:
        kind: Any = type(one)
        if not _is_plain(kind) or len(shape) >= _PLAIN_CHAIN:
            return None
        values, args = one.args, len(one.args)
        if isinstance(one, OSError):
            values = (*values, one.errno, one.strerror, one.filename, one.filename2)
        if one.__dict__:
            # What an earlier recovery left here says nothing about the failure.
            for name, value in tuple(one.__dict__.items()):
                if type(name) is not str or name[:10] != "__holdfast":
                    values += (name, value)
        for value in values:
            if type(value) not in _PLAIN_VALUES or (type(value) is str and len(value) > _PLAIN_CHARS):
                return None
        shape.append((kind, args, values))
        one = one.__cause__
    return tuple(shape)


# Bounded, because it keeps the classes alive.
@lru_cache(maxsize=512)
def _is_plain(kind: Any) -> bool:
    """Whether exceptions of this class have no state besides their `args` and their own attributes."""
    root = kind.__module__.partition(".")[0] if isinstance(kind.__module__, str) else ""
    if root in _WRAPPERS or root in _REASONS or root in _GRPC_ROOTS or type(kind) is not type:
        # Of these, more is read: the `__context__`, or what a method returns.
        return False
    return all(cls in _PLAIN_BASES or _PLAIN_NAMES.issuperset(vars(cls)) for cls in kind.__mro__)


def _with_class(evidence: Evidence, raised: Raised) -> Evidence:
    """Add the exception to the evidence of its response: its class name is a machine code too (AWS, gRPC)."""
    codes = (*evidence.codes, raised.type.lower())
    return msgspec.structs.replace(evidence, raised=raised, codes=codes, matched=evidence.matched | codes_in(codes))


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the exception and its causes, outermost first.

    `__cause__` is always followed. `__context__` is followed only for libraries known to wrap without `from`, because
    elsewhere it may be an unrelated error that was being handled (R21). The same holds for one that was handled around the call:
    a program that calls a fallback in an `except` block handles the failure of something else.
    """
    seen: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and not any(current is one for one in seen) and len(seen) < _MAX_CHAIN:
        seen.append(current)
        yield current
        current = _next_cause(current, seen)


def leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """Return the exceptions inside a group and inside its nested groups."""
    found: list[BaseException] = []
    pending: list[BaseException] = [group]
    while pending and len(found) < _MAX_LEAVES:
        current = pending.pop(0)
        if isinstance(current, BaseExceptionGroup):
            pending.extend(current.exceptions)
        else:
            found.append(current)
    return found


def cause_of(error: BaseException) -> Cause:
    """Return the exception and its chain as a value, secrets masked."""
    first, *rest = list(causes(error))
    if isinstance(error, BaseExceptionGroup):
        return _cause(first, tuple(_cause(leaf) for leaf in leaves(error)))
    return _cause(first, tuple(_cause(one) for one in rest))


def _cause(error: BaseException, chain: tuple[Cause, ...] = ()) -> Cause:
    module = _module(error)
    name = type(error).__qualname__
    return Cause(
        type=name if module == "builtins" else f"{module}.{name}",
        message=REDACTOR.text(_text(error)[: _CAUSE_CHARS + LONGEST_SECRET])[:_CAUSE_CHARS],
        chain=chain,
    )


def _next_cause(error: BaseException, outer: list[BaseException]) -> BaseException | None:
    if error.__cause__ is not None:
        return error.__cause__
    root = _module(error).partition(".")[0]
    # Some libraries keep the reason as data. Only their attribute is read: in other libraries it may be deprecated.
    held = _attr(error, _REASONS[root]) if root in _REASONS else None
    for reason in (held, *_first_arg(error)):
        if isinstance(reason, BaseException):
            return reason
    if root in _WRAPPERS and not error.__suppress_context__ and _was_handled_inside(error.__context__, outer):
        return error.__context__
    return None


def _was_handled_inside(context: BaseException | None, outer: list[BaseException]) -> bool:
    """Whether an error was handled in a frame that one of these came through. Without a traceback, nobody can say that it was not."""
    if context is None or context.__traceback__ is None:
        return True
    handler = context.__traceback__.tb_frame
    for error in outer:
        traceback = error.__traceback__
        while traceback is not None:
            if traceback.tb_frame is handler:
                return True
            traceback = traceback.tb_next
    return False


def _first_arg(error: BaseException) -> tuple[Any, ...]:
    args = _attr(error, "args")
    return args[:1] if isinstance(args, tuple) else ()


def _attr(target: Any, name: str) -> Any:
    """Read an attribute of a foreign object. A property of an incomplete response may raise any exception."""
    try:
        return getattr(target, name, None)
    except Exception:  # noqa: BLE001 - see above
        return None


def _call(target: Any, name: str) -> Any:
    method = _attr(target, name)
    if not callable(method):
        return method
    try:
        return method()
    except Exception:  # noqa: BLE001 - a foreign method; if it fails, only one fact is lost
        return None


def _text(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - a broken __str__ must not hide the failure
        return ""
    # str(KeyError("x")) is "'x'"; a subclass may print something else. The rules compare the quoted key.
    if isinstance(error, KeyError) and error.args and isinstance(error.args[0], str):
        text = repr(error.args[0])
    return text[:MAX_CHARS]


def _module(error: BaseException) -> str:
    module: Any = type(error).__module__
    return module if isinstance(module, str) else ""


def _names(error: BaseException) -> tuple[str, ...]:
    return tuple(cls.__name__ for cls in type(error).__mro__ if cls is not object)


def _errno(error: BaseException) -> int | None:
    if not isinstance(error, OSError):
        return None
    number = _attr(error, "errno")
    return number if isinstance(number, int) else None


def _provider(error: BaseException) -> str:
    root = _module(error).partition(".")[0]
    return root if root in ("openai", "anthropic", "cohere", "mistralai", "groq", "together", "botocore") else ""


def _status(error: BaseException, response: Any) -> int | None:
    names = (
        ("status_code", "status", "statusCode", "code")
        if _module(error).partition(".")[0] in _CODE_IS_STATUS
        else ("status_code", "status", "statusCode")
    )
    # `code` on an instance is plain data; `code` on a class may be a deprecated property.
    own = vars(error).get("code") if hasattr(error, "__dict__") else None
    for value in (
        *(_attr(error, name) for name in names),
        _attr(response, "status_code"),
        _attr(response, "status"),
        _attr(response, "statusCode"),
        own,
    ):
        number = _whole(_attr(value, "value") if isinstance(value, Enum) else value)
        if number is not None and 100 <= number < 600:
            return number
    metadata = response.get("ResponseMetadata") if isinstance(response, dict) else None
    return _whole(metadata.get("HTTPStatusCode")) if isinstance(metadata, dict) else None


def _whole(value: Any) -> int | None:
    if isinstance(value, str) and value.isdecimal() and len(value) <= 3:
        return int(value)
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _headers(error: BaseException, response: Any) -> dict[str, str]:
    for held in (
        _attr(response, "headers"),
        _attr(error, "headers"),
        # LiteLLM builds a response without headers and keeps the received headers here.
        _attr(error, "litellm_response_headers"),
        _boto_headers(response),
    ):
        if held is not None:
            try:
                headers = lower_headers(_raw_headers(held) or dict(held.items()))
            except Exception:  # noqa: BLE001, S112 - the object is not a mapping
                continue
            if headers:
                return headers
    return {}


def _raw_headers(held: Any) -> dict[str, str] | None:
    """Return the headers as httpx received them, decoded together: `items` of httpx decodes each of them twice."""
    raw = _attr(held, "raw")
    if not isinstance(raw, list) or not raw:
        return None
    try:
        names, values = zip(*raw, strict=True)
        headers = dict(zip(_decoded(names), _decoded(values), strict=True))
    except (TypeError, ValueError):
        # `raw` belongs to another library, or a value contains a line end.
        return None
    # If a name came twice, the library has to merge its values.
    return headers if len(headers) == len(raw) else None


def _decoded(texts: tuple[bytes, ...]) -> list[str]:
    return b"\n".join(texts).decode("latin-1").split("\n")


def _boto_headers(response: Any) -> Any:
    metadata = response.get("ResponseMetadata") if isinstance(response, dict) else None
    return metadata.get("HTTPHeaders") if isinstance(metadata, dict) else None


def _body(error: BaseException, response: Any) -> Any:
    """Return the body if it is already in memory, decoded by an SDK or as bytes. Never reads from the network."""
    if isinstance(response, dict):
        return response.get("Error", response)
    for target, name in (
        (error, "body"),
        (error, "response_json"),
        (error, "details"),
        (response, "_content"),
        (response, "_body"),
    ):
        value = _attr(target, name) if target is not None else None
        if isinstance(value, (dict, list)) or (isinstance(value, (str, bytes)) and value):
            return value
    return None


def _grpc_status(error: BaseException) -> str | None:
    if _module(error).partition(".")[0] not in _GRPC_ROOTS and "RpcError" not in _names(error):
        return None
    name = _attr(_call(error, "code"), "name") or _attr(_attr(error, "grpc_status_code"), "name")
    return name if isinstance(name, str) and name.isupper() else None


def _details(error: BaseException) -> str:
    details = _call(error, "details")
    return details if isinstance(details, str) else _text(error)


def _output(error: BaseException) -> str:
    """Return the output of the process. The command line is never read: it shows what was run, not what failed."""
    for name in ("stderr", "output", "stdout"):
        value = _attr(error, name)
        text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        if isinstance(text, str) and text.strip():
            return text
    return ""


def _exit_code(error: BaseException) -> int | None:
    code = _attr(error, "returncode")
    return code if isinstance(code, int) and not isinstance(code, bool) else None
