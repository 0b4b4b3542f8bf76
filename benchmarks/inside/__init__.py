"""What runs in a worker, in the peers' environment: one module per part, each with a `Bench` that does what its driver asks.

`contenders` says how each peer is asked about a failure, `stacks` how each peer is put around a call.
"""

from __future__ import annotations
