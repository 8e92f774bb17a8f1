"""Stages and bottleneck of `input-pipeline`."""

from dataclasses import replace

import pytest

from answers import codes, in_order
from cubemesh.errors import UsageError
from cubemesh.experiments.core.settings import request, split
from cubemesh.experiments.input_pipeline.experiment import EXPERIMENT, Settings
from cubemesh.experiments.input_pipeline.report import LABELS
from cubemesh.experiments.registry import Context, Scale
from cubemesh.schema import Figure, Gpu, Status

STEP_S = {
    "read": 0.001,
    "decode-one": 0.4,
    "decode": 0.1,
    "decode-by-device": 0.01,
    "copy": 0.002,
    "disk": 0.11,
    "page-cache": 0.105,
    "page-cache-by-device": 0.013,
    "decoded": 0.02,
    "synthetic": 0.02,
    "device": 0.0125,
}
"""Seconds of a minibatch of 16, so the device trains 1,280 images a second and decoding makes
160."""


BY_DEVICE = ("decode-by-device", "page-cache-by-device")


def simulated(machine, play, record_of, seconds=STEP_S, scale=Scale.DEFAULT, **settings):
    chosen = Settings(**settings)
    planned = []

    def make(spec):
        from cubemesh.experiments.input_pipeline.experiment import _key

        plain = record_of(spec)
        part = _key(plain)
        planned.append(part)
        record = record_of(spec, step_s=seconds[part])
        extra = {"image_file_bytes": Figure(value=110e3, unit="B")}
        if part in ("decode", "read"):
            extra["input_threads"] = Figure(value=4, unit="")
        if part in ("disk", "page-cache"):
            extra["input_wait_s"] = Figure(value=0.088, unit="s")
            extra["page_cache_share"] = Figure(value=0.25, unit="")
        return replace(record, figures={**record.figures, **extra})

    context = Context(machine=machine, scale=scale)
    _, records = play(EXPERIMENT.plan(chosen, context), make)
    return planned, EXPERIMENT.answer(chosen, records)


def test_every_part_is_measured_the_disk_first(machine, play, record_of):
    planned, answer = simulated(machine, play, record_of)
    assert planned == [
        *("read", "disk", "decode-one", "decode", "copy"),
        *("page-cache", "decoded", "synthetic", "device"),
    ]
    stages, trainings = answer.tables
    assert [row[0].text for row in stages.rows] == [
        LABELS[part] for part in ("read", "decode-one", "decode", "copy")
    ]
    assert [row[3].value for row in stages.rows] == [None, None, 40.0, None], "by thread"
    assert len(trainings.rows) == 5
    assert [c.value for c in trainings.rows[0][3:]] == pytest.approx([88.0, 25.0])
    (chart,) = answer.charts
    assert [len(line.points) for line in chart.lines] == [4, 5]
    assert "1,024 JPEG files" in answer.notes[0]


def test_slow_decoding_is_the_bottleneck(machine, play, record_of):
    _, answer = simulated(machine, play, record_of)
    first, second, disk, *_ = answer.findings
    assert first.code == "input-bottleneck"
    assert "decoding" in first.text
    assert first.value == pytest.approx(0.125)
    assert "decode_location=device" in first.remedy
    assert (second.code, second.value) == ("required-input", 32)
    assert "141 MB/s" in second.text
    assert (disk.code, disk.value) == ("input-cost", pytest.approx(0.114, abs=0.001))
    assert "80 % of a step" in disk.text
    assert answer.findings[-1].code == "disk-bandwidth"
    assert answer.findings[-1].value == pytest.approx(1.76e9)


def test_a_slow_device_is_the_bottleneck(machine, play, record_of):
    slow = STEP_S | dict.fromkeys(("disk", "page-cache", "decoded", "synthetic", "device"), 1.0)
    _, answer = simulated(machine, play, record_of, slow)
    first, second, cost, *_ = answer.findings
    assert (first.code, first.value) == ("device-bottleneck", pytest.approx(10))
    assert first.remedy == ""
    assert (second.value, second.unit) == (1, "core")
    assert (cost.code, cost.value) == ("input-cost", pytest.approx(1))


def test_slow_files_with_fast_stages_are_contention_for_the_cores(machine, play, record_of):
    seconds = {**STEP_S, "decode": 0.005, "page-cache": 0.02, "disk": 0.0245}
    _, answer = simulated(machine, play, record_of, seconds)
    first = answer.findings[0]
    assert first.code == "host-contention"
    assert first.value == pytest.approx(0.51, abs=0.005)
    assert first.remedy
    assert "device-bottleneck" not in codes(answer)


def test_quick_leaves_parts_out_and_parts_selects(machine, play, record_of):
    planned, _ = simulated(machine, play, record_of, scale=Scale.QUICK)
    assert set(STEP_S) - set(planned) == {"page-cache", "synthetic", *BY_DEVICE}
    planned, answer = simulated(machine, play, record_of, parts=("read", "copy"))
    assert planned == ["read", "copy"]
    assert [f.code for f in answer.findings] == ["stage-rates", "disk-bandwidth"]
    assert in_order(answer.findings[0].text, "read", "copy to the device")


def test_a_gpu_also_decodes_and_each_path_has_its_bottleneck(machine, play, record_of):
    with_gpu = replace(machine, gpus=(Gpu(index=0, name="NVIDIA H200", uuid="GPU-0"),))
    planned, answer = simulated(with_gpu, play, record_of)
    assert set(planned) == set(STEP_S)
    stages, trainings = answer.tables
    assert "decode on the device" in [row[0].text for row in stages.rows]
    assert trainings.rows[2][0].text == "files decoded on the device"
    host, device, *_ = answer.findings
    assert (host.code, device.code) == ("input-bottleneck", "device-bottleneck")
    assert host.value == pytest.approx(640 / 5120)
    assert device.value == pytest.approx(6400 / 5120)
    costs = {f.text: f.value for f in answer.findings if f.code == "input-cost"}
    assert pytest.approx(0.96, abs=0.005) in costs.values()
    slow = STEP_S | {"decode-by-device": 0.05}
    _, answer = simulated(with_gpu, play, record_of, slow)
    second = answer.findings[1]
    assert second.code == "input-bottleneck"
    assert "decode_location=host" in second.remedy


def test_decoding_on_the_device_of_a_cpu_if_requested(machine, play, record_of):
    planned, answer = simulated(machine, play, record_of, parts=(*BY_DEVICE, "device"))
    assert planned == [*BY_DEVICE, "device"]
    assert answer.findings[0].code == "device-bottleneck"


def test_own_images_are_read_in_place(machine, play, record_of):
    chosen = Settings(data_path="/data/photos", networks=("alexnet",))
    planned, records = play(EXPERIMENT.plan(chosen, Context(machine=machine)), record_of)
    fed = {(s.work.data, s.work.data_path, s.work.image_size) for s in planned}
    assert fed == {("images", "/data/photos", None), ("synthetic", None, None)}
    assert not any("generated" in note for note in EXPERIMENT.answer(chosen, records).notes)


def test_failed_parts_have_a_reason(machine, play, record_of):
    def make(spec):
        return record_of(spec, status=Status.UNSUPPORTED, message="no decoder")

    _, records = play(EXPERIMENT.plan(Settings(), Context(machine=machine)), make)
    answer = EXPERIMENT.answer(Settings(), records)
    assert [f.code for f in answer.findings] == ["failed-run"] * 9
    assert "no decoder" in answer.findings[0].text


def test_a_varied_field_cannot_be_set(machine):
    with pytest.raises(UsageError, match="--set parts="):
        request(EXPERIMENT, split(["stage=read"]))
