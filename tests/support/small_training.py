"""A small training, as a worker makes it, and what its checkpoints hold."""

from pathlib import Path

import numpy as np

from cubemesh.data.feed import Feed
from cubemesh.data.images.arrays import FloatImages
from cubemesh.frameworks import FRAMEWORKS
from cubemesh.frameworks.contract.group import SingleProcessGroup
from cubemesh.frameworks.contract.program import BuildRequest
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.parallel import strategies
from cubemesh.schema import CheckpointSettings, Placement, ProgramSettings, RunSpec, Train
from cubemesh.training.checkpoint import load
from cubemesh.training.loop import Training
from cubemesh.worker.run import checkpointing
from in_memory_log import InMemoryLog

EACH = 5
"""Steps of an epoch."""


def dropping():
    """A network with dropout and statistics, of which each rank has its own."""
    net = NetworkBuilder("dropping")
    x = net.relu(net.batch_norm(net.conv(net.input("image", (1, 6, 6)), 4, kernel=3)))
    net.classify(net.linear(net.dropout(net.flatten(x), 0.5), 10))
    return net.build()


def source(samples):
    rng = np.random.default_rng(7)
    images = rng.random((samples, 1, 6, 6), dtype=np.float32)
    return FloatImages("noise", images, rng.integers(0, 10, samples), 10)


def spec(folder, *, every, fault_every_s=None, resume=False, program=None, **fields):
    work = Train(network="dropping", batch_per_device=4, **{"epochs": 2, **fields})
    settings = CheckpointSettings(
        checkpoints=str(folder),
        every_steps=every,
        fault_every_s=fault_every_s,
        keep=9,
        resume=resume,
    )
    return RunSpec(work=work, program=ProgramSettings(**program or {}), checkpointing=settings)


def run(spec):
    """What a worker does, in this process."""
    network, work, log, group = dropping(), spec.work, InMemoryLog(), SingleProcessGroup()
    begin = checkpointing.beginning(spec, group, log)
    feed = Feed(source(4 * EACH), 4, work.seed, epochs=work.epochs, start=begin.history.done)
    request = BuildRequest(
        network=network,
        work=work,
        placement=Placement(),
        program=spec.program,
        sync=strategies.make(spec.program.sync),
        device="cpu",
        threads=1,
    )
    program = FRAMEWORKS[spec.program.framework].load().build(request)
    program.load(network.draw(work.seed))
    begin.restore(program, log)
    writer = checkpointing.training_writer(spec, group, begin)
    Training(
        program=program,
        feed=feed,
        validation=source(8),
        work=work,
        log=log,
        writer=writer,
        history=begin.history,
    ).run()
    return log


def contents(folder, step):
    found = load(Path(folder), step, 0, 1)
    arrays = {**found.snapshot.weights, **found.snapshot.arrays}
    return {name: array.tobytes() for name, array in arrays.items()}, found.snapshot.plain
