"""Images decoded by the device that trains on them, from the spec to the record."""

import io
import os

import numpy as np
import pytest

from cubemesh.schema import (
    Budget,
    Figure,
    Input,
    Outcome,
    Placement,
    ProgramSettings,
    RunSpec,
    Status,
    Train,
    TrainSteps,
)
from cubemesh.schema.serialization import from_plain
from cubemesh.schema.spec import Against
from cubemesh.worker.report.events import events_path, read_events
from cubemesh.worker.run.job_file import Job, read_job
from cubemesh.worker.run.run_job import run_job
from script_server import run_code

EFFORT = Budget(steps=4, seconds=0.0, windows=2, warmup_seconds=0.0)
BOTH = """
import sys
from pathlib import Path
from cubemesh.worker.run.job_file import read_job
from cubemesh.worker.run.run_job import run_job

for path in sys.argv[1:]:
    run_job(read_job(Path(path)))
"""


@pytest.fixture
def photographs(tmp_path):
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    root = tmp_path / "set"
    for label in range(2):
        (root / f"class-{label}").mkdir(parents=True)
        for number in range(20):
            pixels = rng.integers(0, 256, (30, 40, 3), np.uint8)
            file = io.BytesIO()
            image.fromarray(pixels).save(file, "PNG" if number == 3 else "JPEG")
            (root / f"class-{label}" / f"{number:02}.jpg").write_bytes(file.getvalue())
    (root / "class-1" / "05.jpg").write_bytes(b"")
    return root


def events_of(folder, **spec):
    folder.mkdir()
    spec = RunSpec(budget=EFFORT, placement=Placement(threads=1), **spec)
    job = Job(spec=spec, folder=str(folder)).write()
    return folder, job


def test_the_process_is_set_up_before_gpus_are_queried(tmp_path, photographs):
    """CUDA reads its variables once, for both programs of a comparison. Each job has a fork."""
    pytest.importorskip("torch")
    from cubemesh.frameworks import pytorch

    name, answers = "CUDA_DEVICE_MAX_CONNECTIONS", tmp_path / "asked"
    work = TrainSteps(
        network="little-cnn", batch_per_device=4, data="images", data_path=str(photographs)
    )
    on_device, on_host = ProgramSettings(decode_location="device"), ProgramSettings()
    against = Against(work=work, program=on_device)
    jobs = [
        events_of(tmp_path / "program", work=work, program=on_device)[1],
        events_of(tmp_path / "against", work=work, program=on_host, against=against)[1],
    ]

    def asked():
        with answers.open("a") as file:
            file.write(f"asked with {os.environ.get(name)}\n")
        os._exit(0)

    for job in jobs:
        worker = os.fork()
        if worker == 0:
            try:
                os.environ.pop(name, None)
                pytorch.capabilities = asked
                run_job(read_job(job))
            finally:
                os._exit(1)  # it has not asked
        assert os.waitpid(worker, 0)[1] == 0
    assert answers.read_text() == "asked with 32\n" * 2


def outcome_and_figures(folder):
    events = read_events(events_path(folder, 0))
    figures = {e["name"]: from_plain(Figure, e["figure"]) for e in events if e["event"] == "figure"}
    return from_plain(Outcome, events[-1]["outcome"]), figures


def test_training_and_decoding_report_images_decoded_by_the_host(tmp_path, photographs):
    pytest.importorskip("torch")
    fed = {"network": "little-cnn", "image_size": 16, "batch_per_device": 6}
    fed |= {"data": "images", "data_path": str(photographs)}
    program = ProgramSettings(decode_location="device", input_threads=2)
    jobs = [
        events_of(tmp_path / "train", work=Train(**fed, epochs=2), program=program),
        events_of(tmp_path / "decode", work=Input(**fed, stage="decode"), program=program),
        events_of(tmp_path / "copy", work=Input(**fed, stage="copy"), program=program),
        events_of(tmp_path / "steps", work=TrainSteps(**fed), program=program),
    ]
    run_code(BOTH, *(job for _, job in jobs))
    found = {folder.name: outcome_and_figures(folder) for folder, _ in jobs}
    ended, figures = found["train"]
    assert ended.ok, ended
    by_host = figures["images_decoded_by_host"]
    assert (by_host.value, by_host.n) == (2, 40)
    assert (by_host.method.split()[0], by_host.method.split()[-1]) == ("2", "JPEG")
    assert figures["images_skipped"].value == 1
    converted = figures["images_converted"].method.split()
    assert (converted[0], converted[1], converted[-1]) == ("2", "PNG", "JPEG")
    for name in ("decode", "steps"):
        ended, figures = found[name]
        assert ended.ok, ended
        assert figures["images_decoded_by_host"].n >= 6
    assert "2 threads" in figures["input_wait_s"].method
    ended, _ = found["copy"]
    assert ended.status is Status.UNSUPPORTED
    assert "stage=copy" in ended.message


def test_a_framework_that_does_not_decode_is_unsupported(tmp_path, photographs):
    program = ProgramSettings(framework="null", decode_location="device")
    jobs = []
    for data, path in (("images", str(photographs)), ("synthetic", None)):
        work = TrainSteps(network="little-cnn", batch_per_device=4, data=data, data_path=path)
        jobs.append(events_of(tmp_path / data, work=work, program=program))
    run_code(BOTH, *(job for _, job in jobs))
    for folder, _ in jobs:
        ended, _ = outcome_and_figures(folder)
        assert ended.status is Status.UNSUPPORTED
        assert "decode_location" in ended.message
