"""Interleaved strategies in the same processes: a real run of two ranks on a CPU."""

import os

import pytest

pytest.importorskip("torch")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two devices on a CPU are two cores")
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


def test_more_devices_than_there_are_are_absent(script, capsys):
    assert script("sync_strategies").main(["--devices", "4096"]) == 2
    assert "absent: 4096 cores" in capsys.readouterr().out
