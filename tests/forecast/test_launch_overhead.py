"""Two clocks: what a host that launches slowly costs, and when it costs nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cubemesh import networks
from cubemesh.forecast.calibration import defaults
from cubemesh.forecast.launch_overhead import host_s, stall_s, times_for
from cubemesh.forecast.passes import Gradient, Passes
from cubemesh.forecast.request import ForecastRequest
from cubemesh.forecast.step import predict
from cubemesh.machines.catalogue.systems import load_system


def passes(seconds: float, layers: int = 10) -> Passes:
    return Passes(
        forward=(seconds,) * layers,
        backward=tuple(Gradient(seconds=2 * seconds, gradient_bytes=0) for _ in range(layers)),
        update_s=seconds,
        memory_bound=False,
    )


def test_large_layers_hide_all_launches_but_the_first() -> None:
    assert stall_s(passes(1.0), 100e-6) == pytest.approx(25e-6)
    assert stall_s(passes(1.0), 0.0) == 0


def test_small_layers_wait_for_the_host() -> None:
    own = passes(1e-9)
    assert own.step_s + stall_s(own, 100e-6) == pytest.approx(host_s(own, 100e-6), rel=1e-3)
    assert host_s(own, 100e-6) == pytest.approx(10 * 100e-6)


@given(st.floats(1e-7, 1e-2), st.floats(0, 1e-3))
def test_a_step_is_never_shorter_than_either_clock(seconds: float, layer_s: float) -> None:
    own = passes(seconds)
    step_s = own.step_s + stall_s(own, layer_s)
    assert step_s >= max(own.step_s, host_s(own, layer_s)) * (1 - 1e-9)


@given(st.floats(1e-6, 1e-3), st.floats(1.1, 50))
def test_the_passes_are_found_that_make_a_step_so_long(layer_s: float, over: float) -> None:
    own = passes(1e-4)
    step_s = host_s(own, layer_s) * over
    times = times_for(own, layer_s, step_s)
    found = own.step_s * times + stall_s(own, layer_s, times)
    assert found == pytest.approx(step_s, rel=1e-6)


def test_a_small_minibatch_on_h200_is_bound_by_its_host() -> None:
    """As stock torch.compile was found to be: 6,984 images a second on eight (stock.csv)."""
    request = ForecastRequest(
        network=networks.build("resnet-50"),
        system=load_system("hgx-h200"),
        batch_per_device=32,
        precision="bf16",
    )
    slow = predict(request, [8], defaults(), {1: 1652}).points[0]
    losses = {name: slow.parts_s[name] for name in ("exposed", "slowdown", "waiting", "sharing")}
    assert slow.parts_s["launch"] > max(losses.values())
    assert "launches" in slow.limit
    assert slow.samples_per_s == pytest.approx(6984, rel=0.1)
    captured = predict(request, [8], defaults(), {1: 4695}).points[0]
    assert captured.parts_s["launch"] == 0
    assert captured.efficiency > 0.85
