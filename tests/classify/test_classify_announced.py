"""Limits as the providers announce them with every answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.classify.announced import Announced, announced

NOW = 1_735_689_600.0  # 2025-01-01T00:00:00Z
ANTHROPIC = {
    "anthropic-ratelimit-requests-limit": "50",
    "anthropic-ratelimit-requests-remaining": "49",
    "anthropic-ratelimit-requests-reset": "2025-01-01T00:00:30Z",
    "anthropic-ratelimit-tokens-remaining": "9000",
    "anthropic-ratelimit-tokens-reset": "2025-01-01T00:01:00Z",
}
OPENAI = {
    "x-ratelimit-limit-requests": "60",
    "x-ratelimit-remaining-requests": "0",
    "x-ratelimit-reset-requests": "1m30s",
    "x-ratelimit-remaining-tokens": "149984",
    "x-ratelimit-reset-tokens": "6m0s",
}


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        (ANTHROPIC, Announced(50, 49, 30)),
        (ANTHROPIC | {"date": "Wed, 01 Jan 2025 00:00:20 GMT"}, Announced(50, 49, 10)),
        (ANTHROPIC | {"anthropic-ratelimit-tokens-remaining": "0"}, Announced(None, 0, 60)),
        (OPENAI, Announced(60, 0, 90)),
        (OPENAI | {"x-ratelimit-remaining-tokens": "0"}, Announced(None, 0, 360)),
        ({"x-ratelimit-remaining": "3", "x-ratelimit-reset": str(int(NOW) + 9)}, Announced(None, 3, 9)),
        ({"ratelimit-remaining": "3", "ratelimit-reset": "4"}, Announced(None, 3, 4)),
        ({}, None),
        ({"x-ratelimit-remaining": "3"}, None),
        ({"x-ratelimit-remaining": "-1", "x-ratelimit-reset": "4"}, None),
        ({"x-ratelimit-remaining": "3", "x-ratelimit-reset": "2020-01-01T00:00:00Z"}, None),
        ({"x-ratelimit-remaining": "nan", "x-ratelimit-reset": "soon"}, None),
    ],
)
def test_announced_limits_are_read_in_each_providers_form(headers, told):
    assert announced(headers, NOW) == told


@given(st.dictionaries(st.sampled_from([*ANTHROPIC, *OPENAI, "date"]), st.text(max_size=12)))
def test_headers_of_strangers_never_raise(headers):
    told = announced(headers, NOW)
    assert told is None or (told.remaining >= 0 and told.reset > 0)
