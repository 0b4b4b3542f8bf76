"""For people who come from elsewhere: other libraries' words on our runtime. One module per library.

    tenacity   `from holdfast.compat.tenacity import retry, stop_after_attempt, wait_exponential`

The libraries themselves are never imported.
"""

from __future__ import annotations

__all__: list[str] = []
