#!/usr/bin/env python3
"""Write the description of the bridge's protocol: the tables of its reference page, the JSON Schema and the AsyncAPI document.

python scripts/bridge_protocol.py           write docs/reference/bridge-protocol.*
python scripts/bridge_protocol.py --check   exit with 1 if a file is not what would be written
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from holdfast.wire.description import asyncapi, json_schema, reference_tables

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
MARK = "<!-- What follows is generated: python scripts/bridge_protocol.py -->\n"


def files() -> dict[Path, str]:
    """Return what each file should hold. The page keeps what a person wrote above the mark."""
    page = REFERENCE / "bridge-protocol.md"
    written = page.read_text(encoding="utf-8").partition(MARK)[0]
    return {
        page: f"{written}{MARK}\n{reference_tables()}",
        REFERENCE / "bridge-protocol.schema.json": _json(json_schema()),
        REFERENCE / "bridge-protocol.asyncapi.json": _json(asyncapi()),
    }


def _json(document: object) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def main() -> int:
    stale = [path for path, text in files().items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path.name} is not up to date: run python scripts/bridge_protocol.py")
        return 1 if stale else 0
    for path in stale:
        path.write_text(files()[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
