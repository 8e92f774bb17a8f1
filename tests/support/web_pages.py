"""Pages of the workbench in tests: a store with real and hostile runs, a client that needs no
network, and the addresses of every route, from which tests are made."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
from pathlib import Path
from typing import Any

import httpx

import report_sample
from cubemesh.jobs.lease import Lease
from cubemesh.jobs.queue import FreeDevices, JobQueue
from cubemesh.jobs.schedules import DAY_S, Schedules
from cubemesh.jobs.states import State
from cubemesh.jobs.values import Question, Wants
from cubemesh.schema import ExperimentRun
from cubemesh.store import Store
from cubemesh.web.app import Workbench
from cubemesh.web.page import Page
from cubemesh.web.pages import PAGES
from scripted_clock import Clock

RECORDS = Path(__file__).parents[2] / "benchmarks" / "records" / "2026-11-21-one-h200.sqlite"
TOKEN = "a-token-of-the-tests"
OWN = "http://127.0.0.1:8400"
HOSTILE = '"><img src=x onerror=alert(1)><script>alert(2)</script>{{7*7}}'


def fill(path: Path) -> None:
    """A copy of stored benchmarks, with runs, a machine and experiment runs whose names attack."""
    shutil.copy(RECORDS, path)
    sample = report_sample.hostile()
    attack = dataclasses.replace(sample.machine, hostname=f"host{HOSTILE}")
    with Store.open(str(path)) as store:
        store.save_machine(attack)
        ids = []
        for record in sample.records.values():
            key = dataclasses.replace(record.key, machine_id=attack.machine_id)
            own = dataclasses.replace(record, key=key)
            store.save(own, sample.series.get(record.run_id, ()))
            ids.append(own.run_id)
        for name in ("minibatch", f"unknown{HOSTILE}"):
            store.save_experiment_run(
                ExperimentRun(
                    experiment_run_id=("a" if name == "minibatch" else "b") * 12,
                    experiment=name,
                    settings={} if name == "minibatch" else {"note": HOSTILE},
                    machine_id=attack.machine_id,
                    started_utc="2026-11-23T10:00:00+00:00",
                    run_ids=tuple(ids),
                    complete=True,
                    suite=HOSTILE,
                )
            )

        fill_queue(JobQueue(store.database))


def fill_queue(queue: JobQueue) -> None:
    """A training that runs, and a sweep, a failed job and its log whose texts attack."""
    wants = Wants(device="none")
    real = Question(names=("train",), settings=("framework=null", "epochs=20"))
    attack = Question(names=(f"train{HOSTILE}",), settings=(f"note={HOSTILE}", "framework=null"))
    queue.submit([real], [wants], priority=1, submitter="someone@lab")
    free = FreeDevices(hostname="lab")
    job = queue.claim("agent-of-the-tests", free, lease_s=10**9)
    assert job is not None
    lease = Lease(queue=queue, job_id=job.job_id, fence=job.fence)
    lease.run_started()
    points = [[float(i), 2.0 / (i + 1)] for i in range(50)]
    rates = [[0.5 * i, 1000.0 + i] for i in range(1, 50)]
    lease.renew(
        {"fraction": 0.4, "note": "epoch 8 of 20", "run": 1, "runs": 1, "loss": 0.04}
        | {"samples_per_s": 1049.0, "eta_s": 90.0, "eta_low_s": 80.0, "eta_high_s": 100.0},
        [
            ("run", {"run": 1, "work": "train", "network": "little-cnn"}
             | {"framework": "null", "batch_per_device": 64}
             | {"expected": {"samples_per_s": 1070.0, "low": 1000.0, "high": 1140.0,
                             "source": f"3 earlier runs {HOSTILE}", "run_ids": []}}),
            ("points", {"run": 1, "series": "training_loss", "points": points}),
            ("points", {"run": 1, "series": "samples_per_s", "points": rates}),
            ("warning", {"code": "busy", "cause": "Others run.", "remedy": "Wait."}),
        ],
    )  # fmt: skip
    lease.queue.submit([attack, attack], [wants, wants], submitter=HOSTILE, sweep=attack)
    bad = queue.claim(f"agent{HOSTILE}", free)
    assert bad is not None
    lease = Lease(queue=queue, job_id=bad.job_id, fence=bad.fence)
    lease.renew({"note": HOSTILE}, [("log", {"text": HOSTILE}), ("message", {"text": HOSTILE})])
    lease.end(State.FAILED, HOSTILE)
    fill_schedules(queue, real, attack)


def fill_schedules(queue: JobQueue, real: Question, attack: Question) -> None:
    """A paused schedule, and one whose texts attack with a night that was skipped."""
    schedules, wants = Schedules(queue), Wants(device="none")
    made = schedules.add(real, wants, at_s=2 * 3600, submitter="someone@lab")
    schedules.pause(made.schedule_id, who="someone@lab")
    hostile = schedules.add(attack, wants, at_s=0, submitter=HOSTILE)
    with queue.database.read() as connection:
        day = queue.clock(connection) // DAY_S + 1
    clock = Clock()
    for hours in (1, 5):  # in the window, and after it
        clock.now = (24 * day + hours) * 3600.0
        Schedules(JobQueue(queue.database, clock)).submit_due(
            "agent-of-the-tests", FreeDevices(hostname="lab"), lambda: HOSTILE
        )
    assert schedules.get(hostile.schedule_id).nights


class Client:
    """Asks the application as a browser would, without a network."""

    def __init__(self, bench: Workbench, **headers: str) -> None:
        self.bench = bench
        self.headers = headers

    def ask(self, method: str, path: str, **given: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.bench.app, raise_app_exceptions=False)
            headers = self.headers | given.pop("headers", {})
            async with httpx.AsyncClient(
                transport=transport, base_url=OWN, headers=headers
            ) as client:
                return await client.request(method, path, **given)

        return asyncio.run(send())

    def get(self, path: str, **given: Any) -> httpx.Response:
        return self.ask("GET", path, **given)


QUERIES = {
    "compare": "?id={run}&id={other}",
    "compare_curves": "?id={run}&id={other}",
    "search": "?q=resnet",
}
IDS = {"run_id": "run", "machine_id": "machine", "experiment_run_id": "answer", "job_id": "job"}


def known_ids(store: Store) -> dict[str, str]:
    """Ids of what a filled store has, for `filled_in`."""
    answer = store.experiment_runs("minibatch")[0]
    return {
        "run": answer.run_ids[0],
        "other": answer.run_ids[1],
        "machine": answer.machine_id,
        "answer": answer.experiment_run_id,
        "job": "1",
    }


def patterns() -> list[tuple[Page, str]]:
    """Each page with its address and that of its JSON."""
    return [(page, path) for page in PAGES for path in (page.path, page.api_path)]


def filled_in(page: Page, path: str, known: dict[str, str]) -> str:
    """An address with stored ids in place of the names in braces."""
    for name, kind in IDS.items():
        path = path.replace(f"{{{name}}}", known[kind])
    path = path.replace("{experiment}", "train")
    return path + QUERIES.get(page.module, "").format(**known)
