"""What an agent writes as Markdown, in a real browser: shown as it is meant, never more than text and plain links, and the same however it comes."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
from page_kit import Served, opened
from playwright.sync_api import Browser, Page

TAGS = {
    *("p", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "pre", "code", "hr", "div", "span"),
    *("table", "thead", "tbody", "tr", "th", "td", "strong", "em", "del", "a"),
}
ATTRIBUTES = {"class", "href", "title", "target", "rel", "tabindex", "start"}
CLASSES = {"text", "wide", "left", "right", "center"}

RENDER = """async ([documents, drawn]) => {
  const { Markdown } = await import("/markdown.js");
  return documents.map((pieces) => {
    const shown = new Markdown();
    for (const piece of pieces) {
      shown.append(piece);
      if (drawn) shown.end();
    }
    shown.end();
    const elements = [...shown.element.querySelectorAll("*")].map((each) => [
      each.localName, each.namespaceURI, Object.fromEntries([...each.attributes].map(({ name, value }) => [name, value])), each.protocol ?? "",
    ]);
    return { html: shown.element.innerHTML, text: shown.element.textContent, elements };
  });
}"""


@pytest.fixture(scope="module")
def blank(browser: Browser, served: Served) -> Iterator[Page]:
    context = browser.new_context()
    yield opened(context, f"{served.bridge.url}/#token=token")
    context.close()


def render(page: Page, *documents: list[str], drawn: bool = False) -> list[dict[str, Any]]:
    """Return how texts are shown that come in these pieces. drawn: the page draws after each piece."""
    found: list[dict[str, Any]] = page.evaluate(RENDER, [list(documents), drawn])
    return found


def check_harmless(shown: dict[str, Any], source: str) -> None:
    """Fail if a text has become anything but plain elements and links that open a page or write a mail."""
    for tag, namespace, attributes, protocol in shown["elements"]:
        assert tag in TAGS, (tag, source)
        assert namespace == "http://www.w3.org/1999/xhtml", source
        assert set(attributes) <= ATTRIBUTES, (attributes, source)
        assert attributes.get("class", "text") in CLASSES, (attributes, source)
        assert attributes.get("start", "1").isdigit(), (attributes, source)
        if "href" in attributes:
            assert protocol in ("http:", "https:", "mailto:"), (attributes, source)
            assert re.match(r"https?://|mailto:", attributes["href"]), (attributes, source)
            assert (attributes["target"], attributes["rel"]) == ("_blank", "noopener noreferrer nofollow"), source


LINK = 'title="{0}" target="_blank" rel="noopener noreferrer nofollow"'
A = f'<a href="https://x.example/a" {LINK.format("https://x.example/a")}>'


@pytest.mark.parametrize(
    ("source", "html"),
    [
        ("plain\ntext", "<p>plain\ntext</p>"),
        ("a\n\nb", "<p>a</p><p>b</p>"),
        ("# One ##\n#### Four\n#no", "<h3>One</h3><h6>Four</h6><p>#no</p>"),
        ("- a\n- b\n  - c\n\ntext", "<ul><li>a</li><li>b<ul><li>c</li></ul></li></ul><p>text</p>"),
        ("3. a\n4. b", '<ol start="3"><li>a</li><li>b</li></ol>'),
        ("1. a\n\n   more\n\n2. b", "<ol><li><p>a</p><p>more</p></li><li><p>b</p></li></ol>"),
        ("1. a\n  - two spaces", "<ol><li>a<ul><li>two spaces</li></ul></li></ol>"),
        ("- [ ] open\n- [x] done", "<ul><li>☐ open</li><li>☑ done</li></ul>"),
        ("- a\n\n  ```\n  code\n  ```", '<ul><li>a<pre tabindex="0"><code>code\n</code></pre></li></ul>'),
        ("the year\n2026. was", "<p>the year\n2026. was</p>"),
        ("> a\n> - b", "<blockquote><p>a</p><ul><li>b</li></ul></blockquote>"),
        ("```py\n  <b>&amp;\n\n```\nx", '<pre tabindex="0"><code>  &lt;b&gt;&amp;amp;\n\n</code></pre><p>x</p>'),
        ("````\n```\n````", '<pre tabindex="0"><code>```\n</code></pre>'),
        ("a\n\n---\n\nb", "<p>a</p><hr><p>b</p>"),
        (
            "| a | b |\n|:--|--:|\n| 1 | `x\\|y` |\n| 2 |",
            (
                '<div class="wide" tabindex="0"><table><thead><tr><th class="left">a</th><th class="right">b</th></tr></thead><tbody>'
                '<tr><td class="left">1</td><td class="right"><code>x|y</code></td></tr>'
                '<tr><td class="left">2</td><td class="right"></td></tr></tbody></table></div>'
            ),
        ),
        ("**b** *i* ***bi*** __b__ _i_ ~~d~~", "<p><strong>b</strong> <em>i</em> <em><strong>bi</strong></em> <strong>b</strong> <em>i</em> <del>d</del></p>"),
        ("snake_case_name 2 * 3 * 4 f(*a, **b) ~/x", "<p>snake_case_name 2 * 3 * 4 f(*a, **b) ~/x</p>"),
        ("**注意：**请看", "<p><strong>注意：</strong>请看</p>"),
        ("`a` ``b`c`` `open", "<p><code>a</code> <code>b`c</code> `open</p>"),
        ("\\*no\\* &lt;b&gt; a<br>b", "<p>*no* &lt;b&gt; a\nb</p>"),
        ('[t](https://x.example/a "title")', f"<p>{A}t</a></p>"),
        ("see https://x.example/a.", f"<p>see {A}https://x.example/a</a>.</p>"),
        ("<https://x.example/a> ![p](https://x.example/a)", f"<p>{A}https://x.example/a</a> {A}p</a></p>"),
        # A label that looks like another address says where it really leads.
        ("[bank.example](https://x.example/a)", f"<p>{A}bank.example (x.example)</a></p>"),
        # A file of the project is no address.
        ("[page](src/page.js)", "<p>page (src/page.js)</p>"),
    ],
)  # fmt: skip
def test_XB11_markdown_is_shown_as_it_is_meant(blank: Page, source: str, html: str) -> None:
    whole, letters, drawn = (
        *render(blank, [source], list(source)),
        *render(blank, list(source), drawn=True),
    )
    assert whole["html"] == html
    assert letters["html"] == html
    assert drawn["html"] == html


EVIL = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    '<a href="javascript:alert(1)">x</a>',
    "<iframe srcdoc='<script>alert(1)</script>'>",
    "<style>*{display:none}</style>",
    "<math><mi//xlink:href='data:x,<script>alert(1)</script>'>",
    "<!--<img src='--><img src=x onerror=alert(1)//'>",
    "]]><script>alert(1)</script>",
    "<base href=//evil.example>",
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt:alert(1))",
    "[x](java\tscript:alert(1))",
    "[x](java&#10;script:alert(1))",
    "[x](&#106;avascript:alert(1))",
    "[x](\x01javascript:alert(1))",
    "[x](<javascript:alert(1)>)",
    "[x](vbscript:msgbox(1))",
    "[x](data:text/html,<script>alert(1)</script>)",
    "[x](file:///etc/passwd)",
    "[x](blob:https://x.example/1)",
    "[x](//evil.example)",
    '[x](https://x.example/"onmouseover=alert(1))',
    "[x](https://x.example/' onclick='alert(1))",
    "[x](https://user:pass@x.example)",
    "[x](https://bank.example@evil.example)",
    '![x](x" onerror="alert(1))',
    "![x](javascript:alert(1))",
    "[![x](javascript:alert(1))](javascript:alert(2))",
    "[a](javascript:alert(1)[b](https://x.example))",
    "<javascript:alert(1)>",
    '<https://x.example/"onclick=alert(1)>',
    "https://x.example/<script>alert(1)</script>",
    'https://x.example/"><img/src=x/onerror=alert(1)>',
    "`<script>alert(1)</script>`",
    '```"><script>alert(1)</script>\n<script>\n```',
    "```html onload=alert(1)\n</code></pre><script>alert(1)</script>\n```",
    "| <script> | b |\n|---|---|\n| <img onerror=alert(1)> | [x](javascript:1) |",
    "1000000000000. x",
    "999999999. <b>x</b>",
    "# <script>alert(1)</script>",
    "> <script>alert(1)</script>",
    "- <script>alert(1)</script>",
    "**<script>alert(1)</script>**",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "__proto__ [constructor](https://x.example) [x](constructor) &constructor;",
    "\x00\ud800 \u202e[x](https://x.example/\u202egpj.exe)",
]  # fmt: skip


def test_XB11_hostile_texts_become_text(blank: Page) -> None:
    for source, shown in zip(EVIL, render(blank, *([each] for each in EVIL)), strict=True):
        check_harmless(shown, source)
    everything = "\n\n".join(EVIL).replace("\ud800", "")
    (shown,) = render(blank, [everything])
    check_harmless(shown, everything)
    for kept in (
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "javascript:alert(1)",
        "file:///etc/passwd",
    ):
        assert kept in shown["text"], "what is not made into a link must still be read"
    assert not any("evil.example" in attributes.get("href", "") for _, _, attributes, _ in shown["elements"])


PIECES = [
    *EVIL,
    *("*", "**", "_", "__", "~~", "`", "``", "```", "~~~", "[", "]", "(", ")", "](", "![", "<", ">", "|", "\\", "&", "#", "-", "+", "1.", "\t"),
    *("\n", "\n\n", "\n- ", "\n  - ", "\n    ", "\n> ", "\n1. ", "\n# ", "\n---\n", "\n```\n", "\n|a|b|\n|-|:-:|\n|", "\r\n", " "),
    *("word", "two words", "https://x.example/a_(b)", "http://", "mailto:a@b.example", "<mailto:a@b.example>", "[t](https://x.example)", "[ ] ", "é😀注意：", "javascript:", " onerror=", "\u2028"),
]  # fmt: skip


def drawn_documents(seed: int, count: int) -> Iterator[list[str]]:
    rng = random.Random(seed)
    for _ in range(count):
        source = "".join(rng.choice(PIECES) for _ in range(rng.randint(1, 60))).replace("\ud800", "")
        cuts = sorted(rng.randint(0, len(source)) for _ in range(rng.randint(0, 12)))
        yield [source[start:end] for start, end in zip([0, *cuts], [*cuts, len(source)], strict=True)]


def compare(page: Page, seed: int, count: int) -> None:
    """Show random texts whole, in pieces, and in pieces that are drawn one by one: the same each time, and harmless."""
    documents = list(drawn_documents(seed, count))
    whole = render(page, *(["".join(pieces)] for pieces in documents))
    for shown, pieces, at_once, each in zip(
        whole, documents, render(page, *documents), render(page, *documents, drawn=True), strict=True
    ):
        source = "".join(pieces)
        check_harmless(shown, source)
        assert at_once["html"] == shown["html"], (seed, pieces)
        assert each["html"] == shown["html"], (seed, pieces)


def test_XB11_random_texts_are_harmless_and_the_same_however_they_come(blank: Page) -> None:
    compare(blank, seed=int(os.environ.get("HOLDFAST_SEED", "11")), count=300)


@pytest.mark.soak
def test_XB11_many_random_texts_are_harmless_and_the_same_however_they_come(blank: Page) -> None:
    for seed in range(40):
        compare(blank, seed=seed, count=1_000)


def test_XB11_no_text_takes_longer_than_its_length_allows(blank: Page) -> None:
    """What is nested, opened and never closed, or repeated: a hundred kilobytes each. A reader that looks back would take minutes."""
    repeated = ["[](", "*a _b **c ", "`a``b```c", "> ", "- ", "- a\n  ", "http://)", "a|b\n", "&amp", "\\", "- a\n\n", "```\n", "<br>", "-  ", "[a](", "![", "#", " ", "x", "~~", "1. "]  # fmt: skip
    documents = [[each * (100_000 // len(each)) + "x"] for each in repeated]
    documents += [["[" * 50_000 + "]" * 50_000], ["[](" * 20_000 + ")" * 20_000], ["|" * 50_000 + "\n" + "-|" * 50_000]]
    took = blank.evaluate(
        """async (documents) => {
          const { Markdown } = await import("/markdown.js");
          return documents.map(([text]) => {
            const started = performance.now();
            const shown = new Markdown();
            shown.append(text);
            shown.end();
            return performance.now() - started;
          });
        }""",
        documents,
    )
    assert max(took) < 5_000, dict(zip([each[0][:20] for each in documents], took, strict=True))


def test_XB11_what_is_shown_already_stays_while_more_comes(blank: Page) -> None:
    """Somebody who has selected a word of a text that grows keeps the selection."""
    kept = blank.evaluate("""async () => {
      const { Markdown } = await import("/markdown.js");
      const shown = new Markdown();
      document.body.append(shown.element);
      shown.append("First **word**\\n\\n- one\\n- tw");
      await new Promise((done) => setTimeout(done, 50));
      const [strong, item] = [shown.element.querySelector("strong"), shown.element.querySelector("li")];
      getSelection().selectAllChildren(item);
      shown.append("o\\n- three\\n\\nend");
      await new Promise((done) => setTimeout(done, 50));
      const found = [strong.isConnected, item.isConnected, getSelection().toString().trim(), shown.element.querySelectorAll("li").length];
      shown.element.remove();
      return found;
    }""")
    assert kept == [True, True, "one", 3]
