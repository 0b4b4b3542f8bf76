"""Advice about a valid policy that will not do what its numbers say, or will do more than its author expects.

Invariant: a warning is about a number the user chose; a consequence of our own defaults is at most a note.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from holdfast.policies.outlook import Outlook, outlook
from holdfast.policies.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Iterator

Level: TypeAlias = Literal["warning", "note"]

SDK_CALLS = 3
"""Calls the official SDKs of Anthropic and OpenAI make by themselves for each of ours by default (max_retries=2)."""

_DEFAULT = Policy()


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """One thing worth a second look."""

    level: Level
    about: str
    text: str


def advice(policy: Policy) -> tuple[Advice, ...]:
    """Return what deserves a second look in a policy: warnings first, then notes."""
    found = [*_unlimited(policy), *_waits(policy), *_calls(policy), *_circuit(policy)]
    return tuple(sorted(found, key=lambda each: each.level == "note"))


def _unlimited(policy: Policy) -> Iterator[Advice]:
    if policy.timeout is None and policy.deadline is None and policy.attempts != 1:
        text = "only the client's own limit ends a call that hangs: set that, or timeout or deadline"
        yield _note("timeout", text)


def _waits(policy: Policy) -> Iterator[Advice]:
    # Schedules that are cut in the same way share one line. Four similar warnings would hide the other warnings.
    cut: dict[tuple[int, int, bool], list[str]] = {}
    for each in outlook(policy):
        if each.calls is not None and each.reached < len(each.waits):
            cut.setdefault((each.reached + 1, len(each.waits), _is_own(policy, each)), []).append(each.what)
    for (first, of, own), names in cut.items():
        text = (
            f"{', '.join(names)}: retry {first} of {of} and later retries never happen, because "
            f"their waits end after the {policy.window:g} s in which attempts start"
        )
        yield (_warning if own else _note)("deadline", text)
    if policy.backoff is not None and not policy.backoff.jitter and not policy.backoff.steps:
        yield _warning("backoff.jitter", "without jitter, callers that failed together come back together")


def _calls(policy: Policy) -> Iterator[Advice]:
    calls = [each.calls for each in outlook(policy)]
    if None in calls:
        yield _note(
            "attempts", f"an SDK that retries too makes {SDK_CALLS} calls of each attempt: set its max_retries to 0"
        )
    elif (most := max(filter(None, calls))) > 1:
        text = (
            f"up to {most} calls per operation; an SDK that retries too makes {most * SDK_CALLS} of them: "
            "set its max_retries to 0"
        )
        yield _note("attempts", text)
    if policy.timeout and policy.deadline and policy.attempts and policy.attempts * policy.timeout > policy.deadline:
        text = (
            f"{policy.attempts} attempts of {policy.timeout:g} s do not fit into the deadline of {policy.deadline:g} s"
        )
        yield _note("deadline", text)


def _circuit(policy: Policy) -> Iterator[Advice]:
    circuit = policy.circuit
    if circuit is None:
        if policy.attempts != 1:
            yield _note("circuit", "without a circuit, nothing stops calls to a service that is down")
        return
    # If a policy sets no attempts, the schedules of the codes apply, and these fit the default circuit.
    most = policy.attempts or 0
    if policy.counts == "attempt" and circuit.counted == "consecutive" and circuit.failures and circuit.failures < most:
        text = f"{circuit.failures} failures open the circuit, so one operation cannot make all its {most} attempts"
        yield _warning("circuit.failures", text)
    if policy.wait_for_circuit and policy.window is not None and circuit.open_for >= policy.window:
        text = (
            f"the circuit stays open for {circuit.open_for:g} s, but attempts start only for {policy.window:g} s: "
            "no operation waits for its end"
        )
        yield _warning("wait_for_circuit", text)


def _is_own(policy: Policy, each: Outlook) -> bool:
    """Whether the user chose the numbers behind this outlook. Otherwise they are those of a profile."""
    # Warning about our own defaults would teach users to ignore warnings.
    own_deadline = policy.window != _DEFAULT.window
    return policy.attempts is not None or policy.backoff is not None or each.what in policy.per_code or own_deadline


def _warning(about: str, text: str) -> Advice:
    return Advice(level="warning", about=about, text=text)


def _note(about: str, text: str) -> Advice:
    return Advice(level="note", about=about, text=text)
