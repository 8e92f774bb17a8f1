"""JAX's networks as the benchmarks have them by hand: the program must compute the same."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from cubemesh import networks  # noqa: E402
from cubemesh.frameworks.jax import build  # noqa: E402

SIZES = {"little-cnn": 8, "alexnet": 63, "resnet-50": 33}


@pytest.fixture(scope="module")
def by_hand():
    path = Path(__file__).parents[3] / "benchmarks" / "handwritten_jax.py"
    spec = importlib.util.spec_from_file_location("handwritten_jax", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", SIZES)
def test_losses_of_two_steps_equal_those_of_handwritten_code(
    name, by_hand, make_request, make_batch, without_dropout, monkeypatch
):
    network = without_dropout(networks.build(name, SIZES[name], 10))
    weights, batch = network.draw(1), make_batch(network, 4)
    program = build(make_request(network, precision="fp32", learning_rate=0.01, momentum=0.9))
    program.load(weights)
    placed = program.place(batch)
    monkeypatch.setattr(by_hand, "dropout", lambda x, rate, key: x)
    step, wait = by_hand.train_step(
        name,
        [weights[n] for n in network.parameters],
        [weights[n] for n in network.state],
        batch.images,
        batch.labels,
        device=jax.devices("cpu")[0],
        rate=0.01,
        momentum=0.9,
    )
    for _ in range(2):
        program.train_step(placed)
        step()
        loss = float(wait()[1])
        assert np.isfinite(loss)
        assert program.loss() == pytest.approx(loss, rel=1e-4)
