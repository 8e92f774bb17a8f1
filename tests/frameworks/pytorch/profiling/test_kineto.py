"""Traces as PyTorch's profiler writes them: made up for a GPU, with the fields that it has there,
and real for this machine."""

import json
import math
import tempfile

import numpy as np
import pytest
import torch

from cubemesh import networks
from cubemesh.batches import Batch
from cubemesh.frameworks.contract.program import BuildRequest, SupportsProfiling
from cubemesh.frameworks.pytorch import build
from cubemesh.frameworks.pytorch.profiling.kineto import LAYER, read_trace
from cubemesh.measure.attribution.breakdown import by_category, by_layer, by_runtime_call, occupancy
from cubemesh.measure.attribution.categories import category_of
from cubemesh.parallel import strategies
from cubemesh.schema import Placement, Profile, ProgramSettings, TrainSteps

BASE_NS = 1_790_857_026_000_000_000


def raw(cat, name, ts, dur, tid=1, **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur} | {
        "args": args
    }


GPU_TRACE = {
    "schemaVersion": 1,
    "baseTimeNanoseconds": BASE_NS,
    "traceEvents": [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}},
        raw("user_annotation", f"{LAYER}conv1", 100, 50),
        raw("cpu_op", "aten::conv2d", 105, 40, **{"Sequence number": 7, "Fwd thread id": 0}),
        raw("cuda_runtime", "cudaLaunchKernel", 110, 5, correlation=11),
        raw("kernel", "sm90_xmma_fprop_implicit_gemm_bf16", 120, 200, tid=7, stream=7)
        | {"args": {"stream": 7, "correlation": 11, "est. achieved occupancy %": 25}},
        raw("cpu_op", "aten::cross_entropy_loss", 160, 10, **{"Sequence number": 8}),
        raw("cuda_driver", "cuLaunchKernelEx", 162, 4, correlation=12),
        raw("kernel", "cunn_SoftMaxForward", 320, 10, tid=7)
        | {"args": {"stream": 7, "correlation": 12, "est. achieved occupancy %": 75}},
        raw(
            "cpu_op",
            "autograd::engine::evaluate_function: ConvolutionBackward0",
            200,
            40,
            tid=2,
            **{"Sequence number": 7, "Fwd thread id": 1},
        ),
        raw("cpu_op", "aten::convolution_backward", 205, 30, tid=2),
        raw("cuda_runtime", "cudaLaunchKernel", 210, 5, tid=2, correlation=13),
        raw("kernel", "sm90_xmma_wgrad_implicit_gemm", 330, 300, tid=7)
        | {"args": {"stream": 7, "correlation": 13, "est. achieved occupancy %": 50}},
        raw("user_annotation", "Optimizer.step#SGD.step", 250, 20),
        raw("cuda_runtime", "cudaLaunchKernel", 255, 5, correlation=14),
        raw("kernel", "multi_tensor_apply_kernel", 630, 20, tid=7)
        | {"args": {"stream": 7, "correlation": 14}},
        raw("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 90, 8, tid=7)
        | {"args": {"stream": 7, "correlation": 10, "bytes": 100}},
        raw("cuda_runtime", "cudaDeviceSynchronize", 300, 360, correlation=15),
        raw("cuda_sync", "Context Sync", 300, 350, tid=-1),
        raw("overhead", "Activity Buffer Request", 95, 300, tid=0),
        raw("gpu_user_annotation", f"{LAYER}conv1", 120, 200, tid=7),
        {"ph": "i", "name": "Record Window End", "ts": 700, "s": "g"},
    ],
}


@pytest.fixture
def gpu_profile():
    return Profile(events=read_trace(GPU_TRACE, lambda ns: (ns - BASE_NS) / 1e9), by_layer=True)


def test_a_kernel_belongs_to_the_layer_of_its_launch(gpu_profile):
    found = {e.name: (e.layer, e.update) for e in gpu_profile.on_device}
    assert found == {
        "Memcpy HtoD (Pinned -> Device)": ("", False),
        "sm90_xmma_fprop_implicit_gemm_bf16": ("conv1", False),
        "cunn_SoftMaxForward": ("", False),
        "sm90_xmma_wgrad_implicit_gemm": ("conv1", False),
        "multi_tensor_apply_kernel": ("", True),
    }


def test_times_are_those_of_the_programs_clock(gpu_profile):
    first = gpu_profile.events[0]
    assert (first.name, first.start_s, first.duration_s) == (
        "Memcpy HtoD (Pinned -> Device)",
        pytest.approx(90e-6),
        pytest.approx(8e-6),
    )


def test_a_breakdown_on_a_gpu_is_of_kernels(gpu_profile):
    layers = {r.name: (r.seconds, r.calls) for r in by_layer([gpu_profile], 1).rows}
    assert layers["conv1"] == (pytest.approx(500e-6), 2)
    assert layers["(update)"] == (pytest.approx(20e-6), 1)
    assert layers["(no layer)"] == (pytest.approx(18e-6), 2)
    categories = {r.name: r.seconds for r in by_category([gpu_profile], 1).rows}
    assert categories == pytest.approx(
        {
            "convolution": 500e-6,
            "optimizer": 20e-6,
            "normalization and elementwise": 10e-6,
            "copies": 8e-6,
        }
    )
    calls = {r.name: (r.seconds, r.calls) for r in by_runtime_call([gpu_profile], 1).rows}
    assert calls["launch"] == (pytest.approx(19e-6), 4)
    assert calls["synchronize"] == (pytest.approx(360e-6), 1)
    weighted = (200 * 25 + 10 * 75 + 300 * 50) / 510
    assert occupancy([gpu_profile]).value == pytest.approx(weighted)


def program_of(device="cpu", name="little-cnn", batch=8):
    network = networks.build(name, None, None)
    work = TrainSteps(network=name, batch_per_device=batch)
    program = build(
        BuildRequest(
            network=network,
            work=work,
            placement=Placement(),
            program=ProgramSettings(),
            sync=strategies.make("none"),
            device=device,
            threads=1,
        )
    )
    program.load(network.draw(0))
    rng = np.random.default_rng(0)
    batch = Batch(
        images=rng.random((batch, *network.inputs[0].shape), dtype=np.float32),
        labels=rng.integers(0, 10, batch),
    )
    return program, lambda: program.train_step(program.place(batch))


@pytest.fixture(scope="module")
def stepped():
    program, step = program_of()
    step()
    times = []

    def run():
        times.append(program.clock())
        step()
        step()
        program.synchronize()
        times.append(program.clock())

    return program, program.profile(run, layers=True)(), times


def test_a_program_profiles(stepped):
    program, profile, times = stepped
    assert isinstance(program, SupportsProfiling)
    assert profile.by_layer
    assert times[0] - 1e-3 < profile.events[0].start_s
    assert max(e.end_s for e in profile.events) < times[1] + 1e-3


def test_every_layer_is_found_forward_and_backward(stepped):
    program, profile, _ = stepped
    rows = {row.name: row for row in by_layer([profile], 2).rows}
    assert set(program._built.layers) <= set(rows)
    backward = {e.layer for e in profile.events if e.name == "aten::convolution_backward"}
    assert backward == {"conv1", "conv2", "conv3", "conv4"}
    assert rows["(update)"].seconds > 0


def test_categories_add_up_to_the_profilers_own_totals():
    """Acceptance: within 1 % of what torch.profiler itself calls the operators' own time."""
    _, step = program_of()
    step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        step()
    path_events = read_of(profiler)
    found = by_category([Profile(events=path_events)], 1)
    names = {e.name for e in path_events if e.kind == "operator"}
    wanted_us = math.fsum(
        row.self_cpu_time_total for row in profiler.key_averages() if row.key in names
    )
    assert 1e6 * math.fsum(r.seconds for r in found.rows) == pytest.approx(wanted_us, rel=0.01)
    assert {"convolution", "matrix product", "pooling"} <= {row.name for row in found.rows}
    assert [name for name in names if category_of(name) is None] == []


def read_of(profiler):
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profiler.export_chrome_trace(file.name)
        with open(file.name) as text:
            return read_trace(json.load(text), lambda ns: ns / 1e9)


@pytest.mark.gpu
def test_on_a_gpu_categories_add_up_to_the_profilers_kernels():
    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU that PyTorch can use")
    _, step = program_of("cuda:0", "resnet-50", 16)
    step()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        step()
        torch.cuda.synchronize()
    found = by_category([Profile(events=read_of(profiler))], 1)
    wanted_us = math.fsum(
        row.self_device_time_total
        for row in profiler.key_averages()
        if row.device_type == torch.autograd.DeviceType.CUDA and not row.is_user_annotation
    )
    assert 1e6 * math.fsum(r.seconds for r in found.rows) == pytest.approx(wanted_us, rel=0.01)
    unnamed = sum(row.seconds for row in found.rows if row.name == "unnamed")
    assert unnamed < 0.05 * wanted_us * 1e-6
