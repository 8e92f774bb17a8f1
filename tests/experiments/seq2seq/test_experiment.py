"""Translators by hidden size, attention and batch size: plan and answer."""

import dataclasses

import pytest

from answers import in_order
from cubemesh.errors import UsageError
from cubemesh.experiments.core.settings import request
from cubemesh.experiments.registry import Context, Scale
from cubemesh.experiments.runner import run_experiment
from cubemesh.experiments.seq2seq.experiment import EXPERIMENT, Settings
from cubemesh.machines import probe
from cubemesh.runs import Executor
from cubemesh.schema import Figure, ProgramSettings, RunSpec, Status, TrainSteps
from cubemesh.store import Store

EACH = 38.0
"""Tokens of a sentence in the scripted records."""


def trained(record_of, network, width, batch, step_s, precision="fp32", **more):
    work = TrainSteps(network=network, batch_per_device=batch, hidden=width)
    spec = RunSpec(work=work, program=ProgramSettings(precision=precision))
    record = record_of(spec, step_s=step_s, **more)
    if not record.ok:
        return record
    tokens = Figure(value=EACH * batch / step_s, unit="tokens/s")
    return dataclasses.replace(record, figures={**record.figures, "tokens_per_s": tokens})


def test_full_settings_are_the_papers(machine, play, record_of):
    context = Context(machine=machine, scale=Scale.FULL)
    planned, sent = play(EXPERIMENT.plan(Settings(), context), record_of)
    assert [(s.work.hidden, s.batch_per_device, s.work.network) for s in planned] == [
        (width, batch, network)
        for width in (512, 1024, 2048)
        for batch in (32, 64, 128, 256)
        for network in ("translator", "translator-plain")
    ]
    assert {s.program.precision for s in planned} == {"fp32"}
    assert EXPERIMENT.answer(Settings(), sent).warnings == ()


def test_a_cpu_runs_less_with_a_warning(machine, play, record_of):
    planned, sent = play(EXPERIMENT.plan(Settings(), Context(machine=machine)), record_of)
    assert {s.work.hidden for s in planned} == {128, 256, 512}
    assert {s.batch_per_device for s in planned} == {4, 8, 16, 32}
    (warning,) = EXPERIMENT.answer(Settings(), sent).warnings
    assert warning.code == "reduced"
    assert in_order(warning.cause, "512", "2048")
    assert in_order(warning.cause, "32", "256")
    quick = Context(machine=machine, scale=Scale.QUICK)
    planned, _ = play(EXPERIMENT.plan(Settings(), quick), record_of)
    assert {s.work.hidden for s in planned} == {128, 256}


def test_the_list_of_a_slow_attention_ends(machine, play, record_of):
    def make(spec):
        slow = spec.work.network == "translator" and spec.batch_per_device >= 8
        return record_of(spec, step_s=60.0 if slow else 0.01)

    settings = Settings(hidden_sizes=(64,))
    planned, _ = play(EXPERIMENT.plan(settings, Context(machine=machine)), make)
    ran = {"translator": [], "translator-plain": []}
    for spec in planned:
        ran[spec.work.network].append(spec.batch_per_device)
    assert ran == {"translator": [4, 8], "translator-plain": [4, 8, 16, 32]}
    named = Settings(hidden_sizes=(64,), batch_sizes=(4, 8, 16), attentions=("mlp",))
    planned, _ = play(EXPERIMENT.plan(named, Context(machine=machine)), make)
    assert [s.batch_per_device for s in planned] == [4, 8, 16]


def test_comparisons_at_the_largest_common_batch_size(record_of):
    records = [
        trained(record_of, "translator", 512, 64, 0.10),
        trained(record_of, "translator", 512, 128, 0.16),
        trained(record_of, "translator", 512, 256, 0.32),
        trained(record_of, "translator-plain", 512, 64, 0.05),
        trained(record_of, "translator-plain", 512, 128, 0.08),
        trained(record_of, "translator", 1024, 64, 0.20),
        trained(
            record_of, "translator", 1024, 128, 1.0, status=Status.OOM, message="out of memory"
        ),
    ]
    answer = EXPERIMENT.answer(Settings(), records)
    fastest, attention, hidden = answer.findings[:3]
    assert (fastest.code, fastest.value) == ("highest-throughput", pytest.approx(1600))
    assert in_order(fastest.text, "plain", "512")
    assert "tokens/s" in fastest.text
    assert (attention.code, attention.value) == ("attention-comparison", pytest.approx(2))
    assert attention.question
    assert "batch size 128" in attention.text
    assert (hidden.code, hidden.value) == ("hidden-comparison", pytest.approx(0.5))
    assert "times the operations" in hidden.text
    found = {f.code: f for f in answer.findings}
    assert found["throughput-knee"].value == 128
    assert in_order(found["growing-throughput"].text, "plain", "512")
    assert in_order(found["failed-run"].text, "1024", "128", "out of memory")


def test_table_and_charts_have_tokens_and_gaps(record_of):
    records = [
        trained(record_of, "translator", 512, 64, 0.10),
        trained(record_of, "translator", 1024, 64, 0.20),
        trained(record_of, "translator", 1024, 128, 1.0, status=Status.OOM),
    ]
    answer = EXPERIMENT.answer(Settings(), records)
    (table,) = answer.tables
    names = [column.name for column in table.columns]
    first = dict(zip(names, table.rows[0], strict=True))
    assert first["sentences/s"].value == pytest.approx(640)
    assert first["tokens/s"].value == pytest.approx(640 * EACH)
    assert first["tokens/s"].low == pytest.approx(640 * EACH * 0.99)
    gap = dict(zip(names, table.rows[2], strict=True))
    assert gap["tokens/s"].value is None
    assert "out of memory" in gap["tokens/s"].reason
    by_batch, by_width = answer.charts
    assert [line.name for line in by_batch.lines] == [
        "mlp attention, hidden size 512",
        "mlp attention, hidden size 1024",
    ]
    assert by_batch.lines[1].points[1].y is None
    assert by_width.title.endswith("batch size 64")
    assert [p.x for p in by_width.lines[0].points] == [512, 1024]


def test_no_significant_difference_and_lower_precision(record_of):
    records = [
        trained(record_of, "translator", 512, 64, 0.100),
        trained(record_of, "translator-plain", 512, 64, 0.099),
        trained(record_of, "translator", 512, 64, 0.050, precision="bf16"),
    ]
    answer = EXPERIMENT.answer(Settings(precisions=("fp32", "bf16")), records)
    found = {f.code: f for f in answer.findings}
    assert found["attention-comparison"].value == pytest.approx(1.01, abs=0.001)
    assert "no significant difference" in found["attention-comparison"].text
    assert found["precision-comparison"].value == pytest.approx(2)
    assert "bf16" in found["precision-comparison"].text


def test_nothing_measured():
    answer = EXPERIMENT.answer(Settings(), [])
    assert answer.findings == answer.charts == answer.warnings == ()


def test_varied_fields_and_unknown_settings():
    with pytest.raises(UsageError, match="--set hidden_sizes="):
        request(EXPERIMENT, {"hidden": "64"})
    with pytest.raises(UsageError, match="attentions=bahdanau"):
        request(EXPERIMENT, {"attentions": "bahdanau"})


def planned(tmp_path, given):
    """What comes of really running `given` on networks of a few words."""
    given = {
        "vocabulary": "40",
        "sequence_length": "6",
        "seconds": "0.2",
        "warmup_seconds": "0.1",
    } | given
    machine = probe()
    with (
        Store.open(str(tmp_path / "s.sqlite")) as store,
        Executor(store, machine=machine, runs_folder=tmp_path / "runs") as executor,
    ):
        context = Context(machine=machine, scale=Scale.QUICK)
        return run_experiment(EXPERIMENT, request(EXPERIMENT, given), context, executor, store)


def tokens_each(answered):
    """Tokens of a sentence, from each row of the table."""
    (table,) = answered.answer.tables
    names = [column.name for column in table.columns]
    rows = [dict(zip(names, row, strict=True)) for row in table.rows]
    return [row["tokens/s"].value / row["sentences/s"].value for row in rows]


def test_the_scripted_framework_for_real(tmp_path):
    given = {"hidden_sizes": "8", "batch_sizes": "2,4", "framework": "null", "script": "step=0.01"}
    answered = planned(tmp_path, given)
    assert [record.ok for record in answered.records] == [True] * 4
    assert all(3 < each <= 6 for each in tokens_each(answered))
    assert "attention-comparison" in {f.code for f in answered.answer.findings}


def test_pytorch_on_real_text(tmp_path):
    lines = {"source.txt": "the cat sleeps\nthe dog\n", "target.txt": "die Katze schläft\nder\n"}
    for name, text in lines.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    given = {"hidden_sizes": "8", "batch_sizes": "2", "attentions": "mlp"}
    given |= {"data": "parallel-text", "data_path": str(tmp_path)}
    answered = planned(tmp_path, given)
    (record,) = answered.records
    assert record.ok
    assert record.figures["throughput_per_s"].value > 0
    assert tokens_each(answered) == [pytest.approx((4 + 2) / 2)]
    assert not any("random" in note for note in answered.answer.notes)
