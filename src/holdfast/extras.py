"""The error for an optional package that is not installed. Its message says what to install.

with needs_extra("holdfast.anthropic", "anthropic", "anthropic"):
from holdfast.integrations.anthropic import recovering

MissingExtraError: SYS_DEPENDENCY_MISSING  holdfast.anthropic needs the anthropic package: pip install '.[anthropic]' in a clone
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from holdfast.faults import HoldfastError

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["MissingExtraError", "install_command", "missing_extra", "needs_extra"]


class MissingExtraError(HoldfastError, ModuleNotFoundError):
    """An optional package is not installed. The message names the extra to install; `name` is the package.

    It is a `ModuleNotFoundError`, so `except ImportError` around an import catches it:

        try:
            from holdfast.anthropic import recovering
        except ImportError:
            recovering = None
    """

    code = "SYS_DEPENDENCY_MISSING"


def install_command(extra: str, *, upgrade: bool = False) -> str:
    """Return how to install an extra, as every message says it: `pip install '.[cli]' in a clone`."""
    # The package is not published: a name such as holdfast[cli] would install somebody else's package, or nothing.
    # The extra is quoted, because shells such as zsh treat the brackets as a pattern.
    return f"pip install {'--upgrade ' if upgrade else ''}'.[{extra}]' in a clone"


def missing_extra(what: str, package: str, extra: str) -> MissingExtraError:
    """Return the error to raise where `what` needs `package`, which the extra installs."""
    noun = "packages" if " and " in package else "package"
    message = f"{what} needs the {package} {noun}: {install_command(extra)}"
    error = MissingExtraError.because(message, name=what, missing=package, extra=extra)
    error.name = package
    return error


class needs_extra:  # noqa: N801 - reads as a statement: `with needs_extra(…):`
    """Turns a failing import inside the block into a `MissingExtraError`."""

    def __init__(self, what: str, package: str, extra: str) -> None:
        self._names = (what, package, extra)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Any missing foreign module counts: if an SDK lacks one of its own dependencies, the same command installs it.
        # A missing module of Holdfast is a defect, so that error is not changed. A nested import may already have
        # raised a MissingExtraError, which is not changed either.
        if isinstance(error, MissingExtraError) or not isinstance(error, ModuleNotFoundError):
            return
        if (error.name or "").partition(".")[0] != "holdfast":
            raise missing_extra(*self._names) from error
