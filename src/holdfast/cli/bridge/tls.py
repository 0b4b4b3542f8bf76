"""`holdfast tls create|show|rotate`: the certificate of a bridge and the pins of its keys."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from holdfast.bridge.access.tls import TlsFiles
from holdfast.cli.exits import Exit
from holdfast.cli.output import narrate, show_facts, show_json
from holdfast.cli.programs.run import seconds_of
from holdfast.cli.store.access import time_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def tls_create(*, home: Path, names: Sequence[str] | None, days: int, as_json: bool) -> Exit:
    """Make a self-signed certificate for these names and addresses."""
    files = TlsFiles(home / "tls")
    files.create(names or (), days=days)
    return _show(files, (), as_json=as_json)


def tls_rotate(*, home: Path, names: Sequence[str] | None, days: int, delay: str | None, as_json: bool) -> Exit:
    """Bring the next key into use with a new certificate, now or later."""
    files = TlsFiles(home / "tls")
    later = seconds_of("--in", delay)
    if later is not None:
        files.schedule(time.time() + later, names or None, days=days)
        if not as_json:
            narrate("A running bridge tells its clients, and rotates at that time.")
        return _show(files, (), as_json=as_json)
    files.rotate(names or None, days=days)
    if not as_json:
        narrate(
            "A running bridge uses it for new connections within seconds. Give clients the second pin before the next rotation."
        )
    return _show(files, (), as_json=as_json)


def tls_show(*, home: Path, names: Sequence[str] | None, as_json: bool) -> Exit:
    """Show the certificate, its pins, and what clients would complain about. With problems the exit code is 1."""
    return _show(TlsFiles(home / "tls"), names or (), as_json=as_json)


def _show(files: TlsFiles, names: Sequence[str], *, as_json: bool) -> Exit:
    facts, pins = files.facts(), files.pins()
    problems = facts.problems(datetime.now(UTC), names)
    rotation = files.scheduled()
    rotates = None if rotation is None else time_of(rotation.at)
    if as_json:
        show_json(
            {
                "schema": "holdfast.tls/1",
                "cert": str(files.cert),
                "names": list(facts.names),
                "not_before": facts.not_before.isoformat(),
                "not_after": facts.not_after.isoformat(),
                "self_signed": facts.is_self_signed,
                "pins": pins,
                "rotates": rotates,
                "problems": problems,
            }
        )
    else:
        lines = [
            ("names", ", ".join(facts.names)),
            ("valid until", f"{facts.not_after:%Y-%m-%d}"),
            ("pin", pins[0]),
            *[("next pin", pin) for pin in pins[1:]],
            *([] if rotates is None else [("rotates", rotates)]),
            *[("problem", problem) for problem in problems],
        ]
        show_facts(str(files.cert), lines)
    return Exit.FAILED if problems else Exit.OK
