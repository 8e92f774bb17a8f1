"""Requests and batches that the tests of every framework start from."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cubemesh import networks
from cubemesh.batches import PADDING, Batch
from cubemesh.detection import detects
from cubemesh.detection.labels import grid_of
from cubemesh.frameworks.contract.program import BuildRequest
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.graph import Network
from cubemesh.networks.layers import Attention, Dropout
from cubemesh.parallel.strategy import NoSync
from cubemesh.schema.spec import Placement, ProgramSettings
from cubemesh.schema.work import Train, TrainSteps
from random_boxes import random_boxes


@pytest.fixture
def make_batch() -> Callable[..., Batch]:
    def make(network: Network, samples: int = 4, seed: int = 0) -> Batch:
        rng = np.random.default_rng(seed)
        inputs = [
            rng.random((samples, *i.shape), dtype=np.float32)
            if i.dtype == "float"
            else rng.integers(0, np.array(i.vocabularies or i.classes), (samples, *i.shape))
            for i in network.inputs
        ]
        (target,) = network.targets
        labels = rng.integers(0, target.classes, (samples, *target.shape))
        if detects(network):
            labels = random_boxes(grid_of(network), samples, rng)
        elif target.shape:
            labels[0, -1] = PADDING
        return Batch(*inputs, labels=labels)

    return make


@pytest.fixture
def tiny() -> Network:
    """Two segments, and little to compile."""
    net = NetworkBuilder("tiny")
    x = net.input("image", (3, 6, 6))
    with net.segment("features"):
        x = net.relu(net.conv(x, 4, kernel=3))
    with net.segment("classifier"):
        net.classify(net.linear(net.flatten(x), 10))
    return net.build()


@pytest.fixture
def make_request() -> Callable[..., BuildRequest]:
    """(network, its settings, device, and fields of the work) → request."""

    def make(
        network: Network | str = "little-cnn",
        *,
        device: str = "cpu",
        work: Any = None,
        precision: Any = "fp32",
        layout: Any = "nchw",
        script: str | None = None,
        loss_scale: Any = None,
        precision_of: tuple[str, ...] = (),
        **fields: Any,
    ) -> BuildRequest:
        if isinstance(network, str):
            network = networks.build(network, 16, 10)
        kind = Train if "epochs" in fields else TrainSteps
        return BuildRequest(
            network=network,
            work=work or kind(network=network.name, batch_per_device=4, **fields),
            placement=Placement(),
            program=ProgramSettings(
                precision=precision,
                layout=layout,
                script=script,
                loss_scale=loss_scale,
                precision_of=precision_of,
            ),
            sync=NoSync(),
            device=device,
            threads=1,
        )

    return make


@pytest.fixture
def without_dropout() -> Callable[[Network], Network]:
    """The network without dropout, since frameworks draw different numbers."""

    def replaced(network: Network) -> Network:
        nodes = (
            dataclasses.replace(node, layer=Dropout(rate=0.0))
            if isinstance(node.layer, Dropout)
            else dataclasses.replace(node, layer=dataclasses.replace(node.layer, dropout=0.0))
            if isinstance(node.layer, Attention)
            else node
            for node in network.nodes
        )
        return dataclasses.replace(network, nodes=tuple(nodes))

    return replaced
