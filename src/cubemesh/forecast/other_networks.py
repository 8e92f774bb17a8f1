"""Cost of networks with published rates that cubemesh does not train.

Only forecasts are made for these; none of them is in the table of networks.

    bert-base  12 blocks of 768 with 12 heads at 384 tokens (J. Devlin et al. 2018), fine-tuned on
               SQuAD. Written as GPT-2's blocks, whose matrices are the same; its head is left out.
    gnmt       four LSTMs of 1024 on either side, the first of the encoder in both directions, with
               attention (Y. Wu et al. 2016), as NVIDIA's DeepLearningExamples have it: 32,320
               tokens. An LSTM's gates from the context are a product of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.graph import Network
from cubemesh.networks.layers import Embedding
from cubemesh.networks.zoo.gpt2 import gpt

BERT_LENGTH, BERT_VOCABULARY = 384, 30522
GNMT_LENGTH, GNMT_VOCABULARY, GNMT_WIDTH, GNMT_DEPTH = 27, 32320, 1024, 4
"""27 is the assumed mean length of a sentence of WMT16 English and German, in byte pairs."""
GNMT_TOKENS = 2 * GNMT_LENGTH
"""Of a sample, as its published rates count them: those of both languages."""


@cache
def bert_base() -> Network:
    """108,791,808 parameters; its paper says 110 million."""
    return gpt("bert-base", BERT_LENGTH, BERT_VOCABULARY, width=768, depth=12, heads=12)


@cache
def gnmt() -> Network:
    """160,670,272 parameters."""
    net, width = NetworkBuilder("gnmt"), GNMT_WIDTH
    source = net.token_input("source", GNMT_LENGTH, GNMT_VOCABULARY)
    target = net.token_input("target", GNMT_LENGTH, GNMT_VOCABULARY)
    words = net.embedding(source, width, name="embedding")
    forth = net.lstm(words, width, name="encoder.0.forth")
    back = net.lstm(words, width, name="encoder.0.back")
    x = net.add(forth, back, name="encoder.0.both")
    net.linear(back, 4 * width, bias=False, name="encoder.1.gates_of_back")
    for i in range(1, GNMT_DEPTH):
        x = net.lstm(x, width, name=f"encoder.{i}")
    shared = {"weight": "embedding.weight"}
    same = Embedding(vocabulary=GNMT_VOCABULARY, features=width)
    y = net.add_layer(same, target, name="decoder.embedding", share=shared)
    y = net.lstm(y, width, name="decoder.0")
    query = net.linear(y, width, bias=False, name="attention.query")
    key = net.linear(x, width, bias=False, name="attention.key")
    pairs = net.tanh(net.pair_sum(query, key, name="attention.sum"), name="attention.tanh")
    scores = net.linear(pairs, 1, bias=False, name="attention.score")
    context = net.mix(scores, x, name="attention.context")
    for i in range(1, GNMT_DEPTH):
        net.linear(context, 4 * width, bias=False, name=f"decoder.{i}.gates_of_context")
        y = net.lstm(y, width, name=f"decoder.{i}")
    net.classify(net.linear(y, GNMT_VOCABULARY, name="output"))
    return net.build()


OTHERS: dict[str, Callable[[], Network]] = {"bert-base": bert_base, "gnmt": gnmt}
"""By the name that tables show."""
