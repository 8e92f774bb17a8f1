"""Exchange with a parameter server in the memory of a CPU."""

import dataclasses

import pytest

from cubemesh.forecast.calibration import Calibration, defaults
from cubemesh.forecast.fabric import Fabric, fabric
from cubemesh.forecast.gradient_sync import sync_time
from cubemesh.forecast.passes import Gradient, Passes
from cubemesh.forecast.strategies.cpu_server import LINK, SUM, TCP, server_bytes, server_parts
from cubemesh.machines.catalogue.systems import load_system

SIZE = 100e6
OWN = Passes(
    forward=(0.01,),
    backward=(Gradient(seconds=0.02, gradient_bytes=int(SIZE)),),
    update_s=0.001,
    memory_bound=False,
)


def with_memory(rate: float) -> Calibration:
    return defaults().with_factor("host_memory_bytes_per_s", rate, "measured", "a copy")


def on(devices: int) -> Fabric:
    return fabric(load_system("hgx-h200"), devices)


@pytest.mark.parametrize(("ranks", "times"), [(2, 20), (4, 28)])
def test_bytes_in_the_memory_of_the_server(ranks: int, times: int) -> None:
    """Two ranks: 2 cleared, 2 own, 4 to rows; 2 read, 1 sum, 2 mean; 5 of the update; 2 to send."""
    assert server_bytes(ranks, SIZE) == times * SIZE
    assert server_bytes(ranks, SIZE, on_cpus=True) == (times + 4 * ranks) * SIZE


def test_each_part_takes_its_bytes_at_its_rate() -> None:
    known, where = with_memory(50e9), on(4)
    assert where.host_bytes_per_s is not None
    parts = server_parts(where, known, SIZE, float("inf"))
    assert parts[LINK] == pytest.approx(2 * SIZE / where.host_bytes_per_s)
    assert parts[TCP] == pytest.approx((3 + 2) * SIZE / known["gloo_local_bytes_per_s"])
    assert parts[SUM] == pytest.approx(28 * SIZE / 50e9)
    narrow = server_parts(dataclasses.replace(where, systems=2), known, SIZE, 1e8)
    assert narrow[TCP] == pytest.approx((7 + 3) * SIZE / 1e8)


def test_nothing_is_hidden_and_no_device_updates() -> None:
    found = sync_time("parameter-server-cpu", on(2), OWN, defaults(), "nccl")
    assert found.exposed_s == found.busy_s
    assert (found.slowdown_s, found.update_share) == (0, 0)


def test_the_limit_is_the_longest_part() -> None:
    assert sync_time("parameter-server-cpu", on(2), OWN, with_memory(1e12), "nccl").limit == TCP
    assert sync_time("parameter-server-cpu", on(2), OWN, with_memory(1e9), "nccl").limit == SUM


def test_more_ranks_take_longer_and_a_faster_memory_less() -> None:
    times = [
        sync_time("parameter-server-cpu", on(n), OWN, defaults(), "nccl").exposed_s
        for n in (2, 4, 8)
    ]
    assert times == sorted(times)
    slow, fast = (
        sync_time("parameter-server-cpu", on(2), OWN, with_memory(rate), "nccl").exposed_s
        for rate in (20e9, 40e9)
    )
    assert slow - fast == pytest.approx(20 * SIZE / 40e9)


def test_a_datasheet_counts_where_no_copy_was_measured() -> None:
    """The DGX-1's processors have 76.8 GB/s."""
    known = defaults()
    old = server_parts(fabric(load_system("dgx1-v100"), 2), known, SIZE, float("inf"))
    assert old[SUM] == pytest.approx(20 * SIZE / (known["attained_bytes"] * 76.8e9))
    assert server_parts(on(2), known, SIZE, float("inf"))[SUM] < old[SUM]
    measured = server_parts(fabric(load_system("dgx1-v100"), 2), with_memory(9e9), SIZE, 1e9)
    assert measured[SUM] == pytest.approx(20 * SIZE / 9e9)


def test_ranks_on_cpus_have_no_link_to_their_memory() -> None:
    where = dataclasses.replace(on(2), host_bytes_per_s=None)
    parts = server_parts(where, with_memory(10e9), SIZE, float("inf"))
    assert parts[LINK] == 0
    assert parts[SUM] == pytest.approx(28 * SIZE / 10e9)
