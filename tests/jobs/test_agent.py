"""Agents: real processes, real kills, on SQLite and PostgreSQL.

What a database decides (who claims a job, whose lease it is, which writes wait) is tested on both;
the rest, which agents and children do alike on any store, on one of them by turns. `test_queue.py`
has every transition of a job on both."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import postgresql
import psutil
import pytest
from sqlalchemy import Connection, event, inspect, text

import cubemesh
from cli_forkserver import CommandProcess
from cubemesh.errors import UsageError
from cubemesh.jobs.child import Assignment, run_job_of
from cubemesh.jobs.feed import curves, events_after
from cubemesh.jobs.points import LOSS, RATE, SENSORS
from cubemesh.jobs.queue import FreeDevices, JobQueue
from cubemesh.jobs.states import State
from cubemesh.jobs.values import QueuedJob
from cubemesh.schema import RunRecord
from cubemesh.store import Store
from cubemesh.training.checkpoint import load, steps_in
from patience import wait_until

StartAgent = Callable[..., CommandProcess]
on_sqlite = pytest.mark.parametrize("location", ["sqlite"], indirect=True)
on_postgresql = pytest.mark.parametrize("location", ["postgresql"], indirect=True)
NULL = {"framework": "null", "networks": "little-cnn", "batch_sizes": "1,2", "threads": 1}
TRAIN = {
    "networks": "little-cnn",
    "data": "synthetic",
    "epochs": 3,
    "device": "cpu",
    "threads": 1,
    "image_size": 8,
    "batch_per_device": 64,
    "deterministic": True,
}
ENDED = [State.DONE, State.FAILED, State.STOPPED, State.LOST, State.PAUSED]


def submit(location: str, **options: object) -> QueuedJob:
    options = {"settings": NULL, **options}
    return cubemesh.submit("minibatch", quick=True, store=location, **options)  # type: ignore[arg-type]


def train(location: str, folder: Path | None = None, **settings: object) -> QueuedJob:
    lines = {**TRAIN, **settings}
    if folder is not None:
        lines["checkpoints"] = str(folder)
    return cubemesh.submit("train", settings=lines, store=location, wait="30m")


def state(queue: JobQueue, job: QueuedJob) -> State:
    return queue.get(job.job_id).state


def ended(queue: JobQueue, job: QueuedJob) -> bool:
    return state(queue, job) in ENDED


def server_of(agent: CommandProcess) -> psutil.Process | None:
    """The process that forks the agent's jobs."""
    try:
        return next(iter(psutil.Process(agent.pid).children()), None)
    except psutil.Error:
        return None


def child_of(agent: CommandProcess) -> psutil.Process | None:
    """The process of the agent's job."""
    server = server_of(agent)
    try:
        found = [] if server is None else server.children()
        return next((one for one in found if one.name().startswith("job-")), None)
    except psutil.Error:
        return None


def worker_of(agent: CommandProcess) -> psutil.Process | None:
    """The worker that measures, below the job's forkserver."""
    child = child_of(agent)
    try:
        servers = [] if child is None else child.children()
        return next((worker for server in servers for worker in server.children()), None)
    except psutil.Error:
        return None


def assert_inherits_nothing(agent: CommandProcess) -> None:
    """A job leads a session of its own, takes every signal, and shares no connection and no lock
    with its agent; the server between them is in no way of the signals of a terminal."""
    server, child = server_of(agent), child_of(agent)
    assert server is not None
    assert child is not None
    assert os.getsid(server.pid) == server.pid != os.getsid(agent.pid)
    assert os.getsid(child.pid) == child.pid
    assert server.name() == "cubemesh-jobs"
    blocked, ignored, caught = (signals(child, kind) for kind in ("SigBlk", "SigIgn", "SigCgt"))
    ending = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    assert not ending & (blocked | ignored)
    assert caught >= ending
    assert signals(server, "SigBlk") >= ending
    for process in (server, child):
        assert not open_by(process) & open_by(psutil.Process(agent.pid))


def signals(process: psutil.Process, kind: str) -> set[int]:
    """The signals of a mask that the kernel reports of a process."""
    (mask,) = re.findall(rf"{kind}:\s*(\w+)", Path(f"/proc/{process.pid}/status").read_text())
    return {number for number in range(1, 65) if int(mask, 16) >> (number - 1) & 1}


def open_by(process: psutil.Process) -> set[str]:
    """Connections, and files of a store, that a process has open."""
    names = [os.readlink(link) for link in Path(f"/proc/{process.pid}/fd").iterdir()]
    return {name for name in names if name.startswith("socket:") or "sqlite" in name}


def has_loss(queue: JobQueue, job: QueuedJob, points: int) -> bool:
    found = curves(queue, job.job_id)
    return len(found.get(1, {}).get(LOSS, [])) >= points


def epoch_of(queue: JobQueue, job: QueuedJob) -> int:
    """The epoch in which a training was when it last reported."""
    found = re.search(r"epoch (\d+) of", queue.get(job.job_id).progress["note"])
    assert found is not None
    return int(found[1])


def final_weights(folder: Path) -> dict[str, bytes]:
    """The weights and the state of the optimizer in the newest checkpoint."""
    newest = max(steps_in(folder))
    snapshot = load(folder, newest, 0, 1).snapshot
    return {name: array.tobytes() for name, array in (*snapshot.weights.items(),
                                                       *snapshot.arrays.items())}  # fmt: skip


def assert_no_events_are_lost(queue: JobQueue, job: QueuedJob) -> None:
    events, _ = events_after(queue, job.job_id, limit=100_000)
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))


def assert_points_are_the_records(queue: JobQueue, job: QueuedJob, record: RunRecord) -> None:
    """Curves and throughput of the feed are those that are stored, point for point; sensors, too,
    whose values are stored with 24 bits."""
    found = curves(queue, job.job_id)[1]
    series = Store(queue.database).series(record.run_id)
    stored = {one.name: one for one in series if one.rank == 0}
    for name in (name for name in SENSORS if name in stored):
        assert [p[0] for p in found[name]] == pytest.approx(stored[name].times_s, abs=1e-5)
        assert [p[1] for p in found[name]] == pytest.approx(stored[name].values, rel=1e-6)
    assert "cpu_utilization_percent" in found
    for curve in (one for one in record.curves if one.name not in SENSORS):
        expected = [list(pair) for pair in zip(curve.x, curve.y, strict=True)]
        assert found[curve.name] == expected, curve.name
    windows = [w for w in record.windows if w.phase == "measure" and w.rank == 0]
    rates = [[round(w.start_s + w.elapsed_s, 6), w.samples / w.elapsed_s] for w in windows]
    assert found[RATE] == sorted(rates)


@on_sqlite
def test_jobs_run_in_the_order_of_their_priority(
    location: str, live: JobQueue, start_agent: StartAgent
) -> None:
    low, high = submit(location), submit(location, priority=1)
    agent = start_agent("--until-idle", "--slots", "1")
    assert agent.wait() == 0
    jobs = [live.get(job.job_id) for job in (low, high)]
    assert [job.state for job in jobs] == [State.DONE, State.DONE]
    assert jobs[1].started_utc < jobs[0].started_utc  # type: ignore[operator]
    assert jobs[0].run_ids == jobs[1].run_ids  # reused
    for job in jobs:
        assert_no_events_are_lost(live, job)


@on_postgresql
def test_a_sweep_runs_to_its_end_and_only_ends_with_it(
    location: str, live: JobQueue, start_agent: StartAgent
) -> None:
    other = submit(location)
    settings = {key: value for key, value in NULL.items() if key != "batch_sizes"}
    sweep = submit(location, sweep=["batch_sizes=1,2"], settings=settings)
    assert start_agent("--only", str(sweep.job_id)).wait() == 0
    assert state(live, sweep) is State.DONE
    assert state(live, other) is State.QUEUED
    assert start_agent("--once").wait() == 0
    assert state(live, other) is State.DONE


@on_sqlite
def test_an_agent_in_python_starts_an_interpreter_for_its_jobs(
    location: str, live: JobQueue
) -> None:
    job, said = submit(location), list[str]()
    assert cubemesh.agent(store=location, until_idle=True, announce=said.append) == 1
    assert state(live, job) is State.DONE, live.get(job.job_id).why
    assert said[-1] == f"job {job.job_id} done"
    assert not [one for one in psutil.Process().children() if one.name() == "cubemesh-jobs"]


@on_sqlite
def test_a_run_that_fails_fails_its_job_with_the_reason(
    location: str, live: JobQueue, start_agent: StartAgent
) -> None:
    job = cubemesh.submit(
        "minibatch", quick=True, store=location, settings={**NULL, "device": "cuda"}
    )
    assert start_agent("--until-idle").wait() == 0
    found = live.get(job.job_id)
    assert found.state is State.FAILED
    assert "cuda" in found.why or "GPU" in found.why


@on_sqlite
def test_a_killed_agent_takes_its_child_along_and_the_job_ends_once(
    location: str, live: JobQueue, start_agent: StartAgent
) -> None:
    job = submit(location)
    agent = start_agent()
    wait_until(lambda: child_of(agent), "the child started")
    child = child_of(agent)
    agent.kill()
    if child is not None:
        wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
    live.clock = later = Later(live)
    assert start_agent("--until-idle").poll() is None
    wait_until(lambda: live.expire() or ended(live, job), "the lease expired")
    later.seconds = 0.0
    wait_until(lambda: ended(live, job), "the job ended")
    assert state(live, job) is State.DONE
    assert_no_events_are_lost(live, job)


class Later:
    """The database's time, and some seconds more: a lease expires without waiting for it."""

    def __init__(self, queue: JobQueue) -> None:
        self._clock, self.seconds = queue.clock, 3600.0

    def __call__(self, connection: object) -> float:
        return self._clock(connection) + self.seconds  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("location", "victim"),
    [("sqlite", "child"), ("postgresql", "worker")],
    indirect=["location"],
)
def test_a_killed_process_of_a_job_is_started_again(
    location: str, live: JobQueue, start_agent: StartAgent, victim: str, tmp_path: Path
) -> None:
    job = train(location, tmp_path / "checkpoints", epochs=4)
    agent = start_agent("--until-idle")
    find = {"child": child_of, "worker": worker_of}[victim]
    wait_until(lambda: steps_in(tmp_path / "checkpoints"), "a checkpoint is written")
    found = find(agent)
    if found is not None:  # it was not faster
        found.kill()
    assert agent.wait() == 0
    done = live.get(job.job_id)
    assert done.state is State.DONE, done.why
    assert_no_events_are_lost(live, job)
    with Store.open(location) as store:
        record = store.record(done.run_ids[-1])
    assert record.ok
    assert_points_are_the_records_losses(live, job, record)


@on_postgresql
def test_a_restart_of_the_stores_server_queues_the_job_again(
    location: str, live: JobQueue, store: Store, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """It is killed when a run of the job is written, and starts when the job writes its end."""
    job = submit(location, restarts=1, settings={**NULL, "batch_sizes": "1"})
    server: postgresql.Server = request.getfixturevalue("_jobs_postgresql")
    engine = store.database.engine
    kills: list[Callable[[], None]] = []
    connects: list[Callable[[], None]] = []

    @event.listens_for(engine, "before_cursor_execute")
    def _kill(connection: object, cursor: object, statement: str, *rest: object) -> None:
        if statement.startswith("INSERT INTO job_runs") and kills:
            connects.extend([lambda: None, server.start])  # the first attempt is in vain
            kills.pop()()

    @event.listens_for(engine, "do_connect")
    def _connect(*parameters: object) -> None:
        if connects and threading.current_thread() is threading.main_thread():
            connects.pop(0)()

    def attempt() -> QueuedJob:
        claimed = live.claim("agent", FreeDevices(hostname="host"))
        assert claimed is not None
        given = Assignment(
            store=location,
            job_id=job.job_id,
            fence=claimed.fence,
            lease_s=10.0**9,
            pause_file=str(tmp_path / "pause"),
            checkpoints=str(tmp_path / "checkpoints"),
        )
        run_job_of(given, store)
        return live.get(job.job_id)

    kills.append(server.kill)
    found = attempt()
    assert (found.state, found.faults) == (State.QUEUED, 1)
    assert "The store" in found.why
    assert "failed" in found.why
    assert live.claim("agent", FreeDevices(hostname="host")) is None  # not at once
    measured = [record.run_id for record in store.records()]

    live.clock = Later(live)
    kills.append(server.kill)
    found = attempt()
    assert found.state is State.FAILED
    assert "--restarts" in found.why

    live.resume(job.job_id)
    found = attempt()
    assert found.state is State.DONE, found.why
    assert measured
    assert set(measured) <= set(found.run_ids)  # reused
    assert_no_events_are_lost(live, job)


def assert_points_are_the_records_losses(
    queue: JobQueue, job: QueuedJob, record: RunRecord
) -> None:
    run = max(curves(queue, job.job_id))
    found = curves(queue, job.job_id)[run]
    (loss,) = [curve for curve in record.curves if curve.name == LOSS]
    assert found[LOSS] == [list(pair) for pair in zip(loss.x, loss.y, strict=True)]


@on_sqlite
def test_a_paused_training_resumes_to_the_bit(
    location: str, live: JobQueue, start_agent: StartAgent, tmp_path: Path
) -> None:
    paused, straight = tmp_path / "paused", tmp_path / "straight"
    job = train(location, paused, epochs=100_000)
    agent = start_agent("--until-idle")
    wait_until(lambda: has_loss(live, job, 3) or ended(live, job), "losses were measured")
    live.pause(job.job_id)
    wait_until(lambda: ended(live, job), "it paused")
    assert state(live, job) is State.PAUSED, live.get(job.job_id).why
    assert agent.wait() == 0
    assert max(steps_in(paused)) > 0
    epochs = max(3, epoch_of(live, job) + 1)
    cubemesh.edit_job(job.job_id, {"epochs": epochs}, store=location)
    live.resume(job.job_id)
    other = train(location, straight, epochs=epochs)
    assert start_agent("--until-idle").wait() == 0
    assert [state(live, one) for one in (job, other)] == [State.DONE, State.DONE]
    assert final_weights(paused) == final_weights(straight)
    with Store.open(location) as store:
        for one in (job, other):
            (run_id,) = live.get(one.job_id).run_ids
            assert_points_are_the_records(live, one, store.record(run_id))


@on_postgresql
def test_a_job_is_stopped_at_a_checkpoint_and_edited_to_train_on(
    location: str, live: JobQueue, start_agent: StartAgent, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoints"
    job = train(location, folder, epochs=100_000)
    agent = start_agent("--only", str(job.job_id))
    wait_until(lambda: has_loss(live, job, 2), "losses were measured")
    cubemesh.stop_job(job.job_id, at_checkpoint=True, store=location)
    wait_until(lambda: ended(live, job), "it stopped")
    assert state(live, job) is State.STOPPED
    assert agent.wait() == 0
    begun = max(steps_in(folder))
    cubemesh.edit_job(job.job_id, {"epochs": epoch_of(live, job) + 1}, store=location)
    cubemesh.resume_job(job.job_id, store=location)
    assert start_agent("--until-idle").wait() == 0
    assert state(live, job) is State.DONE, live.get(job.job_id).why
    assert max(steps_in(folder)) > begun


@on_sqlite
def test_a_running_training_is_edited_at_its_next_checkpoint(
    location: str, live: JobQueue, start_agent: StartAgent, tmp_path: Path
) -> None:
    job = train(location, tmp_path / "checkpoints", epochs=100_000)
    agent = start_agent("--until-idle")
    wait_until(lambda: has_loss(live, job, 2), "losses were measured")
    with pytest.raises(UsageError, match="image_size cannot change any more"):
        cubemesh.edit_job(job.job_id, {"image_size": 16}, store=location)
    cubemesh.edit_job(job.job_id, {"epochs": 1}, store=location)
    assert agent.wait() == 0
    found = live.get(job.job_id)
    assert (found.state, found.attempt, found.faults) == (State.DONE, 2, 0), found.why


@on_postgresql
def test_a_job_is_stopped_at_once(
    location: str, live: JobQueue, start_agent: StartAgent, tmp_path: Path
) -> None:
    job = train(location, tmp_path / "checkpoints", epochs=100_000)
    agent = start_agent("--until-idle")
    wait_until(lambda: worker_of(agent), "the worker started")
    assert_inherits_nothing(agent)
    live.stop(job.job_id)
    assert agent.wait() == 0
    assert state(live, job) is State.STOPPED
    assert "at once" in live.get(job.job_id).why


@on_sqlite
def test_an_agent_that_is_terminated_queues_its_training_again(
    location: str, live: JobQueue, start_agent: StartAgent, tmp_path: Path
) -> None:
    job = train(location, tmp_path / "checkpoints", epochs=100_000)
    agent = start_agent("--grace", "20m")
    wait_until(lambda: has_loss(live, job, 2), "losses were measured")
    agent.send_signal(signal.SIGTERM)
    assert agent.wait() == 0
    found = live.get(job.job_id)
    assert (found.state, found.faults) == (State.QUEUED, 0), found.why
    assert steps_in(tmp_path / "checkpoints")
    assert [one.state for one in live.agents()] == ["ended"]


def suspend_between_writes(queue: JobQueue, process: psutil.Process) -> None:
    """Suspend a process while it holds no lock of the store: nothing else could then write."""

    def suspend(connection: Connection) -> None:
        if connection.dialect.name == "postgresql":  # SQLite's transaction excludes other writers
            names = ", ".join(inspect(connection).get_table_names())
            connection.execute(text(f"lock table {names} in exclusive mode"))
        process.suspend()

    queue.database.commit(suspend)


def test_a_suspended_child_finds_its_job_anothers(
    location: str, live: JobQueue, start_agent: StartAgent
) -> None:
    job = submit(location, settings={**NULL, "batch_sizes": "1,2,4,8"})
    agent = start_agent("--once")
    wait_until(lambda: child_of(agent) or agent.poll() is not None, "the child started")
    child = child_of(agent)
    assert child is not None
    suspend_between_writes(live, child)
    live.clock = later = Later(live)
    wait_until(lambda: live.expire() or ended(live, job), "the lease expired")
    later.seconds = 0.0
    second = start_agent("--until-idle")
    assert second.wait() == 0
    done, _ = events_after(live, job.job_id)
    child.resume()
    assert agent.wait() == 0
    after, _ = events_after(live, job.job_id)
    assert state(live, job) is State.DONE
    assert len(after) == len(done)


def test_random_kills_lose_no_job_and_run_none_twice(
    location: str, live: JobQueue, start_agent: StartAgent
) -> None:
    """Smaller than benchmarks/job_kills.py: 4 jobs, 2 agents, 4 kills, of each process once."""
    rng = random.Random(7)
    jobs = [
        submit(location, restarts=100, settings={**NULL, "batch_sizes": str(n + 1)})
        for n in range(4)
    ]
    agents = [start_agent("--slots", "2") for _ in range(2)]
    clock = live.clock
    victims = ["agent", "server", "child", "worker"]
    for victim in rng.sample(victims, len(victims)):
        wait_until(lambda: any(map(child_of, agents)) or all(ended(live, j) for j in jobs))
        agent = rng.choice(agents)
        find = {"server": server_of, "child": child_of, "worker": worker_of}
        process = find.get(victim, lambda a: a)(agent)
        if victim == "agent":
            agent.kill()
            agents[agents.index(agent)] = start_agent("--slots", "2")
            live.clock = Later(live)
            live.expire()  # takes jobs from live holders as well: these must notice
            live.clock = clock
        elif process is not None:
            process.kill()
    wait_until(lambda: all(ended(live, job) for job in jobs), "all jobs ended")
    for job in jobs:
        events, _ = events_after(live, job.job_id, limit=100_000)
        states = [event.value["state"] for event in events if event.kind == "state"]
        assert states.count("done") == 1, states
        assert states[-1] == "done"
        assert_no_events_are_lost(live, job)
        found = live.get(job.job_id)
        assert len(set(found.run_ids)) == len(found.run_ids) >= 1
