"""Published errors of networks on ImageNet (ILSVRC 2012), in percent, with their conditions and
sources.

cubemesh has trained none of them on ImageNet: these are figures of others. The first of a network
is that of the paper with one network; errors depend on the crops of an image, on training and on
averaging several networks, so only those under the same conditions compare. Those of torchvision
are of the same layers as here, on one crop of the middle.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PublishedError:
    """One published error of a network."""

    top5: float | None
    """Percent of images whose class is not among the five largest scores; None: not published."""
    top1: float | None = None
    conditions: str
    """On the validation set, unless this says otherwise."""
    source: str


_ALEXNET = "Krizhevsky et al., ImageNet classification with deep CNNs (2012), table 2"
_OVERFEAT = "Sermanet et al., OverFeat (2013), table 2"
_VGG = "Simonyan and Zisserman, Very deep convolutional networks (2014)"
_GOOGLENET = "Szegedy et al., Going deeper with convolutions (2014)"
_RESNET = "He et al., Deep residual learning for image recognition (2015)"
_INCEPTION_V3 = "Szegedy et al., Rethinking the Inception architecture (2015)"
_TORCHVISION = "docs.pytorch.org/0.1.12/torchvision/models.html"
_TORCHVISION_NOW = "pytorch.org/vision/stable/models.html, IMAGENET1K_V1"
_ADDFOR = "cited by the Addfor DGX-1 benchmark [000] (2016)"


def _one(
    top5: float | None, top1: float | None, conditions: str, source: str
) -> tuple[PublishedError, ...]:
    return (PublishedError(top5=top5, top1=top1, conditions=conditions, source=source),)


def _torchvision(
    top5: float, top1: float, source: str = _TORCHVISION
) -> tuple[PublishedError, ...]:
    return _one(top5, top1, "one network, one crop, trained by torchvision", source)


def _vgg(single: tuple[float, float], configuration: str) -> tuple[PublishedError, ...]:
    return _one(
        *single,
        "one network on whole images of one scale",
        f"{_VGG}, table 3, configuration {configuration}",
    )


def _resnet(
    ten_crops: tuple[float | None, float], scales: tuple[float, float] | None
) -> tuple[PublishedError, ...]:
    table = "table 2" if ten_crops[0] is None else "table 3"
    found = _one(*ten_crops, "one network, ten crops", f"{_RESNET}, {table}")
    if scales is not None:
        found += _one(*scales, "one network on whole images of five scales", f"{_RESNET}, table 4")
    return found


_VGG_ENSEMBLE = _one(7.3, None, "seven networks, test set", f"{_VGG}; {_ADDFOR}")

IMAGENET_ERRORS: dict[str, tuple[PublishedError, ...]] = {
    "alexnet": (
        *_one(18.2, 40.7, "one network of 2012, with response normalization", _ALEXNET),
        *_one(15.3, None, "seven networks of 2012, test set", f"{_ALEXNET}; {_ADDFOR}"),
        *_torchvision(20.91, 43.45),
    ),
    "overfeat": (
        *_one(17.12, 39.28, "one fast network, one scale, coarse stride", _OVERFEAT),
        *_one(16.39, 38.57, "one fast network, four scales, fine stride", _OVERFEAT),
        *_one(14.2, None, "seven accurate networks, test set of 2013", f"{_OVERFEAT}; {_ADDFOR}"),
    ),
    "vgg11": (*_vgg((10.4, 29.6), "A"), *_torchvision(11.37, 30.98)),
    "vgg16": (*_vgg((8.1, 25.6), "D"), *_VGG_ENSEMBLE, *_torchvision(9.62, 28.41)),
    "vgg19": (*_vgg((8.0, 25.5), "E"), *_VGG_ENSEMBLE, *_torchvision(9.12, 27.62)),
    "googlenet": _torchvision(10.47, 30.22, _TORCHVISION_NOW),
    "googlenet-paper": (
        *_one(10.07, None, "one network, one crop", f"{_GOOGLENET}, table 3"),
        *_one(6.67, None, "seven networks, 144 crops", f"{_GOOGLENET}, table 3; {_ADDFOR}"),
    ),
    "inception-bn": _one(
        7.82,
        25.2,
        "one network, one crop",
        "Ioffe and Szegedy, Batch normalization (2015), figure 4",
    ),
    "inception-v3": (
        *_one(5.6, 21.2, "one network, one crop", f"{_INCEPTION_V3}, abstract"),
        *_torchvision(6.44, 22.55),
    ),
    "resnet-18": (*_resnet((None, 27.88), None), *_torchvision(10.92, 30.24)),
    "resnet-34": (*_resnet((7.46, 24.52), (5.71, 21.84)), *_torchvision(8.58, 26.70)),
    "resnet-50": (*_resnet((6.71, 22.85), (5.25, 20.74)), *_torchvision(7.13, 23.85)),
    "resnet-101": (*_resnet((6.05, 21.75), (4.60, 19.87)), *_torchvision(6.44, 22.63)),
    "resnet-152": (
        *_resnet((5.71, 21.43), (4.49, 19.38)),
        *_one(3.57, None, "six networks of several depths, test set", f"{_RESNET}; {_ADDFOR}"),
        *_torchvision(5.94, 21.69),
    ),
    "vit-b16": _torchvision(4.68, 18.93, _TORCHVISION_NOW),
}
"""Network → its published errors; those of the paper first."""


def published_errors(network: str) -> tuple[PublishedError, ...]:
    """The published errors of a network of the table of networks; none for others."""
    return IMAGENET_ERRORS.get(network, ())
