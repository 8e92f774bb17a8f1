"""Integrity of the queue when agents, job processes and workers are killed at random moments.

    python benchmarks/job_kills.py [--jobs 100] [--agents 8] [--kills 20] [--store PATH|URL]

Agents run jobs of the null framework, while processes are killed with SIGKILL; a killed agent is
replaced. Every job must be done exactly once, with events that are numbered without gaps. Prints
the time a job was without a holder after its lease was lost. Exit code 1 otherwise.
"""

from __future__ import annotations

import argparse
import datetime
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

import cubemesh
from cubemesh.jobs.feed import events_after
from cubemesh.jobs.queue import JobQueue
from cubemesh.jobs.states import ENDED, State
from cubemesh.store import Store

PAUSE_S = 2.0
"""Mean time between two kills."""
SETTINGS = {"framework": "null", "networks": "little-cnn", "threads": 1}


def start_agent(store: str) -> subprocess.Popen[bytes]:
    """An agent that takes one job at a time."""
    command = [sys.executable, "-m", "cubemesh", "agent", "--store", store, "--slots", "1"]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


def victims(agent: subprocess.Popen[bytes]) -> dict[str, psutil.Process]:
    """What can be killed of an agent now."""
    found = {"agent": psutil.Process(agent.pid)}
    try:
        for server in found["agent"].children():
            found["server"] = server
            for child in server.children():
                found["child"] = child
                for framework in child.children():
                    for worker in framework.children():
                        found["worker"] = worker
    except psutil.Error:
        pass
    return found


def main() -> int:
    """Run the jobs and kill; 0 if each was done once."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--agents", type=int, default=8)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--store")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng = random.Random(given.seed)
    with tempfile.TemporaryDirectory(prefix="cubemesh-job-kills-") as folder:
        location = given.store or str(Path(folder, "results.sqlite"))
        sizes = ",".join(str(n + 1) for n in range(given.jobs))
        sweep = cubemesh.submit(
            "minibatch",
            quick=True,
            store=location,
            settings=SETTINGS,
            sweep=[f"batch_sizes={sizes}"],
            restarts=given.kills + 1,
        )
        jobs = sweep.children or (sweep.job_id,)
        start = time.monotonic()
        agents = [start_agent(location) for _ in range(given.agents)]
        killed = {"agent": 0, "server": 0, "child": 0, "worker": 0}
        with Store.open(location) as store:
            queue = JobQueue(store.database)
            while not all(queue.get(job).state in ENDED for job in jobs):
                time.sleep(rng.expovariate(1 / PAUSE_S))
                if sum(killed.values()) < given.kills:
                    place = rng.randrange(len(agents))
                    found = victims(agents[place])
                    kind = rng.choice(sorted(found))
                    try:
                        found[kind].kill()
                        killed[kind] += 1
                    except psutil.Error:
                        continue
                    if kind == "agent":
                        agents[place].wait()
                        agents[place] = start_agent(location)
            elapsed_s = time.monotonic() - start
            for agent in agents:
                agent.terminate()
            for agent in agents:
                agent.wait()
            return report(queue, jobs, killed, elapsed_s)


def report(queue: JobQueue, jobs: tuple[int, ...], killed: dict[str, int], elapsed_s: float) -> int:
    """Print what became of the jobs; 0 if each was done once."""
    wrong, gaps_s = 0, []
    for job_id in jobs:
        events, _ = events_after(queue, job_id, limit=1_000_000)
        states = [event for event in events if event.kind == "state"]
        once = [event.value["state"] for event in states].count("done") == 1
        whole = [event.sequence for event in events] == list(range(1, len(events) + 1))
        if not once or not whole or queue.get(job_id).state is not State.DONE:
            wrong += 1
            print(f"job {job_id}: {[event.value for event in states]}")
        for event in states:
            if event.value["state"] == "queued" and "lease expired" in event.value["why"]:
                late = event.value["why"].partition("expired ")[2].partition(" s")[0]
                gaps_s.append(30.0 + float(late))
    print(f"{len(jobs)} jobs in {elapsed_s:.0f} s, kills: {killed}, not done exactly once: {wrong}")
    if gaps_s:
        print(f"leases lost: {len(gaps_s)}, the longest {max(gaps_s):.0f} s without a holder")
    print(datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
