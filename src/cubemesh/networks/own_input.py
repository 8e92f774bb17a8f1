"""Own input of a network: the image size, classes and data that published figures of it mean.

A reduced run (80 pixels on a CPU) computes a fraction of the operations, so its figures do not
compare with published ones, and a toy network's say nothing about ImageNet.
"""

from __future__ import annotations

from cubemesh.networks import NETWORKS
from cubemesh.schema.work import NetworkWork, Work

IMAGENET_CLASSES = 1000


def at_own_size(work: Work) -> bool:
    """Whether the work has the network's own image size and number of classes."""
    if not isinstance(work, NetworkWork) or work.network not in NETWORKS:
        return False
    own = NETWORKS[work.network]
    return work.image_size in (None, own.image_size) and work.classes in (None, own.classes)


def is_imagenet(work: Work) -> bool:
    """Whether the work is on a network for ImageNet at the network's own image size."""
    return (
        at_own_size(work)
        and isinstance(work, NetworkWork)
        and NETWORKS[work.network].classes == IMAGENET_CLASSES
    )
