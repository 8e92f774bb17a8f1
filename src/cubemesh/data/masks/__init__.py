"""Images with a mask, a class for each pixel: training data of segmentation."""

from __future__ import annotations

from cubemesh.data.masks.generated_shapes import GeneratedShapes
from cubemesh.data.masks.source import MaskedImages
from cubemesh.data.source import Source
from cubemesh.networks.graph import Network

__all__ = ["GeneratedShapes", "MaskedImages", "has_masks", "takes_masks"]


def takes_masks(network: Network) -> bool:
    """Whether `network` takes one image and scores each of its pixels."""
    if len(network.inputs) != 1 or network.inputs[0].dtype != "float":
        return False
    shape = network.inputs[0].shape
    return len(shape) == 3 and network.targets[0].shape == (shape[1] * shape[2],)


def has_masks(source: Source) -> bool:
    """Whether the labels of `source` are masks, from which an intersection over union follows."""
    return isinstance(source, MaskedImages | GeneratedShapes)
