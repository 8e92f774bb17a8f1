"""Recorder: events reach the store when they happen, not at the next tick."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

import report_sample
from cubemesh.jobs.expect import Expected
from cubemesh.jobs.feed import curves, newest_events
from cubemesh.jobs.queue import JobQueue
from cubemesh.jobs.recorder import Recorder
from cubemesh.schema import RunSpec
from cubemesh.schema.serialization import from_plain
from held_jobs import running
from patience import wait_until


def _has(queue: JobQueue, job_id: int, points: list[list[float]]) -> bool:
    return curves(queue, job_id).get(1, {}).get("training_loss") == points


@pytest.mark.parametrize("location", ["sqlite"], indirect=True)
def test_an_event_is_written_at_once(live: JobQueue, tmp_path: Path) -> None:
    lease = running(live)
    spec = report_sample.record(8).spec
    with Recorder(lease, tmp_path / "pause", tick_s=10.0**6, machine_id="m") as recorder:
        recorder.start(spec)
        wait_until(lambda: newest_events(live, lease.job_id, ("run",), 1), "the run is written")
        for steps in ([1], [1, 2]):
            event = {"event": "loss", "of_rank": 0, "step": steps[-1], "loss": 0.5}
            recorder.worker_event(event)
            points = [[step, 0.5] for step in steps]
            wait_until(partial(_has, live, lease.job_id, points), "the loss is written")
    (began,) = newest_events(live, lease.job_id, ("run",), 1)
    assert from_plain(RunSpec, began.value["spec"]) == spec
    assert began.value["machine_id"] == "m"


@pytest.mark.parametrize("location", ["sqlite"], indirect=True)
def test_a_slowdown_is_in_the_progress_until_it_is_over(live: JobQueue, tmp_path: Path) -> None:
    lease = running(live)
    expected = Expected(samples_per_s=100.0, low=95.0, high=105.0, source="the test")
    recorder = Recorder(lease, tmp_path / "pause", expect=lambda spec: expected)
    recorder.start(report_sample.record(8).spec)
    shown = []
    for place in range(200):
        rate = 70.0 if 60 <= place < 120 else 100.0
        window = {"phase": "measure", "start_s": 2.0 * place, "elapsed_s": 2.0}
        window["samples"] = 2.0 * rate
        recorder.worker_event({"event": "window", "of_rank": 0, "window": window})
        shown.append(recorder.progress_now["slow"])
    begin = next(place for place, slow in enumerate(shown) if slow)
    assert 60 <= begin <= 90  # within a minute
    assert all(shown[begin:120])
    assert not any(shown[150:])
    last = shown[119]
    assert last is not None
    assert (last["since_s"], last["share"]) == (pytest.approx(120.0), pytest.approx(0.7))
