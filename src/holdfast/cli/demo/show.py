"""The verb: it runs the acts under the live view, then compares the results with the servers' counters."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Any

from holdfast.cli.demo.storm import ANTHROPIC, CAST, OPENAI, storm
from holdfast.cli.demo.tally import ENDS, DemoTally
from holdfast.cli.demo.workers import DemoStage, in_memory, on_loopback, perform
from holdfast.cli.exits import Exit
from holdfast.cli.live import live
from holdfast.cli.output import fail, narrate, show_json, show_table, show_text
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

SCHEMA = "holdfast.demo/1"
_SERVERS = (ANTHROPIC, OPENAI)
_COUNTS = ("attempts", "requests", "answered", "faults", "not_sent")
_A_LITTLE = 0.05
"""Seconds to wait after a circuit lets a call through, because clocks are not exact."""
_CLOSE_UP = "outage"
_NAME_WIDTH = 9
_NEXT = (
    "next: holdfast explain PROVIDER_OVERLOADED  (what it means and what to do)",
    "next: holdfast faults serve --steps '429, ok'  (the same failures for your own program)",
)


def show(*, seed: int, fast: bool, as_json: bool) -> Exit:
    """Run the storm and show how every call ended."""
    acts, tally = storm(seed), DemoTally()
    clock: Clock = VirtualClock(wall=time.time()) if fast else SystemClock()
    # The demo has its own runtime, because the settings of this machine must not change the storm.
    runtime = Runtime(clock=clock, rng=seeded(seed), enabled=True)
    # Sockets and virtual time do not mix: a socket waits in real time.
    hosting = in_memory if fast else on_loopback
    with use_runtime(runtime), hosting(clock) as servers, tally.listen(runtime), live(runtime) as view:
        narrator = _Narrator(view)
        narrator.opening(seed)
        playing = _play(acts, servers, tally, narrator, memory=fast)
        if isinstance(clock, VirtualClock):
            run(playing, clock=clock)
        else:
            asyncio.run(playing)
    narrator.closing(tally)
    found = _document(seed, acts, tally)
    if as_json:
        show_json(found)
    else:
        _show_tables(found)
    return _judge(tally, as_json=as_json)


class _Narrator:
    """The demo's own messages, on the same console as the live view."""

    def __init__(self, view: LiveView) -> None:
        self._view = view

    def opening(self, seed: int) -> None:
        """Name the workers and their models."""
        self.line(
            f"A storm for {len(CAST)} workers (seed {seed}): real SDK clients, two fake providers that fail on script."
        )
        for worker in CAST:
            spare = f", fallback {OPENAI}/{worker.spare}" if worker.spare else ""
            self.line(f"  {worker.name:<9} {worker.provider}/{worker.model}{spare}")
        self.line('The seconds after "recovered" are those of the whole call: its attempts and its waits.')
        if self._view.has_keys:
            self.line(
                "Keys act on the line that shows them: r retries now, f falls back, c cancels. Ctrl-C ends the demo."
            )

    def act(self, number: int, title: str) -> None:
        """Announce an act."""
        self.line("")
        self.line(f"{number}. {title}", "bold")

    def remark(self, text: str) -> None:
        """Say what a worker does about its failure."""
        self.line(f"  {text}")

    def closing(self, tally: DemoTally) -> None:
        """Show one call of the outage attempt by attempt, and then an empty line before the result."""
        calls = [call for call in tally.calls if call.act == _CLOSE_UP]
        # The call that opened the circuit has the most events, so it is shown.
        call = next((call for call in calls if call.has(CircuitStateChange)), calls[0])
        self.line("")
        self.line(f"One call in detail: {call.worker.name}'s call in the outage", "bold")
        for line in closeup(call.events):
            self.line(line)
        self.line("")

    def line(self, text: str, style: str = "") -> None:
        """Write a line above the live ones."""
        self._view.say(text, style)


async def _play(
    acts: tuple[Act, ...], servers: Mapping[str, FaultProvider], tally: DemoTally, narrator: _Narrator, *, memory: bool
) -> None:
    stage = DemoStage(servers, memory=memory)
    try:
        for number, act in enumerate(acts, 1):
            narrator.act(number, act.title)
            stage.set(act)
            if act.patient:
                await _circuit_lets_through(tally)
            await perform(act, CAST, stage, tally, narrator.remark)
            tally.take_counters(act.name, servers)
    finally:
        await stage.close()


async def _circuit_lets_through(tally: DemoTally) -> None:
    if tally.open_until is not None:
        await asyncio.sleep(max(0.0, tally.open_until - default_runtime().clock.wall()) + _A_LITTLE)


def _document(seed: int, acts: tuple[Act, ...], tally: DemoTally) -> dict[str, Any]:
    # Only counts, no times: the document is the same in every run with the same seed.
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
    print()
    for server, faults in found["injected"].items():
        listed = ", ".join(f"{fault} ×{times}" for fault, times in faults.items())
        show_text(f"{server} injected {listed or 'nothing'}")


def _show_counts(rows: list[dict[str, Any]], first: str, counts: tuple[str, ...]) -> None:
    total = {name: sum(row[name] for row in rows) for name in counts}
    shown = [[row[first], *(str(row[name]) for name in counts)] for row in (*rows, {first: "in all", **total})]
    show_table((first, *(name.replace("_", " ") for name in counts)), shown)


def _judge(tally: DemoTally, *, as_json: bool) -> Exit:
    """Say whether our events agree with the servers' counters, and what to try next."""
    mismatches = tally.mismatches()
    if mismatches:
        fail("Holdfast's events do not agree with the servers' counters")
        for line in mismatches:
            narrate(f"  {line}")
        return Exit.FAILED
    if not as_json:
        attempts = sum(tally.total(server).attempts for server in _SERVERS)
        show_text(f"Checked: Holdfast reported {attempts} attempts, and the servers counted {attempts} requests.")
    # The result is flushed before the hints are written to stderr. Otherwise the hints would appear above the result.
    sys.stdout.flush()
    if tally.commanded:
        narrate("you pressed keys: without them, every run with this seed gives the same counts")
    for line in _NEXT:
        narrate(line)
    return Exit.OK


# --- one operation, attempt by attempt ---


def closeup(events: Sequence[Event]) -> list[str]:
    """Return one line per attempt, delay and fallback of the operation that the first event belongs to."""
    if not events:
        return []
    run, began = events[0].run, events[0].at
    own = [event for event in events if event.run == run]
    # The circuit's event comes before the event of the attempt that opened it. People expect the attempt first.
    own.sort(key=lambda event: isinstance(event, CircuitStateChange))
    lines = (_line(event, began) for event in own)
    return [f"  {own[0].operation}, run {run}", *(f"  {line}" for line in lines if line)]


def _line(event: Event, began: float) -> str:
    match event:
        case AttemptEnded(attempt=number, via=via, fault=fault):
            mark = "✓" if fault is None else "✖"
            what = f"attempt {number}" if via == "primary" else "fallback"
            ends = event.at - began
            # Events use another clock than `took`, so the times differ a little. No attempt may start before 0.
            starts = max(0.0, ends - event.took)
            result = _result(fault) if via == "primary" else f"{via}: {_result(fault)}"
            return f"{mark} {what:<{_NAME_WIDTH}} {starts:.1f} s → {ends:.1f} s  {result}"
        case Retry(delay=delay, requested=requested):
            source = "Retry-After of the server" if requested else "exponential backoff"
            return f"⟳ {'wait':<{_NAME_WIDTH}} {delay:.1f} s  {source}"
        case Recovered(after=after, via=via):
            return f"✓ {'recovered':<{_NAME_WIDTH}} after {after:.1f} s, by {via}"
        case CircuitStateChange(circuit=circuit, to=to, rule=rule):
            return f"⊘ {'circuit':<{_NAME_WIDTH}} {circuit.removeprefix('provider:')} is {to} (rule: {rule})"
        case _:
            return ""


def _result(fault: Fault | None) -> str:
    if fault is None:
        return "answered"
    status = fault.context.get("status")
    return f"{fault.code} ({status})" if status else fault.code
