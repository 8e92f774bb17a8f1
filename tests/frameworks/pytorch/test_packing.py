"""Packed documents: the loss and gradients of the documents one by one, in fp64."""

import dataclasses

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cubemesh import networks
from cubemesh.batches import PADDING, Batch
from cubemesh.data.text.documents import _rows
from cubemesh.errors import UsageError
from cubemesh.frameworks.pytorch import build
from cubemesh.networks.activation_memory import GradientFlow, saved_tensors
from cubemesh.networks.assembly import of_documents
from cubemesh.networks.cost import costs
from cubemesh.networks.transformer_sizes import TRANSFORMERS
from cubemesh.networks.zoo.bert import bert
from cubemesh.networks.zoo.gpt2 import gpt
from cubemesh.networks.zoo.llama import llama
from cubemesh.schema.work import TrainSteps
from layer_samples import documents as sample

LENGTH, WORDS = 8, 60


def sized(name, **columns):
    sizes = {"hidden": 16, "layers": 2, "heads": 4, "ffn": 24, **columns}
    return dataclasses.replace(TRANSFORMERS[name], **sizes)


MAKE = {
    "gpt2": lambda length: gpt("gpt2", length, WORDS, width=16, depth=2, heads=2),
    "llama": lambda length: llama(sized("llama3-8b", kv_heads=2), length, WORDS),
    "bert": lambda length: bert(sized("bert-base", kv_heads=4), length, WORDS),
}
"""(length) → network: learned places, rotary ones, attention in both directions."""


def texts():
    rng = np.random.default_rng(5)
    return [rng.integers(WORDS, size=n) for n in (3, 8, 2, 4, 5, 2, 3)]


@pytest.fixture
def step(make_request, without_dropout):
    def run(network, weights, batch, **program):
        """Loss and gradients of a batch."""
        request = make_request(
            without_dropout(network), precision="fp64", learning_rate=1.0, momentum=0.0
        )
        request = dataclasses.replace(
            request, program=dataclasses.replace(request.program, **program)
        )
        one = build(request)
        one.load(weights)
        one.train_step(one.place(batch))
        after = one.state()
        found = one.loss(), {name: weights[name] - after[name] for name in network.parameters}
        one.close()
        return found

    return run


def packed_batch(network):
    source = _rows("documents", texts(), network, "")
    assert source.samples == 4
    return source.batch(np.arange(source.samples))


@pytest.mark.parametrize("name", MAKE)
def test_packed_documents_have_the_loss_and_gradients_of_single_ones(name, step):
    network = of_documents(MAKE[name](LENGTH))
    weights = {name: array.astype(np.float64) for name, array in network.draw(1).items()}
    loss, gradients = step(network, weights, packed_batch(network))
    total, counted = 0.0, 0
    summed = {name: np.zeros_like(array) for name, array in gradients.items()}
    for tokens in texts():
        alone = MAKE[name](len(tokens))  # as long as the document: no mask, no padding
        own = {key: weights[key][: spec.shape[0]] for key, spec in alone.parameters.items()}
        labels = np.append(tokens[1:], PADDING)
        of_one, of_arrays = step(alone, own, Batch(tokens[None], labels=labels[None]))
        total, counted = total + (len(tokens) - 1) * of_one, counted + len(tokens) - 1
        for key, array in of_arrays.items():
            summed[key][: len(array)] += (len(tokens) - 1) * array
    assert loss == pytest.approx(total / counted, rel=1e-12)
    for key, array in gradients.items():
        np.testing.assert_allclose(array, summed[key] / counted, rtol=0, atol=1e-13, err_msg=key)


def test_segments_can_be_computed_again(make_request, make_batch):
    """The mask is made in one segment and read by others."""
    network = of_documents(MAKE["llama"](LENGTH))
    found = []
    for recomputed in ((), ("layer0", "layer1")):
        request = make_request(network, precision="fp64", learning_rate=0.1)
        program = build(dataclasses.replace(request, recomputed=recomputed))
        program.load(network.draw(0))
        program.train_step(program.place(make_batch(network)))
        found.append(program.state())
        program.close()
    assert all(np.array_equal(found[0][name], array) for name, array in found[1].items())


def test_the_parameters_and_products_are_those_of_the_network():
    plain = MAKE["llama"](LENGTH)
    packed = of_documents(plain)
    assert packed.parameters == plain.parameters
    assert [s.name for s in packed.segments] == [s.name for s in plain.segments]
    assert sum(node.name == "document_mask" for node in packed.nodes) == 1
    for name, cost in costs(plain).items():
        assert costs(packed)[name].total.matrix_flops == cost.total.matrix_flops
    saved = saved_tensors(GradientFlow(packed))["model.layers.0.self_attn.attend"]
    assert ("model.layers.0.self_attn.attend:mask", LENGTH**2) in {
        (array.name, array.elements) for array in saved
    }
    work = TrainSteps(
        network="llama-125m", batch_per_device=1, sequence_length=4, packing="documents"
    )
    assert [i.name for i in networks.build_for(work).inputs] == ["tokens", "positions"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("translator", "translator does not predict a token"),
        ("resnet-18", "resnet-18 does not predict a token"),
        ("vit-b16", "vit-b16 does not predict a token"),
    ],
)
def test_a_network_that_cannot_be_packed_is_refused(name, message):
    with pytest.raises(UsageError, match=message):
        of_documents(networks.build(name))


def test_every_mask_of_a_network_has_its_direction():
    masks = [n.layer.causal for n in sample().nodes if type(n.layer).__name__ == "DocumentMask"]
    assert masks == [True, False]
