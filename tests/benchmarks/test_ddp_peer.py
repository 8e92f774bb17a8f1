"""Stock DistributedDataParallel and cubemesh's all-reduce: a real run of two ranks on a CPU."""

import os

import pytest

pytest.importorskip("torch")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two devices on a CPU are two cores")
def test_both_run_on_two_ranks_and_each_alone_and_are_timed_in_both_ways(ran):
    options = {
        "--devices": "2",
        "--batch": "2",
        "--seconds": "0.02",
        "--windows": "2",
        "--warm-steps": "1",
    }
    output, written = ran("ddp_peer", options)
    points = written["points"]
    names = ["all-reduce", "stock DDP", "each alone"]
    assert [(p["program"], p["mode"]) for p in points] == [
        (name, mode) for mode in ("free", "synchronized") for name in names
    ]
    for point in points:
        assert [len(spans) for spans in point["rank_windows"]] == [2, 2]
        assert point["low"] <= point["samples_per_s"] <= point["high"]
        assert point["efficiency"] is None
        assert point["slowest_alone_per_s"] > 0
        share = point["samples_per_s"] / point["slowest_alone_per_s"] / 2
        assert f"{100 * share:.1f} %" in output


def test_more_devices_than_there_are_are_absent(script, capsys):
    assert script("ddp_peer").main(["--devices", "1,4096"]) == 2
    assert "absent: 4096 cores" in capsys.readouterr().out
