"""Split collected failures into a part of `tests/corpus/met`: `scripts/corpus_part.py COLLECTED.jsonl fifteenth`.

Nobody reads the lines for this. A line is left out if it shares four fifths of its words with a line of the corpus, or
with an earlier kept line of the same collection; of two lines, the one with more words counts. The first byte of the SHA-256 of the id puts a line aside if it is below 128.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

CORPUS = Path(__file__).parent.parent / "tests" / "corpus"
SHARE = 0.8
BOUND = 128
_WORD = re.compile(r"[a-z0-9_]+")
_PRIVATE = re.compile(
    r"/home/(?!user\b|runner\b|node\b|app\b)\w+|/Users/(?!user\b|me\b)\w+|/root/|/work/|\bsk-[A-Za-z0-9]{20,}|\bghp_\w{20,}|AKIA[0-9A-Z]{16}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY|\beyJ[\w-]{20,}|https?://(?![^\s/\"]*example)[^\s/\"]*(?:registry|pypi|artifactory|nexus|mirror|proxy)[^\s\"]*"
)


def strings(value: Any) -> Iterator[str]:
    """Yield every string inside a JSON value, without the keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from strings(item)


def words(line: dict[str, Any]) -> frozenset[str]:
    """Return the words of the failure itself: its body and its exception."""
    return frozenset(_WORD.findall(" ".join(strings([line.get("body"), line.get("exception")])).lower()))


def resembles(line: frozenset[str], others: Iterable[frozenset[str]]) -> bool:
    """Tell whether the line shares four fifths of its words with one of the others."""
    return any(len(line & other) >= SHARE * max(len(line), len(other)) for other in others)


def read(path: Path) -> list[dict[str, Any]]:
    """Read the lines of a file of failures."""
    return [json.loads(raw) for raw in path.read_text().splitlines() if raw.strip()]


def main(collected: Path, name: str) -> None:
    """Write `open_NAME.jsonl` and `blind_NAME.jsonl`, and print how many lines were left out and why."""
    mine = [CORPUS / "met" / f"{half}_{name}.jsonl" for half in ("blind", "open")]
    had = [words(line) for path in CORPUS.rglob("*.jsonl") if path not in mine for line in read(path)]
    kept: list[dict[str, Any]] = []
    seen: list[frozenset[str]] = []
    old = double = 0
    for line in read(collected):
        found = words(line)
        if resembles(found, had):
            old += 1
        elif resembles(found, seen):
            double += 1
        else:
            kept.append(line)
            seen.append(found)
    halves: tuple[list[str], list[str]] = ([], [])
    for line in kept:
        aside = hashlib.sha256(line["id"].encode()).digest()[0] < BOUND
        halves[0 if aside else 1].append(json.dumps(line, ensure_ascii=False))
    for path, half in zip(mine, halves, strict=True):
        path.write_text("".join(f"{raw}\n" for raw in half))
    ids = [line["id"] for line in kept]
    private = [line["id"] for line in kept if any(_PRIVATE.search(text) for text in strings(line))]
    print(
        f"kept {len(kept)}: put aside {len(halves[0])}, open {len(halves[1])}; resemble a line we had {old}, each other {double}"
    )
    print(f"ids twice: {len(ids) - len(set(ids))}; look at these for addresses, paths and credentials: {private}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
