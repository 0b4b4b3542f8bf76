"""Characters that cannot be seen, or that move others, are shown to a person who decides; in Python and on the page alike."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

from holdfast.faults import visible

PAGE = Path(__file__).parents[2] / "src/holdfast/bridge/page"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ls -l\n\t/tmp", "ls -l\n\t/tmp"),
        ("Grüße 你好 🙂", "Grüße 你好 🙂"),
        ("rm \u202egpj.x", "rm ⟨U+202E⟩gpj.x"),
        ("a\u200bb\u2066c\ufeff", "a⟨U+200B⟩b⟨U+2066⟩c⟨U+FEFF⟩"),
        ("\x1b[2K\r\x07\x9b", "⟨U+001B⟩[2K⟨U+000D⟩⟨U+0007⟩⟨U+009B⟩"),
        ("tag\U000e0041 \u3164\u2800\u00a0", "tag⟨U+E0041⟩ ⟨U+3164⟩⟨U+2800⟩⟨U+00A0⟩"),
        ("\ud800", "⟨U+D800⟩"),
        ("⟨U+202E⟩", "⟨U+27E8⟩U+202E⟨U+27E9⟩"),
    ],
)
def test_XB5_what_cannot_be_seen_becomes_a_mark(text, shown):
    assert visible(text) == shown


def test_XB5_the_page_shows_every_character_as_python_does():
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node.js is missing: the function of the page is SKIPPED (Debian: apt-get install nodejs)")
    program = (
        f'import {{ visible }} from "{PAGE / "log_view.js"}";'
        "const hidden = []; for (let at = 0; at < 0x110000; at += 1) { const c = String.fromCodePoint(at);"
        "if (visible(c) !== c) hidden.push([at, visible(c)]); } console.log(JSON.stringify(hidden));"
    )
    done = subprocess.run(
        [node, "--input-type=module", "--eval", program], capture_output=True, text=True, timeout=60, check=True
    )
    on_page = dict(json.loads(done.stdout))
    for at in range(sys.maxunicode + 1):
        # The two know different versions of Unicode. A character that nobody has is shown as a box.
        if unicodedata.category(chr(at)) != "Cn":
            assert on_page.get(at, chr(at)) == visible(chr(at)), hex(at)
