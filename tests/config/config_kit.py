"""A whole `holdfast.toml`, and how the tests read one."""

from __future__ import annotations

import tomllib

from holdfast.config import Config, read

__all__ = ["WHOLE", "settings_of"]

WHOLE = """
enabled = true
base = "patient"

[policy]
attempts = 4
deadline = 600
circuit = "bridge"
counts = "operation"

[policy.backoff]
initial = 2
jitter = "full"

[policy.per_code.PROVIDER_OVERLOADED]
attempts = 6
backoff = { steps = [1, 2, 5] }

[targets.claude]
timeout = "none"
circuit = { failures = 3, rate = "none" }
retry_quota = { share = 0.2 }

[targets."tool:bash"]
circuit = "none"
hedge = { after = 2 }
"""


def settings_of(text: str) -> Config:
    return read(tomllib.loads(text), "holdfast.toml")
