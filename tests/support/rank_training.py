"""Training of small networks by ranks that divide them and by one process, for tests whose own file
is the script of the ranks."""

import dataclasses
import sys

import numpy as np

from cubemesh.batches import PADDING, Batch
from cubemesh.frameworks.contract.program import BuildRequest
from cubemesh.frameworks.pytorch import build, launch
from cubemesh.networks.layers import Attention
from cubemesh.networks.transformer_sizes import transformer
from cubemesh.networks.zoo.bert import bert
from cubemesh.networks.zoo.gpt2 import gpt
from cubemesh.networks.zoo.llama import llama
from cubemesh.parallel import strategies
from cubemesh.schema.spec import Placement
from cubemesh.schema.work import TrainSteps

LENGTH, GLOBAL_BATCH = 8, 4
KINDS = ("own gradient", "gradient", "w/", "r/", "loss", "scores")
"""What `train` and `resume` find, without the arrays of a snapshot."""


def small_transformer(name, sizes):
    """`gpt`, `bert` or `llama`, without dropout of attentions, which draw for the device's own part
    of them."""
    sizes = transformer(f"{name}:{sizes}")
    if name == "gpt":
        columns = {"width": sizes.hidden, "depth": sizes.layers, "heads": sizes.heads}
        return gpt("small-gpt", LENGTH, sizes.vocabulary, **columns)
    network = {"bert": bert, "llama": llama}[name](sizes, LENGTH, sizes.vocabulary)
    nodes = (
        dataclasses.replace(n, layer=dataclasses.replace(n.layer, dropout=0.0))
        if isinstance(n.layer, Attention)
        else n
        for n in network.nodes
    )
    return dataclasses.replace(network, nodes=tuple(nodes))


def request_of(network, settings, sync, group, device="cpu", recomputed=(), **work):
    return BuildRequest(
        network=network,
        work=TrainSteps(network="small", batch_per_device=GLOBAL_BATCH, momentum=0.9, **work),
        placement=Placement(),
        program=settings,
        sync=sync,
        device=device,
        threads=1,
        group=group,
        recomputed=recomputed,
    )


def loaded_program(network, settings, group, device="cpu", recomputed=(), make=build, **work):
    """The program of a rank, with weights."""
    sync = strategies.make(settings.sync, group)
    sync.configure(settings)
    program = make(request_of(network, settings, sync, group, device, recomputed, **work))
    program.load(network.draw(1))
    return program


def batch_of(network, part=slice(None), padded=0):
    """A part of the global batch; the first `padded` positions of each sequence have no label."""
    rng = np.random.default_rng(0)
    given, target = network.inputs[0], network.targets[0]
    shape = (GLOBAL_BATCH, *given.shape)
    if given.dtype == "integer":
        x = rng.integers(0, given.classes, shape)
    else:
        x = rng.random(shape, dtype=np.float32)
    labels = rng.integers(0, target.classes, (GLOBAL_BATCH, *target.shape))
    if padded:
        labels[:, :padded] = PADDING
    return Batch(x[part], labels=labels[part])


def train(program, batch):
    """Gradients, loss, weights and scores of a step."""
    found = {}

    def look(kind, name, array):
        if kind != "output":
            found[f"{kind}/{name}"] = np.array(array)

    placed = program.place(batch)
    program.inspected_step(placed, look)
    found["loss"], found["scores"] = np.array(program.loss()), program.evaluate(placed)
    return found | {f"w/{name}": array for name, array in program.state().items()}


def resume(program, batch):
    """The arrays of a snapshot, and the weights one step after it was restored."""
    placed = program.place(batch)
    snapshot = program.snapshot()
    program.train_step(placed)
    program.restore(snapshot)
    program.train_step(placed)
    found = {f"s/{name}": array for name, array in snapshot.arrays.items()}
    return found | {f"r/{name}": array for name, array in program.state().items()}


def own_samples(rank, ranks):
    """The part of the global batch that one of several ranks, or of replicas, has."""
    each = GLOBAL_BATCH // ranks
    return slice(rank * each, (rank + 1) * each)


def launch_ranks(folder, *jobs):
    """Within such a script: run each of `jobs`, a function of `folder` and a number of ranks."""
    for job, count in jobs:
        if failed := launch(job, folder, count):
            sys.exit(f"ranks failed: {failed}")


def saved(folder, *groups):
    """(network, rank) → what that rank saved; `groups` are networks and a number of ranks."""
    return {
        (name, n): dict(np.load(folder / f"{name}-{n}.npz"))
        for names, count in groups
        for name in names
        for n in range(count)
    }


def assert_arrays_close(found, expected, *kinds, rtol=1e-10, atol=1e-12):
    """Compare the arrays whose names start with one of `kinds`."""
    names = [name for name in expected if name.startswith(kinds)]
    assert names
    for name in names:
        np.testing.assert_allclose(found[name], expected[name], rtol=rtol, atol=atol, err_msg=name)


def assert_two_replicas(found, expected, *kinds):
    """Compare four ranks, of which pairs divide a replica of the network with half of the samples,
    with one process: `kinds` are alike on all, the rest in the mean of the replicas."""
    for one in found:
        assert_arrays_close(one, expected, *kinds)
    own = [name for name in found[0] if name.startswith("own gradient")]
    means = {name: (found[0][name] + found[2][name]) / 2 for name in (*own, "loss")}
    assert_arrays_close(means, expected, "own gradient", "loss")
    for first, second in ((0, 1), (2, 3)):
        assert_arrays_close(found[first], found[second], "own gradient", "scores", "loss")
    assert found[0]["loss"] != found[2]["loss"], "other samples"
