"""Units, memory and forecast step of sharded data parallelism."""

import dataclasses
import math
from functools import partial

import pytest

from cubemesh import networks
from cubemesh.forecast.calibration import defaults
from cubemesh.forecast.fabric import fabric
from cubemesh.forecast.gradient_sync import sync_time
from cubemesh.forecast.passes import Gradient, Passes
from cubemesh.frameworks.contract.group import SingleProcessGroup, observed
from cubemesh.machines.catalogue.systems import load_system
from cubemesh.measure.attribution.transfers import Transfers
from cubemesh.networks.graph import follows_weights, sharded_units
from cubemesh.networks.memory import forecast, largest_batch
from cubemesh.networks.memory_simulation import Sharding
from cubemesh.networks.transformer_sizes import TRANSFORMERS
from cubemesh.networks.zoo.gpt2 import gpt
from cubemesh.networks.zoo.llama import llama
from cubemesh.parallel.strategies import STRATEGIES
from cubemesh.parallel.timed_group import TimedGroup
from cubemesh.parallel.waits import WaitingGroup, Waits
from cubemesh.schema.spec import Placement, ProgramSettings, RunSpec
from cubemesh.schema.work import TrainSteps

SMALL = gpt("small", 16, 64, width=32, depth=3, heads=4)
OWN_HEAD = llama(
    dataclasses.replace(
        TRANSFORMERS["llama3-1b"], hidden=32, ffn=64, layers=2, heads=4, kv_heads=2, tied=False
    ),
    16,
    64,
)


def test_the_units_of_a_transformer_are_its_blocks_and_what_they_share_is_the_roots():
    units = sharded_units(SMALL)
    assert [u.name for u in units] == ["embeddings", "h0", "h1", "h2", "head"]
    assert [u.shares for u in units] == [True, False, False, False, True]
    assert not any(u.shares for u in sharded_units(OWN_HEAD))


@pytest.mark.parametrize("name", ["little-cnn", "resnet-18", "googlenet"])
@pytest.mark.parametrize("unit_bytes", [None, 1, 1 << 20])
def test_units_cover_a_network_once_and_are_as_large_as_asked(name, unit_bytes):
    network = networks.build(name)
    units = sharded_units(network, unit_bytes)
    assert [n for u in units for n in u.nodes] == [n.name for n in network.needed()]
    assert sorted(p for u in units for p in u.parameters) == sorted(network.parameters)
    size = {n: 4 * math.prod(p.shape) for n, p in network.parameters.items()}
    least = 25 * 2**20 if unit_bytes is None else unit_bytes
    assert all(sum(size[p] for p in unit.parameters) >= least for unit in units[:-1])


def test_networks_with_normalizations_over_the_batch_keep_fp32_weights():
    assert follows_weights(SMALL)
    assert follows_weights(OWN_HEAD)
    assert not follows_weights(networks.build("resnet-18"))
    assert not follows_weights(networks.build("translator"))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("network", [SMALL, OWN_HEAD], ids=["tied", "own head"])
def test_each_stage_needs_less_and_each_device_divides_what_its_stage_divides(network, precision):
    def needs(**sharding):
        return forecast(network, 2, precision, "adamw", sharding=Sharding(**sharding))

    whole = needs(ranks=1)
    assert whole == forecast(network, 2, precision, "adamw")
    stages = [needs(ranks=4, zero_stage=stage) for stage in range(4)]
    totals = [one.total_bytes for one in stages]
    assert totals == sorted(totals, reverse=True)
    assert len(set(totals)) == 4
    parameters = 4 * network.parameter_count
    assert stages[0].gradient_bytes == parameters, "buckets exist in the whole step"
    assert [one.optimizer_bytes for one in stages] == [2 * parameters] + [
        2 * math.ceil(parameters / 4)
    ] * 3
    assert stages[3].weight_bytes < stages[2].weight_bytes


def test_a_device_of_many_has_the_gathered_units_and_little_else():
    """Of blocks of equal size a few are whole at a time."""
    deep = gpt("deep", 4, 64, width=32, depth=24, heads=4)
    one = forecast(deep, 1, "fp32", "adamw", sharding=Sharding(ranks=1024, zero_stage=3))
    block = sum(u.name == "h0" and sum(_bytes(deep, u)) for u in sharded_units(deep))
    root = sum(b for u in sharded_units(deep) if u.shares for b in _bytes(deep, u))
    held = one.weight_bytes + one.gradient_bytes + one.optimizer_bytes
    assert root <= held <= root + 3 * block


def _bytes(network, unit):
    return [4 * math.prod(network.parameters[name].shape) for name in unit.parameters]


def test_the_largest_batch_grows_with_the_devices_that_share():
    needed = partial(forecast, SMALL, precision="fp32", optimizer="adamw")
    limit = needed(8).total_bytes
    assert largest_batch(needed, limit) == 8
    sharding = Sharding(ranks=8, zero_stage=3)
    assert largest_batch(partial(needed, sharding=sharding), limit) > 8


def test_a_strategy_forecasts_the_memory_of_its_fullest_device():
    def needs(sync, devices=4, **program):
        spec = RunSpec(
            work=TrainSteps(network="resnet-18", batch_per_device=8, optimizer="adamw"),
            placement=Placement(devices=devices),
            program=ProgramSettings(sync=sync, **program),
        )
        return STRATEGIES[sync].memory(spec, networks.build("resnet-18"), "cpu")

    alone = needs("none", devices=1)
    assert needs("all-reduce").total_bytes > alone.total_bytes
    assert needs("fully-sharded").total_bytes < needs("all-reduce").total_bytes
    assert needs("fully-sharded", devices=1) == alone
    piped, all_first = needs("pipeline"), needs("pipeline", pipeline_schedule="gpipe")
    assert piped.weight_bytes < alone.weight_bytes
    assert all_first.activation_bytes > piped.activation_bytes
    assert needs("hybrid").weight_bytes > piped.weight_bytes, "two stages, not four"
    parts = needs("model-parallel")
    assert parts.weight_bytes < alone.weight_bytes


def test_weights_are_gathered_in_the_forecast_of_a_step():
    on, known = fabric(load_system("hgx-h100"), 8), defaults()
    own = Passes(
        forward=(0.01,) * 4,
        backward=(Gradient(seconds=0.02, gradient_bytes=64 << 20),) * 4,
        update_s=0.008,
        memory_bound=False,
    )
    found = {
        (sync, low): sync_time(sync, on, own, known, "nccl", low_precision=low)
        for sync in ("all-reduce", "fully-sharded", "sharded-gradients", "sharded-optimizer")
        for low in (False, True)
    }
    sent = {key: time.bytes / (256 << 20) for key, time in found.items()}
    assert sent["fully-sharded", False] == pytest.approx(3)
    assert sent["fully-sharded", True] == pytest.approx(2)
    assert sent["sharded-gradients", False] == pytest.approx(2)
    assert sent["sharded-gradients", True] == pytest.approx(1.5)
    shares = {sync: time.update_share for (sync, _), time in found.items()}
    assert shares.pop("all-reduce") == 1
    assert set(shares.values()) == {1 / 8}
    busy = {key: time.busy_s for key, time in found.items()}
    assert busy["fully-sharded", False] > busy["sharded-gradients", False]
    assert found["sharded-gradients", False].exposed_s > 0, "nothing hides the first unit"
    assert sync_time("fully-sharded", fabric(load_system("hgx-h100"), 1), own, known, "nccl") == (
        sync_time("all-reduce", fabric(load_system("hgx-h100"), 1), own, known, "nccl")
    )


def test_a_librarys_own_collectives_are_timed_through_each_layer_of_groups():
    """A clock that moves by one with each reading."""
    ticks = iter(range(100))

    def clock():
        return float(next(ticks))

    transfers, waits = Transfers(clock=clock), Waits(clock=clock)
    group = TimedGroup(WaitingGroup(SingleProcessGroup(), waits), transfers)
    assert observed(group, lambda: "gathered", 24) == "gathered"
    (transfer,) = transfers.cut(0.0, 100.0)
    assert (transfer.issued, transfer.waited, transfer.size_bytes) == (0.0, 0.0, 24)
    assert transfer.ended == 3.0
    assert waits.take() == 1.0
    assert observed(SingleProcessGroup(), lambda: 5, 24) == 5
