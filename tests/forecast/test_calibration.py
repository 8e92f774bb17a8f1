import pytest

from cubemesh.errors import DataError, UsageError
from cubemesh.forecast.attained import CEILING_SHARE, FACTORS
from cubemesh.forecast.calibration import Sweep, defaults, read_sweeps

HEAD = "operation,devices,bytes,seconds\n"


def sweep(*points: tuple[float, float]) -> Sweep:
    sizes, seconds = zip(*points, strict=True)
    return Sweep(
        operation="all-reduce", devices=4, size_bytes=sizes, seconds=seconds, source="measured"
    )


def test_every_factor_says_what_it_is_and_whose() -> None:
    factors = defaults().factors
    fitted = {name for name, f in factors.items() if f.origin == "fitted"}
    assert fitted == {
        *("overlap_slowdown", "copy_slowdown", "pcie_share", "step_spread"),
        *("length_spread", "board_share", "one_ring_bytes_per_s"),
        *("host_exchange_bytes_per_s", "host_exchange_zen2_bytes_per_s"),
        *("launch_layer_s", "launch_several", "peer_copy_share"),
        *FACTORS,
        CEILING_SHARE,
        *(f"nvlink{g}_{name}" for g in (2, 3, 4) for name in ("start_s", "hop_s", "share", "fill")),
    }
    for value in ("ResNet-50", "H200", "19.4 ms", "36.7 ms"):
        assert value in factors["launch_several"].source
    assert {f.origin for f in factors.values()} == {"assumed", "fitted"}
    assert all(f.source for f in factors.values())
    assert "NVIDIA/nccl" in factors["ring_hop_nvlink_s"].source


def test_a_factor_that_was_measured_replaces_the_assumed_one() -> None:
    changed = defaults().with_factor("ring_base_s", 9e-6, "measured", "run 17")
    assert changed["ring_base_s"] == 9e-6
    assert changed.factors["ring_base_s"].origin == "measured"
    assert changed.factors["ring_base_s"].unit == "s"
    assert defaults()["ring_base_s"] == pytest.approx(8.4e-6)


def test_an_unknown_factor_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="ring_base_s"):
        defaults().with_factor("ring_bas_s", 1.0, "measured", "run 17")


def test_between_two_sizes_the_line_is_straight_in_logarithms() -> None:
    measured = sweep((1e6, 1e-4), (4e6, 4e-4))
    assert measured.at(2e6) == pytest.approx(2e-4)
    assert measured.at(1e3) == 1e-4
    assert measured.at(8e6) == pytest.approx(8e-4)


def test_a_time_that_fell_by_noise_is_no_speed_up() -> None:
    measured = sweep((1e6, 2e-4), (2e6, 1e-4), (4e6, 4e-4))
    assert measured.at(2e6) == 2e-4
    assert measured.at(1.5e6) == pytest.approx(2e-4)


@pytest.mark.parametrize("points", [((1e6, 1e-4),), ((1e6, 1e-4), (1e6, 2e-4)), ((0, 1), (1, 1))])
def test_sweeps_that_do_not_fit_are_refused(points: tuple[tuple[float, float], ...]) -> None:
    with pytest.raises(DataError):
        sweep(*points)


def test_a_file_of_sweeps_is_read() -> None:
    text = HEAD + "all-reduce,8,2000,2e-5\nall-reduce,8,1000,1e-5\nbroadcast,2,1,1\nbroadcast,2,2,2"
    first, second = read_sweeps(
        text.replace("broadcast,2,1", "\nbroadcast,2,1") + "\n\n", "mine.csv"
    )
    assert (first.devices, first.size_bytes, first.seconds) == (8, (1000, 2000), (1e-5, 2e-5))
    assert (second.operation, second.source) == ("broadcast", "mine.csv")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("size,time\n", "line 1: the columns"),
        (HEAD, "no lines"),
        (HEAD + "all-reduce,8,1000", "line 2: 3 fields"),
        (HEAD + "gossip,8,1000,1", "field operation: 'gossip' is not one of all-reduce"),
        (HEAD + "all-reduce,1,1000,1", "field devices"),
        (HEAD + "all-reduce,8,many,1", "field bytes: 'many' is not a number"),
        (HEAD + "all-reduce,8,1000,0", "field seconds: 0 is not from"),
        (HEAD + "all-reduce,8,1000,1\nall-reduce,8,1000,1", "line 3, field bytes: 1000 is"),
        ("", "line 1: the columns"),
    ],
)
def test_a_file_that_does_not_fit_names_line_and_field(text: str, says: str) -> None:
    with pytest.raises(DataError, match=says):
        read_sweeps(text, "mine.csv")


@pytest.mark.parametrize("before", ["", HEAD, f"{HEAD}all-reduce,8,1000,1\n\n"])
def test_a_field_without_end_is_an_error_with_its_line(before: str) -> None:
    line = before.count("\n") + 1
    with pytest.raises(DataError, match=rf"mine\.csv, line {line}: field larger than field limit"):
        read_sweeps(before + 131_073 * "9", "mine.csv")
