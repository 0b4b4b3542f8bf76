"""`holdfast tokens create|list|revoke` and `holdfast pair`: who may use a bridge."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, cast

import msgspec

from holdfast.bridge.access.pairing import Pairing, pair_link, qr_code
from holdfast.bridge.access.tls import TlsFiles
from holdfast.bridge.access.tokens import Tokens
from holdfast.bridge.settings import BridgeSettings, is_loopback
from holdfast.cli.bridge.address import BridgeAddress
from holdfast.cli.exits import Exit
from holdfast.cli.output import fail, narrate, show_json, show_table
from holdfast.cli.programs.run import seconds_of
from holdfast.cli.store.access import time_of

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.bridge.access.identity import TokenKind
    from holdfast.bridge.access.tokens import TokenRecord
    from holdfast.cli.bridge.flags import GrantFlags
    from holdfast.wire.messages import Role

_COLUMNS = ("id", "kind", "name", "role", "sessions", "created", "expires", "state")
_POLL_S = 0.3


def tokens_create(*, name: str, kind: str, grant: GrantFlags, as_json: bool) -> Exit:
    """Make a token and print it. It cannot be printed again."""
    made = Tokens(grant.home / "tokens.json").create(
        name,
        kind=cast("TokenKind", kind),
        role=cast("Role", grant.role),
        sessions=tuple(grant.session or ()) or None,
        expires_in=seconds_of("--expires", grant.expires),
    )
    if as_json:
        _write_secret({"schema": "holdfast.token/1", **_document(made.record), "token": made.text})
        return Exit.OK
    sys.stdout.write(f"{made.text}\n")
    if made.record.expires_at is not None:
        narrate(f"It expires at {time_of(made.record.expires_at)}.")
    narrate(f"This {kind} token is shown only now. Revoke it with: holdfast tokens revoke {made.record.id}")
    return Exit.OK


def tokens_list(*, home: Path, as_json: bool) -> Exit:
    """List the tokens. Their secrets are stored nowhere."""
    found = [_document(record) for record in Tokens(home / "tokens.json").all()]
    if as_json:
        show_json({"schema": "holdfast.tokens/1", "tokens": found})
        return Exit.OK
    if not found:
        narrate("There are no tokens yet. Make one with: holdfast tokens create NAME")
    show_table(_COLUMNS, [[_cell(each[name]) for name in _COLUMNS] for each in found])
    return Exit.OK


def tokens_revoke(*, home: Path, which: str, as_json: bool) -> Exit:
    """Revoke a token by its id or name. A running server closes its connections within a second."""
    tokens = Tokens(home / "tokens.json")
    if not any(which in (each.id, each.name) for each in tokens.all()):
        fail(f"there is no token with the id or name {which!r}", "holdfast tokens list shows all of them")
        return Exit.NOT_FOUND
    record = tokens.revoke(which)
    if as_json:
        show_json({"schema": "holdfast.token/1", **_document(record)})
    else:
        sys.stdout.write(f"revoked {record.id}\n")
        narrate(f"A running bridge closes the connections of {record.name!r} within a second.")
    return Exit.OK


def pair(*, url: str | None, grant: GrantFlags, wait: bool | None, as_json: bool) -> Exit:
    """Show a one-time code for a new device, as a QR code and as a link."""
    home = grant.home
    files = TlsFiles(home / "tls")
    running = BridgeAddress.find(home) if url is None else None
    address = url or _address(files, running)
    uses_tls = address.startswith("https:") and (running is None or running.cert == str(files.cert))
    pins = files.pins() if uses_tls and files.cert.exists() else []
    pairing = Pairing(Tokens(home / "tokens.json"))
    # A wrong address fails before a code is made.
    pair_link(address, "")
    offer = pairing.offer(
        role=cast("Role", grant.role),
        sessions=tuple(grant.session or ()) or None,
        token_expires_in=seconds_of("--expires", grant.expires),
    )
    link = pair_link(address, offer.code, pins)
    if as_json:
        _doubt(url, running)
        _write_secret(
            {
                "schema": "holdfast.pair/1",
                "url": address,
                "code": offer.code,
                "pins": pins,
                "link": link,
                "expires_at": time_of(offer.expires_at),
            }
        )
        return Exit.OK
    sys.stdout.write(f"{qr_code(link)}\n{link}\n")
    sys.stdout.flush()
    narrate(f"Scan it, or open {address} and type {offer.code}. It works once, and for five minutes.")
    _doubt(url, running)
    waits = sys.stdout.isatty() if wait is None else wait
    return _wait(pairing, offer.code, offer.expires_at) if waits else Exit.OK


def _doubt(url: str | None, running: BridgeAddress | None) -> None:
    """Say why a device may not reach the address, if nobody named it."""
    if url is not None:
        return
    if running is None:
        narrate("No bridge runs with this folder, so this is the address in the settings. --url names another.")
    elif is_loopback(running.host) and not running.is_for_all:
        narrate("Only this machine can reach the bridge that runs. `holdfast serve --host` lets others reach it.")


def _wait(pairing: Pairing, code: str, until: float) -> Exit:
    while pairing.is_waiting(code):
        time.sleep(_POLL_S)
    if time.time() >= until:
        narrate("Nobody used the code in time. Run holdfast pair again for a new one.")
        return Exit.TIMEOUT
    narrate("Paired. `holdfast tokens list` shows the new device.")
    return Exit.OK


def _address(files: TlsFiles, running: BridgeAddress | None) -> str:
    """Return where a device finds the bridge that runs; if none does, as far as the settings here say."""
    if running is None:
        scheme = "https" if files.cert.exists() else "http"
        running = BridgeAddress(f"{scheme}://0.0.0.0:{BridgeSettings.from_env().port}", str(files.cert))
    if not running.is_for_all or not files.cert.exists():
        return running.at(running.host)
    # The first three names are those of loopback, which another device cannot reach.
    return running.at(next(iter(files.facts().names[3:]), running.host))


def _document(record: TokenRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "kind": record.kind,
        "name": record.name,
        "role": record.role,
        "sessions": None if record.sessions is None else list(record.sessions),
        "created": time_of(record.created_at),
        "expires": None if record.expires_at is None else time_of(record.expires_at),
        "state": record.state(time.time()),
    }


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return ", ".join(value) if isinstance(value, list) else str(value)


def _write_secret(document: dict[str, Any]) -> None:
    # `show_json` would mask the one thing that this verb is for.
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n")
