"""`holdfast demo`: workers with the real SDKs go through a scripted storm, without keys and without a network.

    storm      the acts: what each worker's requests meet; everything that chance decides is decided there
    stage      the two providers that fail on script, and clients of the real SDKs that lead to them
    workers    what a worker does: ask, listen to a stream, ask somebody else when its provider is down
    tally      what came of every call by the events of its recovery, and what the servers counted
    closeup    one call, attempt by attempt
    show       the verb: the acts one after the other, the live view, the summary

Invariant: what is counted does not depend on who is scheduled first. Each worker has a model and so a sequence of faults of
its own, and where workers share a circuit it opens with the last failure that any of them can have.
"""

from __future__ import annotations

from holdfast.cli.exits import Exit
from holdfast.cli.output import fail

__all__ = ["demo"]

_SDKS = ("anthropic", "openai")


def demo(*, seed: int, fast: bool, as_json: bool) -> Exit:
    """Show it, where the SDKs are installed."""
    try:
        from holdfast.cli.demo.show import show
    except ModuleNotFoundError as missing:
        if missing.name not in _SDKS:
            raise
        fail(f"the demo uses the real SDKs, and {missing.name} is not installed", "pip install 'holdfast[cli,anthropic,openai]'")  # fmt: skip
        return Exit.USAGE
    return show(seed=seed, fast=fast, as_json=as_json)
