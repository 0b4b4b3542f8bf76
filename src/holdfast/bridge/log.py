"""The log of a bridge. What others wrote, such as the name of a session or the text of an error, stays on one line of it.

Invariant: no control character of others reaches a log or a terminal: it could forge lines, or hide some.
"""

from __future__ import annotations

import logging

from holdfast.runtime import process_redactor

__all__ = ["log_error", "log_warning"]

_LOG = logging.getLogger("holdfast")


def log_warning(text: str, *facts: object) -> None:
    """Log that something did not work and is tried again, or goes on without it: `log_warning("a turn of %s failed", session)`."""
    _LOG.warning(f"bridge: {text}", *map(_shown, facts))


def log_error(text: str, *facts: object, cause: BaseException | None = None) -> None:
    """Log that something did not work, and somebody has to act. The traceback of `cause`, a defect of a program, follows."""
    _LOG.error(f"bridge: {text}", *map(_shown, facts), exc_info=cause)


def _shown(fact: object) -> str:
    masked = process_redactor().text(str(fact))
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in masked)
