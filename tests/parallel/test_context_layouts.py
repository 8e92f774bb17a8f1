"""Networks with divided sequences: where keys are gathered, which positions a device has, what is
refused; the memory of a device."""

import pytest

from cubemesh.frameworks.contract.divided_network import GatheredKeys
from cubemesh.frameworks.contract.group import SingleProcessGroup
from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.networks import build
from cubemesh.networks.assembly import of_documents
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.layers import Attention
from cubemesh.networks.transformer_sizes import transformer
from cubemesh.networks.zoo.bert import bert
from cubemesh.networks.zoo.gpt2 import gpt
from cubemesh.networks.zoo.llama import llama
from cubemesh.parallel import strategies
from cubemesh.parallel.context_layouts import divide_sequence
from cubemesh.parallel.context_parallel import ContextParallel
from cubemesh.schema.spec import Placement, ProgramSettings, RunSpec
from cubemesh.schema.work import TrainSteps

GPT = gpt("small-gpt", 16, 13, width=8, depth=2, heads=2)
LLAMA = llama(
    transformer("llama:hidden=8,layers=1,heads=4,kv_heads=2,ffn=32,vocabulary=13"), 16, 13
)
BERT = bert(transformer("bert:hidden=8,layers=1,heads=2,vocabulary=13"), 12, 13)


class FourRanks(SingleProcessGroup):
    size = 4


def test_devices_have_a_part_from_the_begin_and_one_from_the_end_of_causal_sequences():
    divided = divide_sequence(GPT, 4)
    assert divided.part_length == 2
    assert [divided.parts(n) for n in range(4)] == [(0, 14), (2, 12), (4, 10), (6, 8)]
    both_ways = divide_sequence(BERT, 3)
    assert [both_ways.parts(n) for n in range(3)] == [(0,), (4,), (8,)]


@pytest.mark.parametrize(("network", "width", "packed"), [(GPT, 16, True), (LLAMA, 8, False)])
def test_keys_are_gathered_before_each_attention_in_its_segment(network, width, packed):
    divided = divide_sequence(network, 2).network
    nodes = {node.name: node for node in divided.nodes}
    attentions = [n for n in divided.nodes if isinstance(n.layer, Attention)]
    assert attentions
    for node in attentions:
        gather = nodes[node.inputs[1]]
        assert gather.layer == GatheredKeys(packed=packed)
        assert (gather.shape, gather.segment) == ((16, width), node.segment)
        (segment,) = (s for s in divided.segments if s.name == node.segment)
        assert segment.nodes.index(gather.name) + 1 == segment.nodes.index(node.name)
    assert divided.parameters == network.parameters


def one_score():
    net = NetworkBuilder("one-score")
    x = net.embedding(net.token_input("tokens", 8, 13), 6)
    x = net.add_layer(Attention(heads=2), net.linear(x, 18))
    net.classify(net.global_average_pool(x))
    return net.build()


@pytest.mark.parametrize(
    ("network", "why"),
    [
        (lambda: build("little-cnn"), "has no attention.*sync=all-reduce"),
        (lambda: of_documents(GPT), "packing=documents.*Leave packing out"),
        (lambda: build("vit-b16"), "input image is not a sequence.*Set sync=all-reduce"),
        (one_score, r"\(GlobalAveragePool\) reads several positions"),
        (lambda: gpt("odd", 18, 13, width=8, depth=1, heads=2), "18 positions.*to 16 or 20"),
    ],
)
def test_what_is_not_divided_is_refused_with_the_layer_and_the_remedy(network, why):
    with pytest.raises(Unsupported, match=f"^sync=context-parallel: .*{why}"):
        divide_sequence(network(), 2)


@pytest.mark.parametrize("name", ["gpt2", "bert-base", "llama3-1b"])
def test_transformers_of_the_zoo_are_divided(name):
    divided = divide_sequence(build(name), 2)
    assert any(isinstance(n.layer, GatheredKeys) for n in divided.network.nodes)


def test_all_devices_divide_a_sequence_unless_the_spec_says_how_many():
    sync = strategies.make("context-parallel", FourRanks())
    sync.configure(ProgramSettings(sync="context-parallel"))
    assert (sync.size, sync.divide_sequence(GPT).devices) == (4, 4)
    sync.configure(ProgramSettings(sync="context-parallel", context_parallel_size=2))
    assert (sync.size, sync.divide_sequence(GPT).devices) == (2, 2)
    with pytest.raises(Unsupported, match="context_parallel_size=3 do not divide devices=4"):
        ContextParallel.ranks_per_sample(4, ProgramSettings(context_parallel_size=3))
    assert ContextParallel.ranks_per_sample(1, ProgramSettings(context_parallel_size=3)) == 1


def spec(devices, sync, **work):
    return RunSpec(
        work=TrainSteps(network="gpt2", **{"batch_per_device": 4, **work}),
        placement=Placement(devices=devices),
        program=ProgramSettings(sync=sync, precision="bf16"),
    )


def test_activations_fall_by_the_number_of_devices_but_for_the_gathered_keys():
    """Of four samples on one device, and of the same four on two."""
    one = ContextParallel.memory(spec(1, "none"), GPT, "cpu")
    two = ContextParallel.memory(spec(2, "context-parallel", batch_per_device=2), GPT, "cpu")
    keys = 2 * 4 * 16 * 2 * 8 * 2  # blocks, samples, positions, keys and values of 8, in bf16
    assert two.activation_bytes == one.activation_bytes // 2 + keys
    assert two.weight_bytes == one.weight_bytes
    assert two.optimizer_bytes == one.optimizer_bytes
    assert two.input_bytes == one.input_bytes
    data = strategies.strategy("all-reduce").memory(
        spec(2, "all-reduce", batch_per_device=2), GPT, "cpu"
    )
    assert two.gradient_bytes == data.gradient_bytes, "in buckets"
    accumulated = spec(2, "context-parallel", accumulation_steps=2)
    halved = ContextParallel.memory(accumulated, GPT, "cpu")
    assert halved.activation_bytes < 1.2 * two.activation_bytes
