"""A service that answers every request with a tiny `Retry-After` gets no more requests than one that sends none."""

from __future__ import annotations

import pytest
from clients_forms import FORMS, client_for, recovering
from clients_kit import Wire, failing
from httpx2 import MockTransport

from holdfast import Runtime
from holdfast.testing import Midpoint, VirtualClock, run

TINY = [{"retry_after": "0"}, {"retry_after_ms": "1"}, {"retry_after": "0.2"}]


def requests_sent(form, *, is_async, line):
    """Make one call that never succeeds; return how many requests it sent."""
    runtime, wire = Runtime(clock=VirtualClock(), rng=Midpoint()), Wire(line)
    transport = MockTransport(wire.asynchronously if is_async else wire)
    client = recovering(form, client_for(form, transport, is_async=is_async), runtime=runtime)

    async def call_async():
        await form.begin(client)

    with pytest.raises(Exception, match="no"):
        run(call_async(), clock=runtime.clock) if is_async else form.begin(client)
    return len(wire.requests)


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
@pytest.mark.parametrize("header", TINY, ids=str)
@pytest.mark.parametrize("form", [FORMS["messages"], FORMS["chat"]], ids=lambda form: form.host)
@pytest.mark.parametrize(("status", "kind"), [(429, "rate_limit_error"), (503, "api_error")])
def test_XR9_a_tiny_retry_after_is_no_hot_loop(form, is_async, header, status, kind):
    by_backoff = requests_sent(form, is_async=is_async, line=failing(status, kind))
    assert by_backoff <= 25
    assert requests_sent(form, is_async=is_async, line=failing(status, kind, **header)) <= by_backoff + 1, (
        "the first one is kept to"
    )
