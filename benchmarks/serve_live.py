r"""Watching and steering jobs of `cubemesh serve`: many watchers, the time left, the demonstration.

    python benchmarks/serve_live.py watchers [--watchers 200] [--events-per-s 5] [--seconds 20]
    python benchmarks/serve_live.py cost     [--watchers 8] [--turns 12]
    python benchmarks/serve_live.py eta      [--trainings 50]
    python benchmarks/serve_live.py demo

watchers  processor time of the server while so many streams of one job are read, delays, losses
cost      throughput of a training while it is watched, over that while it is not, interleaved, with
          Student's interval over pairs of turns; and the processor time of the server
eta       the time left that trainings of different lengths gave at a fifth of the way, against what
          it was: median error, and how often the 90 % interval had it
demo      seconds from the start of `serve --demo` on an empty store to three trained models

The goals: 3 % of a core, none lost; 0.5 %; 5 % and 85 %; 6 minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import math
import random
import re
import statistics
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import httpx
import psutil

import cubemesh
from cubemesh.jobs.feed import curves, events_after
from cubemesh.jobs.lease import Lease
from cubemesh.jobs.points import RATE
from cubemesh.jobs.queue import FreeDevices, JobQueue
from cubemesh.jobs.states import ENDED, State
from cubemesh.jobs.values import Question, Wants
from cubemesh.statistics import CONFIDENCE, percentile, student_t
from cubemesh.store import Store
from serve import cpu_s, serving

TRAIN = {"networks": "little-cnn", "data": "digits", "threads": 1, "device": "cpu"}


class Watchers:
    """Streams of a job, read by this process; a context manager inside a running loop."""

    def __init__(self, ready: dict[str, Any], job_id: int, count: int) -> None:
        self.delays: list[float] = []
        self.seen: list[set[int]] = [set() for _ in range(count)]
        self._address = f"{ready['address']}/api/v1/jobs/{job_id}/events"
        self._headers = {"authorization": f"Bearer {ready['token']}", "accept": "text/event-stream"}
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Watchers:
        limits = httpx.Limits(max_connections=None)
        self._client = httpx.AsyncClient(timeout=None, limits=limits)
        self._tasks = [asyncio.create_task(self._read(seen)) for seen in self.seen]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.aclose()

    async def _read(self, seen: set[int]) -> None:
        async with self._client.stream("GET", self._address, headers=self._headers) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if line.startswith("data: {") and '"points"' in line:
                    value = json.loads(line[6:])["value"]
                    seen.add(int(value["points"][0][0]))
                    self.delays.append(time.time() - value["points"][0][1])


async def watchers(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The server while many watch one job."""
    path = folder / "results.sqlite"
    with Store.open(str(path)) as store, serving(path, "--no-agent") as (process, ready):
        queue = JobQueue(store.database)
        job_id = queue.submit([Question(names=("train",))], [Wants(device="none")]).job_id
        job = queue.claim("benchmark", FreeDevices(hostname="benchmark"), lease_s=10**6)
        assert job is not None
        lease = Lease(queue=queue, job_id=job_id, fence=job.fence, seconds=1e6)
        lease.run_started()
        events = round(given.seconds * given.events_per_s)
        async with Watchers(ready, job_id, given.watchers) as watching:
            await asyncio.sleep(3.0)
            before, begin = cpu_s(process.pid), time.monotonic()
            for number in range(events):
                value = {"run": 1, "series": "x", "points": [[number, time.time()]]}
                lease.renew(events=[("points", value)])
                rest = begin + (number + 1) / given.events_per_s - time.monotonic()
                await asyncio.sleep(max(0.0, rest))
            used, elapsed = cpu_s(process.pid) - before, time.monotonic() - begin
            await asyncio.sleep(2.0)
            memory = psutil.Process(process.pid).memory_info().rss / 2**20
        lease.end(State.DONE)
    return {
        "watchers": given.watchers,
        "events": events,
        "server_cpu_percent": 100 * used / elapsed,
        "delay_median_s": statistics.median(watching.delays),
        "delay_p99_s": percentile(watching.delays, 99),
        "lost": sum(events - len(seen) for seen in watching.seen),
        "server_mib": memory,
    }


def finished(queue: JobQueue, job_id: int) -> bool:
    """Whether a job has ended; exits where it failed."""
    job = queue.get(job_id)
    if job.state in ENDED and job.state is not State.DONE:
        sys.exit(f"job {job_id} is {job.state}: {job.why}")
    return job.state is State.DONE


async def cost(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Throughput of a training with and without watchers, interleaved."""
    path = folder / "results.sqlite"
    rng = random.Random(0)
    with serving(path) as (process, ready), Store.open(str(path)) as store:
        queue = JobQueue(store.database)
        settings = {**TRAIN, "epochs": 1_000_000, "image_size": 16}
        job_id = cubemesh.submit("train", settings=settings, store=store).job_id
        while len(rates(queue, job_id)) < 10:
            await asyncio.sleep(1.0)
        pairs, used = [], {True: 0.0, False: 0.0}
        for _ in range(given.turns):
            found = {}
            for watched in rng.sample([True, False], 2):
                before = cpu_s(process.pid)
                if watched:
                    async with Watchers(ready, job_id, given.watchers):
                        found[watched] = await turn(queue, job_id, given.seconds)
                else:
                    found[watched] = await turn(queue, job_id, given.seconds)
                used[watched] += cpu_s(process.pid) - before
            pairs.append(math.log(found[True] / found[False]))
        queue.stop(job_id)
        while queue.get(job_id).state not in ENDED:
            await asyncio.sleep(0.5)
    middle = statistics.fmean(pairs)
    half = student_t(CONFIDENCE, len(pairs) - 1) * statistics.stdev(pairs) / math.sqrt(len(pairs))
    seconds = given.turns * given.seconds
    return {
        "watchers": given.watchers,
        "turns": given.turns,
        "throughput_ratio": math.exp(middle),
        "low": math.exp(middle - half),
        "high": math.exp(middle + half),
        "server_cpu_percent_watched": 100 * used[True] / seconds,
        "server_cpu_percent_not_watched": 100 * used[False] / seconds,
    }


def rates(queue: JobQueue, job_id: int) -> list[Any]:
    """The throughput of a job by its time so far."""
    found = curves(queue, job_id)
    return found[max(found)].get(RATE, []) if found else []


async def turn(queue: JobQueue, job_id: int, seconds: float) -> float:
    """The throughput of the windows that end within some seconds."""
    begin = len(await asyncio.to_thread(rates, queue, job_id))
    await asyncio.sleep(seconds)
    own = (await asyncio.to_thread(rates, queue, job_id))[begin + 1 :]  # the first is in between
    return len(own) / math.fsum(1 / rate for _, rate in own)


def eta(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Trainings of different lengths, one after the other."""
    location = str(folder / "results.sqlite")
    rng, ids = random.Random(given.seed), []
    for place in range(given.trainings):
        settings = {**TRAIN, "epochs": rng.randint(8, 25), "image_size": 16, "seed": place}
        settings["batch_per_device"] = rng.choice([16, 32, 64])
        ids.append(cubemesh.submit("train", settings=settings, store=location).job_id)
    cubemesh.agent(store=location, until_idle=True, slots=1)
    errors, covered, without = [], 0, 0
    with Store.open(location) as store:
        queue = JobQueue(store.database)
        for job_id in ids:
            if not finished(queue, job_id):
                sys.exit(f"job {job_id} has not ended")
            found = _judged(queue, job_id)
            without += found is None
            if found is not None:
                error, has = found
                errors.append(error)
                covered += has
    return {
        "trainings": len(ids),
        "median_error_percent": 100 * statistics.median(errors),
        "covered_percent": 100 * covered / len(errors),
        "without_estimate": without,
    }


def _judged(queue: JobQueue, job_id: int) -> tuple[float, bool] | None:
    """The error of the first time left that a training gave after a fifth of the way, and whether
    its interval had what it was: the way is the time from the run's begin to its end."""
    events, _ = events_after(queue, job_id, limit=1_000_000)
    at = {e.kind: _seconds(e.said_utc) for e in events if e.kind in ("run", "finished")}
    for event in events:
        said = _seconds(event.said_utc)
        if event.kind == "eta" and said - at["run"] >= 0.2 * (at["finished"] - at["run"]):
            left, value = at["finished"] - said, event.value
            has = value["eta_low_s"] <= left <= value["eta_high_s"]
            return abs(value["eta_s"] - left) / left, has
    return None


def _seconds(utc: str) -> float:
    return datetime.datetime.fromisoformat(utc).timestamp()


FORM = re.compile(r'<form action="/ask/train" method="post">(.*?)</form>', re.S)
FIELD = re.compile(r'name="(\w+)" value="([^"]*)"')


def demo(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Click all demonstrations and wait for their models."""
    begin = time.monotonic()
    with serving(folder / "demo.sqlite", "--demo") as (_, ready):
        headers = {"Authorization": f"Bearer {ready['token']}"}

        def get(path: str, body: bytes | None = None) -> str:
            asked = urllib.request.Request(ready["address"] + path, body, headers)
            with urllib.request.urlopen(asked) as answer:
                return str(answer.read().decode())

        up_s = time.monotonic() - begin
        for form in FORM.findall(get("/")):
            get("/ask/train", urllib.parse.urlencode(FIELD.findall(form)).encode())
        while "Compare the 3 models" not in get("/"):
            time.sleep(1.0)
    return {"up_s": up_s, "three_models_s": time.monotonic() - begin}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("watchers", "cost", "eta", "demo"))
    parser.add_argument("--watchers", type=int)
    parser.add_argument("--events-per-s", type=float, default=5.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--trainings", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    given.watchers = given.watchers or (200 if given.what == "watchers" else 8)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if given.what in ("watchers", "cost"):
            found = asyncio.run({"watchers": watchers, "cost": cost}[given.what](given, folder))
        else:
            found = {"eta": eta, "demo": demo}[given.what](given, folder)
    print(f"{given.what}: " + ", ".join(f"{key} {value:.4g}" for key, value in found.items()))
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
