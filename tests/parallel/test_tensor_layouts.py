"""Which layers tensor parallelism divides, read from the graph; test_tensor_parallel.py of PyTorch
computes with them."""

import pytest

from cubemesh import networks
from cubemesh.frameworks.contract.divided_network import Redistribution
from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.networks.assembly import of_documents
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.layers import Dropout, Multiply, SelectPosition
from cubemesh.networks.transformer_sizes import transformer
from cubemesh.networks.zoo.bert import bert
from cubemesh.networks.zoo.gpt2 import gpt
from cubemesh.networks.zoo.llama import llama
from cubemesh.networks.zoo.vit import vit
from cubemesh.parallel.tensor_layouts import divide


def small_gpt(length=8, vocabulary=13):
    return gpt("small-gpt", length, vocabulary, width=12, depth=1, heads=6)


def small_llama():
    return llama(transformer("llama:hidden=16,layers=1,heads=8,kv_heads=4,ffn=24"), 8, 10)


def styles_of(divided, style):
    return [name.split(".", 1)[-1] for name, own in divided.styles.items() if own == style]


def moves(divided):
    return [
        (node.layer.source, node.layer.target)
        for node in divided.network.nodes
        if isinstance(node.layer, Redistribution)
    ]


def test_both_pairs_of_a_block_the_embedding_and_the_output_matrix_are_divided():
    divided = divide(small_gpt(), 2)
    assert styles_of(divided, "columns") == ["h.0.attn.c_attn", "h.0.mlp.c_fc", "lm_head"]
    assert styles_of(divided, "rows") == ["h.0.attn.c_proj", "h.0.mlp.c_proj"]
    assert styles_of(divided, "vocabulary") == ["wte"]
    assert styles_of(divided, "positions") == ["wpe", "h.0.ln_1", "h.0.ln_2", "ln_f"]
    assert divided.sequence
    assert divided.packed == {
        "transformer.h.0.attn.c_attn.weight": 3,
        "transformer.h.0.attn.c_attn.bias": 3,
    }
    axes = divided.axes
    assert axes["transformer.wte.weight"] == axes["transformer.h.0.mlp.c_fc.bias"] == 0
    assert axes["transformer.h.0.mlp.c_proj.weight"] == 1
    assert axes["transformer.h.0.mlp.c_proj.bias"] is axes["transformer.ln_f.weight"] is None


def test_queries_keys_and_values_read_one_gathered_value():
    divided = divide(small_llama(), 4)
    names = ("q_proj", "k_proj", "v_proj")
    read = [n.inputs for n in divided.network.nodes if n.name.endswith(names)]
    assert read == [("model.layers.0.input_layernorm.gather",)] * 3
    pair = [("positions", "whole"), ("sum", "positions")]
    assert moves(divided) == [("sum", "positions"), *pair, *pair, ("positions", "whole")]
    assert "layers.0.mlp.down_proj" in styles_of(divided, "rows")


def test_positions_that_do_not_divide_are_computed_by_every_device():
    divided = divide(vit("small-vit", 32, 10, width=8, depth=1, heads=2), 2)
    assert not divided.sequence
    assert set(moves(divided)) == {("whole", "whole"), ("sum", "whole")}
    assert styles_of(divided, "positions") == []
    assert not divide(small_gpt(), 2, sequence=False).sequence


def test_the_places_of_packed_documents_are_added_to_whole_sequences():
    """DTensor's sequence parallel passes a layer one input: it would add the places in the row."""
    divided = divide(of_documents(small_gpt()), 2)
    assert divided.sequence
    assert "wpe" not in styles_of(divided, "positions")
    (added,) = (n for n in divided.network.nodes if n.name == "transformer.wpe")
    assert [divided.layouts[value] for value in added.inputs] == ["whole", "whole"]


def test_the_class_position_of_divided_positions_is_gathered():
    divided = divide(vit("small-vit", 112, 10, width=8, depth=1, heads=2), 2)
    assert divided.sequence, "49 patches and the class"
    (selected,) = (n for n in divided.network.nodes if isinstance(n.layer, SelectPosition))
    assert selected.inputs == ("encoder.ln.gather",)
    assert divided.layouts["encoder.ln"] == "positions"
    assert divided.layouts["class_token"] == "whole"
    assert moves(divided)[0] == ("whole", "positions")


def test_a_linear_layer_outside_of_pairs_computes_its_own_positions():
    sizes = transformer("bert:hidden=8,layers=1,heads=2,vocabulary=13")
    divided = divide(bert(sizes, 8, 13), 2)
    assert divided.styles["cls.predictions.transform.dense"] == "positions"
    dropouts = [n.name for n in divided.network.nodes if isinstance(n.layer, Dropout)]
    assert {divided.layouts[name] for name in dropouts} == {"positions"}


def test_every_node_reads_a_node_before_it_and_every_segment_has_its_nodes():
    for network in (small_gpt(), small_llama()):
        divided = divide(network, 2).network
        known = {i.name for i in divided.inputs}
        for node in divided.nodes:
            assert set(node.inputs) <= known
            known.add(node.name)
        assert [n for s in divided.segments for n in s.nodes] == [n.name for n in divided.nodes]
        assert divided.parameters == network.parameters


@pytest.mark.parametrize(
    ("network", "devices", "sequence", "words"),
    [
        (small_gpt, 4, None, "the 6 heads of transformer.h.0.attn.attend .* one of 1, 2, 3, 6"),
        (small_llama, 8, None, "the 4 key-value heads of .*self_attn.attend .* one of 1, 2, 4"),
        (lambda: small_gpt(length=9), 2, True, "the 9 positions of transformer.wte .* 1, 3, 9"),
        (lambda: networks.build("resnet-18", 32, 10), 2, None, "no pair of linear layers"),
    ],
)
def test_what_does_not_divide_is_refused_with_the_layer_and_the_numbers(
    network, devices, sequence, words
):
    with pytest.raises(Unsupported, match=words):
        divide(network(), devices, sequence)


def test_features_that_do_not_divide_are_refused():
    net = NetworkBuilder("odd")
    x = net.embedding(net.token_input("tokens", 4, 9), 8)
    net.classify(net.linear(net.gelu(net.linear(x, 9, name="up")), 8, name="down"))
    with pytest.raises(Unsupported, match=r"the 9 features of up in odd .* one of 1, 3, 9"):
        divide(net.build(), 2)


def test_a_product_with_an_input_of_the_network_is_not_between_a_pair():
    net = NetworkBuilder("gate")
    x = net.input("x", (4, 8))
    gated = net.add_layer(Multiply(), net.linear(x, 8), x)
    net.classify(net.linear(gated, 8))
    with pytest.raises(Unsupported, match="no pair of linear layers"):
        divide(net.build(), 2)


def test_a_vocabulary_smaller_than_the_devices_is_not_divided():
    divided = divide(small_gpt(length=9, vocabulary=4), 3)
    assert divided.sequence
    assert not {"lm_head", "transformer.wte"} & set(divided.styles)
    assert divided.layouts["lm_head"] == "whole", "as the embedding, which it shares a matrix with"
