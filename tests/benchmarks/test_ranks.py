"""Scripts that start two ranks on a CPU: interleaved strategies in the same processes, and stock
DistributedDataParallel beside cubemesh's all-reduce."""

import os

import pytest

pytest.importorskip("torch")
two_cores = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="two devices on a CPU are two cores"
)


@two_cores
def test_every_strategy_is_compared_with_the_slowest_device_without(ran):
    options = {
        "--cases": "little-cnn:2,little-cnn:3",
        "--syncs": "all-reduce,parameter-server,gathered,barrier",
        "--seconds": "0.01",
        "--rounds": "2",
    }
    output, written = ran("sync_strategies", options)
    points = written["points"]
    assert [(p["batch"], p["sync"]) for p in points] == [
        (batch, name)
        for batch in (2, 3)
        for name in ("none", "all-reduce", "parameter-server", "gathered", "barrier")
    ]
    for point in points:
        assert [len(ranks) for ranks in point["per_s"]] == [2, 2]
        assert min(map(min, point["per_s"])) > 0
    for alone, *others in (points[:5], points[5:]):
        assert alone["shares"] == [1.0, 1.0]
        for point in others:
            rounds = zip(point["per_s"], alone["per_s"], strict=True)
            assert point["shares"] == [min(one) / min(all_) for one, all_ in rounds]
        # Dropout differs between ranks, so weights diverge where nothing is sent.
        assert [point["alike"] for point in others] == [True, True, False, False]
    assert output.count("same weights") == 4


def test_more_devices_than_there_are_are_absent_for_sync_strategies(script, capsys):
    assert script("sync_strategies").main(["--devices", "4096"]) == 2
    assert "absent: 4096 cores" in capsys.readouterr().out


@two_cores
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


def test_more_devices_than_there_are_are_absent_for_ddp_peer(script, capsys):
    assert script("ddp_peer").main(["--devices", "1,4096"]) == 2
    assert "absent: 4096 cores" in capsys.readouterr().out
