"""Holdfast beside its peers, in one run on one machine: `python -m benchmarks [PART …] [--quick] [--json FILE]`.

    classify, accuracy   recognising failures
    import               what `import holdfast` adds to the start of a program
    recover              what recovery costs around a call that works, fails, or is rejected by an open circuit
    recovery             how well calls recover in each kind of failure, compared with clairvoyants; the verdict; the cost beside the Router
    circuits, memory     a hundred thousand circuits, a million calls, ten thousand streams
    provider             our own fault provider, which must never be the bottleneck of a test
    fleet                several processes on one limit: used, in vain, fair; with real processes and a real Redis
    day                  24 virtual hours of mixed faults: what is recovered, prevented, and how soon (`--seed N`)
    durable              events that survive, beside LangGraph, DBOS and raw SQL; open sessions, long logs, restarts (`--kinds A,B`)
    harm                 random worlds, Holdfast beside the bare SDK: what is worse than without it (`--worlds N`, `--seed N`)
    bridge               messages a second, beside raw echo servers and Socket.IO; how soon a client is back
    sinks                what each sink adds; by itself, `python -m benchmarks.sinks`

`peers` builds `.venv-bench` on first use. `worker` runs there, one process per contender, and takes commands from the driver
over a pipe; `inside` has the code of the commands. The drivers let the workers take turns (A B A B) and pass rows to `table`.
The benchmarks print figures and assert nothing.
"""

from __future__ import annotations
