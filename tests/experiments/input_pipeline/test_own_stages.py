"""Stages, bottleneck and workers of `input-pipeline` with data of a user's own."""

from dataclasses import replace

import pytest

from cubemesh.data import own
from cubemesh.errors import UsageError
from cubemesh.experiments.core.settings import apply
from cubemesh.experiments.input_pipeline.experiment import EXPERIMENT, OWN, Settings, _key
from cubemesh.experiments.registry import Context, Scale
from cubemesh.schema import Figure
from cubemesh.schema.own_network import OwnData

DATA = OwnData(source="/folder/data.py:make", folder="/folder")
STEP_S = {
    "item-one": 0.04,
    "item": 0.01,
    "collate": 0.004,
    "copy": 0.002,
    "own": 0.01,
    "synthetic": 0.005,
    "device": 0.005,
}
"""Seconds of a minibatch of 16: the device trains 3,200 images a second, one thread takes 400."""


def answered(machine, play, record_of, seconds, threads=4, workers=0):
    def make(spec):
        part = _key(record_of(spec))
        planned.append(part)
        record = record_of(spec, step_s=seconds[part])
        more = {"input_wait_s": Figure(value=0.0075, unit="s")} if part == "own" else {}
        if part in ("item", "own") and threads:
            more["input_threads"] = Figure(value=threads, unit="")
        if part in ("item", "own") and workers:
            more["input_workers"] = Figure(value=workers, unit="")
        return replace(record, figures={**record.figures, **more})

    planned: list[str] = []
    chosen = Settings(data=DATA.name)
    context = Context(machine=machine, scale=Scale.DEFAULT)
    with own.named([DATA]):
        _, records = play(EXPERIMENT.plan(chosen, context), lambda spec: make(apply(spec, {})))
    return planned, EXPERIMENT.answer(chosen, records)


def workers_of(answer):
    return next(f for f in answer.findings if f.code == "required-workers")


def test_taking_samples_is_the_bottleneck_and_more_threads_help(machine, play, record_of):
    planned, answer = answered(machine, play, record_of, STEP_S)
    assert tuple(planned) == OWN
    bottleneck = answer.findings[0]
    assert bottleneck.code == "input-bottleneck"
    assert "taking samples (your code)" in bottleneck.text
    needed = workers_of(answer)
    assert (needed.value, needed.unit) == (8, "workers")
    assert "2.5 ms in one thread (400 images/s)" in needed.text
    assert "4 threads: 1,600 images/s, 400 each" in needed.text
    assert needed.remedy == "Set input_threads=8."
    stages, trainings = answer.tables
    assert [c.value for c in stages.rows[1][1:]] == pytest.approx([1600, 4, 400, 2.5])
    assert len(trainings.rows) == 3
    assert "75 % of a step is input wait" in answer.findings[2].text


def test_threads_that_hold_one_another_up_should_be_processes(machine, play, record_of):
    _, answer = answered(machine, play, record_of, STEP_S | {"item": 0.04})
    needed = workers_of(answer)
    assert "global lock" in needed.text
    assert needed.value == 8
    assert "DataLoader with num_workers=8" in needed.remedy


def test_workers_of_a_data_loader_are_counted(machine, play, record_of):
    _, answer = answered(machine, play, record_of, STEP_S, threads=0, workers=2)
    needed = workers_of(answer)
    assert "2 workers: 1,600 images/s, 800 each" in needed.text
    assert needed.remedy == "Set num_workers=4 in the DataLoader."


def test_fast_data_need_one_worker_and_no_change(machine, play, record_of):
    seconds = STEP_S | {"item": 0.0005, "item-one": 0.002, "collate": 0.001, "own": 0.005}
    _, answer = answered(machine, play, record_of, seconds)
    assert answer.findings[0].code == "device-bottleneck"
    needed = workers_of(answer)
    assert (needed.value, needed.unit, needed.remedy) == (1, "worker", "")


def test_parts_belong_to_their_data():
    with pytest.raises(UsageError, match=r"parts=decode is not a part of data=data.py:make"):
        Settings(data="data.py:make", parts=("decode",))
    with pytest.raises(UsageError, match="parts=item is not a part of photographs"):
        Settings(parts=("item",))
    with pytest.raises(UsageError, match="data=digits: input-pipeline measures photographs"):
        Settings(data="digits")
