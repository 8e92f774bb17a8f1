"""Networks that `benchmarks/handwritten_*.py` train by hand in fp32, and their steps against a
program's."""

import pytest

from cubemesh import networks

RATE, MOMENTUM = 0.01, 0.9
_SIZES = {"little-cnn": (8, 10), "alexnet": (63, 1000), "resnet-50": (64, 1000)}
"""Network → side of an image, classes."""
NAMES = [
    name if name == "little-cnn" else pytest.param(name, marks=pytest.mark.sweep) for name in _SIZES
]


def network_by_hand(name):
    """A network as they have it."""
    return networks.build(name, *_SIZES[name])


def assert_same_losses(network, program, batch, step):
    """Compare the losses of three steps of a program with those that `step` returns. After a step,
    fp32 leaves a network that normalizes few values little in common with itself."""
    losses = []
    for _ in range(3):
        program.train_step(program.place(batch))
        losses.append((program.loss(), float(step())))
    for ours, theirs in losses[:1] if network.state else losses:
        assert theirs == pytest.approx(ours, rel=1e-4)
    assert len({ours for ours, _ in losses}) == 3
