"""The README is short, and its picture is what the real program shows."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_it_has_at_most_200_lines():
    assert len(README.splitlines()) <= 200


def test_installing_comes_within_the_first_screen():
    assert README.index("pip install") < README.index("recovering(Anthropic())") < len(README) / 5


def test_its_pictures_are_here_and_load_nothing():
    names = re.findall(r'src(?:set)?="([^"]+)"', README)
    assert len(names) == 2
    for name in names:
        svg = (ROOT / name).read_text(encoding="utf-8")
        assert re.findall(r"https?://[^\"]+", svg) == ["http://www.w3.org/2000/svg"]
        assert not re.search(r"@font-face|<script|<image|url\(", svg)
        assert "prefers-color-scheme: dark" in svg


def test_its_pictures_show_the_demo_as_it_is_now():
    """If this fails because the demo has changed: `python scripts/picture.py`, and look at the pictures."""
    picture = runpy.run_path(str(ROOT / "scripts" / "picture.py"))
    with pytest.raises(SystemExit) as ended:
        picture["main"](["--check"])
    assert ended.value.code == 0
