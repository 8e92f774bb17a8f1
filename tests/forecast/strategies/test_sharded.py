"""Copies and time of the host of sharded data parallelism."""

import pytest

from cubemesh import networks
from cubemesh.forecast.calibration import Calibration, defaults
from cubemesh.forecast.request import ForecastRequest, Point
from cubemesh.forecast.step import predict
from cubemesh.forecast.strategies.sharded import exposed_copies, sharded_host_work
from cubemesh.machines.catalogue.systems import load_system
from cubemesh.networks.graph import sharded_units

KNOWN = defaults()
GPT2 = networks.build("gpt2")
HOST = [name for name in KNOWN.factors if name.startswith("sharded_")]


def without_host_time() -> Calibration:
    known = KNOWN.launched_at_once()
    for name in HOST:
        known = known.with_factor(name, 0.0, "assumed", "test")
    return known


def point(sync: str, known: Calibration = KNOWN, batch: int = 16, devices: int = 2) -> Point:
    request = ForecastRequest(
        network=GPT2,
        system=load_system("hgx-h100"),
        batch_per_device=batch,
        precision="bf16",
        sync=sync,
        input_limit=float("inf"),
    )
    return predict(request, [devices], known, {1: 208.0}).points[0]


@pytest.mark.parametrize(
    ("gathers", "gathered", "times"),
    [(2, 1.0, 6.0), (1, 1.0, 4.0), (2, 0.5, 0.5), (1, 0.5, 0.0)],
)
def test_copies_that_no_pass_hides(gathers: int, gathered: float, times: float) -> None:
    """fp32: each gather is read and written, and each gradient; 16 bits: fewer, and no autocast."""
    assert exposed_copies(8e6, gathers, gathered) == times * 8e6


def test_the_host_works_for_each_unit_and_parameter() -> None:
    """GPT-2: 12 blocks of 12 parameters, and 4 of the root, which has the tied embedding."""
    units = [u for u in sharded_units(GPT2) if u.parameters and not u.shares]
    assert [len(u.parameters) for u in units] == [12] * 12
    two, three = (sharded_host_work(GPT2, stage, KNOWN) for stage in (2, 3))
    launch_s = 0.25 * KNOWN["launch_layer_s"]
    gather_s = 350e-6 + 12 * 18e-6 + 4 * launch_s
    again_s = 210e-6 + 12 * 13e-6 + 4 * launch_s
    reduce_s = 230e-6 + 12 * 21e-6 + 2 * launch_s
    root_s = 350e-6 + 4 * 18e-6 + 4 * launch_s
    assert sum(two.forward) == pytest.approx(12 * gather_s + root_s)
    assert sum(two.backward) == pytest.approx(12 * reduce_s)
    assert sum(three.forward) == sum(two.forward)
    assert sum(three.backward) == pytest.approx(12 * reduce_s + 11 * again_s)
    assert three.update_s == pytest.approx(
        230e-6 + 4 * 21e-6 + 2 * launch_s + len(GPT2.parameters) * 7e-6
    )
    assert len(three.forward) == len(three.backward) == len(GPT2.nodes)


@pytest.mark.parametrize("sync", ["sharded-gradients", "fully-sharded"])
def test_a_small_batch_waits_for_the_host_and_says_so(sync: str) -> None:
    small, free = point(sync, batch=4), point(sync, without_host_time(), batch=4)
    assert small.limit == "launches by the host"
    assert small.parts_s["launch"] > free.parts_s["launch"] == 0
    assert small.efficiency < point(sync).efficiency < 1


def test_data_parallel_does_not_pay_for_units() -> None:
    for sync in ("all-reduce", "sharded-optimizer"):
        assert point(sync).parts_s["launch"] < 0.001
    assert point("fully-sharded").samples_per_s < point("all-reduce").samples_per_s


def test_more_host_time_is_never_faster() -> None:
    rates = []
    for unit_s in (0.0, 0.5e-3, 1e-3, 4e-3):
        known = KNOWN.with_factor("sharded_gather_unit_s", unit_s, "assumed", "test")
        rates.append(point("fully-sharded", known).samples_per_s)
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < rates[0]


def test_the_band_is_wider_where_nothing_was_published() -> None:
    for sync, band in (("fully-sharded", 1.3), ("sharded-optimizer", 1.15), ("all-reduce", 1.15)):
        found = point(sync)
        assert found.high / found.samples_per_s == pytest.approx(band, rel=0.04)
        assert found.samples_per_s / found.low == pytest.approx(band, rel=0.04)
