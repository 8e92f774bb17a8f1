import dataclasses

import pytest

from cubemesh.experiments.precision import EXPERIMENT, NETWORKS, PRECISIONS, Settings
from cubemesh.experiments.registry import Context, Scale
from cubemesh.schema import Ceiling, ProgramSettings, RunSpec, Status, TrainSteps, warn


def test_every_network_in_every_precision_after_the_ceilings(machine, play, record_of):
    context = Context(machine=machine, scale=Scale.FULL)
    planned, sent = play(EXPERIMENT.plan(Settings(), context), record_of)
    ceilings = [s for s in planned if isinstance(s.work, Ceiling)]
    assert [s.program.precision for s in ceilings] == list(PRECISIONS)
    steps = planned[len(ceilings) :]
    assert [(s.work.network, s.program.precision) for s in steps] == [
        (n, p) for n in NETWORKS for p in PRECISIONS
    ]
    assert {s.batch_per_device for s in steps} == {64}
    assert EXPERIMENT.answer(Settings(), sent).warnings == ()


def measured(record_of, network, precision, step_s, **more):
    work = TrainSteps(network=network, batch_per_device=64)
    spec = RunSpec(work=work, program=ProgramSettings(precision=precision))
    return record_of(spec, step_s=step_s, **more)


def ceiling(record_of, precision, rate):
    return record_of(
        RunSpec(work=Ceiling(), program=ProgramSettings(precision=precision)), rate=rate
    )


def test_speed_ups_over_fp32_and_of_the_ceiling(record_of):
    records = [
        ceiling(record_of, "fp32", 50e12),
        ceiling(record_of, "bf16", 750e12),
        measured(record_of, "resnet-50", "fp32", 0.31),
        measured(record_of, "resnet-50", "bf16", 0.10),
        measured(record_of, "alexnet", "fp32", 0.05),
        measured(record_of, "alexnet", "bf16", 0.06),
    ]
    answer = EXPERIMENT.answer(Settings(), records)
    card = answer.findings[0]
    assert (card.code, card.value) == ("largest-speed-up", pytest.approx(3.1))
    assert answer.findings[1].code == "throughput-ratio"
    text = answer.findings[1].text
    assert "resnet-50 3.10 ±" in text
    assert "alexnet 0.83 ±" in text
    assert "15.00× (750 TFLOP/s)" in text
    speedups = answer.tables[1]
    assert speedups.rows[0][1].value == pytest.approx(3.1)
    ceilings = answer.tables[-1]
    assert [row[0].text for row in ceilings.rows] == ["fp32", "bf16"]
    assert ceilings.rows[1][2].value == pytest.approx(15)


def test_noisy_runs_are_not_compared_and_memory_may_be_unknown(record_of):
    busy = measured(record_of, "resnet-50", "bf16", 0.10)
    busy = dataclasses.replace(busy, warnings=(warn("drift", "slower", "again"),))
    unknown = {k: v for k, v in busy.figures.items() if k != "peak_memory_bytes"}
    records = [
        measured(record_of, "resnet-50", "fp32", 0.31),
        dataclasses.replace(busy, figures=unknown),
    ]
    answer = EXPERIMENT.answer(Settings(), records)
    (found,) = answer.findings
    assert found.code == "throughput-ratio"
    assert found.caveats == ("drift",)
    memory = next(t for t in answer.tables if t.title.startswith("Memory"))
    assert [memory.rows[0][1].value, memory.rows[0][2].reason] == [64, "unknown"]


def test_unsupported_precisions_have_a_reason(record_of):
    records = [
        measured(record_of, "resnet-50", "fp32", 0.31),
        measured(
            record_of,
            "resnet-50",
            "tf32",
            1,
            status=Status.UNSUPPORTED,
            message="pytorch offers no tf32 on cpu",
        ),
    ]
    answer = EXPERIMENT.answer(Settings(), records)
    assert [table.rows[0][-1].reason for table in answer.tables] == ["not supported"] * 3
    (failed,) = answer.findings
    assert failed.code == "failed-run"
    assert "pytorch offers no tf32 on cpu" in failed.text
