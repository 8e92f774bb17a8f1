"""Distance of loss curves of two programs."""

import numpy as np
import pytest

pytest.importorskip("torch")


def test_captured_and_eager_programs_learn_alike_on_a_cpu(script, capsys):
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


def test_only_distant_curves_exceed_the_errors(script):
    loss_curves = script("loss_curves")
    rng = np.random.default_rng(0)
    one = [2 + 0.01 * rng.standard_normal(50) for _ in range(4)]
    *_, distance = loss_curves.compared(one, [c + 0.001 for c in one])
    assert (distance < loss_curves.ERRORS).all()
    *_, distance = loss_curves.compared(one, [c + 0.1 for c in one])
    assert (distance > loss_curves.ERRORS).all()
