from __future__ import annotations

import dataclasses
import json
import math

from cubemesh.api.run import RunResult
from cubemesh.experiments.runner import ExperimentResult
from cubemesh.exports.record_json import finite, record_json, step_statistics
from cubemesh.schema import Curve, ExperimentRun, Figure
from cubemesh.statistics import median, median_interval
from cubemesh.views.json_output import (
    answer_json,
    envelope,
    machine_json,
    run_json,
)


def test_record_names_what_programs_look_for(made):
    document = record_json(made.record(64, warnings=(made.BUSY,)))
    assert document["outcome"] == "ok"
    assert document["spec"]["framework"] == "pytorch"
    assert document["spec"]["network"] == "little-cnn"
    assert document["spec"]["batch_per_device"] == 64
    assert document["spec"]["devices"] == 1
    assert document["spec"]["global_batch"] == 64
    assert document["spec"]["sync"] == "none"
    assert document["spec"]["work"]["kind"] == "train_steps"
    assert document["throughput_per_s"] == 64 / 0.0369
    assert document["warnings"][0]["code"] == "busy-host"
    assert len(document["windows"]) == 18
    assert document["outcome_detail"] == {"message": "", "origin": "worker", "facts": {}}
    json.dumps(document, allow_nan=False)


def test_step_statistics_come_from_the_measured_windows_alone(made):
    record = made.record(64)
    steps = [w.elapsed_s / w.steps for w in record.windows if w.phase == "measure"]
    stats = step_statistics(record)
    assert stats["n"] == len(steps) == 14
    assert stats["median"] == median(steps)
    assert math.isclose(stats["mean"], sum(steps) / 14)
    interval = median_interval(steps)
    assert (stats["low"], stats["high"]) == (interval.low, interval.high)
    assert min(steps) <= stats["p05"] <= stats["median"] <= stats["p95"] <= max(steps)


def test_too_few_windows_have_no_interval(made):
    record = made.record(64)
    few = dataclasses.replace(record, windows=record.measured[:2])
    stats = step_statistics(few)
    assert stats["n"] == 2
    assert stats["low"] is None
    assert stats["high"] is None


def test_a_run_that_failed_has_nulls_and_its_reason(made):
    document = record_json(made.record(4096, outcome=made.OOM))
    assert document["outcome"] == "oom"
    assert document["throughput_per_s"] is None
    assert document["step_s"] is None
    assert document["outcome_detail"]["facts"]["limit_bytes"] == 24 * 1024**3


def test_what_json_has_no_word_for_becomes_null(made):
    diverged = dataclasses.replace(
        made.record(64),
        curves=(Curve(name="loss", x_name="step", x=(0.0, 1.0), y=(2.3, math.nan)),),
        figures={"validation_loss": Figure(value=math.inf, unit="")},
    )
    document = record_json(diverged)
    assert document["curves"][0]["y"] == [2.3, None]
    assert document["figures"]["validation_loss"]["value"] is None
    assert finite({"a": [(-math.inf, 1)]}) == {"a": [[None, 1]]}


def test_an_answer_is_unchanged(sample):
    document = answer_json(sample.answers[0])
    assert document["findings"][0]["value"] == 2169.5
    assert document["charts"][0]["lines"][0]["points"][-1]["y"] is None
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_run_document_holds_each_record_once_and_the_first_answer_by_itself(sample):
    records = list(sample.records.values())
    ran = [answered(sample.answers[0], records[:3]), answered(sample.answers[1], records[1:4])]
    document = run_json(RunResult(experiments=tuple(ran)))
    assert document["schema"] == 1
    assert [r["run_id"] for r in document["records"]] == [r.run_id for r in records[:4]]
    assert document["answer"]["experiment"] == "minibatch"
    assert len(document["answers"]) == 2
    assert run_json(RunResult(experiments=()))["answer"] is None


def answered(answer, records):
    run = ExperimentRun(
        experiment_run_id="r", experiment=answer.experiment, machine_id="m", started_utc=""
    )
    return ExperimentResult(experiment_run=run, records=tuple(records), answer=answer)


def test_machine_and_envelope_carry_the_schema(sample):
    document = machine_json(sample.machine)
    assert document["schema"] == 1
    assert document["usable_memory_bytes"] == 24 * 1024**3
    assert document["cpu"]["usable_cores"] == 2
    assert envelope("x", a=math.nan) == {"schema": 1, "kind": "x", "a": None}


def test_an_attribution_is_seconds_by_part_or_null(made):
    document = record_json(made.taken_apart(8))
    assert document["attribution_s"] == {
        "compute": 0.016,
        "input_stall": 0.0001,
        "launch_gaps": 0.0043,
        "host": 0.0009,
        "unattributed": 0.0002,
    }
    assert document["breakdowns"][0]["rows"][0] == {"name": "conv0", "seconds": 0.002, "calls": 3}
    assert record_json(made.record(8))["attribution_s"] is None


def test_the_documents_of_a_record_an_answer_and_a_machine(made, sample, golden):
    """Whole documents: a changed meaning or a removed field increases `SCHEMA`."""
    for name, document in (
        ("record", record_json(made.taken_apart(8))),
        ("answer", answer_json(sample.answers[0])),
        ("machine", machine_json(made.machine(gpus=2))),
    ):
        golden.check(f"{name}.json", json.dumps(document, indent=1, ensure_ascii=False))
