"""What the functions of a stage see: the values of the run, which only Setup may change, and what happened so far.

Invariant: outside of Setup nothing that is read here can be changed, however deep it is. What Setup changed is known as values, so it can
be stored and done again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from holdfast.faults import Fault, HoldfastError
from holdfast.sessions import codec
from holdfast.workflow.stage_lifecycle import ActEnded

if TYPE_CHECKING:
    from holdfast.workflow.stage_lifecycle import Phase

__all__ = ["Changes", "RunState", "StageContext"]


class Changes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What Setup changed."""

    written: dict[str, Any] = {}
    removed: tuple[str, ...] = ()

    def applied(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return values with the changes made."""
        return {name: value for name, value in {**values, **self.written}.items() if name not in self.removed}


class RunState(msgspec.Struct, kw_only=True):
    """The values and results of a run, or of one branch of it."""

    context: dict[str, Any] = {}
    results: dict[str, Any] = {}
    """The result of each stage that ended well, the last one if it was executed several times."""
    failures: dict[str, Fault] = {}
    """Why stages failed that the run went on without."""

    def branch(self) -> RunState:
        """Return a copy for a branch. Values are replaced and never changed, so a shallow copy is enough."""
        return RunState(context=dict(self.context), results=dict(self.results), failures=dict(self.failures))

    def merge(self, begun: RunState, branch: RunState) -> None:
        """Take over what a branch changed since it began."""
        for name in ("context", "results", "failures"):
            mine, before, after = getattr(self, name), getattr(begun, name), getattr(branch, name)
            mine |= {key: value for key, value in after.items() if key not in before or before[key] is not value}
            for key in before.keys() - after.keys():
                mine.pop(key, None)


class StageContext(MutableMapping[str, Any]):
    """The values of a run: `ctx["ticket"]`. Setup may change them; in the other phases a change raises TASK_CONTEXT_MUTATION.

    def setup(ctx):
        ctx["files"] = [*ctx.results["plan"]["files"], "README.md"]
    """

    def __init__(
        self,
        state: RunState,
        *,
        stage: str,
        phase: Phase,
        attempt: int,
        act: ActEnded | None = None,
        outcome: str = "",
        fault: Fault | None = None,
    ) -> None:
        self.stage = stage
        """The id of the stage."""
        self.phase: Phase = phase
        self.attempt = attempt
        """The attempt of the stage, counted from 1."""
        self.results: Mapping[str, Any] = _frozen(state.results, phase)
        """The results of the stages that ended well, by id."""
        self.failures: Mapping[str, Fault] = dict(state.failures)
        """Why stages failed that the run went on without, by id."""
        self.act = ActEnded() if act is None else msgspec.structs.replace(act, value=_frozen(act.value, phase))
        """What Act did in this attempt: its result, whether it used all its turns, which tool calls failed."""
        self.outcome = outcome
        """How the stage ends (`ok`, `skip` or `fail`), for Exit and Next."""
        self.fault = fault
        """Why it fails, for Exit and Next."""
        self._may_write = phase == "Setup"
        # A copy: a Setup that fails in the middle has changed nothing.
        self._values: dict[str, Any] = (
            msgspec.json.decode(msgspec.json.encode(state.context))
            if self._may_write
            else _frozen(state.context, phase)
        )
        self._before = state.context

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __setitem__(self, name: str, value: Any) -> None:
        if not self._may_write:
            raise _mutation(self.phase)
        self._values[name] = value

    def __delitem__(self, name: str) -> None:
        if not self._may_write:
            raise _mutation(self.phase)
        del self._values[name]

    def __repr__(self) -> str:
        return f"<context of stage {self.stage} in {self.phase}: {', '.join(self) or 'empty'}>"

    def changes(self) -> Changes:
        """Return what Setup changed, as plain JSON values. A value that JSON cannot hold raises `InvalidError`."""
        values = {name: codec.plain(value, f"context.{name}") for name, value in self._values.items()}
        written = {name: value for name, value in values.items() if not self._had(name, value)}
        return Changes(written=written, removed=tuple(sorted(self._before.keys() - values.keys())))

    def _had(self, name: str, value: Any) -> bool:
        # As JSON: to Python True is 1, and 1 is 1.0.
        return name in self._before and msgspec.json.encode(self._before[name]) == msgspec.json.encode(value)


def _mutation(phase: str) -> HoldfastError:
    return HoldfastError(Fault.of("TASK_CONTEXT_MUTATION", context={"phase": phase}))


def _frozen(value: Any, phase: str) -> Any:
    """Return a copy of a value whose lists and dicts cannot be changed."""
    if isinstance(value, dict):
        frozen = _FrozenDict({name: _frozen(each, phase) for name, each in value.items()})
        frozen.phase = phase
        return frozen
    if isinstance(value, list):
        listed = _FrozenList(_frozen(each, phase) for each in value)
        listed.phase = phase
        return listed
    return value


class _FrozenDict(dict[str, Any]):
    """A dict that only Setup could have changed. It is a real dict, so that every library takes it."""

    phase = ""

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise _mutation(self.phase)

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __deepcopy__(self, _: Any) -> dict[str, Any]:
        return _thawed(self)  # type: ignore[no-any-return] # a dict becomes a dict

    def copy(self) -> dict[str, Any]:
        return dict(self)

    __copy__ = copy


class _FrozenList(list[Any]):
    """A list that only Setup could have changed."""

    phase = ""

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise _mutation(self.phase)

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = extend = insert = pop = remove = clear = sort = reverse = _refuse

    def __deepcopy__(self, _: Any) -> list[Any]:
        return _thawed(self)  # type: ignore[no-any-return] # a list becomes a list


def _thawed(value: Any) -> Any:
    """Return a copy that belongs to the caller."""
    if isinstance(value, dict):
        return {name: _thawed(each) for name, each in value.items()}
    return [_thawed(each) for each in value] if isinstance(value, list) else value
