"""Workspaces of libraries on a GPU, compared with those measured on an H200."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cubemesh.networks import build
from cubemesh.networks.layers import Convolution
from cubemesh.networks.memory import forecast
from cubemesh.networks.workspaces import convolution_workspaces, library_bytes

MIB = 2**20
MB = 1e6


def workspaces(channels, side, filters, batch, precision="fp32", kernel=3, layout="nchw"):
    layer = Convolution(filters=filters, kernel=(kernel, kernel), padding=(kernel // 2,) * 2)
    given_shape = channels, side, side
    result = layer.output_shape(given_shape)
    return convolution_workspaces(layer, given_shape, result, batch, precision, layout)


@pytest.mark.parametrize(
    ("channels", "side", "filters", "batch", "measured_mb"),
    [  # forward, data gradient, weight gradient, as PyTorch's allocator counted them
        (512, 28, 512, 64, (2577.4, 1426.1, 500.2)),
        (512, 28, 512, 256, (3433.0, 2281.7, 1887.4)),
        (256, 56, 256, 64, (2770.6, 570.4, 934.3)),
        (128, 112, 128, 256, (0, 641.7, 7401.1)),
        (128, 28, 128, 64, (214.5, 142.6, 118.0)),
        (512, 14, 512, 64, (690.0, 0, 188.7)),
        (64, 224, 64, 64, (0, 89.1, 5150.6)),
    ],
)
def test_algorithms_in_full_fp32_have_the_workspaces_that_were_measured(
    channels, side, filters, batch, measured_mb
):
    found = workspaces(channels, side, filters, batch)
    ways = (found.forward, found.data_gradient, found.weight_gradient)
    for forecast_bytes, measured in zip(ways, measured_mb, strict=True):
        assert forecast_bytes / MB == pytest.approx(measured, rel=0.03)


def test_tensor_cores_transpose_nchw():
    found = workspaces(128, 112, 128, 64, "bf16")
    assert found.forward == 2 * (2 * 64 * 128 * 112 * 112 + 9 * 128 * 128)
    assert found.forward / MB == pytest.approx(411.3, rel=0.01)
    assert workspaces(128, 112, 128, 64, "bf16", layout="nhwc").forward == 0
    assert workspaces(128, 112, 128, 64, "bf16", kernel=1).forward == 0
    assert workspaces(3, 224, 64, 64, "bf16").forward > 2 * 64 * 224 * 224 * (8 + 64)


@given(st.integers(1, 64), st.sampled_from(["fp32", "tf32", "bf16", "fp16"]), st.integers(7, 64))
def test_a_larger_batch_never_takes_less(batch, precision, side):
    less, more = (workspaces(64, side, 64, n, precision) for n in (batch, 2 * batch))
    assert less.forward <= more.forward
    assert less.data_gradient <= more.data_gradient
    assert less.weight_gradient <= more.weight_gradient


def test_a_gpu_has_the_workspaces_of_its_matrix_library():
    on_cpu, on_gpu = (forecast(build("cifarnet"), 8, device=kind) for kind in ("cpu", "cuda"))
    assert on_cpu.library_bytes == 0
    assert on_gpu.library_bytes == library_bytes(training=True) == 65 * MIB
    assert library_bytes(training=False) == 33 * MIB
    assert on_gpu.total_bytes >= on_cpu.total_bytes + 65 * MIB


@pytest.mark.parametrize(
    ("name", "batch", "precision", "peak_gb"),
    [  # `benchmarks/memory_forecast.py` on an H200
        ("little-cnn", 64, "fp32", 0.150),
        ("alexnet", 256, "fp32", 2.137),
        ("overfeat", 64, "fp32", 4.177),
        ("overfeat", 16, "bf16", 2.082),
        ("vgg16", 256, "bf16", 12.995),
        ("googlenet", 16, "bf16", 0.633),
        ("inception-v3", 256, "bf16", 14.149),
        ("resnet-18", 16, "bf16", 0.411),
        ("resnet-152", 256, "bf16", 23.886),
    ],
)
def test_forecasts_come_near_the_peaks_that_were_measured(name, batch, precision, peak_gb):
    found = forecast(build(name), batch, precision, device="cuda").total_bytes
    assert found / 1e9 == pytest.approx(peak_gb, rel=0.05)
