"""Demonstration: three short trainings that a page starts with a click each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cubemesh.errors import UsageError
from cubemesh.jobs.queue import JobQueue
from cubemesh.jobs.states import State
from cubemesh.jobs.values import QueuedJob
from cubemesh.store import Store
from cubemesh.user_folders import data_folder
from cubemesh.views.formatting import result_text
from cubemesh.web.queued import dot_of, progress_text

_MOST_JOBS = 100


@dataclass(frozen=True, kw_only=True)
class Demonstration:
    """A training to start."""

    title: str
    means: str
    fields: Mapping[str, str]
    """Of the form of `train`."""


_COMMON = {
    "networks": "little-cnn",
    "data": "digits",
    "image_size": "16",
    "epochs": "10",
    "threads": "1",  # two next to other programs are many times slower, and one suffices
}
DEMONSTRATIONS = (
    Demonstration(
        title="Train a small network",
        means="little-cnn on 1,797 handwritten digits, 10 epochs",
        fields={**_COMMON, "learning_rate": "0.01"},
    ),
    Demonstration(
        title="With a tenth of the learning rate",
        means="the same with a learning rate of 0.001 in place of 0.01",
        fields={**_COMMON, "learning_rate": "0.001"},
    ),
    Demonstration(
        title="With four times the batch size",
        means="the same with a batch size of 256 in place of 64",
        fields={**_COMMON, "learning_rate": "0.01", "batch_per_device": "256"},
    ),
)


def demo_store() -> str:
    """The path of the store of demonstrations."""
    return str(data_folder() / "demo.sqlite")


def demonstrations(queue: JobQueue, store: Store) -> dict[str, Any]:
    """Each demonstration with its newest job and what it reached, and the runs of those done."""
    newest: dict[frozenset[str], QueuedJob] = {}
    for job in queue.list(limit=_MOST_JOBS):
        newest.setdefault(frozenset(job.question.settings), job)
    found, runs = [], list[str]()
    for one in DEMONSTRATIONS:
        own = newest.get(frozenset(f"{key}={value}" for key, value in one.fields.items()))
        done = own.run_ids[-1] if own and own.state is State.DONE and own.run_ids else ""
        runs += [done] if done else []
        state = None
        if own is not None:
            state = {
                "job_id": own.job_id,
                "state": str(own.state),
                "dot": dot_of(own.state),
                "progress": progress_text(own),
                "run_id": done,
                "result": _result(store, done) if done else "",
            }
        found.append((one, state))
    return {"trainings": found, "runs": runs}


def _result(store: Store, run_id: str) -> str:
    """The main figures of a run; empty where it is not stored."""
    try:
        return result_text(store.record(run_id))
    except UsageError:
        return ""
