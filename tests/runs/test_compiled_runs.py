"""A compiled run: its compilers end with the worker."""

import os
import signal
import threading

import pytest

from cubemesh.frameworks import entry
from cubemesh.kernels.cpu import allocator as host_memory
from cubemesh.runs import Executor
from cubemesh.schema import Status
from cubemesh.store import Store
from patience import PATIENCE_S, wait_until

pytest.importorskip("torch")

if "cpu" not in entry("pytorch-compiled").load().capabilities().devices:
    pytest.skip("no C++ compiler here", allow_module_level=True)


def test_compilers_end_with_their_killed_worker(
    tmp_path, small_machine, null_spec, processes_of, worker_of, no_processes_left, monkeypatch
):
    def strike():
        def compiles():
            names = {name for _, name in processes_of(tmp_path / "runs")}
            return names & {"cc1plus", "clang", "clang++"}

        wait_until(compiles)
        os.kill(worker_of(tmp_path / "runs"), signal.SIGKILL)

    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)  # nothing is cached yet
    host_memory.library()  # but for the allocator, which is compiled before
    striker = threading.Thread(target=strike)
    striker.start()
    with (
        Store.open(str(tmp_path / "results.db")) as store,
        Executor(store, machine=small_machine, runs_folder=tmp_path / "runs") as executor,
    ):
        (record,) = executor.run([null_spec(framework="pytorch-compiled", time_limit_s=PATIENCE_S)])
        striker.join()
        assert record.outcome.status is Status.KILLED, record.outcome
        assert record.outcome.facts["phase"] == "compile"
        left = {name for _, name in processes_of(tmp_path / "runs")}
        assert left <= {"cubemesh-server"}
    assert no_processes_left(tmp_path / "runs")
