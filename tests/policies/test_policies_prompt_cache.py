"""Weighing a wait against a cold prompt: a pure function of tokens, prices and seconds."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast import InvalidError
from holdfast.policies.models.prices import LIST_PRICES, Price
from holdfast.policies.models.prompt_cache import CACHE_LIFETIME_S, Weighed, is_warm, weigh
from holdfast.policies.models.usage import Usage

_tokens = st.integers(0, 2_000_000)
usages = st.builds(Usage, input=_tokens, output=_tokens, cached=_tokens, written=_tokens)
_money = st.floats(0, 100)
prices = st.builds(Price, input=_money, output=_money, cached=st.none() | _money, written=st.none() | _money)
seconds = st.floats(0, 10_000)
worth = st.floats(0, 1)

CLAUDE = LIST_PRICES.price("claude-opus-5")
GPT = LIST_PRICES.price("gpt-5")
WARM = Usage(input=1_000, output=1_000, cached=150_000, written=2_000)


def test_the_costs_are_those_of_the_price_list():
    weighed = weigh(WARM, here=CLAUDE, there=GPT, wait=4.0)
    # 152,000 tokens at 0.50 and 2,000 at 5 here; 154,000 at 1.25 there.
    assert weighed.usd == pytest.approx(0.1925 - 0.086)
    assert weighed.wait_usd == pytest.approx(0.04)
    assert weighed.stays
    assert weighed.why == (
        "a cold prompt costs 0.1065 USD more than the warm cache, and a wait of 4.0 s is worth 0.0400 USD"
    )


def test_a_long_prompt_is_weighed_at_the_price_of_long_prompts():
    haiku = LIST_PRICES.price("claude-haiku-5-5")
    # 154,000 tokens are stored at 0.625 there, and not at 0.125.
    assert weigh(WARM, here=CLAUDE, there=haiku, wait=None).usd == pytest.approx(154_000 * 0.625 / 1e6 - 0.086)


def test_storing_the_prompt_elsewhere_costs_more_than_reading_it():
    haiku = LIST_PRICES.price("claude-haiku-4-5")
    stored = weigh(WARM, here=CLAUDE, there=haiku, wait=None)
    read = weigh(WARM, here=CLAUDE, there=haiku, wait=None, writes=False)
    assert stored.usd - read.usd == pytest.approx(154_000 * 0.25 / 1e6)
    assert stored.why == f"a cold prompt costs {stored.usd:.4f} USD more than the warm cache"


@given(usages, prices, prices, seconds, seconds, worth)
def test_G17_the_cheaper_of_the_two_is_chosen(usage, here, there, wait, waited, usd_per_second):
    weighed = weigh(usage, here=here, there=there, wait=wait, waited=waited, usd_per_second=usd_per_second)
    assert weighed.stays == ((waited + wait) * usd_per_second < weighed.usd)


@given(usages, prices, prices, seconds, seconds, worth)
def test_G17_a_longer_wait_is_never_chosen_where_a_shorter_one_is_not(usage, here, there, one, other, usd_per_second):
    short, long = sorted((one, other))
    chosen = [
        weigh(usage, here=here, there=there, wait=wait, usd_per_second=usd_per_second).stays for wait in (short, long)
    ]
    assert chosen != [False, True]


@given(usages, prices, prices, seconds, st.floats(0.001, 1), st.integers(1, 50))
def test_G17_waits_never_add_up_to_more_than_the_cold_prompt_costs(usage, here, there, wait, usd_per_second, times):
    waited = 0.0
    for _ in range(times):
        weighed = weigh(usage, here=here, there=there, wait=wait, waited=waited, usd_per_second=usd_per_second)
        if not weighed.stays:
            break
        waited += wait
    assert waited * usd_per_second <= max(0.0, weighed.usd)


@given(usages, prices, prices, worth)
def test_an_unknown_wait_is_never_chosen(usage, here, there, usd_per_second):
    assert not weigh(usage, here=here, there=there, wait=None, usd_per_second=usd_per_second).stays


@given(usages, prices)
def test_a_model_that_costs_the_same_and_has_no_cache_price_is_not_worth_a_wait(usage, price):
    assume(price.written is None)
    plain = Price(input=price.input, output=price.output)
    assert weigh(usage, here=plain, there=plain, wait=0.0).usd == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(
    ("usage", "age", "warm"),
    [
        (Usage(input=5, cached=1), 0, True),
        (Usage(input=5, written=1), CACHE_LIFETIME_S - 1, True),
        (Usage(input=5, written=1), CACHE_LIFETIME_S, False),
        (Usage(input=5), 0, False),
        (Usage(input=5, cached=1), -1, False),
    ],
)
def test_a_prompt_is_warm_for_the_lifetime_of_the_cache(usage, age, warm):
    assert is_warm(usage, age) is warm


def test_a_wait_that_is_worth_a_negative_amount_is_invalid():
    with pytest.raises(InvalidError, match="usd_per_second"):
        weigh(WARM, here=CLAUDE, there=GPT, wait=1.0, usd_per_second=-1)


def test_a_cheaper_model_says_so():
    assert Weighed(usd=-0.5).why == "a cold prompt costs 0.5000 USD less than the warm cache"
