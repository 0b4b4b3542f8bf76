"""What tokens cost."""

from __future__ import annotations

import math

import pytest

from holdfast.faults import InvalidError
from holdfast.policies.models.prices import LIST_PRICES, Price, Prices
from holdfast.policies.models.usage import Usage

MILLION = 1_000_000
USAGE = Usage(input=MILLION, output=2 * MILLION)


def test_each_kind_of_token_has_its_price():
    price = Price(input=1, output=10, cached=0.1, written=1.25)
    whole = Usage(input=MILLION, output=MILLION, cached=MILLION, written=MILLION)
    assert price.cost(whole) == pytest.approx(12.35)


def test_cached_and_written_tokens_without_a_price_of_their_own_cost_what_input_costs():
    assert Price(input=3, output=0).cost(Usage(cached=MILLION, written=MILLION)) == 6


@pytest.mark.parametrize(
    ("usage", "usd"),
    [
        (Usage(input=100_000, output=MILLION), 0.01 + 0.5),
        (Usage(input=100_001, output=MILLION), 0.0500005 + 2.5),
        (Usage(input=1, cached=60_000, written=40_000), 0.0000005 + 0.003 + 0.025),
        (Usage(input=50_000, output=900_000), 0.005 + 0.45),
    ],
    ids=["up to the limit", "above it", "the cache is a part of the prompt", "the answer is none"],
)
def test_a_long_prompt_has_a_price_of_its_own(usage, usd):
    assert LIST_PRICES.cost("claude-haiku-5-5", usage) == pytest.approx(usd)


@pytest.mark.parametrize(
    "wrong",
    [
        {"long": 5},
        {"long": Price(input=1, output=1)},
        {"long_from": 1000},
        {"long": Price(input=1, output=1), "long_from": 0},
        {"long": Price(input=1, output=1, long=Price(input=2, output=2), long_from=5), "long_from": 3},
    ],
)
def test_the_price_of_long_prompts_is_checked(wrong):
    with pytest.raises(InvalidError, match=r"price\.long"):
        Price(input=1, output=1, **wrong)


def test_R90_a_model_without_a_price_costs_an_unknown_amount():
    assert LIST_PRICES.cost("an-unknown-model", USAGE) is None
    assert LIST_PRICES.cost(None, USAGE) is None
    assert LIST_PRICES.cost("gpt-4o", None) is None
    assert Prices().cost("gpt-4o", USAGE) is None


def test_R71_a_price_of_zero_is_free_not_unknown():
    assert Prices({"llama*": Price(input=0, output=0)}).cost("llama-3", USAGE) == 0


@pytest.mark.parametrize(
    ("model", "fits"),
    [
        ("gpt-4o", True),
        ("gpt-4o-2024-08-06", True),
        ("gpt-4o-latest", True),
        ("gpt-4o@20240806", True),
        ("gpt-4o-20240806", True),
        ("gpt-4o-mini", False),
        ("gpt-4o-mini-2024-07-18", False),
        ("gpt-4o-5", False),
        ("gpt-4", False),
        ("openai/gpt-4o", False),
    ],
)
def test_a_name_fits_the_model_and_its_dated_versions_and_no_sibling(model, fits):
    assert (Prices({"gpt-4o": Price(input=1, output=1)}).price(model) is not None) is fits


def test_the_most_specific_pattern_holds():
    one, two, three, four = (Price(input=n, output=n) for n in range(1, 5))
    prices = Prices({"*": one, "claude-*": two, "*claude-haiku*": three, "claude-haiku": four})
    assert prices.price("gpt") == one
    assert prices.price("claude-opus") == two
    assert prices.price("anthropic/claude-haiku-4-5") == three
    assert prices.price("claude-haiku") == four


def test_a_patterns_other_characters_mean_themselves():
    prices = Prices({"gpt-4.1*": Price(input=1, output=1)})
    assert prices.price("gpt-4x1") is None
    assert prices.price("gpt-4.1-mini") is not None


def test_own_prices_override_and_the_original_table_is_unchanged():
    ours = LIST_PRICES.with_prices({"gpt-4o": Price(input=1, output=1), "local": Price(input=0, output=0)})
    assert ours.cost("gpt-4o-2024-08-06", USAGE) == 3
    assert ours.cost("local", USAGE) == 0
    assert LIST_PRICES.cost("gpt-4o-2024-08-06", USAGE) == 22.5
    assert ours.price("gpt-5") == LIST_PRICES.price("gpt-5")


def test_a_table_that_is_changed_later_changes_no_price():
    table = {"a": Price(input=1, output=1)}
    prices = Prices(table)
    table.clear()
    assert prices.price("a") is not None


def test_prices_are_values():
    table = {"a": Price(input=1, output=1)}
    assert Prices(table) == Prices(dict(table))
    assert hash(Prices(table)) == hash(Prices(dict(table)))
    assert Prices(table) != Prices()
    assert eval(repr(Prices(table))) == Prices(table)


def test_many_unknown_model_names_do_not_fill_memory():
    prices = Prices({"a*": Price(input=1, output=1)})
    for number in range(2000):
        assert prices.price(f"a{number}") is not None
        assert prices.price(f"b{number}") is None
    assert len(prices._found) <= 256


def test_a_dated_exception_is_listed_beside_its_family():
    assert LIST_PRICES.price("gpt-4o-2024-05-13") == Price(input=5, output=15)
    assert LIST_PRICES.price("gpt-4o-2024-11-20") == LIST_PRICES.price("gpt-4o")


@pytest.mark.parametrize("model", sorted(LIST_PRICES.table))
def test_listed_prices_are_plausible(model):
    price = LIST_PRICES.table[model]
    assert 0 < price.input < price.output <= 100
    assert price.cached is None or price.cached <= price.input / 2
    assert price.written is None or price.input < price.written <= 2 * price.input


@pytest.mark.parametrize(
    ("build", "path"),
    [
        (lambda: Price(input=-1, output=1), "price.input"),
        (lambda: Price(input=1, output=math.nan), "price.output"),
        (lambda: Price(input=1, output=1, cached=math.inf), "price.cached"),
        (lambda: Price(input=1, output=1, written="2"), "price.written"),
        (lambda: Prices([("a", 1)]), "prices"),
        (lambda: Prices({"": Price(input=1, output=1)}), "prices"),
        (lambda: Prices({"a": 3.0}), r"prices\[a\]"),
        (lambda: LIST_PRICES.with_prices({"a": None}), r"prices\[a\]"),
    ],
)
def test_wrong_prices_say_where(build, path):
    with pytest.raises(InvalidError, match=rf"{path}: expected .+, got "):
        build()


def test_an_hour_in_the_cache_costs_twice_the_input_and_a_web_search_a_cent() -> None:
    usage = Usage(written=1_000_000, written_hour=1_000_000, searches=5)
    assert LIST_PRICES.cost("claude-haiku-4-5", usage) == pytest.approx(1.25 + 2 + 0.05)
    assert LIST_PRICES.cost("claude-haiku-5-5", Usage(written_hour=10_000)) == pytest.approx(0.002)
    own = Price(input=3, output=1, written_hour=5, web_search=0.5)
    assert own.cost(usage) == pytest.approx(3 + 5 + 2.5)
