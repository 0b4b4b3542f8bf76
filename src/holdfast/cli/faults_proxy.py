"""`holdfast faults proxy`: the TCP fault proxy of `holdfast.testing`, from a shell."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import msgspec

from holdfast import options
from holdfast.cli.exits import Exit
from holdfast.cli.output import narrate, show_facts, show_json
from holdfast.testing.proxy import FaultProxy, toxic_of

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["faults_proxy"]


def faults_proxy(
    to: str, *, listen: str, toxics: Sequence[str], seed: int, seconds: float | None, as_json: bool
) -> Exit:
    """Run the proxy for `seconds`, or until Ctrl-C; then show its counters."""
    options.seconds("--seconds", seconds, optional=True)
    proxy = FaultProxy(to, *map(toxic_of, toxics), listen=listen, seed=seed)
    with proxy:
        address = proxy.address
        narrate(f"{address} passes to {to}; {_told(proxy)}; Ctrl-C ends it")
        try:
            # Nothing sets it: a wait that Ctrl-C ends.
            threading.Event().wait(seconds)
        finally:
            _show(proxy, address, to, as_json=as_json)
    return Exit.OK


def _told(proxy: FaultProxy) -> str:
    return "toxics: " + ", ".join(map(repr, proxy.toxics)) if proxy.toxics else "no toxics"


def _show(proxy: FaultProxy, address: str, to: str, *, as_json: bool) -> None:
    counters = msgspec.to_builtins(proxy.counters)
    if as_json:
        toxics = msgspec.to_builtins(proxy.toxics)
        show_json(
            {"schema": "holdfast.faults.proxy/1", "listen": address, "to": to, "toxics": toxics, "counters": counters}
        )
    else:
        show_facts(f"{address} → {to}", [(name.replace("_", " "), str(count)) for name, count in counters.items()])
