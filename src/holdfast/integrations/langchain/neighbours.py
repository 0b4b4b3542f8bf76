"""Other middleware of the same agent that retries. An agent does not tell a middleware who its neighbours are.

What it does is to ask each for its name while it is being put together; then they are on the stack, all of them.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from langchain.agents import create_agent
from langchain.agents.middleware import ModelRetryMiddleware, ToolRetryMiddleware

from holdfast.integrations.inner import warn

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["warn_of_neighbours"]

_NEAR = 6
"""How many frames away the agent may be: its own comprehensions are in between."""


def warn_of_neighbours() -> bool:
    """Warn of LangChain's retries in the agent that is being put together; return False where there is no such agent."""
    frame = sys._getframe(1)  # noqa: SLF001 - the public ways to the stack read source files
    for depth in range(_NEAR):
        if frame.f_code is create_agent.__code__:
            _warn_of(frame.f_locals.get("middleware", ()), depth)
            return True
        if frame.f_back is None:
            break
        frame = frame.f_back
    return False


def _warn_of(middleware: Sequence[Any], depth: int) -> None:
    for other in middleware:
        if isinstance(other, ModelRetryMiddleware | ToolRetryMiddleware):
            warn(
                f"{type(other).__name__} beside RecoveryMiddleware retries up to {other.max_retries} times by itself, so "
                "attempts multiply: use one of both",
                above=depth + 2,
            )
