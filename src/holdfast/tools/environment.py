"""The environment that a process gets: ours, without the variables that hold secrets.

Invariant: a variable that the caller names is passed on. Every other variable whose name or value looks like a secret is left out.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.runtime.secrets import holds_secret, process_redactor

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = ["filtered_environment"]

_last: tuple[dict[str, str], dict[str, str]] = ({}, {})
"""The environment that was filtered last, and what was left of it: it rarely changes between two processes."""


def filtered_environment(
    extra: Mapping[str, str] | None = None, *, inherit: bool = True, secrets: Collection[str] = ()
) -> dict[str, str]:
    """Return the environment for a process.

    extra: variables to add; they are passed on as they are, because the caller has named them.
    inherit: start with the environment of this process. False: with PATH only, without which most programs are not found.
    secrets: names of variables to pass on although they look like secrets.

        filtered_environment({"CI": "1"}, secrets=["GITHUB_TOKEN"])
    """
    present = dict(os.environ)
    base = (
        dict(_without_secrets(present)) if inherit else {name: present[name] for name in ("PATH",) if name in present}
    )
    base |= {name: present[name] for name in secrets if name in present}
    return base | dict(extra or {})


def _without_secrets(present: dict[str, str]) -> dict[str, str]:
    global _last  # noqa: PLW0603 - a cache of one
    if _last[0] == present:
        return _last[1]
    known = process_redactor()
    kept = {
        name: value
        for name, value in present.items()
        if not holds_secret(name, value) and not any(s in value for s in known.secrets)
    }
    _last = (present, kept)
    return kept
