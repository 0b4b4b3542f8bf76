"""A call of a step: its function, its arguments, and what it is known by."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from holdfast import options
from holdfast.faults import InvalidError
from holdfast.once.identity import Identity, call_key_in, identity_of, is_earlier_form, is_same_in
from holdfast.once.records import StepEnded
from holdfast.once.replay import Use
from holdfast.policies.decide import Effect
from holdfast.runtime.operation.postconditions import has_calls_of_its_own
from holdfast.runtime.tool import ToolContract, contract_of_call, declare
from holdfast.sessions import codec
from holdfast.sessions.callee import check_name, given_hash, hash_of, known_by, name_of
from holdfast.sessions.journal import Journal
from holdfast.sessions.place import here, known_before

if TYPE_CHECKING:
    from holdfast.once.records import StepEntry, StepStarted

__all__ = ["Call", "RunningStep", "as_step", "call_of", "check_declared", "check_function"]

F = TypeVar("F", bound=Callable[..., Any])


class Call(msgspec.Struct, frozen=True):
    """A call of `step`."""

    identity: Identity
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    contract: ToolContract | None
    returns: Any
    """The declared type of its result."""
    name: str
    """The function's qualified name."""
    effect: Effect | None
    journal: Journal

    def earlier(self) -> Identity:
        """Return what earlier versions knew the call by."""
        given = given_hash(self.fn, self.args, self.kwargs, self.name, self.contract)
        return known_before(self.journal, Identity(self.name, given))

    def sent(self, key: str) -> str:
        """Return the key that a service gets, if it is not that of the step: a function that recovers makes calls of its own inside."""
        return call_key_in(key) if has_calls_of_its_own(self.fn) else ""

    def keys_to_verify(self, key: str) -> tuple[str, str]:
        """Return the keys by which a service may know the call, the likely one first. A call inside of the function may have recovered, too."""
        return (call_key_in(key), key) if has_calls_of_its_own(self.fn) else (key, call_key_in(key))

    @property
    def identities(self) -> tuple[Identity, ...]:
        """What it is known by now, and what it was known by before its tool was given a name."""
        if self.identity.key or self.contract is None or not self.contract.name:
            return (self.identity,)
        unnamed = known_by(self.fn, self.name, None)
        return self.identity, msgspec.structs.replace(self.identity, fn=unnamed)

    def is_of(self, entry: StepEntry, was_in: int = 0, is_in: int = 0) -> bool:
        """Whether it is a call of this recorded step, whichever turns they are in."""
        identity = identity_of(entry)
        known_as = self.earlier() if is_earlier_form(identity) and not self.identity.key else self.identity
        return is_same_in(identity, was_in, known_as, is_in)


class RunningStep(msgspec.Struct, frozen=True):
    """A step that is run."""

    call: Call
    use: Use
    key: str
    """Its idempotency key. It is the same in every attempt, also after a crash."""
    turn: int
    name: str
    """Its turn and name in the log."""
    args: str
    fn: str
    place: str
    task: str
    """What it is known by there."""

    def ended(self, **facts: Any) -> StepEnded:
        """Return the entry of its end."""
        return StepEnded(
            turn=self.turn,
            step=self.name,
            args=self.args,
            fn=self.fn,
            place=self.place,
            task=self.task,
            **facts,
        )


def call_of(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], key: str, journal: Journal) -> Call:
    if type(fn) is FunctionType and not fn.__dict__:
        # Nothing was declared for it and nothing wraps it, so its attributes need not be searched.
        contract, name, returns = None, fn.__qualname__, codec.declared_result(fn)
    else:
        options.function("session.step", fn, "step(f, …)")
        contract, name, returns = contract_of_call(fn, args, kwargs), name_of(fn), codec.result_type(fn)
    if key:
        identity = Identity("", "", key)
    else:
        check_name(name)
        given = hash_of(fn, args, kwargs, name, contract)
        around = here(journal)
        identity = Identity(
            known_by(fn, name, contract), given, place="" if around is None else around.place, is_full=True
        )
    effect = None if contract is None else contract.effect
    return Call(identity, fn, args, kwargs, contract, returns, name, effect, journal)


def as_step(work: F, name: str, contract: ToolContract | None = None, *, returns: Any = None) -> F:
    """Prepare a function that is made anew for each call as the function of a step, and return it. The log knows it by the name.

    Its annotations go, because they would be read anew for each call; `returns` is the type of its result. It checks what it returns by
    itself: the session would check the form in which that is stored.
    """
    work.__name__ = work.__qualname__ = name
    work.__annotations__ = {} if returns is None else {"return": returns}
    if contract is not None:
        declare(work, msgspec.structs.replace(contract, check=None))
    return work


def check_declared(call: Call) -> None:
    """Raise `InvalidError` if the declared result type can never be stored. Each function is checked once."""
    try:
        if call.fn in _CHECKED:
            return
        codec.check_declared(call.returns, call.name)
        _CHECKED.add(call.fn)
    except TypeError:
        # A callable object without a hash, or without weak references.
        codec.check_declared(call.returns, call.name)


_CHECKED: weakref.WeakSet[Callable[..., Any]] = weakref.WeakSet()
"""Functions whose declared result type was checked."""


def check_function(call: Call, known: StepStarted | StepEnded) -> None:
    """Raise `InvalidError` if a key was used for another function: the stored result is not of this one."""
    if call.identity.key and known.fn and known.fn != call.name:
        raise InvalidError.saying(f"step {call.identity.key!r}", f"the function of this key, {known.fn}", call.name)
