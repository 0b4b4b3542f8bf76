"""A workflow in plain Python: a function of a session, whose steps are those of the session.

    @workflow
    async def review(session: Session, pr: int) -> Report: ...

    report = await review.run("review-12", 12)

Invariant: in a session a workflow is done once for its inputs, however often it is started. Its result is stored when it has ended; before
that, a run that was interrupted goes on with the steps that are stored.
"""

from __future__ import annotations

import functools
import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, get_type_hints, overload

from holdfast import options
from holdfast.faults import InvalidError
from holdfast.sessions import codec
from holdfast.sessions.call import as_step
from holdfast.sessions.later import ends_the_run, is_waiting, resumable
from holdfast.sessions.open_ends import check_done
from holdfast.sessions.session import Session
from holdfast.tools.schema import converted, schema_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.sessions.later import Origin

__all__ = ["WorkflowCall", "WorkflowFunction", "workflow"]

P = ParamSpec("P")
T = TypeVar("T")


class WorkflowFunction(Generic[P, T]):
    """A workflow in plain Python. The decorator `workflow` makes it; `await review(session, 12)` is still the plain call.

    name: what its runs are known by: its module and name, or `name=` of the decorator. schema: the JSON Schema of its inputs.
    """

    def __init__(self, fn: Callable[Concatenate[Session, P], Awaitable[T]], name: str | None) -> None:
        options.name("workflow.name", name, optional=True)
        if not inspect.iscoroutinefunction(fn):
            raise InvalidError.at("workflow", "an `async def` with a session as its first parameter", fn)
        self.fn = fn
        self.name = name or f"{_module_of(fn)}.{fn.__qualname__}"
        self._kinds = _hints(fn)
        self._returns = self._kinds.get("return", Any)
        codec.check_declared(self._returns, self.name)
        parameters = list(inspect.signature(fn).parameters.values())
        if not parameters or parameters[0].kind > inspect.Parameter.POSITIONAL_OR_KEYWORD:
            raise InvalidError.saying(f"workflow {self.name}", "a session as its first parameter", "none")
        self._inputs = inspect.Signature(parameters[1:])
        self.schema = self._schema()
        functools.update_wrapper(self, fn)

    def __repr__(self) -> str:
        return f"<workflow {self.name}>"

    def __reduce__(self) -> str:
        # A decorated function is pickled by its name, as any function is.
        return self.fn.__qualname__

    @property
    def run_name(self) -> str:
        """What its runs are called in a session: `workflow app.review`."""
        return f"workflow {self.name}"

    async def __call__(self, session: Session, /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function, as if it were not decorated."""
        return await self.fn(session, *args, **kwargs)

    async def run(self, session: Session | str, /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run it in a session, or in the session with this id in the default store; return its result.

            report = await review.run("review-12", 12)

        It is done once per session and inputs, or inside a `turn` block once per turn: a run that has ended returns its stored result,
        and one that failed or was interrupted goes on when it is called again. A run inside of another one belongs to that one.

        Raises what the function raises; `ParkedError` if it waits in `Session.retry_later`, and goes on in any process: see
        `holdfast.sessions.run_due`; `OutcomeUnknownError` if an unsafe step was cut off and may have happened; and `InvalidError` for
        arguments or a result that cannot be stored.
        """
        bound = self._bound(*args, **kwargs)
        inputs = self._plain(bound)
        if not isinstance(session, str):
            return await self._run(session, inputs, bound)
        async with Session.open(session) as opened:
            return await self._run(opened, inputs, bound)

    def given(self, *args: P.args, **kwargs: P.kwargs) -> WorkflowCall[T]:
        """Return it with arguments, to be run elsewhere: `await submit(review.given(12, depth=2))`.

        Raises `InvalidError` for arguments that do not fit, or cannot be stored.
        """
        try:
            bound = self._bound(*args, **kwargs)
        except TypeError as error:
            raise InvalidError.saying(self.run_name, f"arguments for {self._inputs}", str(error)) from error
        return WorkflowCall(self, self._plain(bound))

    @property
    def returns(self) -> Any:
        """The declared type of the result; Any if there is none."""
        return self._returns

    def _bound(self, *args: Any, **kwargs: Any) -> inspect.BoundArguments:
        bound = self._inputs.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound

    def _plain(self, bound: inspect.BoundArguments) -> dict[str, Any]:
        return {name: codec.plain(value, f"{self.name}: {name}") for name, value in bound.arguments.items()}

    async def resume(self, session: Session, inputs: Any) -> T:
        """Go on with a run that was begun in a session; `inputs` are its arguments as JSON values, by name.

        `holdfast.sessions.run_due` does it when its time has come. Raises `InvalidError` for inputs that do not fit the signature.
        """
        try:
            given = {name: converted(value, self._kinds.get(name, Any)) for name, value in inputs.items()}
            bound = self._inputs.bind(**given)
        except (TypeError, ValueError) as error:
            raise InvalidError.saying(f"workflow {self.name}", f"inputs for {self._inputs}", str(error)) from error
        return await self._run(session, inputs, bound)

    async def _run(self, session: Session, inputs: dict[str, Any], bound: inspect.BoundArguments) -> T:
        async def work(key: str) -> T:
            ended = session.keyed(f"{key}/ended")

            async def finish(origin: Origin | None) -> T:
                del origin
                value = None
                if not await ended.is_stored():
                    value = await self.fn(session, *bound.args, **bound.kwargs)
                    await check_done()
                return await ended.step(self._keep, value)

            return await resumable(session, self.run_name, inputs, key, finish, ends=_ends)

        return await session.numbered(self.run_name, inputs, work)

    @functools.cached_property
    def _keep(self) -> Callable[[Any], Awaitable[T]]:
        async def result(value: Any) -> Any:
            return value

        return as_step(result, self.run_name, returns=self._returns)

    def _schema(self) -> dict[str, Any]:
        properties: dict[str, Any] = {}
        definitions: dict[str, Any] = {}
        for parameter in self._inputs.parameters.values():
            where = f"workflow {self.name}: {parameter.name}"
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise InvalidError.saying(where, "a parameter with a name", str(parameter))
            try:
                properties[parameter.name] = schema_of(self._kinds.get(parameter.name, Any))
            except TypeError as error:
                raise InvalidError.saying(where, "a type that JSON has", str(error)) from None
            definitions |= properties[parameter.name].pop("$defs", {})
        required = [each.name for each in self._inputs.parameters.values() if each.default is each.empty]
        schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
        return schema | ({"$defs": definitions} if definitions else {})


class WorkflowCall(Generic[T]):
    """A workflow and its arguments as JSON values, by name. `WorkflowFunction.given` makes it."""

    def __init__(self, workflow: WorkflowFunction[..., T], inputs: dict[str, Any]) -> None:
        self.workflow = workflow
        self.inputs = inputs


@overload
def workflow(fn: Callable[Concatenate[Session, P], Awaitable[T]], /) -> WorkflowFunction[P, T]: ...
@overload
def workflow(*, name: str) -> Callable[[Callable[Concatenate[Session, P], Awaitable[T]]], WorkflowFunction[P, T]]: ...
def workflow(fn: Any = None, /, *, name: str | None = None) -> Any:
    """Make a workflow of an `async def` with a session as its first parameter.

        @workflow
        async def review(session: Session, pr: int) -> Report:
            files = await session.step(changed_files, pr)
            notes = await session.map(review_file, files, collect=True)
            return await session.step(summarise, [note.value for note in notes if isinstance(note, Ok)])

    `name` is what its runs are known by in the log; by default it is the module and the name of the function, and must stay the same.
    Raises `InvalidError` for another kind of function, and for parameters that JSON cannot hold.
    """
    return WorkflowFunction(fn, name) if fn is not None else functools.partial(WorkflowFunction, name=name)


def _ends(error: Exception) -> bool:
    return not (is_waiting(error) or ends_the_run(error))


def _hints(fn: Any) -> dict[str, Any]:
    try:
        # The class of a session is often imported for type checkers only.
        return get_type_hints(fn, localns={"Session": Session}, include_extras=True)
    except NameError:
        return {}


def _module_of(fn: Any) -> str:
    """Return the name by which the function's module is imported, also if it is the program that was started."""
    if fn.__module__ != "__main__":
        return str(fn.__module__)
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    return spec.name if spec is not None else Path(file).stem if file else "__main__"
