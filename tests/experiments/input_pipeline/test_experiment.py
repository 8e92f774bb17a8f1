from dataclasses import replace

import pytest

from cubemesh.errors import UsageError
from cubemesh.experiments.core.settings import request, split
from cubemesh.experiments.input_pipeline.experiment import EXPERIMENT, Settings
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


def played(machine, play, record_of, seconds=STEP_S, scale=Scale.DEFAULT, **settings):
    chosen = Settings(**settings)
    asked = []

    def make(spec):
        from cubemesh.experiments.input_pipeline.experiment import _key

        plain = record_of(spec)
        part = _key(plain)
        asked.append(part)
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
    return asked, EXPERIMENT.answer(chosen, records)


def test_every_part_is_measured_the_disk_before_what_may_stay_in_memory(machine, play, record_of):
    asked, answer = played(machine, play, record_of)
    assert asked == [
        *("read", "disk", "decode-one", "decode", "copy"),
        *("page-cache", "decoded", "synthetic", "device"),
    ]
    stages, trainings = answer.tables
    assert [row[0].text for row in stages.rows] == [
        "read from the disk",
        "decode, one thread",
        "decode",
        "copy to the device",
    ]
    assert [row[3].value for row in stages.rows] == [None, None, 40.0, None], "by thread"
    assert len(trainings.rows) == 5
    assert [c.value for c in trainings.rows[0][3:]] == pytest.approx([88.0, 25.0])
    (chart,) = answer.charts
    assert [len(line.points) for line in chart.lines] == [4, 5]
    assert "1,024 JPEG files" in answer.notes[0]


def test_decoding_that_is_too_slow_is_named_with_what_it_takes(machine, play, record_of):
    _, answer = played(machine, play, record_of)
    first, second, disk, *_ = answer.findings
    assert first.text == (
        "Decoding is the bottleneck: 160.0 ± 1.6 images/s, and the device trains 1,280 ± 13 when "
        "feeding it costs nothing."
    )
    assert first.value == pytest.approx(0.125)
    assert first.remedy == (
        "Give it more cores, set decode_location=device on a GPU, or store images smaller."
    )
    assert second.text == (
        "To feed this device takes 32 cores that decode, at 40 images/s each (40 where one works "
        "alone), and a disk that reads 141 MB/s."
    )
    assert second.value == 32
    assert disk.text.startswith("Training on files on the disk is 0.11× (0.11–0.12) as fast as on")
    assert disk.text.endswith("80 % of a step waits for its input.")
    assert "0.88 times the 2 GB/s" in answer.findings[-1].text


def test_a_device_that_is_slower_than_all_stages_is_the_bottleneck(machine, play, record_of):
    slow = STEP_S | dict.fromkeys(("disk", "page-cache", "decoded", "synthetic", "device"), 1.0)
    _, answer = played(machine, play, record_of, slow)
    assert answer.findings[0].text == (
        "The device is the bottleneck: it trains 16.00 ± 0.16 images/s, and the slowest stage "
        "before it, decoding, makes 160.0 ± 1.6."
    )
    assert answer.findings[0].remedy == ""
    assert "takes 1 core that decodes, at 40 images/s" in answer.findings[1].text
    assert "is as fast as on one batch that lies on the device" in answer.findings[2].text


def test_a_quick_look_leaves_two_out_and_parts_choose(machine, play, record_of):
    asked, _ = played(machine, play, record_of, scale=Scale.QUICK)
    assert set(STEP_S) - set(asked) == {"page-cache", "synthetic", *BY_DEVICE}
    asked, answer = played(machine, play, record_of, parts=("read", "copy"))
    assert asked == ["read", "copy"]
    assert [f.text for f in answer.findings] == [
        "Files are read at 1.76 GB/s, 0.88 times the 2 GB/s that document 002 gives for the disks "
        "of a DGX-1."
    ]


def test_a_gpu_decodes_too_and_each_way_has_its_bottleneck(machine, play, record_of):
    with_gpu = replace(machine, gpus=(Gpu(index=0, name="NVIDIA H200", uuid="GPU-0"),))
    asked, answer = played(with_gpu, play, record_of)
    assert set(asked) == set(STEP_S)
    stages, trainings = answer.tables
    assert "decode on the device" in [row[0].text for row in stages.rows]
    assert trainings.rows[2][0].text == "files decoded on the device"
    host, device, *_ = (f.text for f in answer.findings)
    assert host.startswith("Decoding is the bottleneck: 640")
    assert device.startswith("Decoded on the device: the device is the bottleneck: it trains 5,120")
    assert "before it, decoding there, makes 6,400" in device
    assert any("files decoded on the device is 0.96×" in f.text for f in answer.findings)
    slow = STEP_S | {"decode-by-device": 0.05}
    _, answer = played(with_gpu, play, record_of, slow)
    second = answer.findings[1]
    assert second.text.startswith("Decoded on the device: decoding there is the bottleneck: 1,280")
    assert "decode_location=host" in second.remedy


def test_the_device_of_a_cpu_decodes_where_it_is_asked_for(machine, play, record_of):
    asked, answer = played(machine, play, record_of, parts=(*BY_DEVICE, "device"))
    assert asked == [*BY_DEVICE, "device"]
    assert answer.findings[0].text.startswith("Decoded on the device: the device is the bottleneck")


def test_your_own_images_are_read_from_where_they_lie(machine, play, record_of):
    chosen = Settings(data_path="/data/photos", networks=("alexnet",))
    asked, records = play(EXPERIMENT.plan(chosen, Context(machine=machine)), record_of)
    fed = {(s.work.data, s.work.data_path, s.work.image_size) for s in asked}
    assert fed == {("images", "/data/photos", None), ("synthetic", None, None)}
    assert not any("are made" in note for note in EXPERIMENT.answer(chosen, records).notes)


def test_a_part_that_failed_says_why(machine, play, record_of):
    def make(spec):
        return record_of(spec, status=Status.UNSUPPORTED, message="no decoder")

    _, records = play(EXPERIMENT.plan(Settings(), Context(machine=machine)), make)
    answer = EXPERIMENT.answer(Settings(), records)
    assert answer.findings[0].text == "read from the disk: not supported: no decoder."
    assert len(answer.findings) == 9


def test_what_it_varies_cannot_be_set(machine):
    with pytest.raises(UsageError, match="sets stage itself"):
        request(EXPERIMENT, split(["stage=read"]))
