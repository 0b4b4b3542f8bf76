"""The secrets of this process: they are masked in every text, and each key has a harmless name for its circuit.

Invariant: once this module is loaded, no `str` or `repr` of an error, a result or a fault shows a secret.
"""

from __future__ import annotations

import os
import re
from functools import cache
from typing import TYPE_CHECKING, Any

from holdfast.faults import Redactor
from holdfast.faults.redaction import PRINTING, mask_secrets

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["credential_of", "holds_secret", "is_secret_variable", "name_of_key", "process_redactor", "redactor_for"]

# Whole words between underscores: KEYBOARD, AUTHOR and TOKENIZERS_PARALLELISM hold no secrets, and PWD is a directory.
_SECRET_VARIABLE = re.compile(
    r"(?:^|_)(?:API_?KEY|KEY|TOKEN|SECRET|PASSPHRASE|CREDENTIALS?|AUTH)(?:_|$)|PASSWORD|PASSWD|_PWD$", re.IGNORECASE
)


@cache
def process_redactor() -> Redactor:
    """Return the redactor that knows the secrets of this process. `fault_of` uses it; pass it to views and surfaces too.

    The environment is read once. After keys were loaded into it, call `process_redactor.cache_clear()`.
    """
    return redactor_for()


def redactor_for(environment: Mapping[str, str] | None = None) -> Redactor:
    """Return a redactor that knows the values of variables that hold secrets: `DB_PASSWORD`, or an address with a password in it."""
    variables = os.environ if environment is None else environment
    return Redactor.knowing(value for name, value in variables.items() if holds_secret(name, value))


def holds_secret(name: str, value: str) -> bool:
    """Whether an environment variable holds a secret: by its name, or by its value, such as a copy of a key under a harmless name."""
    return is_secret_variable(name) or mask_secrets(value) != value


def is_secret_variable(name: str) -> bool:
    """Whether an environment variable of this name holds a secret: `ANTHROPIC_API_KEY`, `DB_PASSWORD`."""
    return _SECRET_VARIABLE.search(name) is not None


def credential_of(client: Any) -> str:
    """Return a name for the client's key that does not reveal it; empty where the key is not a plain text."""
    for attribute in ("api_key", "auth_token"):
        key = getattr(client, attribute, None)
        if isinstance(key, str) and key:
            return name_of_key(key)
    return ""


def name_of_key(key: str) -> str:
    """Return a name for a key that does not reveal it."""
    # Only clients have keys, and loading OpenSSL takes as long as half of our own modules.
    import hashlib  # noqa: PLC0415

    # Eight digits tell the keys of one program apart, and the key cannot be computed back from them.
    return f"key-{hashlib.sha256(key.encode()).hexdigest()[:8]}"


# The room of faults reads no environment, so the redactor of every `str` and `repr` there is set from here.
PRINTING.redactor = process_redactor
