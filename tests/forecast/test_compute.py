import pytest
from hypothesis import given
from hypothesis import strategies as st

from cubemesh import networks
from cubemesh.forecast.compute import floor_s, utilization
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.cost import costs, totals
from cubemesh.networks.graph import Network

RATES = st.floats(1e6, 1e15)


@pytest.fixture(scope="module")
def little() -> Network:
    return networks.build("little-cnn")


def test_a_single_layer_by_hand() -> None:
    net = NetworkBuilder("one")
    net.classify(net.linear(net.flatten(net.input("image", (1, 4, 4))), 10))
    network = net.build()
    # 16 → 10 on 8 samples: forward and weight gradient; nobody wants the image's gradient.
    assert floor_s(network, 8, 1e6) == pytest.approx(2 * (2 * 8 * 16 * 10) / 1e6)


def test_without_bytes_the_floor_is_operations_over_rate(little: Network) -> None:
    assert floor_s(little, 32, 1e11) == pytest.approx(totals(little, 32).total.matrix_flops / 1e11)


def test_with_a_slow_memory_the_floor_is_bytes_over_bandwidth(little: Network) -> None:
    assert floor_s(little, 32, 1e18, 1e9) == pytest.approx(
        totals(little, 32).total.moved_bytes / 1e9
    )


@given(RATES, RATES)
def test_the_floor_lies_between_the_longer_and_the_sum(rate: float, bandwidth: float) -> None:
    network = networks.build("little-cnn")
    total = totals(network, 8).total
    compute_s, memory_s = total.matrix_flops / rate, total.moved_bytes / bandwidth
    floor = floor_s(network, 8, rate, bandwidth)
    assert max(compute_s, memory_s) * 0.999999 <= floor <= (compute_s + memory_s) * 1.000001


def test_each_layer_is_bound_by_its_own_side(little: Network) -> None:
    rate, bandwidth = 1e11, 1e10
    pieces = [
        p
        for layer in costs(little, 8).values()
        for p in (layer.forward, layer.data_gradient, layer.weight_gradient)
    ]
    bound_by_memory = [p for p in pieces if p.moved_bytes / bandwidth > p.matrix_flops / rate]
    assert 0 < len(bound_by_memory) < len(pieces)
    total = totals(little, 8).total
    one_roof = max(total.matrix_flops / rate, total.moved_bytes / bandwidth)
    assert floor_s(little, 8, rate, bandwidth) > one_roof


def test_half_the_bytes_a_value_is_never_slower(little: Network) -> None:
    assert floor_s(little, 8, 1e12, 1e10, "bf16") < floor_s(little, 8, 1e12, 1e10, "fp32")


def test_a_step_at_its_floor_uses_the_ceiling_fully(little: Network) -> None:
    floor = floor_s(little, 64, 3e11)
    assert utilization(little, 64, floor, 3e11) == pytest.approx(1)
    assert utilization(little, 64, 4 * floor, 3e11) == pytest.approx(0.25)


@pytest.mark.parametrize("wrong", [0, -1.0, float("nan")])
def test_rates_must_be_above_zero(little: Network, wrong: float) -> None:
    with pytest.raises(ValueError, match="rate_flops_per_s"):
        floor_s(little, 8, wrong)
    with pytest.raises(ValueError, match="copy_bytes_per_s"):
        floor_s(little, 8, 1e9, wrong)
    with pytest.raises(ValueError, match="step_s"):
        utilization(little, 8, wrong, 1e9)
