"""Ceilings of a device, compared with its datasheet."""

import dataclasses

import pytest

from answers import in_order
from cubemesh.experiments.ceilings import EXPERIMENT, Settings
from cubemesh.experiments.core.experiment import Context, Scale
from cubemesh.schema import Figure, Gpu, Outcome, Rank, Status


@pytest.fixture
def measured(record_of):
    def make(spec, device="NVIDIA H200", rate=650e12, fastest=780e12):
        record = record_of(spec)
        product = spec.work.operation == "matrix_product"
        kind, unit = ("flops", "FLOP/s") if product else ("bytes", "B/s")
        scale = 1.0 if product else 1e-2 / 1.5625
        rank = Rank(
            rank=0, host="h", device="cuda:0", device_name=device, outcome=Outcome(status=Status.OK)
        )
        figures = {
            f"rate_{kind}_per_s": Figure(value=rate * scale, unit=unit, method="2 × 2 × 9"),
            f"fastest_{kind}_per_s": Figure(value=fastest * scale, unit=unit, method="2 × 2 × 9"),
        }
        return dataclasses.replace(record, ranks=(rank,), figures=figures)

    return make


def operations(specs):
    return [(s.work.operation, s.work.pinned) for s in specs]


def test_a_cpu_multiplies_and_copies(machine, play, measured):
    planned, _ = play(EXPERIMENT.plan(Settings(), Context(machine=machine)), measured)
    assert [s.program.precision for s in planned[:-1]] == ["fp32", "tf32", "bf16", "fp16"]
    assert operations(planned[-1:]) == [("copy", True)]


def test_a_gpu_also_measures_links_and_a_folder_a_disk(machine, play, measured):
    gpu = dataclasses.replace(machine, gpus=(Gpu(index=0, name="X", uuid="GPU-1"),))
    context = Context(machine=gpu, scale=Scale.QUICK)
    planned, _ = play(
        EXPERIMENT.plan(Settings(precisions=("bf16",), folder="/data"), context), measured
    )
    assert operations(planned[1:]) == [
        ("copy", True),
        ("host_to_device", True),
        ("host_to_device", False),
        ("device_to_host", True),
        ("device_to_host", False),
        ("disk_read", True),
    ]
    assert planned[-1].program.framework == "null"
    assert planned[-1].work.folder == "/data"


def test_a_known_device_is_compared_with_its_datasheet(machine, play, measured):
    settings = Settings(precisions=("bf16",))
    _, sent = play(EXPERIMENT.plan(settings, Context(machine=machine)), measured)
    answer = EXPERIMENT.answer(settings, sent)
    products, copies = answer.tables
    precision, rate, fastest, stated, share, shape = products.rows[0]
    assert (precision.text, rate.value, fastest.value) == ("bf16", 650e12, 780e12)
    assert stated.value == 989.4e12
    assert share.value == pytest.approx(100 * 780 / 989.4)
    assert shape.text == "2 × 2 × 9"
    assert copies.rows[0][3].value == 4.8e12
    card = answer.findings[0]
    assert (card.code, card.value) == ("fastest-matrix-product", 780e12)
    assert in_order(card.text, "79 %", "989 TFLOP/s")
    (ridges,) = (f.text for f in answer.findings if f.code == "roofline-ridge")
    assert "bf16 160 FLOP/B" in ridges, "650 over 4.16 tera, to two digits"
    assert any("Lockwood" in note for note in answer.notes)


def test_an_unknown_device(machine, play, measured):
    settings = Settings(precisions=("fp32",))
    _, sent = play(
        EXPERIMENT.plan(settings, Context(machine=machine)),
        lambda spec: measured(spec, device="Abacus 9000"),
    )
    answer = EXPERIMENT.answer(settings, sent)
    assert all(row[3].value is None for table in answer.tables for row in table.rows)
    (unknown,) = (f.text for f in answer.findings if f.code == "unknown-device")
    assert "Abacus 9000" in unknown
    assert not any("Datasheet" in note for note in answer.notes)


def test_unsupported_precisions_have_a_reason(machine, play, record_of):
    settings = Settings(precisions=("tf32",))
    _, sent = play(
        EXPERIMENT.plan(settings, Context(machine=machine)),
        lambda spec: record_of(spec, status=Status.UNSUPPORTED, message="no tf32 here"),
    )
    answer = EXPERIMENT.answer(settings, sent)
    assert "no tf32 here" in answer.tables[0].rows[0][1].reason
