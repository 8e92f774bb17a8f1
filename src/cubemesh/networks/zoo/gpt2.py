"""GPT-2 in its four sizes (Radford et al. 2019, table 2; the smallest is "117M" there, 124 M in
truth).

    wte, wpe   each token's learned vector, plus one for its place
    layers ×   layer norm, causal attention, added to the block's input
               layer norm, 4 · hidden, GELU, hidden, added again
    ln_f       layer norm, then the product with every token's vector: wte once more

Each position is judged by the token that follows it. The GELU is the tanh form and the epsilon
1e-5, as in the released code, which has no dropout (nor does the paper name a rate). Weights start
from N(0, 0.02²), places from N(0, 0.01²), and what is added to the residual stream from a deviation
smaller by √(2 · layers), for as many additions. Of the 1024 places only as many are there as the
sequence is long. Nodes are called as in the released code and its ports; every matrix is
(out, in), where the ports' Conv1D has (in, out).
"""

from __future__ import annotations

import math

from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.graph import Network
from cubemesh.networks.layers import SMALL_NORMAL, Initializer
from cubemesh.networks.transformer_sizes import Transformer

_PLACES = Initializer(kind="normal", scale=0.01)


def gpt2(sizes: Transformer, sequence_length: int, vocabulary: int) -> Network:
    """The network of a row of `TRANSFORMERS`."""
    columns = {"width": sizes.hidden, "depth": sizes.layers, "heads": sizes.heads}
    return gpt(sizes.name, sequence_length, vocabulary, **columns)


def gpt(
    name: str, sequence_length: int, vocabulary: int, *, width: int, depth: int, heads: int
) -> Network:
    """Any network of this family, by its table's columns."""
    net = NetworkBuilder(name)
    x = net.token_input("tokens", sequence_length, vocabulary)
    with net.segment("embeddings"):
        x = net.embedding(x, width, name="transformer.wte")
        x = net.position_embedding(x, initializer=_PLACES, name="transformer.wpe")
    for i in range(depth):
        with net.segment(f"h{i}"):
            x = _block(net, x, f"transformer.h.{i}", heads, additions=2 * depth)
    with net.segment("head"):
        x = net.layer_norm(x, name="transformer.ln_f")
        tied = {"weight": "transformer.wte.weight"}
        x = net.linear(
            x, vocabulary, bias=False, initializer=SMALL_NORMAL, share=tied, name="lm_head"
        )
    net.classify(x)
    return net.build()


def _block(net: NetworkBuilder, x: str, name: str, heads: int, additions: int) -> str:
    width = net.shape(x)[1]
    added = Initializer(kind="normal", scale=0.02 / math.sqrt(additions))
    y = net.layer_norm(x, name=f"{name}.ln_1")
    y = net.linear(y, 3 * width, initializer=SMALL_NORMAL, name=f"{name}.attn.c_attn")
    y = net.attention(y, heads, causal=True, name=f"{name}.attn.attend")
    y = net.linear(y, width, initializer=added, name=f"{name}.attn.c_proj")
    x = net.add(x, y, name=f"{name}.add_1")
    y = net.layer_norm(x, name=f"{name}.ln_2")
    y = net.linear(y, 4 * width, initializer=SMALL_NORMAL, name=f"{name}.mlp.c_fc")
    y = net.gelu(y, "tanh", name=f"{name}.mlp.act")
    y = net.linear(y, width, initializer=added, name=f"{name}.mlp.c_proj")
    return net.add(x, y, name=f"{name}.add_2")
