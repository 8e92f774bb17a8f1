"""Exchanges within the layers of context parallelism and of a hybrid by layer."""

import dataclasses

import pytest

from cubemesh import networks
from cubemesh.errors import UsageError
from cubemesh.forecast.calibration import defaults
from cubemesh.forecast.communication import collective
from cubemesh.forecast.fabric import fabric
from cubemesh.forecast.request import ForecastRequest, Point
from cubemesh.forecast.step import predict
from cubemesh.forecast.strategies.divided import (
    by_layer_host_work,
    context_exchanges,
    copied_around_attention,
    exchange_time,
    layer_exchanges,
)
from cubemesh.machines.catalogue.systems import load_system
from cubemesh.parallel.hybrid_by_layer import divide_fully_connected

KNOWN = defaults()
SYSTEM = load_system("hgx-h100")


def point(sync: str, network: str, rate: float, batch: int, devices: int = 2, **more) -> Point:  # type: ignore[no-untyped-def]
    request = ForecastRequest(
        network=networks.build(network),
        system=more.pop("system", SYSTEM),
        batch_per_device=batch,
        precision=more.pop("precision", "bf16"),
        sync=sync,
        input_limit=float("inf"),
        **more,
    )
    return predict(request, [devices], KNOWN, {1: rate}).points[0]


def test_keys_and_values_of_every_attention_are_gathered() -> None:
    """GPT-2, 32 sequences of 1,024 positions on two devices: 2 · 768 values of 2 bytes each."""
    found = context_exchanges(networks.build("gpt2"), 2, 32, "bf16")
    whole = 32 * 1024 * 2 * 768 * 2
    assert [e.operation for e in found.collectives] == ["all-gather", "reduce-scatter"] * 12
    assert {e.size_bytes for e in found.collectives} == {whole}
    each = copied_around_attention(whole / 4, whole / 2, 2, causal=True, packed=True)
    assert found.copied_bytes == pytest.approx(12 * each)
    # K = whole / 2, Q = whole / 4: 35 K + 6 Q + 5 (Q + K)
    assert each == pytest.approx(whole * (35 / 2 + 6 / 4 + 5 * 3 / 4))


def test_without_a_mask_or_packing_less_is_copied() -> None:
    causal = copied_around_attention(1e6, 2e6, 2, causal=True, packed=False)
    assert copied_around_attention(1e6, 2e6, 2, causal=True, packed=True) == causal + 15e6
    assert copied_around_attention(1e6, 2e6, 2, causal=False, packed=False) == 2 * 2e6 + 6 * 4e6


def test_exchanges_take_the_time_of_their_messages() -> None:
    on = fabric(SYSTEM, 2)
    found = context_exchanges(networks.build("gpt2"), 2, 32, "bf16")
    seconds, limit, sent = exchange_time(found, on, KNOWN, "nccl", 1e18)
    size = found.collectives[0].size_bytes
    each = 2 * collective(on, "all-gather", size, KNOWN, "nccl").seconds
    assert seconds == pytest.approx(12 * each, rel=1e-3)
    assert (limit, sent) == ("NVLink 4", 24 * size)
    assert exchange_time(found, on, KNOWN, "nccl", 1e11)[1] == "copies of keys and values"


def test_context_parallel_is_slower_than_data_parallel_at_short_sequences() -> None:
    data = point("all-reduce", "gpt2", 208, 16)
    context = point("context-parallel", "gpt2", 208, 16)
    assert context.samples_per_s < 0.9 * data.samples_per_s
    assert context.limit == "exchange: copies of keys and values"
    for same in ("forward", "backward", "update"):
        assert context.parts_s[same] == data.parts_s[same]


def test_smaller_groups_exchange_less() -> None:
    """The rest of a mesh is data parallel."""
    rates = [
        point("context-parallel", "gpt2", 208, 16, 4, group_size=size).samples_per_s
        for size in (1, 2, 4)
    ]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == point("all-reduce", "gpt2", 208, 16, 4).samples_per_s


def test_groups_of_cores_copy_in_the_memory_that_they_share() -> None:
    found = point("context-parallel", "gpt2", 0.5, 1, system=load_system("knl-aries"))
    assert found.samples_per_s < 1.0


def test_a_hybrid_gathers_results_and_features_of_all_samples() -> None:
    """AlexNet: 9,216 results, 4,096 and 4,096 features, of 512 samples in 16 bits."""
    divided = divide_fully_connected(networks.build("alexnet"), 2)
    found = layer_exchanges(divided, 256, "bf16")
    gathers = [e.size_bytes for e in found.collectives if e.operation == "all-gather"]
    assert gathers == [2 * 512 * n for n in (9216, 4096, 4096)] + [8 * 512]
    scatters = [e.size_bytes for e in found.collectives if e.operation == "reduce-scatter"]
    assert scatters == gathers[:-1]
    assert found.copied_bytes == 4 * sum(gathers[1:-1])
    assert [(e.count, e.size_bytes) for e in found.collectives if e.operation == "all-reduce"] == [
        (3, 4 * 512)
    ]


def test_a_hybrid_sends_no_gradients_of_fully_connected_layers() -> None:
    network = networks.build("alexnet")
    data = point("all-reduce", "alexnet", 28_500, 256)
    hybrid = point("hybrid-by-layer", "alexnet", 28_500, 256)
    assert hybrid.exchanged_bytes < data.exchanged_bytes / 4
    whole = 4 * network.parameter_count
    convolutions = 4 * sum(
        size
        for name, spec in network.parameters.items()
        if name.startswith("conv") and (size := _product(spec.shape))
    )
    sent = 2 * 2 * 512 * (9216 + 4096 + 4096) + 8 * 512 + 3 * 4 * 512
    assert hybrid.exchanged_bytes == convolutions + sent
    share = convolutions / whole
    assert hybrid.parts_s["update"] == pytest.approx(
        (share + (1 - share) / 2) * data.parts_s["update"]
    )


def _product(shape: tuple[int, ...]) -> int:
    found = 1
    for size in shape:
        found *= size
    return found


def test_operations_on_dtensors_cost_the_host_time() -> None:
    network = networks.build("alexnet")
    work = by_layer_host_work(network, 2, KNOWN)
    part = [n for n in network.nodes if n.name in {"fc6", "relu6", "drop6", "fc7", "relu7", "fc8"}]
    assert len(part) == 6
    assert len(work.forward) == len(work.backward) == len(network.nodes)
    moves = 3
    operations = round((sum(work.forward) - moves * 200e-6) / 36e-6)
    assert sum(work.forward) == pytest.approx(moves * 200e-6 + operations * 36e-6)
    assert 5 <= operations <= 7
    assert sum(work.backward) == pytest.approx(moves * 190e-6 + operations * 130e-6)
    hybrid = point("hybrid-by-layer", "alexnet", 28_500, 256)
    assert (
        hybrid.parts_s["launch"]
        > 10 * point("all-reduce", "alexnet", 28_500, 256).parts_s["launch"]
    )
    assert hybrid.limit == "launches by the host"


@pytest.mark.parametrize(
    ("sync", "network", "why"),
    [
        ("context-parallel", "resnet-50", "no attention"),
        ("hybrid-by-layer", "gpt2", "no convolutions"),
    ],
)
def test_what_cannot_be_divided_has_no_forecast(sync: str, network: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        point(sync, network, 100, 16)


def test_one_device_exchanges_nothing() -> None:
    for sync, network in (("context-parallel", "gpt2"), ("hybrid-by-layer", "alexnet")):
        one = dataclasses.asdict(point(sync, network, 100, 16, 1))
        assert one["communication_s"] == one["exchanged_bytes"] == 0
