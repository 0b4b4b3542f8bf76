"""What the laws of faults are tried on: faults with everything they can hold."""

from __future__ import annotations

from hypothesis import strategies as st

from holdfast.faults import CODES, Attempt, Cause, Fault, ItemError, Partial, Scope

__all__ = ["faults", "json_values", "texts"]

texts = st.text(max_size=20)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
seconds = st.floats(0, 1e9)
causes = st.recursive(
    st.builds(Cause, type=texts, message=texts),
    lambda inner: st.builds(Cause, type=texts, message=texts, chain=st.lists(inner, max_size=2).map(tuple)),
    max_leaves=3,
)
partials = st.builds(
    Partial,
    payload=json_values,
    errors=st.lists(
        st.builds(ItemError, item=json_values, code=texts, message=texts, classed=texts, retryable=st.booleans()),
        max_size=2,
    ).map(tuple),
    complete=st.none() | st.integers(0, 9),
    expected=st.none() | st.integers(0, 9),
    truncated=st.booleans(),
)
attempts = st.builds(
    Attempt,
    number=st.integers(1, 9),
    code=st.none() | st.sampled_from(CODES),
    message=texts,
    started=seconds,
    took=seconds,
    waited=seconds,
    cause=st.none() | causes,
)
faults = st.builds(
    Fault,
    code=st.sampled_from(CODES),
    message=texts,
    retryable=st.booleans(),
    scope=st.sampled_from(Scope),
    retry_after=st.none() | seconds,
    maybe_executed=st.booleans(),
    rule=texts,
    context=st.dictionaries(texts, json_values, max_size=3),
    partial=st.none() | partials,
    cause=st.none() | causes,
    attempts=st.lists(attempts, max_size=2).map(tuple),
)
