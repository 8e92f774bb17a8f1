"""Captioner of images after "Show and tell" (Vinyals et al. 2015): a convolutional encoder and an
LSTM decoder.

    encoder     Inception-BN up to the mean of each channel, fully connected: one vector
    decoder     each token's vector, LSTM begun from that vector
    output      one score for each token

The paper's encoder is this network, pretrained; here all of it is trained from the start. The image
is the first h of the decoder, where the paper reads it as the first word; no dropout.
"""

from __future__ import annotations

from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.graph import Network
from cubemesh.networks.zoo.inception_bn import features


def captioner(
    image_size: int = 224, sequence_length: int = 20, vocabulary: int = 12000, hidden: int = 512
) -> Network:
    """25,186,272 parameters at 12000 tokens and a width of 512."""
    net = NetworkBuilder("captioner")
    x = net.input("image", (3, image_size, image_size))
    tokens = net.token_input("tokens", sequence_length, vocabulary)
    x = features(net, x)
    with net.segment("decoder"):
        x = net.linear(net.global_average_pool(x, name="avgpool"), hidden, name="encoder.vector")
        words = net.embedding(tokens, hidden, name="decoder.embedding")
        x = net.lstm(words, hidden, x, name="decoder.lstm")
    with net.segment("output"):
        x = net.linear(x, vocabulary, name="output")
    net.classify(x)
    return net.build()
