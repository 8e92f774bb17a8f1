"""A function replayed as a CUDA graph. Networks: tests/frameworks/test_inference.py."""

import pytest

torch = pytest.importorskip("torch")

from cubemesh.frameworks.pytorch.captured_pass import CapturedPass

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU here"),
]


def test_other_shapes_run_uncaptured_and_a_reset_captures_again():
    weight = torch.tensor(2.0, device="cuda:0")
    calls = []

    def run(x):
        calls.append(len(x))
        return x * weight

    captured = CapturedPass(run, "cuda:0")
    ones = torch.ones(4, device="cuda:0")
    assert captured(ones).tolist() == [2.0] * 4
    before = len(calls)
    assert captured(3 * ones).tolist() == [6.0] * 4
    assert len(calls) == before
    assert captured(ones[:2]).tolist() == [2.0] * 2
    assert len(calls) == before + 1
    weight = torch.tensor(5.0, device="cuda:0")
    captured.reset()
    assert captured(ones).tolist() == [5.0] * 4
