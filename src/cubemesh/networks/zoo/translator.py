"""Translator of the DGX-1 V100 paper: LSTM encoder, LSTM decoder, attention between them.

    encoder     each source token's vector, LSTM
    decoder     each target token's vector, LSTM, begun from tanh(W · the encoder's last output)
    attention   each of the decoder's positions asks all of the encoder's, and gets a weighted mean
    output      tanh(U · mean + V · the decoder's own), one score for each token

Two forms of attention. `translator`: v · tanh(A · query + B · key), a small multilayer perceptron
(Bahdanau, Cho and Bengio 2014), the document's with Sockeye. `translator-plain`: query · key
(Luong, Pham and Manning 2015), the document's with Caffe2. Nothing of the attention is fed into the
next step's input, so the decoder runs over a whole sentence at once. Vectors, LSTMs and attention
are all `hidden` wide: 512, 1024 and 2048 in the document.

The document gives neither layers nor vocabulary; here each LSTM has one layer, and one vocabulary
serves both languages. Padding of the source is a token like any other and can be attended to; that
of the target is not judged.

`translator-2x` has what translators of the time had more: two LSTMs on one another on either side,
dropout, and input feeding (Luong, Pham and Manning 2015; the defaults of OpenNMT, Klein et al.
2017): the output of a position, before the scores, is an input of the next, so the decoder runs
position by position. Its attention is Luong's general form, key · A query.
"""

from __future__ import annotations

from typing import Literal

from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.graph import Network

_DROPOUT = 0.3


def translator(sequence_length: int = 50, vocabulary: int = 32000, hidden: int = 512) -> Network:
    """54,699,264 parameters at 32000 tokens and a width of 512; attention by a perceptron."""
    return _translator("translator", "mlp", sequence_length, vocabulary, hidden)


def translator_plain(
    sequence_length: int = 50, vocabulary: int = 32000, hidden: int = 512
) -> Network:
    """54,173,952 parameters at the same sizes; attention by the product of query and key."""
    return _translator("translator-plain", "plain", sequence_length, vocabulary, hidden)


def translator_2x(sequence_length: int = 50, vocabulary: int = 32000, hidden: int = 512) -> Network:
    """59,686,656 parameters at the same sizes; two layers, input feeding and dropout."""
    net = NetworkBuilder("translator-2x")
    source = net.token_input("source", sequence_length, vocabulary)
    target = net.token_input("target", sequence_length, vocabulary)
    with net.segment("encoder"):
        words = net.embedding(source, hidden, name="encoder.embedding")
        words = net.dropout(words, _DROPOUT, name="encoder.dropout1")
        x = net.lstm(words, hidden, name="encoder.lstm1")
        x = net.dropout(x, _DROPOUT, name="encoder.dropout2")
        memory = net.lstm(x, hidden, name="encoder.lstm2")
    with net.segment("decoder"):
        last = net.select(memory, sequence_length - 1, name="encoder.last")
        begin = net.tanh(net.linear(last, hidden, name="bridge"), name="begin")
        words = net.embedding(target, hidden, name="decoder.embedding")
        words = net.dropout(words, _DROPOUT, name="decoder.dropout")
        x = net.input_feeding_decoder(words, begin, memory, depth=2, name="decoder.lstms")
    with net.segment("output"):
        x = net.linear(net.dropout(x, _DROPOUT, name="dropout"), vocabulary, name="output")
    net.classify(x)
    return net.build()


def _translator(
    name: str, attention: Literal["mlp", "plain"], length: int, vocabulary: int, hidden: int
) -> Network:
    net = NetworkBuilder(name)
    source = net.token_input("source", length, vocabulary)
    target = net.token_input("target", length, vocabulary)
    with net.segment("encoder"):
        words = net.embedding(source, hidden, name="encoder.embedding")
        memory = net.lstm(words, hidden, name="encoder.lstm")
    with net.segment("decoder"):
        last = net.select(memory, length - 1, name="encoder.last")
        begin = net.tanh(net.linear(last, hidden, name="bridge"), name="begin")
        words = net.embedding(target, hidden, name="decoder.embedding")
        asked = net.lstm(words, hidden, begin, name="decoder.lstm")
    with net.segment("attention"):
        if attention == "mlp":
            query = net.linear(asked, hidden, name="attention.query")
            key = net.linear(memory, hidden, bias=False, name="attention.key")
            pairs = net.tanh(net.pair_sum(query, key, name="attention.sum"), name="attention.tanh")
            scores = net.linear(pairs, 1, bias=False, name="attention.score")
        else:
            scores = net.pair_product(asked, memory, name="attention.score")
        context = net.mix(scores, memory, name="attention.context")
    with net.segment("output"):
        own = net.linear(asked, hidden, name="readout.own")
        found = net.linear(context, hidden, bias=False, name="readout.context")
        x = net.tanh(net.add(own, found, name="readout.add"), name="readout.tanh")
        x = net.linear(x, vocabulary, name="output")
    net.classify(x)
    return net.build()
