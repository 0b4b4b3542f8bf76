"""Code that is written once for threads and for tasks: a generator that yields what a sync or an async function has returned.

    def answer(send: Callable[[str], Any]) -> Steps[str]:
        response = yield send("…")          # in a thread what `send` returned, in a task what awaiting it gave
        return response.text

    finish(answer(client.send))             # in a thread
    await finish_async(answer(client.send)) # in a task

Invariant: the error of an awaited step is raised where the generator has yielded it, so `try` and `finally` mean the same in both.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from typing import Any, TypeAlias, TypeVar

__all__ = ["Steps", "finish", "finish_async", "twin"]

T = TypeVar("T")

Steps: TypeAlias = Generator[Any, Any, T]


def finish(steps: Steps[T]) -> T:
    """Run the steps in a thread, and return their result. What they yield goes back as it is."""
    try:
        value = next(steps)
        while True:
            value = steps.send(value)
    except StopIteration as end:
        result: T = end.value
        return result


async def finish_async(steps: Steps[T]) -> T:
    """Run the steps in a task, and return their result. What can be awaited is awaited."""
    try:
        value = next(steps)
        while True:
            if inspect.isawaitable(value):
                try:
                    value = await value
                except BaseException as error:  # noqa: BLE001 - the steps know which function failed
                    value = steps.throw(error)
                    continue
            value = steps.send(value)
    except StopIteration as end:
        result: T = end.value
        return result


def twin(steps: Callable[..., Steps[Any]], *, is_sync: bool) -> Callable[..., Any]:
    """Return a function that runs steps in a thread, or an async function that runs them in a task."""

    def blocking(*args: Any, **kwargs: Any) -> Any:
        return finish(steps(*args, **kwargs))

    async def awaiting(*args: Any, **kwargs: Any) -> Any:
        return await finish_async(steps(*args, **kwargs))

    return blocking if is_sync else awaiting
