"""`holdfast policy show|check|simulate`: show what a policy will do, find mistakes in it, simulate an outage.

The settings come from a file or from stdin. By default they are the settings of a program started in this folder.
"""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING, Any, cast, get_args

import msgspec
import typer

from holdfast import options
from holdfast.cli.exits import Exit, open_input
from holdfast.cli.output import counted, fail, narrate, show_facts, show_json, show_table, show_text, stdout_width
from holdfast.config import Config, ConfigError, json_schema, load
from holdfast.config.sources import read_text
from holdfast.faults import CATALOG, InvalidError, resolve
from holdfast.faults.catalog import suggested_codes
from holdfast.faults.surfaces import spell_seconds
from holdfast.policies.advice import Advice, advice
from holdfast.policies.decide import LONGEST_WAIT_S
from holdfast.policies.outlook import Outlook, WaitRange, outlook
from holdfast.policies.simulation import Kind, Moment, Outage, SimulationReport, simulate
from holdfast.testing.load import LOAD_KINDS, Load, simulate_load
from holdfast.testing.provider.limits import read_limit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.cli.app import SimulationFlags
    from holdfast.config import Problem
    from holdfast.policies import Circuit, Policy

MAX_STDIN = 1_048_576
WIDTH = 60
_LABELS = {
    "calls_per_operation": "calls per operation",
    "wasted_calls": "wasted calls",
    "hit": "hit by the outage",
    "recovered_share": "of these recovered",
    "blocked_share": "blocked by the circuit",
    "time_to_recovery_s": "time to recovery",
}
_LOAD_LABELS = {"hit": "limited or waited", "blocked_share": "gave up waiting"}
_BESIDE_PLOT = 28
"""Columns for the label of a lane and for its scale."""
_CHECK = "holdfast.policy.check/1"
_PLAIN = {
    "off": Advice(level="warning", about="mode", text="recovery is switched off: every call is made once, plainly"),
    "observe": Advice(level="warning", about="mode", text="recovery only observes: every call is made once, plainly"),
}
"""Advice about a mode in which nothing recovers."""
_BARS = " ▁▂▃▄▅▆▇█"
_FROM_TO = re.compile(r"(?P<begins>[0-9]+(?:\.[0-9]+)?):(?P<ends>[0-9]+(?:\.[0-9]+)?)")
_RATE = re.compile(r"(?P<rate>[0-9]+(?:\.[0-9]+)?)(?:/(?P<per>s|m|h))?")
_PER = {"s": 1, "m": 60, "h": 3600}


def _config_of(file: str | None) -> Config:
    """Return the settings of a file, or those that a program started here would use. Raises `ConfigError`."""
    if file is None:
        return load()
    hint = "give a file with settings, or - for stdin"
    if not set("./\\") & set(file):
        # A name without a dot or a slash is no file of settings.
        hint = f"for the policy of a target: holdfast policy show --target {file}"
    with open_input(file, hint) as opened:
        # The size is limited, because a wrong pipe must not fill the memory.
        raw = opened.read(MAX_STDIN if file == "-" else -1)
    return read_text(raw.decode("utf-8", "replace"), "stdin" if file == "-" else file)


def _valid_config(file: str | None) -> Config:
    """Return the settings as `_config_of` does. If they are wrong, print every problem and leave the verb."""
    try:
        return _config_of(file)
    except ConfigError as error:
        for problem in error.problems:
            fail(f"{error.fault.context['source']}: {problem}")
        raise typer.Exit(Exit.USAGE) from None


def config_schema() -> Exit:
    """Print the JSON Schema of the settings."""
    show_json(json_schema())
    return Exit.OK


def _named_policies(config: Config, target: str | None = None) -> dict[str, Policy]:
    """Return the policy of one target, or the default policy and the policies of all targets."""
    if target is not None:
        return {target: config.policy_of(target)}
    return {"default": config.policy, **config.targets}


# --- show ---


def policy_show(*, file: str | None, target: str | None, as_json: bool) -> Exit:
    """Show the delays of each policy for every class of failures, and the worst case in calls and time."""
    config = _valid_config(file)
    policies = _named_policies(config, target)
    if target is not None and config.policy_of(target) is config.policy:
        # The default policy holds for every name, so a mistyped one would look right.
        known = [name.removeprefix("provider:") for name in config.targets]
        meant = f"; {options.suggestion(target, known)}" if known else "."
        narrate(f"{config.source} has no policy for {target}{meant} This is the default policy.")
    if as_json:
        shown = [{"name": name, **_policy_document(policy)} for name, policy in policies.items()]
        show_json(
            {
                "schema": "holdfast.policy.show/1",
                "source": config.source,
                "enabled": config.enabled,
                "mode": config.mode_of(None),
                "policies": shown,
            }
        )
        return Exit.OK
    for name, policy in policies.items():
        show_facts(f"{name}  {policy!r}", _policy_facts(policy))
        show_table(
            ("failure", "codes", "calls", "waits", "worst case"),
            [
                (each.what, str(len(each.codes)), str(each.calls or "any"), _waits(each), _seconds(each.seconds))
                for each in outlook(policy)
            ],
        )
    return Exit.OK


def _policy_document(policy: Policy) -> dict[str, Any]:
    return {
        "policy": repr(policy),
        "timeout_s": policy.timeout,
        "deadline_s": policy.deadline,
        "patience_s": policy.patience,
        "max_retry_after_s": policy.max_retry_after,
        "circuit": None if policy.circuit is None else msgspec.to_builtins(policy.circuit),
        "outlook": msgspec.to_builtins(outlook(policy)),
    }


def _policy_facts(policy: Policy) -> list[tuple[str, str]]:
    honoured = f"honoured up to {_seconds(policy.max_retry_after)}, if the next attempt still starts in time"
    return [
        (
            "per call",
            _seconds(policy.timeout) if policy.timeout else "no limit: only the client's own ends a call that hangs",
        ),
        ("attempts", _attempts(policy)),
        ("deadline", "none" if policy.deadline is None else _seconds(policy.deadline)),
        ("Retry-After", "not used: a failed call is not retried" if policy.attempts == 1 else honoured),
        ("circuit", "none" if policy.circuit is None else _circuit(policy.circuit)),
    ]


def _attempts(policy: Policy) -> str:
    if policy.attempts == 1:
        return "1: a failed call is not retried"
    start = f"start for {_seconds(policy.window or LONGEST_WAIT_S)}"
    return start if policy.attempts is None else f"at most {policy.attempts}, which {start}"


_MODES = {
    "disabled": "disabled: lets all calls through uncounted",
    "metrics-only": "metrics-only: counts and never opens",
    "forced-open": "forced-open: rejects all calls",
}


def _circuit(circuit: Circuit) -> str:
    """Return in words what opens a circuit, and for how long."""
    if circuit.mode in _MODES:
        return _MODES[circuit.mode]
    window, opens = _seconds(circuit.window), []
    if circuit.failures is not None and circuit.graded:
        opens.append(f"after failures in {circuit.failures} seconds without a good answer")
    elif circuit.failures is not None:
        opens.append(f"after {circuit.failures} failures in {'a row' if circuit.counted == 'consecutive' else window}")
    share = f"of at least {circuit.volume} calls in {window}"
    if circuit.rate is not None:
        opens.append(f"if {circuit.rate:.0%} {share} fail".replace("%", " %"))
    if circuit.slow_rate is not None:
        opens.append(f"if {circuit.slow_rate:.0%} {share} take {_seconds(circuit.slow)} or longer".replace("%", " %"))
    longer = f", later up to {_seconds(circuit.open_cap)}" if circuit.open_growth > 1 else ""
    closes = f"; closes after {circuit.successes} good probes" if circuit.successes > 1 and not circuit.graded else ""
    return f"opens {', or '.join(opens)}; for {_seconds(circuit.open_for)}{longer}{closes}"


def _waits(each: Outlook) -> str:
    shown = [_wait(wait) for wait in each.waits]
    # The deadline ends the operation before these delays, so these attempts never happen and are not listed.
    if each.reached < len(shown):
        shown[each.reached :] = [f"({len(shown) - each.reached} more never fit)"]
    elif each.calls is None:
        shown.append("…")
    return ", ".join(shown) or "-"


def _wait(wait: WaitRange) -> str:
    if wait.least == wait.most:
        return f"{wait.most:g} s"
    return f"{wait.least:g}-{wait.most:g} s"


def _seconds(seconds: float | None) -> str:
    return "no limit" if seconds is None else spell_seconds(seconds)


# --- check ---


def policy_check(*, file: str | None, strict: bool, as_json: bool) -> Exit:
    """Check a file. With `strict`, warnings give an exit code of their own."""
    try:
        config = _config_of(file)
    except ConfigError as error:
        return _show_problems(str(error.fault.context["source"]), error.problems, as_json=as_json)
    found = _advice(config)
    warnings = sum(each.level == "warning" for _, each in found)
    if as_json:
        listed = [{"policy": name, **msgspec.to_builtins(each)} for name, each in found]
        show_json({"schema": _CHECK, "source": config.source, "valid": True, "problems": [], "advice": listed})
    else:
        if found:
            rows = [(each.level, name, each.about, each.text) for name, each in found]
            show_table(("level", "policy", "about", "what"), rows)
        show_text(f"{config.source} is valid, {counted(warnings, 'warning')}")
    return Exit.DEGRADED if strict and warnings else Exit.OK


def _show_problems(source: str, problems: tuple[Problem, ...], *, as_json: bool) -> Exit:
    if as_json:
        listed = msgspec.to_builtins(problems)
        show_json({"schema": _CHECK, "source": source, "valid": False, "problems": listed, "advice": []})
    else:
        rows = [(str(each.line or ""), each.path, str(each).removeprefix(f"{each.path}: ")) for each in problems]
        show_table(("line", "path", "what is wrong"), rows)
        them = "it is" if len(problems) == 1 else "they are"
        narrate(
            f"{source} is wrong, {counted(len(problems), 'mistake')}. The first recovery of a program raises this until"
            f" {them} corrected."
        )
    return Exit.USAGE


def _advice(config: Config) -> list[tuple[str, Advice]]:
    """Return advice about suspicious settings. Advice for several policies is returned once."""
    found = [(name, each) for name, policy in _named_policies(config).items() for each in advice(policy)]
    modes = {"all": config.mode_of(None), **{name: config.mode_of(name) for name in config.modes}}
    found[:0] = [(name, _PLAIN[mode]) for name, mode in modes.items() if mode in _PLAIN]
    # Targets inherit from the default policy, so most advice would appear once per target.
    seen: dict[Advice, str] = {}
    for name, each in found:
        seen.setdefault(each, name)
    return [(name, each) for each, name in seen.items()]


# --- simulate ---


def _load_of(flags: SimulationFlags) -> Load | None:
    """Return the load that the flags describe, or None if they describe an outage. Raises `InvalidError` for a wrong value."""
    if flags.kind not in LOAD_KINDS:
        if flags.limit:
            raise InvalidError.at("--limit", f"a --kind beside it: {', '.join(LOAD_KINDS)}", flags.limit)
        options.one_of("--kind", flags.kind, (*get_args(Kind), *LOAD_KINDS))
        return None
    enforced = read_limit(flags.limit) if flags.limit else None
    return Load(kind=flags.kind, limit=enforced, rate=_rate_of(flags.rate), duration=flags.duration)


def _rate_of(rate: str) -> float:
    pace = _RATE.fullmatch(rate)
    if pace is None:
        raise InvalidError.at("--rate", "a number per s, m or h, such as 10/s", rate)
    return float(pace["rate"]) / _PER[pace["per"] or "s"]


def _outage_of(flags: SimulationFlags) -> Outage:
    """Return the outage that the flags describe. Raises `InvalidError` for a value that means nothing."""
    span, per_second = _FROM_TO.fullmatch(flags.outage), _rate_of(flags.rate)
    if span is None:
        raise InvalidError.at("--outage", "FROM:TO in seconds, such as 5:60", flags.outage)
    entry = resolve(flags.code)
    if entry is None:
        raise InvalidError.at("--code", f"a code of the catalog ({suggested_codes(flags.code)})", flags.code)
    return Outage(
        begins=float(span["begins"]),
        ends=float(span["ends"]),
        rate=per_second,
        duration=flags.duration,
        code=CATALOG[entry.code].code,
        kind=cast("Kind", flags.kind),
        share=flags.share,
    )


def policy_simulate(*, file: str | None, target: str | None, flags: SimulationFlags, seed: int, as_json: bool) -> Exit:
    """Simulate the outage, or the load, under the default policy or a target's, and show the result."""
    what = _load_of(flags) or _outage_of(flags)
    config = _valid_config(file)
    policy = config.policy_of(target)
    if isinstance(what, Load):
        report, headline = simulate_load(policy, what, seed), _load_headline(what)
    else:
        report, headline = simulate(policy, what, random.Random(seed)), _outage_headline(what)  # noqa: S311 - a seed must give the same run again
    totals = _totals(report)
    if isinstance(what, Load):
        # A limit on the load has no end from which the recovery would count.
        del totals["time_to_recovery_s"]
    if as_json:
        show_json(
            {
                "schema": "holdfast.policy.simulate/1",
                "source": config.source,
                "policy": repr(policy),
                "seed": seed,
                "load" if isinstance(what, Load) else "outage": msgspec.to_builtins(what),
                **totals,
                "seconds": msgspec.to_builtins(report.seconds),
            }
        )
        return Exit.OK
    # The seed is in the headline: with it, another person gets the same figures.
    headline = f"{target or 'default'}: {headline}, seed {seed}"
    labels = {**_LABELS, **(_LOAD_LABELS if isinstance(what, Load) else {})}
    show_facts(headline, [(labels.get(name, name), _total(name, value)) for name, value in totals.items()])
    show_facts("", _plot(report.seconds, None if isinstance(what, Load) else what, _plot_width()))
    return Exit.OK


def _outage_headline(outage: Outage) -> str:
    kind = "" if outage.kind == "outage" else f"{outage.kind} of "
    return f"{kind}{outage.code} from {outage.begins:g} s to {outage.ends:g} s"


def _load_headline(load: Load) -> str:
    limit = load.enforced
    most = f"{limit.most:g} at a time" if limit.kind == "concurrency" else f"{limit.most:g} {limit.kind} a minute"
    tells = "" if limit.announces else ", not announced"
    return f"{load.kind} of {most}{tells}"


def _plot_width() -> int:
    """Return how many columns fit beside the labels. In a pipe the number is always the same."""
    width = stdout_width()
    return WIDTH if width is None else max(10, min(WIDTH, width - _BESIDE_PLOT))


def _totals(report: SimulationReport) -> dict[str, Any]:
    took = report.time_to_recovery
    return {
        **{name: getattr(report, name) for name in ("operations", "succeeded", "failed", "calls")},
        "calls_per_operation": round(report.calls_per_operation, 3),
        **{name: getattr(report, name) for name in ("wasted_calls", "hit")},
        **{name: round(getattr(report, name), 4) for name in ("recovered_share", "blocked_share")},
        "time_to_recovery_s": None if took is None else round(took, 3),
    }


def _total(name: str, value: Any) -> str:
    if value is None:
        return "never"
    if name.endswith("_s"):
        return spell_seconds(round(value, 1))
    return f"{value:.1%}" if name.endswith("_share") else f"{round(value, 2):g}"


def _plot(seconds: Sequence[Moment], outage: Outage | None, width: int) -> list[tuple[str, str]]:
    """Return one lane per kind of call. Each column is a period of time; the highest column of a lane is a full bar."""
    per_column = max(1, -(-len(seconds) // width))
    columns = [seconds[start : start + per_column] for start in range(0, len(seconds), per_column)]
    lanes = {
        "good": [sum(moment.good for moment in column) for column in columns],
        "failed": [sum(moment.failed for moment in column) for column in columns],
        "blocked": [sum(moment.blocked for moment in column) for column in columns],
    }
    drawn = [
        (name, f"|{_lane(counts)}|  up to {max(counts, default=0) / per_column:.3g}/s")
        for name, counts in lanes.items()
    ]
    if outage is None:
        return [*drawn, ("", f" {per_column} s a column")]
    down = "".join(
        # A column counts as outage if any part of it is in the outage.
        "x" if index * per_column < outage.ends and (index + 1) * per_column > outage.begins else "."
        for index in range(len(columns))
    )
    return [*drawn, ("outage", f"|{down}|  {per_column} s a column")]


def _lane(counts: Sequence[int]) -> str:
    most = max(counts, default=0) or 1
    # The height is rounded up, so that a single call is visible.
    return "".join(_BARS[-(-count * (len(_BARS) - 1) // most)] for count in counts)
