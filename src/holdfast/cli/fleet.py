"""`holdfast limits` and `holdfast circuits`: what the processes of a fleet know together, as the engine has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.cli.exits import Exit
from holdfast.cli.output import fail, narrate, show_json, show_table
from holdfast.config import load
from holdfast.policies.fleet_options import SharedOptions
from holdfast.runtime.fleet.engines import opener_of
from holdfast.runtime.fleet.shared_state import SharedStateError

if TYPE_CHECKING:
    from holdfast.policies.fleet import FleetTarget

_NOTHING_SHARED = "nothing is shared: set HOLDFAST_SHARED_URL, or url in [shared] of holdfast.toml, or give --shared"


def limits(*, shared: str | None, namespace: str | None, as_json: bool) -> Exit:
    """Show each target's pace, who waits and what was rejected."""
    targets = _targets(shared, namespace)
    if isinstance(targets, Exit):
        return targets
    rows = [_limit(name, target) for name, target in sorted(targets.items())]
    if as_json:
        show_json({"schema": "holdfast.limits/1", "limits": rows})
        return Exit.OK
    columns = ("target", "processes", "per second", "calls wait", "waiting", "starts", "rejected")
    show_table(columns, [[_text(row[column.replace(" ", "_")]) for column in columns] for row in rows])
    narrate(f"{len(rows)} targets" if rows else "no process has met a limit lately")
    return Exit.OK


def circuits(*, shared: str | None, namespace: str | None, as_json: bool) -> Exit:
    """Show which targets are away, and who looks whether they are back."""
    targets = _targets(shared, namespace)
    if isinstance(targets, Exit):
        return targets
    rows = [_circuit(name, target) for name, target in sorted(targets.items())]
    if as_json:
        show_json({"schema": "holdfast.circuits/1", "circuits": rows})
        return Exit.OK
    columns = ("target", "state", "processes", "for", "looks", "returns")
    show_table(columns, [[_text(row[column]) for column in columns] for row in rows])
    narrate(f"{sum(row['state'] == 'open' for row in rows)} of {len(rows)} targets are away")
    return Exit.OK


def _targets(url: str | None, namespace: str | None) -> dict[str, FleetTarget] | Exit:
    shared = load().shared
    options = SharedOptions(url=url or shared.url, namespace=namespace or shared.namespace)
    if not options.url:
        fail(_NOTHING_SHARED)
        return Exit.USAGE
    engine = opener_of(options)()
    try:
        return engine.targets()
    except SharedStateError as error:
        fail(f"shared state at {engine.place} cannot be read: {error}", "holdfast doctor")
        return Exit.FAILED
    finally:
        engine.close()


def _limit(name: str, target: FleetTarget) -> dict[str, Any]:
    pace = target.pace
    return {
        "target": name,
        "processes": len(target.members),
        "per_second": None if pace is None else round(pace.per_second(target.at), 3),
        "calls_wait": pace is not None and target.gate.is_held,
        "waiting": sum(sum(member.waiting.values()) for member in target.members.values()),
        "starts": target.granted,
        "rejected": target.rejected,
    }


def _circuit(name: str, target: FleetTarget) -> dict[str, Any]:
    circuit = target.circuit
    return {
        "target": name,
        "state": "open" if circuit.is_open else "closed",
        "processes": len(target.members),
        "for": round(target.at - circuit.since, 1) if circuit.is_open else None,
        "looks": circuit.owner,
        "returns": circuit.returns,
    }


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)
