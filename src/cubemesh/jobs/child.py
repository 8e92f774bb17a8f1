"""Child of an agent: runs one claimed job and ends.

The agent's forkserver (jobs/forkserver.py) forks it. How the job ended is in the store before the
process ends; where it is not, the process was killed, and the agent queues the job again.
"""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cubemesh import termination
from cubemesh.errors import BusyError, CubemeshError, StoreError
from cubemesh.experiments.registry import Scale
from cubemesh.experiments.runner import ExperimentResult
from cubemesh.experiments.session import run_names
from cubemesh.frameworks import entry
from cubemesh.jobs.expect import expected_throughput
from cubemesh.jobs.feed import curves
from cubemesh.jobs.lease import Lease, LeaseLost
from cubemesh.jobs.queue import JobQueue
from cubemesh.jobs.recorder import Recorder
from cubemesh.jobs.states import State
from cubemesh.jobs.values import QueuedJob
from cubemesh.machines import probe
from cubemesh.parallel.strategies import strategy
from cubemesh.runs.executor import RunPaused
from cubemesh.schema import Status
from cubemesh.store import Store
from cubemesh.worker.report.limits import name_process

LATER_S = 30.0
"""After finding a device in use, or a failure of the store, a job waits for so long."""


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """What an agent gives its child."""

    store: str
    job_id: int
    fence: int
    lease_s: float
    pause_file: str
    checkpoints: str
    """Folder of the checkpoints of this job."""
    hosts: str = ""
    """Hosts that it is distributed over, between commas."""


def handle_signals() -> None:
    """SIGINT, SIGTERM and SIGHUP end the job, its workers first."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    termination.handle_signals()


def run(given: Assignment) -> int:
    """Run the job; the exit code is 0 if its end is in the store."""
    name_process(f"job-{given.job_id}")
    try:
        with Store.open(given.store) as store:
            run_job_of(given, store)
    except LeaseLost:
        print("The job is another process's now; nothing more is written.", file=sys.stderr)
        return 1
    except (CubemeshError, termination.Terminated) as error:
        print(f"cubemesh: {error}", file=sys.stderr)
        return 1
    return 0


def run_job_of(given: Assignment, store: Store) -> None:
    """Run the job and write how it ended. LeaseLost if another process holds it.

    A failure of the store, such as a restart of its server or a full disk, queues the job again up
    to its number of restarts. A store that the settings name is data: it fails the job.
    """
    queue = JobQueue(store.database)
    lease = Lease(queue=queue, job_id=given.job_id, fence=given.fence, seconds=given.lease_s)
    job = queue.get(given.job_id)
    if not job.question.names:  # damaged since it was claimed
        lease.end(State.FAILED, f"Its stored row is damaged: {job.damage}.")
        return
    pause_file = Path(given.pause_file)
    machine = probe()
    recorder = Recorder(
        lease,
        pause_file,
        curves(queue, given.job_id),
        expect=lambda spec: expected_throughput(store, spec, machine),
        machine_id=machine.machine_id,
    )
    question = job.question
    delay_s, failure, store_failure, why = 0.0, "", "", ""
    paused = False
    results: Sequence[ExperimentResult] = ()
    try:
        lease.run_started()
        with recorder:
            try:
                store.recover()
                results = run_names(
                    question.names,
                    [*job_settings(job, given.checkpoints), *_hosts(job, given.hosts)],
                    scale=None if question.scale is None else Scale(question.scale),
                    store=store,
                    observer=recorder,
                    no_cache=question.no_cache and job.attempt == 1,
                    pythons=question.pythons,
                    against=question.against,
                    wait_s=question.wait_s,
                    wait_quiet_s=question.wait_quiet_s,
                    pause_file=pause_file,
                )
                unsaved = store.settle()
                if unsaved is not None:
                    why = f"Records wait in the spool: {unsaved}"
            except RunPaused as pause:
                paused, why = True, str(pause)
            except (BusyError, StoreError):
                raise
            except CubemeshError as error:
                failure = str(error)
            except Exception as error:
                recorder.log(traceback.format_exc())
                failure = f"{type(error).__name__}: {error}. The log has the details."
    except KeyboardInterrupt:
        if recorder.lost:
            raise LeaseLost from None
        if not recorder.stopped:
            lease.release("It was interrupted.")
            return
        lease.end(State.STOPPED, "It was stopped at once.")
        return
    except termination.Terminated:
        lease.release("Its agent ended.")
        return
    except BusyError as busy:
        paused, delay_s, why = True, LATER_S, str(busy)
    except StoreError as error:
        store_failure = str(error)
    if recorder.lost:
        raise LeaseLost
    if store_failure:
        lease.fault(store_failure, delay_s=LATER_S, at_last=State.FAILED)
    elif paused:
        lease.release(why, delay_s=delay_s)
    elif failure:
        lease.end(State.FAILED, failure)
    else:
        _end(lease, results, why)


def _end(lease: Lease, results: Sequence[ExperimentResult], why: str) -> None:
    """Write how a job ended whose experiments are complete."""
    killed, failed, measured, ok = "", "", False, False
    for result in results:
        records = result.records
        if result.experiment_run.experiment == "train":
            records = records[-1:]  # earlier attempts may have failed
        for record in records:
            outcome = record.outcome
            measured, ok = True, ok or outcome.ok
            if outcome.status is Status.KILLED:
                killed = killed or outcome.message
            elif not outcome.status.expected:
                failed = failed or f"Run {record.run_id}: {outcome.message}"
    if killed:
        lease.fault(f"A worker was killed: {killed}")
    elif failed:
        lease.end(State.FAILED, failed)
    elif measured and not ok:
        first = next(r for result in results for r in result.records)
        lease.end(State.FAILED, f"No run could be measured: {first.outcome.message}")
    else:
        lease.end(State.DONE, why)


def _hosts(job: QueuedJob, hosts: str) -> list[str]:
    """The setting `hosts` of an agent of several, unless the job names its own."""
    named = any(line.partition("=")[0].strip() == "hosts" for line in job.question.settings)
    return [f"hosts={hosts}"] if hosts and not named else []


def job_settings(job: QueuedJob, checkpoints: str) -> list[str]:
    """The settings of a job; a training that can be resumed gets checkpoints, from which each
    attempt continues."""
    lines = list(job.question.settings)
    given = {line.partition("=")[0].strip().replace("-", "_"): line for line in lines}

    def value(name: str, default: str) -> str:
        return given.get(name, f"={default}").partition("=")[2].strip()

    if "train" not in job.question.names:
        return lines
    resumable = entry(value("framework", "pytorch")).checkpoints
    if not (resumable and strategy(value("sync", "none")).checkpoints):
        return lines
    if "checkpoints" not in given:
        return [*(x for n, x in given.items() if n != "resume"), f"checkpoints={checkpoints}",
                "resume=true"]  # fmt: skip
    if job.attempt > 1:
        return [*(x for n, x in given.items() if n != "resume"), "resume=true"]
    return lines
