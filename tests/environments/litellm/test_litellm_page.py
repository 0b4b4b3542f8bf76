"""What the page about LiteLLM tells a reader to type is typed here: its `python litellm` blocks, in order, in one namespace."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "recover-litellm.md"


def test_the_python_a_reader_is_shown_runs(capsys):
    page = PAGE.read_text(encoding="utf-8")
    blocks = list(re.finditer(r"^```python litellm\n(?P<text>.*?)^```$", page, re.MULTILINE | re.DOTALL))
    assert blocks
    namespace = {"__name__": "__main__"}
    for block in blocks:
        # Blank lines before it, so that a failure names the page's own line.
        before = page.count("\n", 0, block.start("text"))
        exec(compile("\n" * before + block["text"], str(PAGE), "exec"), namespace)
    assert capsys.readouterr().err == ""
