"""Names for keys, so that each key has a circuit of its own and no event shows one."""

from __future__ import annotations

import hashlib
from typing import Any

__all__ = ["credential_of", "name_of_key"]


def credential_of(client: Any) -> str:
    """Return a name for the client's key that does not give it away; empty where the key is not a plain text."""
    for attribute in ("api_key", "auth_token"):
        key = getattr(client, attribute, None)
        if isinstance(key, str) and key:
            return name_of_key(key)
    return ""


def name_of_key(key: str) -> str:
    """Return a name for a key that does not give it away."""
    return f"key-{hashlib.sha256(key.encode()).hexdigest()[:8]}"
