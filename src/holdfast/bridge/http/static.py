"""The files of the web page at `/`, and of the client in JavaScript, as the bridge serves them.

Invariant: only the files named here are served, from the package and from nowhere else. The page may load scripts and styles from this
server only, none from inside its own text, and a string can never become markup in it.
"""

from __future__ import annotations

import re
from importlib import resources
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["PAGE_PATHS", "PageFile", "page_file", "send_page_file"]

_SCRIPT = "text/javascript; charset=utf-8"
_FILES: Final = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/holdfast.js": ("holdfast.js", _SCRIPT),
    "/machine.js": ("machine.js", _SCRIPT),
    "/holdfast.d.ts": ("holdfast.d.ts", "text/plain; charset=utf-8"),
    "/keep.js": ("keep.js", _SCRIPT),
    "/log_view.js": ("log_view.js", _SCRIPT),
    "/markdown.js": ("markdown.js", _SCRIPT),
    "/page.js": ("page.js", _SCRIPT),
    "/question_view.js": ("question_view.js", _SCRIPT),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
PAGE_PATHS: Final = frozenset(_FILES)
"""The paths at which there is a file. None of them needs a token: they hold nothing of anybody."""

_HOST = re.compile(r"[A-Za-z0-9.\-]{1,253}(?::\d{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](?::\d{1,5})?")
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src {sources}; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)


class PageFile(NamedTuple):
    """A file, ready to be sent."""

    body: bytes
    headers: dict[str, str]


def page_file(path: str, host: str = "") -> PageFile | None:
    """Return the file at a path with its headers; None if there is none. `host` is the request's own Host header.

    >>> page_file("/").headers["content-type"]
    'text/html; charset=utf-8'
    """
    found = _FILES.get(path)
    if found is None:
        return None
    name, content_type = found
    body = resources.files("holdfast.bridge").joinpath("page", name).read_bytes()
    # To older browsers 'self' does not mean the WebSocket of the same server.
    own = f" ws://{host} wss://{host}" if _HOST.fullmatch(host) else ""
    headers = {
        "content-type": content_type,
        "content-length": str(len(body)),
        "cache-control": "no-store",
        "content-security-policy": _POLICY.format(sources=f"'self'{own}"),
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "permissions-policy": "camera=(), geolocation=(), microphone=()",
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
    }
    return PageFile(body, headers)


async def send_page_file(scope: dict[str, Any], send: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
    """Answer an ASGI request for one of `PAGE_PATHS`."""
    host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
    found = page_file(scope["path"], host)
    if found is None or scope["method"] not in ("GET", "HEAD"):
        headers = [(b"allow", b"GET, HEAD"), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 404 if found is None else 405, "headers": headers})
        await send({"type": "http.response.body", "body": b""})
        return
    headers = [(name.encode(), value.encode("latin-1")) for name, value in found.headers.items()]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else found.body})
