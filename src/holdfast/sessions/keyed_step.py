"""`KeyedStep`: a step that is known by a key of the program, in place of its function and arguments.

Invariant: a key is of one function. A step is done once for it, whatever its arguments are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from holdfast.once.records import StepEnded
from holdfast.sessions import codec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.sessions.step_runner import StepRunner

__all__ = ["KeyedStep"]

P = ParamSpec("P")
T = TypeVar("T")


class KeyedStep:
    """A step with a key that the program chose. `Session.keyed` makes it."""

    __slots__ = ("_key", "_steps")

    def __init__(self, key: str, steps: Callable[[], Awaitable[StepRunner]]) -> None:
        self._key = key
        self._steps = steps

    @overload
    async def step(self, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    async def step(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    async def step(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run `fn(*args, **kwargs)` once for this key, as `Session.step` does; return the stored result if there is one.

            await session.keyed("deploy-42").step(deploy, plan, at=now())

        Raises `InvalidError` if the key was used for another function.
        """
        return await (await self._steps()).step(fn, args, kwargs, self._key)

    async def is_stored(self) -> bool:
        """Whether the result of this key is stored: `if not await session.keyed("deploy-42").is_stored(): …`."""
        known = (await self._steps()).keyed(self._key)
        return isinstance(known, StepEnded) and known.ok

    async def stored(self) -> Any:
        """Return the stored result of this key as plain values; None if there is none: `await session.keyed("deploy-42").stored()`."""
        known = (await self._steps()).keyed(self._key)
        if not isinstance(known, StepEnded) or not known.ok:
            return None
        return codec.decode(bytes(known.result), Any, self._key)

    async def has_begun(self) -> bool:
        """Whether a step with this key has begun before, however it ended."""
        return (await self._steps()).keyed(self._key) is not None
