"""What runs in a worker, in the peers' environment: one module per part, each with a `Bench` that performs its driver's commands.

`contenders` passes a failure to each peer, `stacks` wraps a call with each peer.
"""

from __future__ import annotations
