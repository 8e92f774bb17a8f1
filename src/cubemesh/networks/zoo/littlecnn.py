"""Small networks for images of 32 × 32 pixels: LittleCNN and CifarNet.

LittleCNN, the small network of the DGX-1 best-practices paper ("similar to LeNet-5").

Two blocks of two 3×3 convolutions (32, then 64 filters) and 2×2 max pooling, a fully connected
layer of 512, a softmax over the classes; dropout of 0.25, 0.25 and 0.5. The document does not state
the padding. `little_cnn` keeps the image's size in every convolution; `little_cnn_unpadded` leaves
the second convolution of each block unpadded, as the Keras example of the time did.

CifarNet: Caffe's `cifar10_full`, after Krizhevsky's cuda-convnet (2011).

    conv 5×5, 32   max pool 3×3 / 2       ReLU   response normalization 3×3 within each channel
    conv 5×5, 32   ReLU   average pool 3×3 / 2   response normalization 3×3 within each channel
    conv 5×5, 64   ReLU   average pool 3×3 / 2
    fully connected, 10

Order (the first ReLU follows its pool), names, settings and the Gaussians the weights start from
are those of the file. Caffe's pools keep a window that hangs over the edge. One number differs:
Caffe fed pixels of 0 to 255 into a first layer drawn with deviation 0.0001; pixels here are 0 to 1,
so that layer is drawn 255 times as wide and its outputs are as large as Caffe's.
"""

from __future__ import annotations

from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.graph import Network
from cubemesh.networks.layers import Initializer, LocalResponseNorm

_FIRST = Initializer(kind="normal", scale=0.0001 * 255)
_LATER = Initializer(kind="normal", scale=0.01)
_NORM = LocalResponseNorm(size=3, alpha=5e-5, beta=0.75, region="within")


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


def cifarnet(image_size: int = 32, classes: int = 10) -> Network:
    """89,578 parameters at 32² and 10 classes; 10,250 of them are the classifier's."""
    net = NetworkBuilder("cifarnet")
    x = net.input("image", (3, image_size, image_size))
    with net.segment("block1"):
        x = net.conv(x, 32, kernel=5, padding=2, initializer=_FIRST, name="conv1")
        x = net.max_pool(x, 3, stride=2, ceil_mode=True, name="pool1")
        x = net.relu(x, name="relu1")
        x = net.lrn(x, _NORM, name="norm1")
    with net.segment("block2"):
        x = net.conv(x, 32, kernel=5, padding=2, initializer=_LATER, name="conv2")
        x = net.relu(x, name="relu2")
        x = net.average_pool(x, 3, stride=2, ceil_mode=True, name="pool2")
        x = net.lrn(x, _NORM, name="norm2")
    with net.segment("block3"):
        x = net.conv(x, 64, kernel=5, padding=2, initializer=_LATER, name="conv3")
        x = net.relu(x, name="relu3")
        x = net.average_pool(x, 3, stride=2, ceil_mode=True, name="pool3")
    with net.segment("classifier"):
        x = net.flatten(x, name="flatten")
        x = net.linear(x, classes, initializer=_LATER, name="ip1")
    net.classify(x)
    return net.build()
