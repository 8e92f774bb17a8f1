"""Scripts that start two ranks on a CPU: interleaved strategies in the same processes, and stock
DistributedDataParallel beside cubemesh's all-reduce."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
FOLDER = Path(__file__).parents[2] / "benchmarks"
two_cores = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="two devices on a CPU are two cores"
)
FORKS = """
import json, os, runpy, sys
import torch, torch.distributed, cubemesh.frameworks.pytorch  # once, for all scripts
sys.path.insert(0, sys.argv[1])
for line in sys.stdin:
    words, output, errors = json.loads(line)
    if (pid := os.fork()) == 0:
        code = 1
        try:
            for number, path in ((1, output), (2, errors)):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
            sys.argv = words
            runpy.run_path(words[0], run_name="__main__")
            code = 0
        except SystemExit as error:
            code = error.code or 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stdout.flush()
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
"""Runs scripts in forks of one process that has imported PyTorch: an import takes seconds."""


@pytest.fixture(scope="module")
def forks():
    """The process whose forks run scripts: [words, file of the output, file of the errors] as a
    line of JSON → the exit code."""
    command = [sys.executable, "-c", FORKS, FOLDER]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        yield process
        process.stdin.close()


@pytest.fixture
def ran_ranks(tmp_path, forks):
    """As `ran`, in a fork."""

    def run(name, options):
        written, output, errors = (tmp_path / f"{name}.{end}" for end in ("json", "out", "err"))
        words = [word for pair in options.items() for word in pair]
        words = [str(FOLDER / f"{name}.py"), *words, "--json", str(written)]
        forks.stdin.write(json.dumps([words, str(output), str(errors)]) + "\n")
        forks.stdin.flush()
        assert forks.stdout.readline() == "0\n", errors.read_text()
        return output.read_text(), json.loads(written.read_text())

    return run


@two_cores
def test_every_strategy_is_compared_with_the_slowest_device_without(ran_ranks):
    options = {
        "--cases": "little-cnn:2,little-cnn:3",
        "--syncs": "all-reduce,parameter-server,gathered,barrier",
        "--seconds": "0.01",
        "--rounds": "2",
    }
    output, written = ran_ranks("sync_strategies", options)
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
def test_both_run_on_two_ranks_and_each_alone_and_are_timed_in_both_ways(ran_ranks):
    options = {
        "--devices": "2",
        "--batch": "2",
        "--seconds": "0.02",
        "--windows": "2",
        "--warm-steps": "1",
    }
    output, written = ran_ranks("ddp_peer", options)
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
