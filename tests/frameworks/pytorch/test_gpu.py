"""What only a GPU can show. Needs torch, numpy and pytest, and `PYTHONPATH=src`."""

import dataclasses
import os
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cubemesh import networks
from cubemesh.batches import Batch
from cubemesh.frameworks import entry
from cubemesh.frameworks.pytorch import build, build_ceiling, capabilities
from cubemesh.frameworks.pytorch import is_out_of_memory as is_oom
from cubemesh.networks.memory import recomputable_segments
from cubemesh.schema.spec import ProgramSettings
from cubemesh.schema.work import Ceiling
from layer_samples import dilated, recurrences, trained_weights

GPU = "cuda:0"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU here"),
]


@pytest.fixture
def resnet():
    return networks.build("resnet-18", 64, 10)


def test_the_gpu_comes_first():
    able = capabilities()
    assert able.devices[0] == GPU
    assert {"fp64", "fp32", "fp16"} <= able.precisions["cuda"]


@pytest.mark.parametrize("precision", ["fp64", "fp32", "tf32", "bf16", "fp16"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_resnet_takes_steps_and_reports_memory(precision, layout, resnet, make_request, make_batch):
    if precision not in capabilities().precisions["cuda"]:
        pytest.skip(f"this GPU has no {precision}")
    program = build(make_request(resnet, device=GPU, precision=precision, layout=layout))
    program.load(resnet.draw(0))
    losses = []
    for seed in range(3):
        program.train_step(program.place(make_batch(resnet, 16, seed)))
        losses.append(program.loss())
    program.synchronize()
    assert np.isfinite(losses).all()
    parameters_bytes = 4 * resnet.parameter_count
    peak_bytes = program.peak_memory_bytes()
    assert peak_bytes is not None
    assert peak_bytes > 3 * parameters_bytes, "weights, gradients and momentum at least"
    assert program.evaluate(program.place(make_batch(resnet, 5))).shape == (5, 10)
    program.close()


SEQUENCES = {
    "recurrences": recurrences,
    "dilated": dilated,
    "translator-2x": lambda: networks.build(
        "translator-2x", sequence_length=6, vocabulary=30, hidden=16
    ),
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_recurrent_and_dilated_layers_are_those_of_the_cpu(
    name, make_request, without_dropout, make_batch
):
    """Of cuDNN; in fp16 and captured in a graph they train as well."""
    network, found = without_dropout(SEQUENCES[name]()), []
    for device in ("cpu", GPU):
        program = build(make_request(network, device=device, precision="fp64", learning_rate=0.1))
        program.load(trained_weights(network))
        program.train_step(program.place(make_batch(network)))
        found.append(program.state())
        program.close()
    for array, wanted in found[0].items():
        np.testing.assert_allclose(found[1][array], wanted, rtol=1e-7, atol=1e-9, err_msg=array)
    for framework in ("pytorch", "pytorch-captured"):
        settings = {"device": GPU, "precision": "fp16", "loss_scale": 1024.0}
        program = entry(framework).load().build(make_request(network, **settings))
        program.load(trained_weights(network))
        placed = program.place(make_batch(network))
        for _ in range(5):
            program.train_step(placed)
        assert np.isfinite(program.loss())
        program.close()


@pytest.mark.parametrize("line", ["*=fp64", "*=bf16/fp32", "layer1=fp64/bf16"])
def test_layers_have_a_precision_by_pass(line, resnet, make_request, make_batch):
    settings = {"precision": "bf16", "precision_of": (line,), "layout": "nhwc"}
    program = build(make_request(resnet, device=GPU, **settings))
    program.load(resnet.draw(0))
    for seed in range(3):
        program.train_step(program.place(make_batch(resnet, 16, seed)))
    assert np.isfinite(program.loss())
    program.close()


FORKED_AFTER_PRELOAD = """
import os, sys
from cubemesh.frameworks import entry

framework = entry(sys.argv[1]).load()
framework.preload()
assert "PYTORCH_NVML_BASED_CUDA_CHECK" not in os.environ
if os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
print(framework.capabilities().devices[0], flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("name", ["pytorch", "pytorch-compiled"])
def test_a_fork_after_preload_finds_the_gpu(name):
    """The compiler's import asks for a GPU; had it asked CUDA, no fork could use it."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("PYTORCH_NVML_BASED_CUDA_CHECK", None)
    done = subprocess.run(
        [sys.executable, "-c", FORKED_AFTER_PRELOAD, name],
        capture_output=True,
        text=True,
        timeout=600,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [GPU]


def test_nhwc_bf16_really_runs_channels_last_in_bf16(resnet, make_request, make_batch):
    program = build(make_request(resnet, device=GPU, precision="bf16", layout="nhwc"))
    program.load(resnet.draw(0))
    seen = []

    def watch(module, inputs, output):
        seen.append((output.dtype, output.is_contiguous(memory_format=torch.channels_last)))

    program.module.get_submodule("layer3.0.conv2").register_forward_hook(watch)
    program.train_step(program.place(make_batch(resnet, 16)))
    assert seen == [(torch.bfloat16, True)]


@pytest.mark.parametrize("optimizer", ["sgd", "rmsprop", "adam"])
def test_fp32_without_tf32_matches_fp64(optimizer, resnet, make_request, make_batch):
    scores, losses = {}, {}
    for precision in ("fp64", "fp32"):
        request = make_request(
            resnet, device=GPU, precision=precision, optimizer=optimizer, learning_rate=1e-4
        )
        program = build(request)
        program.load(resnet.draw(0))
        batch = program.place(make_batch(resnet, 16))
        program.train_step(batch)
        losses[precision] = program.loss()
        scores[precision] = program.evaluate(batch)
    assert losses["fp32"] == pytest.approx(losses["fp64"], rel=1e-5)
    if optimizer == "sgd":  # the others divide by the gradient's size, however small it is
        np.testing.assert_allclose(scores["fp32"], scores["fp64"], rtol=1e-3, atol=1e-4)


def test_tf32_is_used_only_with_precision_tf32():
    if "tf32" not in capabilities().precisions["cuda"]:
        pytest.skip("this GPU has no TF32")
    errors = {}
    for precision in ("fp32", "tf32"):
        program = build_ceiling(Ceiling(size=512), ProgramSettings(precision=precision), GPU, 2)
        program.call()
        exact = program._a.double() @ program._b.double()
        errors[precision] = float((program._c - exact).abs().max())
    assert errors["fp32"] < 1e-3
    assert 3e-3 < errors["tf32"] < 1


def test_no_batch_overwrites_another(resnet, make_request, make_batch):
    """Many are placed while the GPU is busy, so that no copy has happened yet when the host's
    array is filled again."""
    program = build(make_request(resnet, device=GPU))
    program.load(resnet.draw(0))
    shape = (16, *resnet.inputs[0].shape)
    host = Batch(images=np.zeros(shape, np.float32), labels=np.zeros(16, np.int64))
    placed = []
    torch.cuda._sleep(200_000_000)
    for value in range(20):
        host.images[:] = value
        host.labels[:] = value
        placed.append(program.place(host))
    for value, (images, labels) in enumerate(placed):
        assert images.unique().tolist() == [value]
        assert labels.unique().tolist() == [value]


def test_placing_and_stepping_do_not_wait_for_the_gpu(resnet, make_request, make_batch):
    program = build(make_request(resnet, device=GPU))
    program.load(resnet.draw(0))
    batch = make_batch(resnet, 16)
    for _ in range(5):
        program.train_step(program.place(batch))
    program.synchronize()
    torch.cuda._sleep(2_000_000_000)
    start = program.clock()
    program.train_step(program.place(batch))
    queued_s = program.clock() - start
    program.synchronize()
    assert queued_s < 0.5 * (program.clock() - start)


def test_a_batch_that_is_too_large_is_out_of_memory(resnet, make_request):
    torch.cuda.set_per_process_memory_fraction(0.02)
    try:
        program = build(make_request(resnet, device=GPU))
        program.load(resnet.draw(0))
        shape = (4096, *resnet.inputs[0].shape)
        batch = Batch(images=np.zeros(shape, np.float32), labels=np.zeros(4096, np.int64))
        with pytest.raises(RuntimeError) as caught:
            program.train_step(program.place(batch))
        assert is_oom(caught.value)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_preloading_does_not_initialize_cuda():
    code = (
        "import cubemesh.frameworks.pytorch as p, torch; p.preload();"
        "print(torch.cuda.is_initialized(), torch.cuda.device_count() and 'seen')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.stdout == "False seen\n", done.stderr


@pytest.mark.parametrize("operation", ["matrix_product", "copy"])
def test_a_ceiling_is_found(operation):
    program = build_ceiling(Ceiling(operation=operation), ProgramSettings(precision="fp16"), GPU, 2)
    start = program.clock()
    for _ in range(3):
        program.call()
    program.synchronize()
    rate = 3 * program.work_per_call / (program.clock() - start)
    assert rate > 1e11, "any GPU that PyTorch supports does more than this"


LAUNCHED = """
import torch
from cubemesh.frameworks.pytorch import launch, preload

preload()
print(launch(lambda job: torch.zeros(1, device="cuda:0").item(), "", 1), flush=True)
"""


def test_launched_ranks_use_their_gpus():
    """The launcher asks for GPUs before it forks; had it asked CUDA, no rank could use one."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("PYTORCH_NVML_BASED_CUDA_CHECK", None)
    done = subprocess.run(
        [sys.executable, "-c", LAUNCHED],
        capture_output=True,
        text=True,
        timeout=600,
        env=environment,
    )
    assert done.stdout == "{}\n", done.stderr


@pytest.mark.parametrize(("precision", "tolerance"), [("fp64", 1e-9), ("bf16", 2e-2)])
@pytest.mark.parametrize("framework", ["pytorch", "pytorch-captured"])
def test_micro_batches_train_as_one_batch_does(
    framework, precision, tolerance, make_request, make_batch
):
    network = networks.build("cifarnet", 32, 10)
    losses = []
    for make, micro_batches in ((build, 1), (entry(framework).load().build, 4)):
        fields = {"accumulation_steps": micro_batches, "learning_rate": 0.05}
        program = make(make_request(network, device=GPU, precision=precision, **fields))
        if framework == "pytorch-captured" and micro_batches > 1:
            program.compile(program.place(make_batch(network, 4)))
        program.load(network.draw(0))
        for seed in range(5):
            program.train_step(program.place(make_batch(network, 4, seed)))
        losses.append(program.loss())
        if framework == "pytorch-captured" and micro_batches > 1:
            assert not program.not_captured
        program.close()
    assert losses[1] == pytest.approx(losses[0], rel=tolerance)


def test_recomputed_segments_need_less_memory_and_give_the_same_losses(
    resnet, make_request, make_batch
):
    found = []
    for recomputed in ((), recomputable_segments(resnet)):
        request = make_request(resnet, device=GPU)
        settings = dataclasses.replace(request.program, deterministic=True)
        request = dataclasses.replace(request, program=settings, recomputed=recomputed)
        program = build(request)
        program.load(resnet.draw(0))
        losses = []
        for seed in range(3):
            program.train_step(program.place(make_batch(resnet, 128, seed)))
            losses.append(program.loss())
        found.append((losses, program.peak_memory_bytes()))
        program.close()
    (saved, most_bytes), (again, least_bytes) = found
    assert again == saved
    assert least_bytes < most_bytes
