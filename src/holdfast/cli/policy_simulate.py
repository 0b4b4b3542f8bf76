"""`holdfast policy simulate`: an outage under a policy, played through without waiting, with a plot."""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.cli.exits import Exit
from holdfast.cli.output import show_facts, show_json
from holdfast.faults import CATALOG, InvalidError, nearest, resolve
from holdfast.policies.simulation import Moment, Outage, Report, simulate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.runtime.config import Config

__all__ = ["outage_of", "policy_simulate"]

WIDTH = 60
_BARS = " ▁▂▃▄▅▆▇█"
_FROM_TO = re.compile(r"(?P<begins>[0-9]+(?:\.[0-9]+)?):(?P<ends>[0-9]+(?:\.[0-9]+)?)")
_RATE = re.compile(r"(?P<rate>[0-9]+(?:\.[0-9]+)?)(?:/(?P<per>s|m|h))?")
_PER = {"s": 1, "m": 60, "h": 3600}


def outage_of(outage: str, rate: str, duration: float, code: str) -> Outage:
    """Read the flags."""
    span, pace = _FROM_TO.fullmatch(outage), _RATE.fullmatch(rate)
    if span is None:
        raise InvalidError.at("--outage", "FROM:TO in seconds, such as 5:60", outage)
    if pace is None:
        raise InvalidError.at("--rate", "a number per s, m or h, such as 10/s", rate)
    entry = resolve(code)
    if entry is None:
        raise InvalidError.at("--code", f"a code of the catalog ({', '.join(nearest(code))}?)", code)
    return Outage(
        begins=float(span["begins"]),
        ends=float(span["ends"]),
        rate=float(pace["rate"]) / _PER[pace["per"] or "s"],
        duration=duration,
        code=CATALOG[entry.code].code,
    )


def policy_simulate(config: Config, outage: Outage, *, target: str | None, seed: int, as_json: bool) -> Exit:
    """Play the outage through under the default policy or a target's, and show what came of it."""
    policy = config.policy_of(target)
    report = simulate(policy, outage, random.Random(seed))  # noqa: S311 - chance to be repeated, not secrets
    if as_json:
        show_json(
            {
                "schema": "holdfast.policy.simulate/1",
                "source": config.source,
                "policy": repr(policy),
                "seed": seed,
                "outage": msgspec.to_builtins(outage),
                **_totals(report),
                "seconds": msgspec.to_builtins(report.seconds),
            }
        )
        return Exit.OK
    headline = f"{target or 'default'}: {outage.code} from {outage.begins:g} s to {outage.ends:g} s, seed {seed}"
    show_facts(headline, [(name.replace("_", " "), _shown(name, value)) for name, value in _totals(report).items()])
    show_facts("", _plot(report.seconds, outage))
    return Exit.OK


def _totals(report: Report) -> dict[str, Any]:
    return {
        "operations": report.operations,
        "succeeded": report.succeeded,
        "failed": report.failed,
        "calls": report.calls,
        "calls_per_operation": round(report.calls_per_operation, 3),
        "wasted_calls": report.wasted_calls,
        "hit": report.hit,
        "recovered_share": round(report.recovered_share, 4),
        "blocked_share": round(report.blocked_share, 4),
        "time_to_recovery_s": None if report.time_to_recovery is None else round(report.time_to_recovery, 3),
    }


def _shown(name: str, value: Any) -> str:
    if value is None:
        return "never"
    return f"{value:.1%}" if name.endswith("_share") else f"{value:g}"


def _plot(seconds: Sequence[Moment], outage: Outage) -> list[tuple[str, str]]:
    """Return one lane per kind of call; each column is a stretch of time, the highest of a lane fills it."""
    per_column = max(1, -(-len(seconds) // WIDTH))
    columns = [seconds[start : start + per_column] for start in range(0, len(seconds), per_column)]
    lanes = {
        "good": [sum(moment.good for moment in column) for column in columns],
        "failed": [sum(moment.failed for moment in column) for column in columns],
        "blocked": [sum(moment.blocked for moment in column) for column in columns],
    }
    down = "".join(
        "x" if index * per_column < outage.ends and (index + 1) * per_column > outage.begins else "."
        for index in range(len(columns))
    )
    told = [
        (name, f"|{_lane(counts)}|  up to {max(counts, default=0) / per_column:.3g}/s")
        for name, counts in lanes.items()
    ]
    return [*told, ("outage", f"|{down}|  {per_column} s a column")]


def _lane(counts: Sequence[int]) -> str:
    most = max(counts, default=0) or 1
    return "".join(_BARS[-(-count * (len(_BARS) - 1) // most)] for count in counts)
