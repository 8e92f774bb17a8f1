"""The loss of a detector in each framework against NumPy's, and its gradient."""

import numpy as np
import pytest

from cubemesh.detection.labels import Grid, loss
from cubemesh.networks.graph import Head
from random_boxes import random_boxes

GRID = Grid(size=64, side=4, classes=3)


@pytest.fixture
def values():
    """Scores and labels; the last image has no object."""
    rng = np.random.default_rng(0)
    return rng.random((5, GRID.cells, 7)), random_boxes(GRID, 5, rng)


def numeric(scores, labels, at):
    step = np.zeros_like(scores)
    step[at] = 1e-6
    return (loss(scores + step, labels).mean() - loss(scores - step, labels).mean()) / 2e-6


def test_pytorch(values):
    torch = pytest.importorskip("torch")
    from cubemesh.frameworks.pytorch.distributed.pipeline import _loss_share
    from cubemesh.frameworks.pytorch.program import micro_batch_weights, total_loss

    scores, labels = values
    heads = (Head(value="cells", target="label", loss="detection"),)
    given, targets = torch.tensor(scores, requires_grad=True), torch.tensor(labels)
    found = total_loss(heads, [given], targets)
    assert found.item() == pytest.approx(loss(scores, labels).mean(), rel=1e-12)
    found.backward()
    covered = np.argwhere(labels[0, : GRID.cells, 0] >= 0)[0, 0]
    for at in ((0, 0, 0), (0, covered, 1), (0, covered, 5), (4, 3, 6)):
        assert given.grad[at].item() == pytest.approx(numeric(scores, labels, at), abs=1e-6)
    half = total_loss(heads, [given.to(torch.bfloat16)], targets)
    assert half.dtype == torch.float32
    parts = [slice(0, 2), slice(2, 5)]
    count = torch.tensor(5)
    shares = [_loss_share(heads, [given[p]], targets[p], count) for p in parts]
    assert sum(shares).item() == pytest.approx(found.item())
    assert micro_batch_weights([targets[:2], targets[2:4]]) == [0.5, 0.5]


def test_jax(values):
    jax = pytest.importorskip("jax")
    from cubemesh.frameworks.jax.network import _detection_loss

    scores, labels = values
    found = _detection_loss(jax.numpy.asarray(scores), jax.numpy.asarray(labels))  # in fp32
    assert float(found) == pytest.approx(loss(scores, labels).mean(), rel=1e-5)


def test_tensorflow(values):
    tf = pytest.importorskip("tensorflow")
    from cubemesh.frameworks.tensorflow.network import _detection_loss
    from cubemesh.frameworks.tensorflow.runtime import prepare

    prepare("cpu", 1)  # as other tests of this process do, which could not change it any more
    scores, labels = values
    found = _detection_loss(tf.constant(scores), tf.constant(labels))
    assert float(found) == pytest.approx(loss(scores, labels).mean(), rel=1e-12)
