"""`holdfast demo`: workers with the real SDKs go through a scripted storm, without keys and without a network.

    storm      the acts: the faults that each worker's requests meet, and every random choice
    workers    what a worker does, and the clients and providers that it uses
    tally      how every call ended, by the events of its recovery, and what the servers counted
    show       the verb: the acts one after the other, the live view, the summary

Invariant: the counts do not depend on scheduling. Each worker has its own model, and each model has its own sequence
of faults. If workers share a circuit, the circuit opens with the very last failure of the act.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.extras import needs_extra

if TYPE_CHECKING:
    from holdfast.cli.exits import Exit

__all__ = ["demo"]


def demo(*, seed: int, fast: bool, as_json: bool) -> Exit:
    """Run the demo. Raises `MissingExtraError` if the SDKs are not installed."""
    # The import stands here, because `--help` must work without the SDKs.
    with needs_extra("holdfast demo", "anthropic and openai", "demo"):
        from holdfast.cli.demo.show import show
    return show(seed=seed, fast=fast, as_json=as_json)
