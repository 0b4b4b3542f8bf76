"""Draw the README's picture: the real demo in virtual time, at one moment of its outage.

    python scripts/picture.py            # writes docs/pictures/demo.svg and demo-narrow.svg
    python scripts/picture.py --check    # exits with 1 if the demo looks different now

The demo runs as `holdfast demo --fast` does. Only its terminal is replaced by one that can be recorded. The pictures load no font and no
script, and follow the reader's light or dark theme.
"""

from __future__ import annotations

import io
import re
import sys
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn
from unittest.mock import patch

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

import holdfast.cli.demo.show as demo
from holdfast.events import Fallback
from holdfast.live import LiveView
from holdfast.sinks.live import watch_events

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.events import Event
    from holdfast.runtime import Runtime

FOLDER = Path(__file__).parent.parent / "docs" / "pictures"
WIDTHS = {"demo.svg": 100, "demo-narrow.svg": 60}
ACTS = 3
"""The picture shows so many acts of the demo, the last ones."""
MARGIN = 12

# The colours that the live view uses, with enough contrast on the background: black, red, green, yellow, then the rest.
_REST = ((90, 90, 90),) * 3
LIGHT = TerminalTheme(
    (246, 248, 250), (31, 35, 40), [(31, 35, 40), (180, 30, 36), (17, 99, 41), (125, 78, 0), *_REST, (31, 35, 40)]
)
DARK = TerminalTheme(
    (22, 27, 34),
    (230, 237, 243),
    [(22, 27, 34), (255, 123, 114), (86, 211, 100), (227, 179, 65), *_REST, (230, 237, 243)],
)
SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 WIDTH HEIGHT" role="img">
<title>holdfast demo, in the middle of an outage</title>
<style>
.screen {{ fill: #f6f8fa; }}
text {{ font: {char_height}px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre; }}
{styles}
@media (prefers-color-scheme: dark) {{
.screen {{ fill: #161b22; }}
DARK
}}
</style>
<rect class="screen" width="WIDTH" height="HEIGHT" rx="8"/>
<g transform="translate(MARGIN, MARGIN)">
{matrix}
</g>
</svg>
"""


class Screen(io.StringIO):
    """A terminal that shows nothing."""

    def isatty(self) -> bool:
        return True


def moment(width: int) -> Text:
    """Return what a terminal shows when the first call of the outage falls back, while the others wait for their last attempt."""
    seen: list[Text] = []

    @contextmanager
    def recorded(runtime: Runtime) -> Iterator[LiveView]:
        console = Console(file=Screen(), width=width, force_terminal=True, color_system="standard", highlight=False)
        view = LiveView(runtime, console)
        view.has_keys = True

        def changed(event: Event) -> None:
            view.changed(event)
            if isinstance(event, Fallback) and not seen:
                above = Text.from_ansi(console.file.getvalue().rstrip("\n"))  # type: ignore[attr-defined]
                seen.append(Text("\n").join([above, view.drawn()]))

        with watch_events(changed, runtime):
            yield view

    with patch.object(demo, "live", recorded), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        demo.show(seed=1, fast=True, as_json=True)
    lines = seen[0].split("\n")
    titles = [number for number, line in enumerate(lines) if re.match(r"\d\. ", line.plain)]
    return Text("\n").join([Text("$ holdfast demo"), Text("…", "dim"), *lines[titles[-ACTS] :]])


def drawn(lines: Text, width: int) -> str:
    """Return the lines as SVG, with the colours of both themes."""
    light, dark = (_svg(lines, width, theme) for theme in (LIGHT, DARK))
    rules = re.findall(r"^\.picture-r\d+ .*$", dark, re.MULTILINE)
    return light.replace("DARK", "\n".join(rules))


def _svg(lines: Text, width: int, theme: TerminalTheme) -> str:
    console = Console(file=Screen(), width=width, record=True, force_terminal=True, color_system="standard")
    console.print(lines, soft_wrap=True)
    svg = console.export_svg(theme=theme, code_format=SVG, unique_id="picture")
    # Rich draws the ends of lines as texts, and cuts every text at its line. Neither is needed here.
    svg = re.sub(r"<text [^>]*>\s*</text>", "", svg)
    svg = re.sub(r" clip-path=\"[^\"]*\"", "", svg).replace("</text><text", "</text>\n<text")
    # Rich's cells are 12.2 wide and 24.4 high.
    size = {"WIDTH": width * 12.2, "HEIGHT": (lines.plain.count("\n") + 1) * 24.4}
    for name, length in size.items():
        svg = svg.replace(name, f"{length + 2 * MARGIN:.0f}")
    return svg.replace("MARGIN", str(MARGIN))


def main(arguments: list[str]) -> NoReturn:
    pictures = {FOLDER / name: drawn(moment(width), width) for name, width in WIDTHS.items()}
    if "--check" in arguments:
        old = [path.name for path, svg in pictures.items() if not path.exists() or path.read_text("utf-8") != svg]
        sys.exit(f"not as the demo is now: {', '.join(old)}; run: python scripts/picture.py" if old else 0)
    FOLDER.mkdir(exist_ok=True)
    for path, svg in pictures.items():
        path.write_text(svg, encoding="utf-8")
        print(path)
    sys.exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
