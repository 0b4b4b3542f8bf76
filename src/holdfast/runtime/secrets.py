"""The secrets of this process, so that they can be masked wherever they turn up.

Invariant: from the moment this is loaded, no `str` or `repr` of an error, a result or a fault shows one of them.
"""

from __future__ import annotations

import os
import re
from functools import cache
from typing import TYPE_CHECKING

from holdfast.faults import Redactor
from holdfast.faults.redaction import PRINTING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["process_redactor", "redactor_for"]

_SECRET_VARIABLE = re.compile(
    r"(?:^|_)(?:API_?KEY|KEY|TOKEN|SECRET|PASSPHRASE|CREDENTIALS?|AUTH)(?:_|$)|PASSWORD|PASSWD|_PWD$", re.IGNORECASE
)


@cache
def process_redactor() -> Redactor:
    """Return the redactor that knows this process's secrets: what `fault_of` uses, and what to hand to views and surfaces.

    The environment is read once; `process_redactor.cache_clear()` has it read again, after keys were loaded into it, say.
    """
    return redactor_for()


def redactor_for(environment: Mapping[str, str] | None = None) -> Redactor:
    """Return a redactor that knows the values of variables named like secrets (`ANTHROPIC_API_KEY`, `DB_PASSWORD`)."""
    variables = os.environ if environment is None else environment
    return Redactor.knowing(value for name, value in variables.items() if _SECRET_VARIABLE.search(name))


PRINTING.redactor = process_redactor
