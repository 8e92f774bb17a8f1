"""LittleCNN, the small network of the DGX-1 best-practices paper ("similar to LeNet-5").

Two blocks of two 3×3 convolutions (32, then 64 filters) and 2×2 max pooling, a fully connected
layer of 512, a softmax over the classes; dropout of 0.25, 0.25 and 0.5. The document does not state
the padding. `little_cnn` keeps the image's size in every convolution; `little_cnn_unpadded` leaves
the second convolution of each block unpadded, as the Keras example of the time did.
"""

from __future__ import annotations

from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.graph import Network


def little_cnn(image_size: int = 32, classes: int = 10) -> Network:
    """2,168,362 parameters at 32² and 10 classes."""
    return _build("little-cnn", image_size, classes, second_padding=1)


def little_cnn_unpadded(image_size: int = 32, classes: int = 10) -> Network:
    """1,250,858 parameters at 32² and 10 classes."""
    return _build("little-cnn-unpadded", image_size, classes, second_padding=0)


def _build(name: str, image_size: int, classes: int, second_padding: int) -> Network:
    net = NetworkBuilder(name)
    x = net.input("image", (3, image_size, image_size))
    for block, filters in ((1, 32), (2, 64)):
        with net.segment(f"block{block}"):
            x = net.relu(net.conv(x, filters, kernel=3, padding=1))
            x = net.relu(net.conv(x, filters, kernel=3, padding=second_padding))
            x = net.max_pool(x, 2)
            x = net.dropout(x, 0.25)
    with net.segment("classifier"):
        x = net.flatten(x)
        x = net.relu(net.linear(x, 512))
        x = net.dropout(x, 0.5)
        x = net.linear(x, classes)
    net.classify(x)
    return net.build()
