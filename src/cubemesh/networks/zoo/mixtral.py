"""Mixtral (Jiang et al. 2024, arXiv:2401.04088): Llama's decoder with a mixture of experts.

    each block   attention as in `llama.py`; then instead of one feed-forward part a router, a
                 matrix (experts, hidden), and 8 such parts (SwiGLU), of which each position is
                 computed by the 2 with the largest scores (`Experts`)
    loss         0.02 times the load-balancing loss of all routers (`LoadBalance`) is added

The coefficient is `router_aux_loss_coef` of the released configuration. Its port
(transformers' MixtralForCausalLM, whose names nodes have) computes one loss of the scores of all
blocks together and does not divide the choices by their number a position; here each router has its
own loss, as in Fedus et al. 2021, whose least value is 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.graph import Network
from cubemesh.networks.layers import SMALL_NORMAL, Experts, LoadBalance
from cubemesh.networks.transformer_sizes import Transformer
from cubemesh.networks.zoo.llama import decoder

BALANCE = 0.02
"""Coefficient of the load-balancing loss."""


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """A network by its table's columns."""

    sizes: Transformer
    """Of which `ffn` is the width of one expert."""
    experts: int = 8
    active: int = 2


def _sizes(name: str, **columns: Any) -> Transformer:
    return Transformer(
        name=name,
        vocabulary=32000,
        gated=True,
        biases=False,
        positions=False,
        tied=False,
        **columns,
    )


MIXTURES: Mapping[str, Mixture] = {
    mixture.sizes.name: mixture
    for mixture in (
        Mixture(
            sizes=_sizes(
                "mixtral-1b",
                hidden=1024,
                layers=16,
                heads=16,
                kv_heads=4,
                ffn=2816,
                sequence_length=2048,
                rotary_base=1_000_000,
            )
        ),
        # Table 1 of the paper; rotary base and length of the released configuration
        Mixture(
            sizes=_sizes(
                "mixtral-8x7b",
                hidden=4096,
                layers=32,
                heads=32,
                kv_heads=8,
                ffn=14336,
                sequence_length=32768,
                rotary_base=1_000_000,
            )
        ),
    )
}


def mixtral(mixture: Mixture, sequence_length: int, vocabulary: int) -> Network:
    """The network of a row of `MIXTURES`, or any other of this family."""
    routers: list[str] = []

    def feed_forward(net: NetworkBuilder, x: str, name: str) -> str:
        part = f"{name}.block_sparse_moe"
        scores = net.linear(
            x, mixture.experts, bias=False, initializer=SMALL_NORMAL, name=f"{part}.gate"
        )
        routers.append(scores)
        experts = Experts(experts=mixture.experts, active=mixture.active, ffn=mixture.sizes.ffn)
        return net.add_layer(experts, x, scores, name=f"{part}.experts")

    net = decoder(mixture.sizes, sequence_length, vocabulary, feed_forward)
    with net.segment("head"):
        balance = net.add_layer(LoadBalance(active=mixture.active), *routers, name="balance")
    net.penalize(balance, BALANCE)
    return net.build()
