"""Plans on a GPU: built with evidence, loaded, measured, the same bytes from the same record, and
refused where there is another GPU."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cubemesh import Plan, build_plan, infer_plan
from cubemesh.errors import DataError, UsageError
from cubemesh.inference.plan_file import read_plan, write_plan

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
torch = pytest.importorskip("torch")


@pytest.fixture(scope="module", autouse=True)
def own_locks(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("locks")))
        yield


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"device": "gpu"}, "'gpu' is not a device: cpu, or cuda:N"),
        ({"device": "cuda:x"}, "'cuda:x' is not a device"),
        ({"device": "cuda:0", "engines": ["onnxruntime"]}, "runs on the CPU: --device cpu"),
        ({"engines": ["triton"]}, "runs on an NVIDIA GPU: --device cuda:0"),
    ],
)
def test_devices_that_are_none_are_refused(settings, reason, tmp_path):
    with pytest.raises(UsageError, match=reason):
        build_plan("little-cnn", tmp_path / "x.plan", precisions=("fp16",), **settings)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UsageError, match="PyTorch cannot use cuda:3: it can use none"):
        build_plan("little-cnn", tmp_path / "x.plan", device="cuda:3")


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    """A file of random images and labels."""
    path = tmp_path_factory.mktemp("samples") / "samples.npz"
    random = np.random.default_rng(0)
    images = random.standard_normal((256, 3, 32, 32)).astype(np.float32)
    np.savez(path, image=images)
    return path


@pytest.fixture(scope="module")
def built(samples, tmp_path_factory):
    """A plan of LittleCNN on a GPU, and its timing record."""
    if not torch.cuda.is_available():
        pytest.skip("PyTorch finds no GPU here")
    folder = tmp_path_factory.mktemp("built")
    done = build_plan(
        "little-cnn",
        folder / "gpu.plan",
        device="cuda:0",
        precisions=("fp16", "int8"),
        batches=(1, 64),
        samples=samples,
        seconds=1,
        timing_record=folder / "timing.json",
    )
    return done, folder


@pytest.mark.gpu
def test_a_plan_has_scores_and_evidence(built, samples):
    done, _ = built
    document = done.document
    assert document.device.gpu == torch.cuda.get_device_name(0)
    assert {choice.engine for choice in document.choices} == {"triton"}
    assert {proof.precision for proof in document.proofs} == {"fp16", "int8"}
    assert document.kernels
    with np.load(samples) as file:
        images = file["image"][:100]
    with Plan.load(done.file) as plan:
        assert plan.batches == (1, 64)
        found = plan.run(images)
        assert found.shape == (100, 10)
        assert np.array_equal(plan.run(images[:64]), found[:64]) or len(plan.split(100)) > 1
        plan.bind(images)()


@pytest.mark.gpu
def test_the_same_record_makes_the_same_bytes(built, samples):
    done, folder = built
    again = build_plan(
        "little-cnn",
        folder / "again.plan",
        device="cuda:0",
        precisions=("fp16", "int8"),
        batches=(1, 64),
        samples=samples,
        timing_record=folder / "timing.json",
    )
    assert Path(done.file).read_bytes() == Path(again.file).read_bytes()
    assert json.loads((folder / "timing.json").read_text())["kernels"]


@pytest.mark.gpu
def test_latency_is_measured(built):
    done, _ = built
    measured = infer_plan(done.file, iterations=20, warm_up=0)
    assert measured.batch == 64
    assert 0 < measured.latencies["p50"].value < 1
    assert measured.latencies["p50"].n == 20


@pytest.mark.gpu
def test_a_plan_of_another_gpu_is_refused_and_chosen_again(built, tmp_path):
    done, _ = built
    document, models = read_plan(Path(done.file))
    other = replace(document, device=replace(document.device, gpu="NVIDIA Another"))
    write_plan(tmp_path / "other.plan", other, models)
    with pytest.raises(DataError, match=r"built on NVIDIA Another.*--device cuda:0"):
        Plan.load(tmp_path / "other.plan")
    mended = build_plan(from_plan=tmp_path / "other.plan", seconds=0.5)
    assert mended.document.device.gpu == torch.cuda.get_device_name(0)
    with Plan.load(mended.file) as plan:
        assert plan.batches == (1, 64)
