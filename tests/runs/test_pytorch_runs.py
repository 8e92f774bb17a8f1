"""The same with the real framework: a measured step, and memory it is refused."""

import pytest

from cubemesh.model import Status
from cubemesh.results import Store
from cubemesh.runs import Executor


def test_a_step_is_measured_and_memory_past_the_limit_is_an_outcome(
    tmp_path, small_machine, null_spec
):
    pytest.importorskip("torch")
    effort = {"framework": "pytorch", "steps": 4, "windows": 2}
    specs = [
        null_spec(**effort),
        null_spec(**effort, batch_per_device=1024, memory_limit_bytes=300 << 20),
        null_spec(**effort, learning_rate=1e30),
    ]
    with (
        Store.open(str(tmp_path / "results.db")) as store,
        Executor(store, machine=small_machine, runs_folder=tmp_path / "runs") as executor,
    ):
        good, refused, wild = executor.run(specs)
    assert good.ok, good.outcome
    assert good.figure("throughput_per_s") > 0
    assert 9e6 < good.figure("peak_memory_bytes") < 300 << 20
    assert good.ranks[0].device.startswith(("cpu", "cuda"))
    assert good.figure("model_flops_per_s") > 1e6
    assert good.figure("ceiling_mfu_percent") is None, "no ceiling was measured before"
    print("a worker with torch starts in", good.phases[0].start_s, "s")
    if good.ranks[0].device == "cpu":
        assert (refused.outcome.status, refused.outcome.origin) == (Status.OOM, "worker")
        assert refused.outcome.facts["forecast_bytes"] > 300 << 20
        assert 1 <= refused.outcome.facts["largest_batch_that_fits"] < 1024
    assert wild.outcome.status is Status.DIVERGED
