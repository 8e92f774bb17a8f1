"""Cost of a training: by hand, and what cannot be meant."""

import pytest

from cubemesh.errors import UsageError
from cubemesh.forecast.training.cost import (
    Prices,
    cost_at,
    known_columns,
    read_prices,
    training_cost,
)


def test_ninety_epochs_of_imagenet_by_hand() -> None:
    prices = read_prices(
        ["price_per_hour=2.5", "purchase_price=26280", "power_price=0.3", "co2_per_kwh=0.4"]
    )
    found = cost_at(prices, samples_per_s=8000, devices=4, watts=2000)
    assert found.hours == pytest.approx(4)  # 115.2 million at 8,000/s
    assert found.energy_kwh == pytest.approx(8)
    assert found.co2_kg == pytest.approx(3.2)
    assert found.rented == pytest.approx(4 * 2.5 * 4)
    # three years are 26,280 hours: a device costs 1 an hour; and its electricity
    assert found.owned == pytest.approx(4 * 4 + 8 * 0.3)
    assert "electricity" not in known_columns([found])


def test_half_the_years_of_depreciation_double_it() -> None:
    own = training_cost(Prices(purchase_price=8760.0), hours=10, devices=1, watts=None)
    short = Prices(purchase_price=8760.0, depreciation_years=1.5)
    assert training_cost(short, hours=10, devices=1, watts=None).owned == pytest.approx(
        2 * own.owned
    )


def test_without_power_there_is_no_energy_and_no_price_of_owning_with_a_power_price() -> None:
    prices = Prices(purchase_price=1000.0, power_price=0.3, co2_per_kwh=0.4, price_per_hour=1.0)
    found = training_cost(prices, hours=2, devices=1, watts=None)
    assert (found.energy_kwh, found.co2_kg, found.owned) == (None, None, None)
    assert found.rented == pytest.approx(2)
    assert list(known_columns([found, None])) == ["hours", "rented"]


def test_a_number_of_tokens_instead_of_epochs() -> None:
    prices = read_prices(["tokens=1e9", "price_per_hour=36"])
    found = cost_at(prices, samples_per_s=1000, devices=1, watts=None, tokens_per_sample=1000)
    assert found.rented == pytest.approx(10)  # a million sequences
    assert prices.training == "1 billion tokens"
    assert cost_at(prices, samples_per_s=1000, devices=1, watts=None) is None


def test_the_default_is_the_papers_training() -> None:
    assert Prices().training == "90 epochs of 1,280,000 samples"
    assert not Prices().known


@pytest.mark.parametrize(
    "line",
    ["power_price", "power_price=", "power_price=-1", "epochs=0", "samples=nan", "tokens=inf"],
)
def test_what_is_no_number_is_an_error(line) -> None:
    with pytest.raises(UsageError, match="NUMBER"):
        read_prices([line])


def test_an_unknown_price_is_an_error_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="power_price"):
        read_prices(["powerprice=1"])
