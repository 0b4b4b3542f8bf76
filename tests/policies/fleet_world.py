"""A fleet in virtual time around the pure decisions alone: processes with queues, one engine, one limit that nobody is told."""

from __future__ import annotations

import heapq
import itertools
import random
from dataclasses import dataclass, field
from functools import partial

from holdfast.policies.fleet import FleetAnswer, FleetReport, FleetTarget, GivenStart, MetLimit, tell

PLAIN = 3
"""So many attempts of a call never wait where waiting is not known to help."""


@dataclass
class Limit:
    """A token bucket, which may also reject at random."""

    per_s: float
    burst: float
    random_share: float = 0.0
    names_pause: bool = False
    left: float = field(init=False)
    at: float = 0.0

    def __post_init__(self):
        self.left = self.burst

    def accepts(self, now: float, rng: random.Random) -> bool:
        self.left, self.at = min(self.burst, self.left + self.per_s * (now - self.at)), now
        if self.left < 1 or rng.random() < self.random_share:
            return False
        self.left -= 1
        return True


@dataclass
class Process:
    name: str
    priority: str = "normal"
    queue: list[tuple[int, float]] = field(default_factory=list)
    """Calls that wait: attempts made, and when each came."""
    starts: list[tuple[float, int]] = field(default_factory=list)
    answer: FleetAnswer | None = None
    early: int = 0
    accepted: int = 0
    unused: int = 0
    limited: list[MetLimit] = field(default_factory=list)
    due: int = 0
    answered: int = 0
    waits: list[float] = field(default_factory=list)


class World:
    """`offered` calls per second come in all, evenly over the processes."""

    def __init__(self, limit: Limit, processes: list[Process], offered: float, seed: int = 1, delay: float = 0.001):
        self.limit, self.processes, self.delay = limit, processes, delay
        self.target = FleetTarget(epoch=1)
        self.rng = random.Random(seed)
        self.requests = self.rejected = self.messages = 0
        self.used: list[int] = []
        """Numbers of starts that calls used."""
        self._due: list = []
        self._numbers = itertools.count()
        self.gap = len(processes) / offered
        for process in processes:
            self.at(self.rng.random() * self.gap, self._comes, process)
            self._report_at(self.rng.random() * 2, process)

    def at(self, when: float, do, *args):
        heapq.heappush(self._due, (when, next(self._numbers), partial(do, *args)))

    def run(self, until: float) -> None:
        while self._due[0][0] < until:
            now, _, do = heapq.heappop(self._due)
            do(now)

    @property
    def share(self) -> float:
        return self.rejected / self.requests

    @property
    def accepted(self) -> int:
        return sum(process.answered for process in self.processes)

    @property
    def jain(self) -> float:
        counts = [process.answered for process in self.processes]
        return sum(counts) ** 2 / (len(counts) * sum(count**2 for count in counts))

    def _comes(self, process: Process, now: float) -> None:
        if len(process.queue) < 10:
            self._begin(process, (0, now), now)
        self.at(now + self.rng.expovariate(1 / self.gap), self._comes, process)

    def _waits(self, process: Process, tries: int) -> bool:
        answer = process.answer
        return answer is not None and answer.per_second > 0 and (answer.is_held or tries >= PLAIN)

    def _begin(self, process: Process, call: tuple[int, float], now: float) -> None:
        if not self._waits(process, call[0]):
            self._send(process, call, 0, now)
            return
        process.queue.append(call)
        self._serve(process, now)
        if len(process.queue) > len(process.starts):
            self._report_at(now, process)

    def _serve(self, process: Process, now: float) -> None:
        process.starts.sort()
        while process.queue and process.starts and process.starts[0][0] <= now + 1e-6:
            _, number = process.starts.pop(0)
            call = process.queue.pop(0)
            self.used.append(number)
            self._send(process, call, number, now)

    def _send(self, process: Process, call: tuple[int, float], number: int, now: float) -> None:
        self.requests += 1
        knows = process.answer is not None and process.answer.per_second > 0
        if self.limit.accepts(now, self.rng):
            process.answered += 1
            process.waits.append(now - call[1])
            self.at(now + 0.3, self._answered, process, number, knows)
        else:
            self.rejected += 1
            self.at(now + 0.05, self._limited, process, call, number)

    def _answered(self, process: Process, number: int, knows: bool, now: float) -> None:
        process.accepted += number > 0
        process.early += not number and knows

    def _limited(self, process: Process, call: tuple[int, float], number: int, now: float) -> None:
        pause = max(0.0, (1 - self.limit.left) / self.limit.per_s) if self.limit.names_pause else None
        process.limited.append(MetLimit(number, pause))
        self._report_at(now, process)
        tries, came = call
        if tries < 6:
            backoff = (pause or 0.0) + (0.0 if number else min(8.0, 2.0**tries) * self.rng.uniform(0.7, 1))
            self.at(now + backoff, self._begin, process, (tries + 1, came))

    def _report_at(self, when: float, process: Process) -> None:
        process.due += 1
        self.at(when + self.delay, self._report, process, process.due)

    def _report(self, process: Process, due: int, now: float) -> None:
        if due != process.due:
            return
        lapsed = [start for start in process.starts if now - start[0] > 0.3]
        process.starts = [start for start in process.starts if start not in lapsed]
        waiting = max(0, len(process.queue) - len(process.starts))
        report = FleetReport(
            process=process.name,
            waiting={process.priority: waiting},
            early=process.early,
            accepted=process.accepted,
            unused=len(lapsed),
            limited=tuple(process.limited),
        )
        process.early = process.accepted = 0
        process.limited = []
        self.messages += 1
        answer = process.answer = tell(self.target, report, now)
        process.starts = [start for start in process.starts if start[1] > answer.void or start[0] <= now]
        for start in answer.starts:
            self._keep(process, start, now)
        queue, process.queue = process.queue, []
        for call in queue:
            if self._waits(process, call[0]):
                process.queue.append(call)
            else:
                self.at(now, self._begin, process, call)
        self._report_at(now + answer.look_in, process)

    def _keep(self, process: Process, start: GivenStart, now: float) -> None:
        process.starts.append((now + start.at, start.number))
        self.at(now + start.at, self._serve, process)


def fleet_of(count: int, priority: str = "normal") -> list[Process]:
    return [Process(f"{priority}{number}", priority) for number in range(count)]
