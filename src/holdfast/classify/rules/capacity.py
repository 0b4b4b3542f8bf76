"""The other side is full, loading or out of memory: its limit, not ours."""

from __future__ import annotations

from holdfast.classify.evidence import Evidence, Verdict, asked_when
from holdfast.classify.phrases import phrases
from holdfast.faults import Scope

_FULL = phrases("""
    overloaded | over capacity | no capacity | at capacity | at full capacity | high demand | capacity exceeded
    capacity_exceeded | insufficient capacity | server is busy | servers are busy | system is busy | too busy
    is busy | peak load | high load | heavy load | high traffic | server overload | request limit reached (
    capacity constraints | resource exhausted. please try again later | currently experiencing | out of capacity
    capacity limit | engine is currently overloaded | temporarily at capacity | queue is full | queue full
    degraded function cannot be invoked | 负载 | 繁忙 | 过载
""")
_LOADING = phrases("""
    loading model | is currently loading | model is loading | model is not ready | still loading | warming up
    model not ready | is being loaded | loading the model
""")
_MEMORY = phrases("""
    requires more system memory | cuda out of memory | cuda error: out of memory | out of memory
    unable to allocate | insufficient memory | not enough memory | failed to allocate | insufficient vram
    memory layout cannot be allocated | insufficient system resources
""")


@asked_when(_MEMORY, limit=True)
def out_of_memory(evidence: Evidence) -> Verdict | None:
    """A local server that cannot hold the model: permanent on this host."""
    served = evidence.exit_code is None and evidence.rpc_code is None and evidence.status is not None
    return Verdict(code="PROVIDER_OUT_OF_MEMORY") if served else None


@asked_when(_LOADING, limit=True)
def loading(_: Evidence) -> Verdict | None:
    """The model is being loaded; it answers soon."""
    return Verdict(code="PROVIDER_MODEL_LOADING")


@asked_when(_FULL, limit=True)
def full(evidence: Evidence) -> Verdict | None:
    """Overloaded, at capacity, high demand; also where the status says 429 or 400."""
    return Verdict(code="PROVIDER_OVERLOADED", scope=Scope.MODEL if "model" in evidence.text else None)


RULES = (out_of_memory, loading, full)
