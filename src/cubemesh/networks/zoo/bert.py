"""BERT (Devlin et al. 2018) with its masked-language head, in the form of the released weights.

    embeddings   each token's learned vector, plus one for its place and one for its sentence;
                 layer norm, dropout 0.1
    layers ×     attention both ways, dropout, added to its input, layer norm
                 4 · hidden, GELU, hidden, dropout, added, layer norm
    head         fully connected, GELU, layer norm, then the product with every token's vector

Scores are computed at every position and each is judged by a label of its own; a label of -1 does
not count, so that data with 15 % of masked positions train as the paper does. All tokens are of the
first of two sentences. There is no second head (next sentence). Nodes are called as in the released
weights' port to PyTorch (transformers' BertForMaskedLM); the bias of the scores is
`cls.predictions.decoder.bias` here and `cls.predictions.bias` there.
"""

from __future__ import annotations

from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.graph import Network
from cubemesh.networks.layers import SMALL_NORMAL, Attention, PositionEmbedding
from cubemesh.networks.transformer_sizes import Transformer

_EPSILON = 1e-12
_DROPOUT = 0.1


def bert(sizes: Transformer, sequence_length: int, vocabulary: int) -> Network:
    """The network of a row of `TRANSFORMERS`, or any other of this family."""
    net = NetworkBuilder(sizes.name)
    x = net.token_input("tokens", sequence_length, vocabulary)
    with net.segment("embeddings"):
        x = net.embedding(x, sizes.hidden, name="bert.embeddings.word_embeddings")
        kinds = PositionEmbedding(rows=sizes.segments, shared=True)
        x = net.add_layer(kinds, x, name="bert.embeddings.token_type_embeddings")
        x = net.position_embedding(x, name="bert.embeddings.position_embeddings")
        x = net.layer_norm(x, epsilon=_EPSILON, name="bert.embeddings.LayerNorm")
        x = net.dropout(x, _DROPOUT, name="bert.embeddings.dropout")
    for i in range(sizes.layers):
        with net.segment(f"layer{i}"):
            x = _block(net, x, f"bert.encoder.layer.{i}", sizes)
    with net.segment("head"):
        name = "cls.predictions"
        x = _linear(net, x, sizes.hidden, f"{name}.transform.dense")
        x = net.gelu(x, name=f"{name}.transform.act")
        x = net.layer_norm(x, epsilon=_EPSILON, name=f"{name}.transform.LayerNorm")
        tied = {"weight": "bert.embeddings.word_embeddings.weight"}
        x = net.linear(x, vocabulary, initializer=SMALL_NORMAL, share=tied, name=f"{name}.decoder")
    net.classify(x)
    return net.build()


def _block(net: NetworkBuilder, x: str, name: str, sizes: Transformer) -> str:
    parts = [
        _linear(net, x, sizes.hidden, f"{name}.attention.self.{part}")
        for part in ("query", "key", "value")
    ]
    layer = Attention(heads=sizes.heads, dropout=_DROPOUT)
    y = net.add_layer(layer, *parts, name=f"{name}.attention.self.attend")
    y = _linear(net, y, sizes.hidden, f"{name}.attention.output.dense")
    x = _residual(net, x, y, f"{name}.attention.output")
    y = _linear(net, x, sizes.ffn, f"{name}.intermediate.dense")
    y = net.gelu(y, name=f"{name}.intermediate.act")
    y = _linear(net, y, sizes.hidden, f"{name}.output.dense")
    return _residual(net, x, y, f"{name}.output")


def _linear(net: NetworkBuilder, x: str, features: int, name: str) -> str:
    return net.linear(x, features, initializer=SMALL_NORMAL, name=name)


def _residual(net: NetworkBuilder, x: str, y: str, name: str) -> str:
    y = net.dropout(y, _DROPOUT, name=f"{name}.dropout")
    return net.layer_norm(
        net.add(x, y, name=f"{name}.add"), epsilon=_EPSILON, name=f"{name}.LayerNorm"
    )
