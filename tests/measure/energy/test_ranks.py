"""Energy of several devices, from the figures of their ranks."""

import pytest

from cubemesh.measure.energy.ranks import energy_of_ranks
from cubemesh.schema import Figure, Outcome, Rank, Status, Window

SECONDS = 10.0
SAMPLES = 100
"""Of each rank."""


def rank(number, host="a", device=None, devices=()):
    device = f"cuda:{number}" if device is None else device
    done = Outcome(status=Status.OK)
    return Rank(rank=number, host=host, device=device, devices=devices, outcome=done)


def windows(ranks):
    made = {"elapsed_s": SECONDS / 2, "steps": 5, "samples": SAMPLES // 2}
    measured = [Window(rank=r, start_s=s, **made) for r in range(ranks) for s in (0.0, 5.0)]
    return [*measured, Window(rank=0, phase="warm-up", start_s=-9.0, **made)]


def watts(value, method):
    return Figure(value=value, unit="W", n=2, method=method)


def of_rank(board=None, package=None, **more):
    """What a rank tells of its own board and of the packages of its host."""
    found = {name: Figure(value=value, unit="J") for name, value in more.items()}
    if board is not None:
        found["gpu_power_watts"] = watts(board, "energy counter")
        found["gpu_energy_joules"] = Figure(value=board * SECONDS, unit="J", n=9, method="counter")
    if package is not None:
        found["cpu_package_watts"] = watts(package, "RAPL")
    total = (board or 0) + (package or 0)
    found["mean_power_watts"] = watts(total, "of one rank")
    joules = total * SECONDS / SAMPLES
    found["energy_joules_per_sample"] = Figure(value=joules, unit="J/sample")
    return found


def test_boards_are_summed_and_a_hosts_packages_counted_once():
    ranks = [rank(n, host="ab"[n // 2]) for n in range(4)]
    each = {n: of_rank(board=100.0 + n, package=(50.0, 50.0, 70.0, 70.0)[n]) for n in range(4)}
    figures = energy_of_ranks(ranks, each, windows(4)).figures
    assert figures["gpu_power_watts"].value == 406
    assert figures["gpu_energy_joules"].value == 4060
    assert figures["cpu_package_watts"].value == 120
    assert figures["mean_power_watts"].value == pytest.approx(526)
    assert figures["energy_joules_per_sample"].value == pytest.approx(526 * SECONDS / 400)
    assert figures["samples_per_joule"].value == pytest.approx(400 / (526 * SECONDS))
    covered, _, absent = figures["mean_power_watts"].method.partition(";")
    board, package = covered.split(" + ")
    assert board == "GPU board (energy counter, summed over 4)"
    assert package == "CPU package (RAPL, summed over 2)"
    assert "DRAM" in absent
    assert "CPU" not in absent


def test_on_a_cpu_the_hosts_joules_are_divided_by_the_samples_of_all_ranks():
    ranks = [rank(n, device="cpu") for n in range(4)]
    figures = energy_of_ranks(
        ranks, {n: of_rank(package=80.0) for n in range(4)}, windows(4)
    ).figures
    assert figures["mean_power_watts"].value == pytest.approx(80)
    assert figures["energy_joules_per_sample"].value == pytest.approx(80 * SECONDS / 400)
    covered, _, absent = figures["mean_power_watts"].method.partition(";")
    assert covered == "CPU package (RAPL)"
    assert "DRAM" in absent


def test_without_one_board_there_is_no_sum():
    ranks = [rank(0), rank(1)]
    each = {
        0: of_rank(board=100.0, package=50.0),
        1: {"cpu_package_watts": watts(50.0, "RAPL")},
    }
    figures = energy_of_ranks(ranks, each, windows(2)).figures
    assert set(figures) == {"cpu_package_watts"}
    assert energy_of_ranks(ranks, {}, windows(2)).figures == {}


def test_a_part_that_one_host_lacks_is_left_out():
    ranks = [rank(0, host="a"), rank(1, host="b")]
    each = {0: of_rank(board=100.0, package=50.0), 1: of_rank(board=100.0)}
    figures = energy_of_ranks(ranks, each, windows(2)).figures
    assert figures["mean_power_watts"].value == pytest.approx(200)
    _, _, absent = figures["mean_power_watts"].method.partition(";")
    assert "CPU package, DRAM" in absent


def test_a_process_that_drives_several_gpus_reads_only_one():
    ranks = [rank(0, devices=("cuda:0", "cuda:1"))]
    found = energy_of_ranks(ranks, {0: of_rank(board=100.0)}, windows(1))
    assert set(found.figures) == {"gpu_power_watts", "gpu_energy_joules"}
    assert found.figures["gpu_power_watts"].method.endswith(" 2 GPUs")
    (why,) = found.unmeasured
    assert "drives 2 GPUs" in why.why
    on_cpu = [rank(0, device="cpu", devices=("cpu:0", "cpu:1"))]
    own = of_rank(package=80.0)
    assert energy_of_ranks(on_cpu, {0: own}, windows(1)).figures == own


def test_one_device_has_its_own_figures():
    own = of_rank(board=100.0, package=50.0, gpu_idle_watts=30.0)
    assert energy_of_ranks([rank(0)], {0: own | {"accuracy": watts(1, "")}}, []).figures == own
