"""AlexNet in its single-column form (Krizhevsky, "One weird trick", 2014).

    conv 11×11 / 4, 64     max pool 3×3 / 2
    conv 5×5, 192          max pool 3×3 / 2
    conv 3×3, 384
    conv 3×3, 256
    conv 3×3, 256          max pool 3×3 / 2
    fully connected 4096, 4096, 1000

The 2012 network ran in two columns on two GPUs; this one has no groups and, as the form that is
measured everywhere today, no local response normalization. Weights start as He et al. draw them
rather than from N(0, 0.01²), in which the signal of eight layers fades.

OverFeat, the fast model (Sermanet et al., "OverFeat", 2013, table 1).

    conv 11×11 / 4, 96      max pool 2×2
    conv 5×5, 256           max pool 2×2
    conv 3×3, 512
    conv 3×3, 1024
    conv 3×3, 1024          max pool 2×2
    fully connected 3072, 4096, 1000

The first two convolutions are not padded, the others keep the size: 231 → 56 → 28 → 24 → 12 → 6.
Weights start as He et al. draw them rather than from N(0, 0.01²), in which the signal of eight
layers fades.
"""

from __future__ import annotations

from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.graph import Network
from cubemesh.networks.layers import HE_IN


def alexnet(image_size: int = 224, classes: int = 1000) -> Network:
    """61,100,840 parameters at 224² and 1000 classes."""
    net = NetworkBuilder("alexnet")
    x = net.input("image", (3, image_size, image_size))
    with net.segment("block1"):
        x = net.conv(x, 64, kernel=11, stride=4, padding=2, name="conv1")
        x = net.relu(x, name="relu1")
        x = net.max_pool(x, 3, stride=2, name="pool1")
    with net.segment("block2"):
        x = net.conv(x, 192, kernel=5, padding=2, name="conv2")
        x = net.relu(x, name="relu2")
        x = net.max_pool(x, 3, stride=2, name="pool2")
    with net.segment("block3"):
        for number, filters in ((3, 384), (4, 256), (5, 256)):
            x = net.conv(x, filters, kernel=3, padding=1, name=f"conv{number}")
            x = net.relu(x, name=f"relu{number}")
        x = net.max_pool(x, 3, stride=2, name="pool5")
    with net.segment("classifier"):
        x = net.flatten(x, name="flatten")
        for number in (6, 7):
            x = net.dropout(x, 0.5, name=f"drop{number}")
            x = net.linear(x, 4096, initializer=HE_IN, name=f"fc{number}")
            x = net.relu(x, name=f"relu{number}")
        x = net.linear(x, classes, name="fc8")
    net.classify(x)
    return net.build()


def overfeat(image_size: int = 231, classes: int = 1000) -> Network:
    """145,920,872 parameters at 231² and 1000 classes."""
    net = NetworkBuilder("overfeat")
    x = net.input("image", (3, image_size, image_size))
    with net.segment("block1"):
        x = net.conv(x, 96, kernel=11, stride=4, name="conv1")
        x = net.relu(x, name="relu1")
        x = net.max_pool(x, 2, name="pool1")
    with net.segment("block2"):
        x = net.conv(x, 256, kernel=5, name="conv2")
        x = net.relu(x, name="relu2")
        x = net.max_pool(x, 2, name="pool2")
    with net.segment("block3"):
        for number, filters in ((3, 512), (4, 1024), (5, 1024)):
            x = net.conv(x, filters, kernel=3, padding=1, name=f"conv{number}")
            x = net.relu(x, name=f"relu{number}")
        x = net.max_pool(x, 2, name="pool5")
    with net.segment("classifier"):
        x = net.flatten(x, name="flatten")
        for number, features in ((6, 3072), (7, 4096)):
            x = net.linear(x, features, initializer=HE_IN, name=f"fc{number}")
            x = net.relu(x, name=f"relu{number}")
            x = net.dropout(x, 0.5, name=f"drop{number}")
        x = net.linear(x, classes, name="fc8")
    net.classify(x)
    return net.build()
