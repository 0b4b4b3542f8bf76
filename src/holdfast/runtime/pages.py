"""The catalog's pages: one Markdown file per code, shipped in the wheel, read here and nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.faults import Code

__all__ = ["page_of"]


def page_of(code: Code) -> str:
    """Return the Markdown page of a code."""
    from importlib import resources  # noqa: PLC0415 - few programs read pages, and all of them would pay for the import

    return resources.files("holdfast.faults").joinpath("pages", f"{code}.md").read_text(encoding="utf-8")
