"""Who launched this process, by the environment of each launcher."""

import os
import shutil
import socket
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cubemesh.errors import UsageError
from cubemesh.schema import (
    Budget,
    CheckpointSettings,
    Placement,
    ProgramSettings,
    RunSpec,
    Train,
    TrainSteps,
)
from cubemesh.training.checkpoint import steps_in
from cubemesh.worker.launch.launcher_env import export_torch_env, first_node, tasks_of_node
from cubemesh.worker.launch.pinning import whole_cores
from cubemesh.worker.launch.ranks import RankInfo, rank_from_env
from cubemesh.worker.report.events import events_path, read_events
from cubemesh.worker.run.job_file import Job

SLURM = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "1",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_STEP_NODELIST": "n[07-08]",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}


OPEN_MPI_IN_CI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
"""As root, and on fewer cores than ranks: options of Open MPI, which other launchers ignore."""


def introduced(environ):
    environ = dict(environ)
    export_torch_env(environ)
    return {k: v for k, v in environ.items() if not k.startswith(("SLURM", "OMPI", "PMI", "MPI"))}


def test_a_step_of_slurm():
    assert introduced(SLURM) == {
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "n07",
        "MASTER_PORT": "20771",
    }


@pytest.mark.parametrize(("node", "here"), [("0", "2"), ("1", "2"), ("2", "1")])
def test_ranks_of_a_host_of_an_uneven_step_of_slurm(node, here):
    step = SLURM | {"SLURM_STEP_TASKS_PER_NODE": "2(x2),1", "SLURM_NODEID": node}
    assert introduced(step)["LOCAL_WORLD_SIZE"] == here


@pytest.mark.parametrize("tasks", ["", "2(x2),", "2(x)", "a", "2(x2)"])
def test_an_unreadable_or_short_list_of_tasks_says_nothing(tasks):
    assert tasks_of_node(tasks, 2) is None
    step = SLURM | {"SLURM_STEP_TASKS_PER_NODE": tasks, "SLURM_NODEID": "2"}
    assert "LOCAL_WORLD_SIZE" not in introduced(step)


def test_the_script_of_a_slurm_job_is_not_a_rank():
    job = {k: v for k, v in SLURM.items() if "STEP" not in k} | {"SLURM_NTASKS": "4"}
    assert introduced(job) == {}
    assert introduced(SLURM | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}) == {}


def test_mpirun_on_one_host_and_on_several():
    variables = introduced(OPEN_MPI)
    assert (variables["RANK"], variables["WORLD_SIZE"], variables["LOCAL_RANK"]) == ("1", "2", "1")
    assert (variables["MASTER_ADDR"], variables["MASTER_PORT"]) == ("127.0.0.1", "29500")
    several = OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
    with pytest.raises(UsageError, match="MASTER_ADDR"):
        introduced(several)
    assert introduced(several | {"MASTER_ADDR": "a"})["MASTER_ADDR"] == "a"
    intel = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2", "MPI_LOCALRANKID": "0"}
    assert introduced(intel)["LOCAL_WORLD_SIZE"] == "2"


def test_variables_that_torchrun_has_set_remain():
    own = {"RANK": "0", "WORLD_SIZE": "8", "MASTER_ADDR": "x"}
    assert introduced(SLURM | own) == own
    assert introduced({}) == {}


@given(st.text(max_size=40))
def test_any_slurm_node_list_is_read_or_refused(nodes):
    try:
        found = first_node(nodes)
    except UsageError:
        return
    assert found
    assert not {"[", "]", ","} & set(found)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("localhost", "localhost"),
        ("n1,n2", "n1"),
        ("gpu-[003-007,9]", "gpu-003"),
        ("rack[1-2]x,b", "rack1"),
    ],
)
def test_first_nodes(nodes, first):
    assert first_node(nodes) == first


@pytest.mark.sweep  # the agent's ranks, in other tests, go the same way but for its first line
def test_ranks_that_mpirun_started_train_and_save_checkpoints(tmp_path):
    pytest.importorskip("torch")
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("each rank needs a core of its own")
    spec = RunSpec(
        work=Train(network="little-cnn", batch_per_device=128, image_size=8, data="digits"),
        placement=Placement(device="cpu", devices=2, threads=1),
        program=ProgramSettings(sync="all-reduce"),
        checkpointing=CheckpointSettings(checkpoints=str(tmp_path / "checkpoints")),
    )
    job = Job(spec=spec, folder=str(tmp_path)).write()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    variables = {
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "MASTER_PORT": str(port),
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "cubemesh.worker", "run", str(job)],
            env=os.environ
            | variables
            | {"OMPI_COMM_WORLD_RANK": str(n), "OMPI_COMM_WORLD_LOCAL_RANK": str(n)},
        )
        for n in range(2)
    ]
    assert [rank.wait() for rank in ranks] == [0, 0]
    events = [read_events(events_path(tmp_path, n)) for n in range(2)]
    assert [own[-1]["outcome"]["status"] for own in events] == ["ok", "ok"]
    figures = {e["name"]: e["figure"]["value"] for e in events[0] if e["event"] == "figure"}
    assert figures["epochs_trained"] == 1
    assert list(steps_in(tmp_path / "checkpoints")) == [1438 // 256]


@pytest.mark.skipif(
    shutil.which("mpirun") is None, reason="needs mpirun: apt install openmpi-bin, or mpich"
)
def test_a_real_mpirun_starts_ranks_that_train_on_the_cores_it_bound_them_to(tmp_path):
    """Open MPI binds each of two ranks to a core unless told otherwise."""
    pytest.importorskip("torch")
    cores = whole_cores(os.sched_getaffinity(0))
    spec = RunSpec(
        work=TrainSteps(network="little-cnn", batch_per_device=8, image_size=16),
        placement=Placement(device="cpu", devices=2, threads=1, oversubscribe=len(cores) < 2),
        program=ProgramSettings(sync="all-reduce"),
        budget=Budget(steps=2, windows=2, seconds=0.0, warmup_seconds=0.0, exact_steps=True),
    )
    job = Job(spec=spec, folder=str(tmp_path)).write()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["mpirun", "-n", "2", sys.executable, "-m", "cubemesh.worker", "run", str(job)]
    ours = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
    inherited = {name: value for name, value in os.environ.items() if name not in ours}
    ended = subprocess.run(
        command,
        env=inherited | OPEN_MPI_IN_CI | {"MASTER_PORT": str(port)},
        capture_output=True,
        text=True,
    )
    events = [read_events(events_path(tmp_path, n)) for n in range(2)]
    outcomes = [own[-1].get("outcome", own[-1]) for own in events]
    assert [outcome.get("status") for outcome in outcomes] == ["ok", "ok"], outcomes
    assert ended.returncode == 0, ended.stderr
    found = [next(e["processors"] for e in own if e["event"] == "rank") for own in events]
    assert all(len(processors) == 1 for processors in found)
    assert len(cores) < 2 or found[0] != found[1]


def test_a_rank_knows_how_many_are_on_its_host(monkeypatch):
    for name, value in introduced(SLURM).items():
        monkeypatch.setenv(name, value)
    assert rank_from_env() == RankInfo(rank=3, local_rank=1, ranks=4, local_ranks=2)
