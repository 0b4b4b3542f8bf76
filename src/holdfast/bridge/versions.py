"""Whether the packages below the bridge are of versions that it was tested with.

The port uses parts of uvicorn's WebSocket and HTTP classes that uvicorn does not promise to keep. So the extra `[server]` has a range of
versions, and a bridge looks at start whether it runs on one of them.

Invariant: a bridge that would hang or lose its limits on another version does not start. On a newer version that still has all the parts it
starts, with a warning.
"""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final

from holdfast.bridge.log import log_warning
from holdfast.faults import Fault, HoldfastError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["TESTED", "check_versions"]

TESTED: Final[Mapping[str, tuple[str, str]]] = {
    "uvicorn": ("0.53", "0.55"),
    "websockets": ("15", "18"),
    "httptools": ("0.7", "0.10"),
    "starlette": ("1.0", "2"),
}
"""The oldest version of each that works, and the first one that was not tested. `pyproject.toml` declares the same."""

_WEBSOCKET: Final = (
    *("client", "close_sent", "close_timer", "conn", "curr_msg_data_type", "disconnected", "frames", "handshake_complete", "loop"),
    *("queue", "read_paused", "transport", "writable"),
    *("data_received", "handle_connect", "handle_parser_exception", "resume_writing", "send"),
    *("send_receive_event_to_app", "shutdown"),
)  # fmt: skip
"""What the bridge uses of a WebSocket of uvicorn."""
_HTTP: Final = (
    *("client", "connections", "cycle", "headers", "loop", "parser", "transport"),
    *("connection_lost", "connection_made", "data_received", "handle_websocket_upgrade", "on_header", "on_headers_complete"),
    *("on_message_begin", "pause_writing", "resume_writing", "send_400_response"),
)  # fmt: skip
"""What it uses of an HTTP connection of uvicorn."""


def check_versions(
    websocket: Any,
    http: Any,
    *,
    installed: Callable[[str], str] = version,
    tested: Mapping[str, tuple[str, str]] = TESTED,
) -> None:
    """Raise CONFIG_INVALID if the bridge cannot run on what is installed. Log a warning for versions that are newer than tested.

    websocket, http: a protocol of each kind, as uvicorn makes it.
    """
    wrong, newer = list[str](), list[str]()
    for package, (oldest, first_untested) in tested.items():
        try:
            found = installed(package)
        except PackageNotFoundError:
            # Installed in a way that leaves no record. What it lacks shows below.
            continue
        if _parts(found) < _parts(oldest):
            wrong.append(f"{package} {found} is too old: the bridge needs {oldest} or newer")
        elif _parts(found) >= _parts(first_untested):
            newer.append(f"{package} {found}")
    for name, protocol, needed in (("WebSocket", websocket, _WEBSOCKET), ("HTTP", http, _HTTP)):
        missing = [each for each in needed if not hasattr(protocol, each)]
        if missing:
            wrong.append(f"uvicorn's {name} protocol has no {', '.join(missing)}")
    if wrong:
        fix = " ".join(f'"{package}>={low},<{high}"' for package, (low, high) in tested.items())
        message = f"The bridge does not start: {'; '.join(wrong)}. Install what it was tested with: pip install {fix}"
        raise HoldfastError(Fault.of("CONFIG_INVALID", message, context={"problems": wrong}))
    if newer:
        log_warning("the bridge was not tested with %s, which are newer than it", ", ".join(newer))


def _parts(text: str) -> tuple[int, ...]:
    """Return the numbers of a version that decide: `0.54.0rc1` is 0.54.0, as its code is."""
    found = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in found.group().split(".")) if found else ()
