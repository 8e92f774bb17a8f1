"""Jobs in Slurm: a real one runs their agents; what it reports decides no state."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cubemesh
from cubemesh.errors import CubemeshError, UsageError
from cubemesh.jobs import slurm as in_slurm
from cubemesh.jobs.queue import FreeDevices, JobQueue
from cubemesh.jobs.states import State
from cubemesh.jobs.values import QueuedJob
from cubemesh.runs.slurm import Resources, script
from cubemesh.store import Store
from cubemesh.store.location import locate
from patience import wait_until

NULL = {"framework": "null", "networks": "little-cnn", "batch_sizes": "1,2", "ceiling": False}
FREE = FreeDevices(hostname="here")


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store, in the folder where Slurm writes the output of jobs."""
    monkeypatch.chdir(tmp_path)
    return str(tmp_path / "results.sqlite")


def submit(path: str, **options: Any) -> QueuedJob:
    options = {"settings": NULL, "slurm": {"time": "10", "cpus_per_task": 1}, **options}
    return cubemesh.submit("minibatch", quick=True, store=path, **options)


def follow(path: str, job: QueuedJob, until: State | None = None) -> None:
    """Wait until the job is in a state, or has ended."""
    for event in cubemesh.watch(job.job_id, store=path):
        if event.kind == "state" and event.value["state"] == until:
            return


def in_queue() -> list[str]:
    done = subprocess.run(["squeue", "-h", "-o", "%j"], capture_output=True, text=True, check=True)
    return done.stdout.split()


def number_of(job: QueuedJob) -> int:
    assert job.slurm is not None
    assert job.slurm.number is not None
    return job.slurm.number


def output(folder: Path) -> str:
    return "".join(one.read_text() for one in sorted(folder.glob("cubemesh-*.out")))


@pytest.mark.slurm
def test_a_job_waits_in_slurm_is_cancelled_resumed_and_runs(
    slurm: None, path: str, tmp_path: Path
) -> None:
    filler = "--exclusive --output=/dev/null --job-name=filler --wrap"
    subprocess.run(["sbatch", *filler.split(), "sleep infinity"], check=True)
    job = submit(path)
    first = number_of(job)

    def why() -> str:
        time.sleep(0.2)  # not squeue without a pause
        in_slurm._listed.forget()
        waiting = cubemesh.job(job.job_id, store=path)
        assert waiting.state is State.QUEUED
        assert waiting.why.startswith(f"Slurm job {first} waits: ")
        return waiting.why

    wait_until(lambda: "Resources" in why(), "Slurm gives the reason")
    (listed,) = cubemesh.list_jobs(store=path)
    assert "Resources" in listed.why
    with Store.open(path) as store:
        queue = JobQueue(store.database)
        assert queue.waiting(FREE) == 0
        assert queue.claim("agent", FREE) is None
    with pytest.raises(UsageError, match=f"Slurm has it as job {first}"):
        cubemesh.resume_job(job.job_id, store=path)

    stopped = cubemesh.stop_job(job.job_id, store=path)
    assert stopped.state is State.STOPPED
    assert job.slurm is not None
    assert job.slurm.name not in in_queue()

    subprocess.run(["scancel", "--name=filler"], check=True)
    again = cubemesh.resume_job(job.job_id, store=path)
    assert number_of(again) != first
    follow(path, job)
    done = cubemesh.job(job.job_id, store=path)
    assert done.state is State.DONE, output(tmp_path)
    assert len(done.run_ids) == 2


@pytest.mark.slurm
def test_a_job_that_is_cancelled_in_slurm_is_stopped(
    slurm: None, path: str, tmp_path: Path
) -> None:
    job = submit(
        path,
        settings={**NULL, "script": "step=0.02", "batch_sizes": ",".join(map(str, range(1, 99)))},
    )
    number = number_of(job)
    follow(path, job, until=State.RUNNING)
    subprocess.run(["scancel", str(number)], check=True)
    follow(path, job)
    stopped = cubemesh.job(job.job_id, store=path)
    assert stopped.state is State.STOPPED, output(tmp_path)
    assert stopped.why.startswith(f"Slurm ended its job {number}: scancel")


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs in place of Slurm's: sbatch counts its calls and stores the scripts,
    squeue prints `queue`, the others succeed."""
    folder = tmp_path / "bin"
    folder.mkdir()
    sbatch = (
        "n=$(ls {0}/script-* 2>/dev/null | wc -l); n=$((n + 1)); cat >{0}/script-$n\n"
        "[ -e {0}/refuse ] && echo 'Invalid account' >&2 && exit 1\necho $((40 + n))"
    )
    bodies = {"sbatch": sbatch, "squeue": "cat {0}/queue", "scancel": "echo $* >>{0}/cancelled"}
    for name, body in bodies.items():
        program = folder / name
        program.write_text(f"#!/bin/sh\n{body.format(folder)}\n")
        program.chmod(0o755)
    (folder / "queue").write_text("")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    in_slurm._listed.forget()
    return folder


def name_of(job: QueuedJob) -> str:
    assert job.slurm is not None
    return job.slurm.name


def test_the_script_starts_an_agent_for_the_one_job(path: str, programs: Path) -> None:
    job = submit(path, devices=8, slurm={"nodes": 2, "partition": "gpu", "account": "lab"})
    text = (programs / "script-1").read_text()
    assert f"#SBATCH --job-name={name_of(job)}\n" in text
    assert "#SBATCH --nodes=2\n" in text
    assert "#SBATCH --gpus-per-node=4\n" in text  # those of devices=8 on two nodes
    assert "#SBATCH --partition=gpu\n#SBATCH --account=lab\n" in text
    assert "#SBATCH --requeue\n" in text
    assert "#SBATCH --signal=B:INT@120\n" in text
    command = f"agent --only {job.job_id} --store {path} --hosts"
    assert text.splitlines()[-1].endswith(f'{command} "$hosts"')


def test_each_job_of_a_sweep_and_a_clone_is_a_slurm_job(path: str, programs: Path) -> None:
    whole = submit(path, sweep=["steps=1,2"], slurm={"time": "5"})
    jobs = [cubemesh.job(one, store=path) for one in whole.children]
    assert [number_of(one) for one in jobs] == [41, 42]
    assert len({name_of(one) for one in jobs}) == 2
    again = cubemesh.clone_job(jobs[0].job_id, store=path)
    assert again.slurm is not None
    assert again.slurm.resources == Resources(time="5")
    cubemesh.stop_job(whole.job_id, store=path)
    cancelled = (programs / "cancelled").read_text()
    assert [name_of(one) in cancelled for one in (*jobs, again)] == [True, True, False]


def test_a_job_that_slurm_has_lost_is_submitted_again(path: str, programs: Path) -> None:
    job = submit(path)
    assert "cubemesh jobs resume 1" in cubemesh.job(job.job_id, store=path).why
    assert number_of(cubemesh.resume_job(job.job_id, store=path)) == 42
    (programs / "queue").write_text(f"{name_of(job)}|42|PENDING|Resources|2027-01-01T08:00:00\n")
    in_slurm._listed.forget()
    why = cubemesh.job(job.job_id, store=path).why
    assert why == "Slurm job 42 waits: Resources; expected start 2027-01-01 08:00."


def test_without_slurm_the_state_is_that_of_the_store(
    path: str, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit(path)
    monkeypatch.setenv("PATH", "/nowhere")
    in_slurm._listed.forget()
    assert "squeue is not installed here" in cubemesh.job(job.job_id, store=path).why
    assert cubemesh.pause_job(job.job_id, store=path).state is State.PAUSED
    with pytest.raises(CubemeshError, match="sbatch is not installed"):
        cubemesh.resume_job(job.job_id, store=path)
    stopped = cubemesh.job(job.job_id, store=path)
    assert stopped.state is State.STOPPED
    assert "sbatch is not installed" in stopped.why


def test_a_running_job_is_stopped_through_its_lease_and_slurm(path: str, programs: Path) -> None:
    job = submit(path)
    with Store.open(path) as store:
        queue = JobQueue(store.database)
        held = queue.claim("agent", FREE, only=job.job_id)
        assert held is not None
        in_slurm.stop(queue, job.job_id, at_checkpoint=True, who="me")
        assert not (programs / "cancelled").exists()
        in_slurm.stop(queue, job.job_id, who="me")
        assert queue.get(job.job_id).control == "stop"
    assert name_of(job) in (programs / "cancelled").read_text()


def test_what_sbatch_refuses_is_stopped_with_its_message(path: str, programs: Path) -> None:
    (programs / "refuse").touch()
    with pytest.raises(CubemeshError, match="Invalid account"):
        submit(path, sweep=["steps=1,2"])
    jobs = cubemesh.list_jobs(states=["stopped"], store=path)
    assert len(jobs) == 2
    assert all("Invalid account" in job.why for job in jobs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slurm": {"partion": "gpu"}}, "partition"),
        ({"slurm": {"time": "soon"}}, "--time soon"),
        ({"on_host": "lab"}, "--on-host lab contradicts --slurm"),
    ],
)
def test_what_does_not_fit_is_not_queued(path: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        submit(path, **options)
    assert cubemesh.list_jobs(store=path) == []


def test_a_password_never_gets_into_a_script() -> None:
    with pytest.raises(UsageError, match="pgpass"):
        in_slurm.check_location(locate("postgresql+psycopg://a:secret@host/db"))
    url = "postgresql+psycopg://a@host/db"
    assert in_slurm.check_location(locate(url)) == url


def test_options_of_slurm_need_slurm(cubemesh: Any, path: str, programs: Path) -> None:
    refused = cubemesh("submit", "minibatch", "--partition", "gpu", "--store", path)
    assert refused.returncode == 2
    assert "--partition belongs to --slurm" in refused.stderr
    words = ["minibatch", "--quick", "--set", "framework=null", "--slurm", "--partition", "gpu"]
    done = cubemesh("submit", *words, "--store", path, "--json")
    assert json.loads(done.stdout)["job"]["slurm"]["number"] == 41


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5", 300), ("5:30", 330), ("1:30:00", 5400), ("2-12", 216000), ("1-0:30", 88200)],
)
def test_time_limits_in_seconds(text: str, seconds: int) -> None:
    assert Resources(time=text).time_s == seconds
    lines = script(Resources(time=text), ["agent"], "python", name="x").splitlines()
    assert ("#SBATCH --signal=B:INT@120" in lines) is (seconds >= 480)


@pytest.fixture
def left(path: str, programs: Path) -> Iterator[tuple[JobQueue, int, dict[str, str]]]:
    """A queued job whose agent has just ended, and the environment of its allocation."""
    job = submit(path, restarts=1)
    (programs / "scontrol").write_text(f"#!/bin/sh\necho $* >>{programs}/requeued\n")
    (programs / "scontrol").chmod(0o755)
    with Store.open(path) as store:
        queue = JobQueue(store.database)
        yield queue, job.job_id, {"SLURM_JOB_ID": "41", "SLURM_JOB_NAME": name_of(job)}


def test_a_job_that_slurm_ends_is_stopped_and_one_that_it_requeues_is_resumed(
    left: tuple[JobQueue, int, dict[str, str]],
) -> None:
    queue, job_id, environment = left
    in_slurm.left_allocation(queue, job_id, environment, interrupted=False)
    assert queue.get(job_id).state is State.STOPPED
    in_slurm.entered_allocation(queue, job_id, environment)
    assert queue.get(job_id).state is State.STOPPED
    in_slurm.entered_allocation(queue, job_id, {**environment, "SLURM_RESTART_COUNT": "1"})
    assert queue.get(job_id).state is State.QUEUED
    queue.stop(job_id)  # by a person
    in_slurm.entered_allocation(queue, job_id, {**environment, "SLURM_RESTART_COUNT": "1"})
    assert queue.get(job_id).state is State.STOPPED


def test_at_the_time_limit_the_slurm_job_is_requeued_until_restarts_are_used(
    left: tuple[JobQueue, int, dict[str, str]], programs: Path
) -> None:
    queue, job_id, environment = left
    in_slurm.left_allocation(queue, job_id, {}, interrupted=True)  # elsewhere: nothing
    assert not (programs / "requeued").exists()
    in_slurm.left_allocation(queue, job_id, environment, interrupted=True)
    assert (programs / "requeued").read_text() == "requeue 41\n"
    assert queue.get(job_id).state is State.QUEUED
    again = {**environment, "SLURM_RESTART_COUNT": "1"}
    in_slurm.left_allocation(queue, job_id, again, interrupted=True)
    assert queue.get(job_id).state is State.STOPPED
    assert "see --time" in queue.get(job_id).why
