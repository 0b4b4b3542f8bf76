"""Write the catalog of failures from the pages of the codes; `--check` fails if they differ.

    python scripts/codes.py            after a page in src/holdfast/faults/pages was added or changed
    python scripts/codes.py --check    in `make check`

A page is the whole of a code: its head, between two lines `+++`, holds the texts, the aliases and the traits; the rest is what
`holdfast explain` shows. Two files are written from them: `catalog.json`, which is read at import, and the closed type `Code`.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

FAULTS = Path(__file__).parents[1] / "src" / "holdfast" / "faults"
PREFIXES = ("CONN", "AUTH", "PROTO", "SESS", "TOOL", "HOOK", "CIRCUIT", "SYS", "PROVIDER", "TASK", "ACTOR", "CONFIG")
"""The order of the catalog. A code with another prefix is an error."""
HEAD = re.compile(r"\A\+\+\+\n(.*?\n)\+\+\+\n", re.DOTALL)
TYPE = re.compile(r"(?<=Code: TypeAlias = Literal\[\n).*?(?=\]\n)", re.DOTALL)
TEXTS = {"message", "user", "suggestions"}
OWN = {"maybe_executed": False, "aliases": []}
"""Fields that no family has, where a page leaves them out."""


def entries() -> list[dict[str, Any]]:
    """Return the entries of all codes, in the order of the catalog."""
    families = tomllib.loads((FAULTS / "families.toml").read_text(encoding="utf-8"))
    pages = sorted(
        (FAULTS / "pages").glob("*.md"), key=lambda page: (PREFIXES.index(page.stem.split("_")[0]), page.stem)
    )
    known = families["transient"].keys() | TEXTS | OWN.keys()
    found = [{"code": page.stem, **_traits(_head(page), families)} for page in pages]
    for one in found:
        if wrong := one.keys() ^ known ^ {"code"}:
            sys.exit(f"{one['code']}.md: fields that are missing or not known: {', '.join(sorted(wrong))}")
    return found


def _head(page: Path) -> dict[str, Any]:
    found = HEAD.match(page.read_text(encoding="utf-8"))
    if found is None:
        sys.exit(f"{page.name}: expected a head between two lines `+++`, got none")
    try:
        return tomllib.loads(found[1])
    except tomllib.TOMLDecodeError as error:
        sys.exit(f"{page.name}: the head is not TOML: {error}")


def _traits(own: dict[str, Any], families: dict[str, dict[str, Any]]) -> dict[str, Any]:
    like = own.pop("like", None)
    return {**(_traits({**families[like]}, families) if like else OWN), **own}


def written() -> dict[Path, str]:
    """Return the files that are made from the pages, with their texts."""
    found = entries()
    # A line for each code, so that a change of one is a change of one line.
    rows = ",\n".join(json.dumps(one, ensure_ascii=False) for one in found)
    names = "".join(f'    "{one["code"]}",\n' for one in found)
    types = FAULTS / "codes.py"
    return {
        FAULTS / "catalog.json": f"[\n{rows}\n]\n",
        types: TYPE.sub(lambda _: names, types.read_text(encoding="utf-8")),
    }


def main() -> None:
    """Write the files, or check them."""
    differing = [
        path for path, text in written().items() if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    if "--check" in sys.argv:
        if differing:
            sys.exit(
                f"{', '.join(path.name for path in differing)}: not what the pages say; run python scripts/codes.py"
            )
        return
    for path in differing:
        path.write_text(written()[path], encoding="utf-8")
        print(f"wrote {path.name}")


if __name__ == "__main__":
    main()
