"""Holdfast beside its peers, in one run on one machine: `python -m benchmarks [classify|import|accuracy|recover|provider] [--quick] [--json FILE]`.

`peers` builds `.venv-bench` on first use. `worker` runs there, one process per contender, and does what the driver asks
over a pipe; `contenders` says how each one is asked and how its answer is read; `classify`, `imports` and `accuracy`
drive the workers in turn (A B A B) and hand rows to `table`. `provider` has no peers: it measures our own
fault provider, so that it is never the bottleneck of a test. Figures are printed, never asserted.
"""

from __future__ import annotations
