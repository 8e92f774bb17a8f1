"""Interleaved comparison of kernel variants: what runs without a GPU."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from cubemesh.kernels.fused.batch_norm import FusedBatchNorm
from cubemesh.kernels.triton import conv1x1_bn_stats
from cubemesh.kernels.triton.batch_norm import autotune
from cubemesh.kernels.triton.batch_norm.autotune import Timing
from cubemesh.kernels.triton.batch_norm.launch import Launch


def timing(piece, ms):
    return Timing(piece=piece, launch=Launch(block_rows=16, block_cols=16, warps=4), ms=ms)


@pytest.fixture
def variants(script):
    return script("kernel_variants")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_exits_with_2(variants, capsys):
    assert variants.main([]) == 2
    assert capsys.readouterr().out.startswith("absent:")


def test_each_candidate_is_timed_once_and_a_variant_is_left_out(variants, monkeypatch):
    timed = []

    def time_candidates(op, x):
        timed.append(x.shape)
        own = [timing("pytorch", 9.0), timing("one-launch", 1.0)]
        return [*own, timing("reduce", 1.0), timing("apply", 1.0)], own

    monkeypatch.setattr(autotune, "time_candidates", time_candidates)
    tuner = variants.Tuner()
    op = FusedBatchNorm(nn.BatchNorm2d(16), add=False, relu=True, readers=1)
    x = torch.zeros(2, 16, 4, 4)
    with tuner.tuning(""):
        assert len(autotune.fastest_plan(autotune.time_candidates(op, x)[0])[0]) == 1
    with tuner.tuning("one-launch"):
        forward, backward = autotune.time_candidates(op, x)
    assert len(autotune.fastest_plan(forward)[0]) == 2
    assert autotune.fastest_plan(backward) is None
    assert timed == [x.shape]
    assert autotune.time_candidates is time_candidates


def test_convolutions_with_statistics_are_left_out(variants):
    supports = conv1x1_bn_stats.supports
    with variants.Tuner().tuning("conv-stats"):
        assert not conv1x1_bn_stats.supports(nn.Conv2d(64, 64, 1, bias=False))
    assert conv1x1_bn_stats.supports is supports


def test_convolutions_of_resnet_50_feed_one_batch_normalization_each(variants):
    found = variants.convs("resnet-50", 32)
    assert ((32, 64, 56, 56), ((32, 256, 56, 56), True, True, 2)) in found
    assert all(shape[2:] == case[0][2:] for shape, case in found)


def test_a_ratio_is_time_without_over_time_with(variants):
    found = variants.ratio_of([2.0, 2.2, 2.1], [1.0, 1.1, 1.05])
    assert found["ratio"] == pytest.approx(2.0)
    assert found["low"] <= 2.0 <= found["high"]
    rows = [{"variant": "one-launch", "case": ((2, 16, 4, 4), True, True, 1), "pass": "forward",
             "plan": "", **found}]  # fmt: skip
    assert "1 shapes, 1 faster, 0 slower" in variants.summary(rows)
