"""The verb: the acts one after the other under the live view, then what came of them, proven by the servers' counters."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Any

from holdfast.cli.demo.storm import ANTHROPIC, CAST, OPENAI, storm
from holdfast.cli.demo.tally import ENDS, Tally
from holdfast.cli.demo.workers import Stage, in_memory, on_loopback, perform
from holdfast.cli.exits import Exit
from holdfast.cli.live import live
from holdfast.cli.output import fail, narrate, show_json, show_table
from holdfast.events import AttemptEnded, CircuitStateChange, Event, Recovered, Retry
from holdfast.runtime.runtime import Runtime, SystemClock, default_runtime, use_runtime
from holdfast.testing import VirtualClock, run
from holdfast.testing.clock import seeded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.cli.demo.storm import Act
    from holdfast.cli.live import LiveView
    from holdfast.clock import Clock
    from holdfast.faults import Fault
    from holdfast.testing import FaultProvider

__all__ = ["SCHEMA", "closeup", "show"]

SCHEMA = "holdfast.demo/1"
_SERVERS = (ANTHROPIC, OPENAI)
_COUNTS = ("attempts", "requests", "answered", "faults", "not_sent")
_A_LITTLE = 0.05
"""Seconds beyond the moment at which a circuit lets a call through."""
_CLOSE_UP = "outage"
_NAME_WIDTH = 30
_NEXT = (
    "next: holdfast explain PROVIDER_OVERLOADED                  what it means, and what to do",
    "      holdfast faults serve --steps '429;retry-after=2, ok'  a provider that fails, for your own program",
)


def show(*, seed: int, fast: bool, as_json: bool) -> Exit:
    """Go through the storm and tell what came of it."""
    acts, tally = storm(seed), Tally()
    clock: Clock = VirtualClock(wall=time.time()) if fast else SystemClock()
    # A runtime of its own: whatever is configured here, the storm is the same.
    runtime = Runtime(clock=clock, rng=seeded(seed), enabled=True)
    hosting = in_memory if fast else on_loopback
    with use_runtime(runtime), hosting(clock) as servers, tally.listen(runtime), live(runtime) as view:
        told = _Telling(view)
        told.opening(seed)
        playing = _play(acts, servers, tally, told, memory=fast)
        if isinstance(clock, VirtualClock):
            run(playing, clock=clock)
        else:
            asyncio.run(playing)
    told.closing(tally)
    found = _document(seed, acts, tally)
    if as_json:
        show_json(found)
    else:
        _show_tables(found)
    return _judge(tally, as_json=as_json)


class _Telling:
    """What is said besides the lines of the live view, on the same console."""

    def __init__(self, view: LiveView) -> None:
        self._view = view

    def opening(self, seed: int) -> None:
        """Say who takes part."""
        self.line(
            f"A storm for {len(CAST)} workers (seed {seed}): real SDKs, two providers that fail on script, no keys."
        )
        for worker in CAST:
            spare = f", else {OPENAI}/{worker.spare}" if worker.spare else ""
            self.line(f"  {worker.name:<9} {worker.provider}/{worker.model}{spare}")
        if self._view.has_keys:
            self.line("While something waits, its line shows what you may press: r, f or c. Ctrl-C ends it all.")

    def act(self, number: int, title: str) -> None:
        """Say what comes."""
        self.line("")
        self.line(f"{number}. {title}", "bold")

    def remark(self, text: str) -> None:
        """Say what a worker makes of it."""
        self.line(f"  {text}")

    def closing(self, tally: Tally) -> None:
        """Show one call of the outage from near, and leave a line before the result."""
        calls = [call for call in tally.calls if call.act == _CLOSE_UP]
        call = next((call for call in calls if call.tells_of(CircuitStateChange)), calls[0])
        self.line("")
        self.line(f"One call from near: {call.worker.name}'s, in the outage", "bold")
        for line in closeup(call.events):
            self.line(line)
        self.line("")

    def line(self, text: str, style: str = "") -> None:
        """Write a line above those that go on."""
        self._view.say(text, style)


async def _play(
    acts: tuple[Act, ...], servers: Mapping[str, FaultProvider], tally: Tally, told: _Telling, *, memory: bool
) -> None:
    stage = Stage(servers, memory=memory)
    try:
        for number, act in enumerate(acts, 1):
            told.act(number, act.title)
            stage.set(act)
            if act.patient:
                await _circuit_lets_through(tally)
            await perform(act, CAST, stage, tally, told.remark)
            tally.take_counters(act.name, servers)
    finally:
        await stage.close()


async def _circuit_lets_through(tally: Tally) -> None:
    if tally.open_until is not None:
        await asyncio.sleep(max(0.0, tally.open_until - default_runtime().clock.wall()) + _A_LITTLE)


def _document(seed: int, acts: tuple[Act, ...], tally: Tally) -> dict[str, Any]:
    totals = {server: tally.total(server) for server in _SERVERS}
    return {
        "schema": SCHEMA,
        "seed": seed,
        "acts": [{"act": act.name, **tally.ends(act.name)} for act in acts],
        "servers": [
            {"server": server, **{name: getattr(total, name) for name in _COUNTS}} for server, total in totals.items()
        ],
        "injected": {server: dict(sorted(total.injected.items())) for server, total in totals.items()},
        "matches": not tally.mismatches(),
    }


def _show_tables(found: dict[str, Any]) -> None:
    _show_counts(found["acts"], "act", ("calls", *ENDS))
    print()
    _show_counts(found["servers"], "server", _COUNTS)
    for server, faults in found["injected"].items():
        print(f"{server} injected {', '.join(f'{fault} ×{times}' for fault, times in faults.items()) or 'nothing'}")


def _show_counts(rows: list[dict[str, Any]], first: str, counts: tuple[str, ...]) -> None:
    total = {name: sum(row[name] for row in rows) for name in counts}
    shown = [[row[first], *(str(row[name]) for name in counts)] for row in (*rows, {first: "in all", **total})]
    show_table((first, *(name.replace("_", " ") for name in counts)), shown)


def _judge(tally: Tally, *, as_json: bool) -> Exit:
    """Say whether what we told is what the servers saw, and what to try next."""
    mismatches = tally.mismatches()
    if mismatches:
        fail("the attempts that were told are not the requests that the servers counted")
        for line in mismatches:
            narrate(f"  {line}")
        return Exit.FAILED
    if not as_json:
        attempts = sum(tally.total(server).attempts for server in _SERVERS)
        print(f"Proven by the servers' counters: {attempts} attempts told, {attempts} requests received; they match.")
    sys.stdout.flush()
    if tally.commanded:
        narrate("you pressed keys: without them the counts are the same in every run with this seed")
    for line in _NEXT:
        narrate(line)
    return Exit.OK


# --- one operation, attempt by attempt ---


def closeup(events: Sequence[Event]) -> list[str]:
    """Return the lines of the operation that the first event belongs to; times are seconds from there."""
    if not events:
        return []
    run, began = events[0].run, events[0].at
    own = [event for event in events if event.run == run]
    # A circuit is told to be open before the attempt that opened it is told to be over; people read it the other way.
    own.sort(key=lambda event: isinstance(event, CircuitStateChange))
    told = (_line(event, began) for event in own)
    return [f" {own[0].operation}   run {run}", *(line for line in told if line)]


def _line(event: Event, began: float) -> str:
    match event:
        case AttemptEnded(attempt=number, via=via, fault=fault):
            mark = "✓" if fault is None else "✖"
            what = f"attempt {number}" if via == "primary" else f"fallback {via}"
            ends = event.at - began
            return f" {mark} {what:<{_NAME_WIDTH}} {ends - event.took:4.1f}s → {ends:.1f}s   {_said(fault)}"
        case Retry(delay=delay, asked=asked):
            whose = "the server asked for it" if asked else "our own curve"
            return f" ⟳ {f'wait {delay:.1f}s':<{_NAME_WIDTH}}  {event.text} {whose}"
        case Recovered(after=after, via=via):
            return f" ✓ recovered in {after:.1f}s via {via}"
        case CircuitStateChange(circuit=circuit, to=to, rule=rule):
            return f" ⊘ circuit {circuit.removeprefix('provider:')} {to} (rule: {rule})"
        case _:
            return ""


def _said(fault: Fault | None) -> str:
    if fault is None:
        return "answered"
    status = fault.context.get("status")
    return f"{fault.code} ({status})" if status else fault.code
