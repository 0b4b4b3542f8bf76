"""Live lines of the calls that recover now (extra `cli`).

from holdfast.live import live

with live():
…                   # ⟳ Retrying... (2/3) in 3.4s · claude · PROVIDER_OVERLOADED  [r] now  [f] fall back  [c] cancel
"""

from __future__ import annotations

from holdfast.extras import needs_extra

with needs_extra("holdfast.live", "rich", "cli"):
    from holdfast.cli.live import LiveView, live

__all__ = ["LiveView", "live"]
