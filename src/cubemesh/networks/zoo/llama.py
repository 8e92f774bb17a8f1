"""Llama-like decoders (Touvron et al. 2023, Grattafiori et al. 2024), by their table's columns.

    embed_tokens   each token's learned vector
    layers ×       RMS norm; queries, and fewer heads of keys and values (grouped queries), both
                   with rotary positions; causal attention, added to the block's input
                   RMS norm; ffn values times silu of ffn others (SwiGLU), hidden, added again
    norm, lm_head  RMS norm, then a matrix of its own or, in the small networks, every token's
                   vector once more

There are no biases, no dropout and no learned places. Each position is judged by the token that
follows it. Weights start from N(0, 0.02²). The epsilon is 1e-5. Nodes are called as in the port of
the released weights (transformers' LlamaForCausalLM), whose rotation of halves of each head this
is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.graph import Network
from cubemesh.networks.layers import (
    SMALL_NORMAL,
    Activation,
    Attention,
    Multiply,
    RMSNorm,
    RotaryEmbedding,
)
from cubemesh.networks.transformer_sizes import Transformer

_NORM = RMSNorm(epsilon=1e-5)


FeedForward = Callable[[NetworkBuilder, str, str], str]
"""(network, normalized value, name of the block) → value that is added to the block's input."""


def llama(sizes: Transformer, sequence_length: int, vocabulary: int) -> Network:
    """The network of a row of `TRANSFORMERS`, or any other of this family."""
    net = decoder(sizes, sequence_length, vocabulary, partial(_gated, sizes.ffn))
    return net.build()


def decoder(
    sizes: Transformer, sequence_length: int, vocabulary: int, feed_forward: FeedForward
) -> NetworkBuilder:
    """A decoder of this family with `feed_forward` in each block."""
    net = NetworkBuilder(sizes.name)
    x = net.token_input("tokens", sequence_length, vocabulary)
    with net.segment("embeddings"):
        x = net.embedding(x, sizes.hidden, name="model.embed_tokens")
    for i in range(sizes.layers):
        with net.segment(f"layer{i}"):
            x = _block(net, x, f"model.layers.{i}", sizes, feed_forward)
    with net.segment("head"):
        x = net.add_layer(_NORM, x, name="model.norm")
        tied = {"weight": "model.embed_tokens.weight"} if sizes.tied else None
        x = net.linear(
            x, vocabulary, bias=False, initializer=SMALL_NORMAL, share=tied, name="lm_head"
        )
    net.classify(x)
    return net


def _block(
    net: NetworkBuilder, x: str, name: str, sizes: Transformer, feed_forward: FeedForward
) -> str:
    def linear(x: str, features: int, part: str) -> str:
        return net.linear(x, features, bias=False, initializer=SMALL_NORMAL, name=f"{name}.{part}")

    def rotated(x: str, heads: int, part: str) -> str:
        layer = RotaryEmbedding(heads=heads, base=sizes.rotary_base)
        return net.add_layer(layer, x, name=f"{name}.self_attn.{part}")

    y = net.add_layer(_NORM, x, name=f"{name}.input_layernorm")
    q = rotated(linear(y, sizes.hidden, "self_attn.q_proj"), sizes.heads, "rotate_q")
    k = rotated(linear(y, sizes.kv_width, "self_attn.k_proj"), sizes.kv_heads, "rotate_k")
    v = linear(y, sizes.kv_width, "self_attn.v_proj")
    attention = Attention(heads=sizes.heads, causal=True, key_value_heads=sizes.kv_heads)
    y = net.add_layer(attention, q, k, v, name=f"{name}.self_attn.attend")
    y = linear(y, sizes.hidden, "self_attn.o_proj")
    x = net.add(x, y, name=f"{name}.add_1")
    y = net.add_layer(_NORM, x, name=f"{name}.post_attention_layernorm")
    return net.add(x, feed_forward(net, y, name), name=f"{name}.add_2")


def _gated(ffn: int, net: NetworkBuilder, x: str, name: str) -> str:
    def linear(x: str, features: int, part: str) -> str:
        part = f"{name}.mlp.{part}"
        return net.linear(x, features, bias=False, initializer=SMALL_NORMAL, name=part)

    gate = linear(x, ffn, "gate_proj")
    gate = net.add_layer(Activation(function="silu"), gate, name=f"{name}.mlp.act_fn")
    y = net.add_layer(Multiply(), gate, linear(x, ffn, "up_proj"), name=f"{name}.mlp.product")
    return linear(y, net.shape(x)[-1], "down_proj")
