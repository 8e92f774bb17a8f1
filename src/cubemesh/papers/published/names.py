"""Names of networks and precisions in published sources.

Only spellings with the network's own input and layers are listed: ResNet-50 trained on images that
grow from 160 to 192 pixels, or VGG with batch normalization, are other workloads. "ResNet-50" means
both placements of the stride (v1 and v1.5); sources before 2018 mean v1.
"""

from __future__ import annotations

from cubemesh.schema.spec import Precision

SPELLINGS: dict[str, tuple[str, ...]] = {
    "alexnet": ("AlexNet", "AlexNet (OWT)"),
    "googlenet": ("GoogLeNet", "GoogleNet", "GoogLeNet V1", "Inception-V1"),
    "inception-v3": ("Inception V3", "Inception-v3", "InceptionV3", "inception_v3"),
    "overfeat": ("OverFeat [fast]",),
    "resnet-18": ("ResNet-18", "resnet18"),
    "resnet-34": ("ResNet-34", "resnet34"),
    "resnet-50": ("ResNet-50", "ResNet-50 v1.5", "resnet50", "resnet50-noio", "tv_resnet50"),
    "resnet-101": ("ResNet-101", "resnet101"),
    "resnet-152": (
        "ResNet-152",
        "ResNet-152 (DDP, GPU count not stated)",
        "resnet152",
        "resnet152-ddp-gpus",
    ),
    "vgg11": ("VGG-A (OxfordNet)",),
    "vgg16": ("VGG-16", "VGG16", "vgg16"),
    "vgg19": ("VGG-19", "vgg19"),
    "vit-b16": ("vit_base_patch16_224",),
}
"""Name in cubemesh → spellings of sources."""

CANONICAL = {spelling: name for name, all_of in SPELLINGS.items() for spelling in all_of}


def precision_of(spelling: str) -> Precision | None:
    """The precision that a source's spelling means; None if not stated. "fp32/TF32" may use
    TF32, "AMP" and "mixed" without a type mean fp16."""
    text = spelling.casefold()
    if not text:
        return None
    if "pseudo" in text:  # fp16 in memory, fp32 arithmetic
        return "fp32"
    if "bf16" in text:
        return "bf16"
    if any(word in text for word in ("16", "amp", "mixed")):
        return "fp16"
    return "tf32" if "tf32" in text else "fp64" if "64" in text else "fp32"
