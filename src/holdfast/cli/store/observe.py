"""`holdfast policy observe`: sum up what recovery would have changed, from the calls that observe mode has reported.

The calls come from the audit trail of a store, or from a file of events (`encode_lines`) or of `holdfast audit export`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.cli.exits import Exit, open_input
from holdfast.cli.output import counted, narrate, show_facts, show_json, show_table, show_text
from holdfast.cli.store.access import time_of, with_store
from holdfast.cli.store.audit import Filters, filters_of
from holdfast.cli.store.flags import AuditFlags
from holdfast.events import Observed
from holdfast.events.observed import ObservedTotals
from holdfast.faults import InvalidError
from holdfast.faults.surfaces import spell_seconds
from holdfast.policies.target import target_of
from holdfast.stores.verification import heads_of, records_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.stores.store import Store

_COLUMNS = ("target", "calls", "answered", "failed", "tried again", "given up", "own retries", "worse off")
_DOES = {
    "retry": "would have been retried",
    "fall-back": "would have been answered by a fallback, if that works",
    "repair": "would have been repaired and sent again",
    "give-up": "would have failed at once, as they did",
    "wait": "would have waited before the call",
    "reject": "would have been rejected before the call",
}
_NOTHING = "no call of observe mode is recorded here"


class _Sums:
    """The sums of each target, of the calls that fit."""

    def __init__(self, filters: Filters, target: str | None) -> None:
        self._filters = filters
        self._target = None if target is None else target_of(target, "--target").names[0][1]
        self.targets: dict[str, ObservedTotals] = {}
        self.unread = 0
        """Records of observed calls that this version cannot read."""

    def add(self, document: Any) -> None:
        """Add a call from the JSON of its event, or from the record of one; leave everything else out."""
        if not isinstance(document, dict):
            return
        # `audit export` has the record's payload inside.
        found = document.get("payload", document)
        if not isinstance(found, dict) or "observed" not in (found.get("type"), found.get("event")):
            return
        try:
            event = msgspec.convert({**found, "type": "observed"}, Observed)
        except msgspec.ValidationError:
            self.unread += 1
            return
        if self._fits(event):
            self.targets.setdefault(event.operation or "(no target)", ObservedTotals()).add(event)

    async def add_trail(self, store: Store) -> Exit:
        """Add the calls in the audit trail of a store."""
        async for head in heads_of(store):
            async for record in records_of(store, head.chain):
                # A look at the bytes first: most records are about something else, and decoding is slow.
                if b'"observed"' in bytes(record.payload):
                    self.add(_payload_of(record.payload))
        return Exit.OK

    def _fits(self, event: Observed) -> bool:
        since, until = self._filters.since, self._filters.until
        if (since is not None and event.at < since) or (until is not None and event.at >= until):
            return False
        return self._target is None or self._target in _names(event.operation)


def _names(operation: str) -> list[str]:
    """Return the names of a target's circuits; none for a function that has no target."""
    try:
        return [name for _, name in target_of(operation, "target").names]
    except InvalidError:
        return []


def policy_observe(
    *,
    file: str | None,
    store: str | None,
    target: str | None,
    since: str | None,
    until: str | None,
    strict: bool,
    as_json: bool,
) -> Exit:
    """Sum up the calls in a file of JSON Lines (`-` is stdin), or in the audit trail of a store."""
    sums = _Sums(filters_of(AuditFlags(since=since, until=until)), target)
    if file is None:
        with_store(store, sums.add_trail)
    else:
        _add_lines(sums, file)
    return _show(sums, file or "the audit trail", strict=strict, as_json=as_json)


def _add_lines(sums: _Sums, file: str) -> None:
    with open_input(file, "give a file of events, or --store ADDRESS for an audit trail") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                sums.add(_decoded(file, number, line))


def _decoded(file: str, number: int, line: bytes) -> Any:
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        message = "JSON Lines: a file of events, or the output of `holdfast audit export`"
        raise InvalidError.saying(f"{file}:{number}", message, str(error)) from None


def _payload_of(payload: Any) -> Any:
    try:
        return msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _show(sums: _Sums, source: str, *, strict: bool, as_json: bool) -> Exit:
    targets: Iterable[tuple[str, ObservedTotals]] = sorted(sums.targets.items(), key=lambda each: -each[1].calls)
    unclear = any(totals.harmed or totals.unjudged for _, totals in targets)
    if as_json:
        documents = [{"target": name, **totals.document(), "switch_on": _line(name)} for name, totals in targets]
        show_json({"schema": "holdfast.policy.observe/1", "source": source, "targets": documents})
    elif sums.targets:
        show_table(_COLUMNS, [_row(name, totals) for name, totals in targets])
        for name, totals in targets:
            show_facts(f"{name}  {_span(totals)}", _facts(totals))
            show_text(totals.verdict)
            if not totals.harmed and not totals.unjudged:
                show_text(f"Switch it on in holdfast.toml: {_line(name)}")
    if sums.unread:
        narrate(f"{counted(sums.unread, 'record')} of a newer version, or damaged, not counted")
    if not sums.targets:
        narrate(f'holdfast: {_NOTHING} that fits; set mode = "observe", and keep its events with audit_to')
        return Exit.NOT_FOUND
    return Exit.DEGRADED if strict and unclear else Exit.OK


def _line(name: str) -> str:
    """Return the settings that switch recovery on for a target."""
    names = _names(name)
    if not names:
        return 'mode = "recover"'
    return f'[targets."{names[0].removeprefix("provider:")}"] mode = "recover"'


def _row(name: str, totals: ObservedTotals) -> tuple[str, ...]:
    given_up = totals.would["give-up"] + totals.would["reject"]
    counts = (
        totals.calls,
        totals.answered,
        totals.failed,
        totals.tried_again,
        given_up,
        totals.requests,
        totals.harmed,
    )
    return (name, *map(str, counts))


def _span(totals: ObservedTotals) -> str:
    return f"{counted(totals.calls, 'call')} from {time_of(totals.since)} to {time_of(totals.until)}"


def _facts(totals: ObservedTotals) -> list[tuple[str, str]]:
    facts = [(f"failed, {count}", _DOES.get(word, word)) for word, count in totals.would.most_common()]
    if totals.codes:
        facts.append(("failures", ", ".join(f"{code} ×{n}" for code, n in totals.codes.most_common(8))))
    if totals.requests:
        saved = f"; {spell_seconds(totals.saved)} of failed calls were spent on them" if totals.saved else ""
        facts.append(
            ("client's retries", f"{totals.requests}, {totals.unwanted} of them recovery would not have sent{saved}")
        )
    if totals.hidden:
        facts.append(("hidden failures", f"{totals.hidden} answers that recovery would have taken for failures"))
    if totals.left:
        facts.append(("left", f"{totals.left} stopped by their callers"))
    return facts
