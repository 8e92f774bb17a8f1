"""Ceilings of a device, compared with its datasheet."""

import dataclasses

import pytest

from answers import in_order
from cubemesh.errors import UsageError
from cubemesh.experiments.ceilings.experiment import EXPERIMENT, Settings
from cubemesh.experiments.core.experiment import Context, Scale
from cubemesh.schema import Figure, Gpu, Outcome, Rank, Status, Unknown
from cubemesh.schema.serialization import from_plain


@pytest.fixture
def measured(record_of):
    def make(spec, device="NVIDIA H200", rate=650e12, fastest=780e12):
        record = record_of(spec)
        product = spec.work.operation in ("matrix_product", "convolution")
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
        ("links", True),
        ("peer_access", True),
        ("page_migration", True),
        ("disk_read", True),
        ("disk_write", True),
        ("disk_mixed", True),
    ]
    assert planned[-1].program.framework == "null"
    assert planned[-1].work.folder == "/data"


def test_links_are_of_all_visible_gpus_in_one_run(machine, play, measured, monkeypatch):
    gpus = tuple(Gpu(index=i, name="X", uuid=f"GPU-{i}") for i in range(4))
    context = Context(machine=dataclasses.replace(machine, gpus=gpus))
    settings = Settings(precisions=("bf16",))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    planned, _ = play(EXPERIMENT.plan(settings, context), measured)
    assert [s.placement.devices for s in planned] == [1] * 6 + [4] * 3
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    planned, _ = play(EXPERIMENT.plan(settings, context), measured)
    assert planned[-1].placement.devices == 2
    without = dataclasses.replace(settings, links=False)
    planned, _ = play(EXPERIMENT.plan(without, context), measured)
    assert [s.placement.devices for s in planned] == [1] * 6


def test_without_a_gpu_links_are_left_out_with_the_reason(machine, play, measured):
    settings = Settings(precisions=("fp32",))
    _, sent = play(EXPERIMENT.plan(settings, Context(machine=machine)), measured)
    assert any("no GPU" in note for note in EXPERIMENT.answer(settings, sent).notes)


def test_links_that_fail_or_lack_a_pair_have_their_reason(machine, play, record_of):
    gpu = dataclasses.replace(machine, gpus=(Gpu(index=0, name="X", uuid="GPU-1"),))
    settings = Settings(precisions=())
    unknown = Unknown(what="page migration of cuda:0", why="moved whole")

    def made(spec):
        if spec.work.operation == "links":
            return record_of(spec, status=Status.CRASHED, message="the driver said no")
        return dataclasses.replace(record_of(spec), unmeasured=(unknown,), figures={})

    _, sent = play(EXPERIMENT.plan(settings, Context(machine=gpu)), made)
    answer = EXPERIMENT.answer(settings, sent)
    (failed,) = (f.text for f in answer.findings if f.code == "failed-run")
    assert "the driver said no" in failed
    assert any("moved whole" in note for note in answer.notes)
    assert any("one GPU" in note for note in answer.notes)


def test_several_disks_are_compared_with_their_sum(machine, play, measured):
    settings = Settings(precisions=(), folder=("/a", "/b"))
    rates = {"/a": 100e9, "/b": 300e9}  # the fixture divides by 156

    def made(spec):
        work = spec.work
        alone = rates.get(work.folder, 1e12)
        return measured(spec, device="", rate=200e9 if work.other_folders else alone)

    planned, sent = play(EXPERIMENT.plan(settings, Context(machine=machine)), made)
    assert [s.work.folders for s in planned[1:]] == [("/a",)] * 3 + [("/b",)] * 3 + [
        ("/a", "/b")
    ] * 3
    answer = EXPERIMENT.answer(settings, sent)
    disks = {f.code: f for f in answer.findings}
    assert in_order(disks["disk-bandwidth"].text, "/a and /b", "0.5 × the sum", "2 GB/s", "RAID 0")
    assert "sum of each alone" in disks["disk-write-bandwidth"].text
    assert "Disk read and write" in disks["disk-mixed-bandwidth"].text
    names = [row[0].text for row in answer.tables[0].rows]
    assert names[1:4] == ["disk read, /a", "disk write, /a", "disk read and write, /a"]
    assert names[-1] == "disk read and write, /a + /b"


def test_folders_are_named_once_and_an_older_setting_is_read():
    with pytest.raises(UsageError, match="once"):
        Settings(folder=("/a", "/a"))
    assert from_plain(Settings, {"folder": "/data"}).folders == ("/data",)
    assert from_plain(Settings, {"folder": ["/a", "/b"]}).folders == ("/a", "/b")


def test_convolutions_have_a_table_of_their_own(machine, play, measured):
    settings = Settings(precisions=("bf16",), convolutions=True)
    planned, sent = play(EXPERIMENT.plan(settings, Context(machine=machine)), measured)
    assert operations(planned)[:2] == [("matrix_product", True), ("convolution", True)]
    answer = EXPERIMENT.answer(settings, sent)
    assert [t.title for t in answer.tables] == ["Matrix products", "Convolutions", "Copies"]
    assert answer.tables[1].rows[0][2].value == 780e12
    (fastest,) = (f for f in answer.findings if f.code == "fastest-convolution")
    assert "79 %" in fastest.text


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
