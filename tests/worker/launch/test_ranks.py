"""Devices and cores of ranks."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.schema import FirstSteps, Placement, RunSpec, TrainSteps
from cubemesh.worker.launch.pinning import whole_cores
from cubemesh.worker.launch.ranks import (
    RankInfo,
    bound_by_launcher,
    can_launch,
    check_bindings,
    check_devices,
    devices_here,
    own_cores,
    processors_of,
    shared_cores,
)
from cubemesh.worker.run.job_file import Job


def spec(**placement):
    work = TrainSteps(network="little-cnn", batch_per_device=8)
    return RunSpec(work=work, placement=Placement(**placement))


def job(usable_cores=1, **placement):
    return Job(spec=spec(**placement), folder="", usable_cores=usable_cores)


def test_devices_use_no_more_cores_than_are_granted():
    allowed = sorted(os.sched_getaffinity(0))
    granted = job(usable_cores=1, devices=2)
    assert processors_of(granted, on_cpu=True) == whole_cores(allowed)[:1]
    assert processors_of(granted, on_cpu=False) == tuple(allowed), "any of them drives a GPU"
    assert processors_of(job(usable_cores=None), on_cpu=True) == whole_cores(allowed)


@given(st.integers(1, 8), st.integers(1, 4))
def test_ranks_share_no_core_and_have_equally_many(ranks, threads):
    cores = tuple(range(100, 100 + ranks * threads + 1))
    own = [
        own_cores(
            spec(devices=ranks, threads=threads),
            RankInfo(rank=r, local_rank=r, ranks=ranks, local_ranks=ranks),
            cores,
        )
        for r in range(ranks)
    ]
    assert all(len(mine) == threads for mine in own)
    assert len({core for mine in own for core in mine}) == ranks * threads


def test_too_many_cores_are_refused():
    own = RankInfo(rank=0, local_rank=0, ranks=2, local_ranks=2)
    with pytest.raises(Unsupported, match="threads=1"):
        own_cores(spec(devices=2, threads=2), own, (0, 1, 2))


def test_oversubscribed_cores_are_assigned_cyclically():
    asked = spec(devices=4, oversubscribe=True)
    selves = [RankInfo(rank=r, local_rank=r, ranks=4, local_ranks=4) for r in range(4)]
    own = [own_cores(asked, one, (5, 7)) for one in selves]
    assert own == [(5,), (7,), (5,), (7,)]
    assert can_launch(job(devices=4, oversubscribe=True))
    assert not can_launch(job(devices=4))
    assert not can_launch(job(devices=1, oversubscribe=True))
    check_devices(4, 2, may_share=True)
    with pytest.raises(Unsupported, match="oversubscribe=true"):
        check_devices(4, 2)


def test_shared_cores_are_a_warning_unless_nothing_is_timed():
    asked = spec(devices=4, oversubscribe=True)
    assert shared_cores(asked, 2).code == "oversubscribed"
    assert shared_cores(asked, 4) is None
    work = FirstSteps(network="little-cnn", batch_per_device=8)
    assert shared_cores(RunSpec(work=work, placement=asked.placement), 2) is None


def test_more_gpus_than_available_are_refused():
    assert devices_here("cpu", 2, 0) == ("cpu:0", "cpu:1")
    assert devices_here("cuda", 2, 4) == ("cuda:0", "cuda:1")
    with pytest.raises(Unsupported, match="devices=4"):
        devices_here("cuda", 5, 4)


def test_a_rank_is_bound_if_it_may_use_fewer_processors_than_its_launcher():
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("needs two processors")
    two = RankInfo(rank=1, local_rank=1, ranks=2, local_ranks=2)

    def child(processors, own):
        pid = os.fork()
        if pid == 0:
            os.sched_setaffinity(0, processors)
            os._exit(bound_by_launcher(own))
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    assert child({min(allowed)}, two) == 1
    assert child(allowed, two) == 0
    assert child({min(allowed)}, RankInfo()) == 0


def test_ranks_that_their_launcher_bound_to_one_processor_are_refused():
    def gathered(*found):
        return SimpleNamespace(all_gather_object=lambda own: list(found))

    check_bindings(gathered(["a", [0]], ["a", [1]], ["b", [0]]), (0,))
    check_bindings(gathered(["a", []], ["a", []]), ())
    with pytest.raises(Unsupported, match=r"ranks 0 and 2 to the same processor 1 of a.*bind-to"):
        check_bindings(gathered(["a", [0, 1]], ["b", [1]], ["a", [1]]), (0, 1))
