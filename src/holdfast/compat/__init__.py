"""The APIs of other libraries on our runtime, for users of those libraries. There is one package per library.

    tenacity   `from holdfast.compat.tenacity import retry, stop_after_attempt, wait_exponential`

The libraries themselves are never imported. A package here drives operations of `holdfast.runtime`, and may import nothing above it.
"""

from __future__ import annotations

__all__: list[str] = []
