"""The version of Holdfast. It is written only here."""

from __future__ import annotations

__version__ = "0.1.0.dev0"
