"""The description of the package for an index such as PyPI: the README without links into the source tree.

An index shows the README alone, so a link to `docs/tutorial.md` would be dead there. The project has no public address yet that
links could lead to. Until it has one, each such link becomes its text and the path: tutorial (`docs/tutorial.md`). A picture becomes
the text that describes it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

# A link whose target is neither an address (https:, mailto:) nor a place on the same page.
_RELATIVE_LINK = re.compile(r"\[([^\]]+)\]\((?![a-z]+:|#)([^)#\s]+)[^)]*\)")
_PICTURE = re.compile(r"<picture>.*?alt=\"([^\"]*)\".*?</picture>", re.DOTALL)


def for_an_index(readme: str) -> str:
    """Return `readme` with each relative link replaced by its text and its path, and each picture by its description."""
    return _RELATIVE_LINK.sub(r"\1 (`\2`)", _PICTURE.sub(r"*\1*", readme))


class ReadmeHook(MetadataHookInterface):
    """Hatchling calls `update` while it builds the package's metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        readme = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": for_an_index(readme)}
