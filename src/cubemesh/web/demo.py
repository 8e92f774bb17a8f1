"""Demonstration: three short trainings that a page starts with a click each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cubemesh.jobs.queue import JobQueue
from cubemesh.jobs.states import State
from cubemesh.jobs.values import QueuedJob
from cubemesh.user_folders import data_folder
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
        means="the same with 0.001 in place of 0.01",
        fields={**_COMMON, "learning_rate": "0.001"},
    ),
    Demonstration(
        title="With four times the batch size",
        means="the same with 256 samples a step in place of 64",
        fields={**_COMMON, "learning_rate": "0.01", "batch_per_device": "256"},
    ),
)


def demo_store() -> str:
    """The path of the store of demonstrations."""
    return str(data_folder() / "demo.sqlite")


def demonstrations(queue: JobQueue) -> dict[str, Any]:
    """Each demonstration with its newest job, and the runs of those that are done."""
    newest: dict[frozenset[str], QueuedJob] = {}
    for job in queue.list(limit=_MOST_JOBS):
        newest.setdefault(frozenset(job.question.settings), job)
    found, runs = [], list[str]()
    for one in DEMONSTRATIONS:
        own = newest.get(frozenset(f"{key}={value}" for key, value in one.fields.items()))
        if own is not None and own.state is State.DONE:
            runs += own.run_ids[-1:]
        state = None
        if own is not None:
            state = {
                "job_id": own.job_id,
                "state": str(own.state),
                "dot": dot_of(own.state),
                "progress": progress_text(own),
            }
        found.append((one, state))
    return {"trainings": found, "runs": runs}
