"""`holdfast policy show`: the waits of every class of failures, and the worst case in calls and time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.cli.exits import Exit
from holdfast.cli.output import show_facts, show_json, show_table
from holdfast.cli.policy_file import named_policies
from holdfast.faults.surfaces import spell_seconds
from holdfast.policies.outlook import Outlook, Wait, outlook

if TYPE_CHECKING:
    from holdfast.policies import Policy
    from holdfast.runtime.config import Config

__all__ = ["policy_show"]


def policy_show(config: Config, *, target: str | None, as_json: bool) -> Exit:
    """Show what each policy of the settings will do."""
    policies = named_policies(config, target)
    if as_json:
        shown = [{"name": name, **_document(policy)} for name, policy in policies.items()]
        show_json(
            {
                "schema": "holdfast.policy.show/1",
                "source": config.source,
                "enabled": config.enabled,
                "policies": shown,
            }
        )
        return Exit.OK
    for name, policy in policies.items():
        show_facts(f"{name}  {policy!r}", _facts(policy))
        show_table(
            ("failure", "codes", "calls", "waits", "worst case"),
            [
                (each.what, str(len(each.codes)), str(each.calls), _waits(each), _seconds(each.seconds))
                for each in outlook(policy)
            ],
        )
    return Exit.OK


def _document(policy: Policy) -> dict[str, Any]:
    return {
        "policy": repr(policy),
        "timeout_s": policy.timeout,
        "deadline_s": policy.deadline,
        "max_retry_after_s": policy.max_retry_after,
        "circuit": None if policy.circuit is None else msgspec.to_builtins(policy.circuit),
        "outlook": msgspec.to_builtins(outlook(policy)),
    }


def _facts(policy: Policy) -> list[tuple[str, str]]:
    return [
        ("per call", _seconds(policy.timeout)),
        ("in all", _seconds(policy.deadline)),
        ("asked waits", f"as asked, up to {_seconds(policy.max_retry_after)} and the deadline"),
        ("circuit", "none" if policy.circuit is None else repr(policy.circuit)),
    ]


def _waits(each: Outlook) -> str:
    shown = [_wait(wait) for wait in each.waits]
    if each.reached < len(shown):
        shown[each.reached :] = [f"({len(shown) - each.reached} more never fit)"]
    return ", ".join(shown) or "-"


def _wait(wait: Wait) -> str:
    if wait.least == wait.most:
        return f"{wait.most:g} s"
    return f"{wait.least:g}-{wait.most:g} s"


def _seconds(seconds: float | None) -> str:
    return "no limit" if seconds is None else spell_seconds(seconds)
