"""What tells two ways to learn apart, and what does not."""

import numpy as np
import pytest

pytest.importorskip("torch")


def test_off_a_gpu_the_captured_program_learns_as_the_eager_one(script, capsys):
    loss_curves = script("loss_curves")
    given = [
        "--frameworks",
        "pytorch,pytorch-captured",
        "--network",
        "cifarnet",
        "--image-size",
        "32",
    ]
    given += ["--device", "cpu", "--precision", "fp32", "--layout", "nchw", "--batch", "2"]
    assert loss_curves.main([*given, "--steps", "12", "--seeds", "2", "--rate", "0.01"]) == 0
    assert "they learn alike" in capsys.readouterr().out


def test_curves_apart_are_told_apart(script):
    loss_curves = script("loss_curves")
    rng = np.random.default_rng(0)
    one = [2 + 0.01 * rng.standard_normal(50) for _ in range(4)]
    *_, apart = loss_curves.compared(one, [c + 0.001 for c in one])
    assert (apart < loss_curves.ERRORS).all()
    *_, apart = loss_curves.compared(one, [c + 0.1 for c in one])
    assert (apart > loss_curves.ERRORS).all()
