"""ViT-B/16, ViT-L/16 (Dosovitskiy et al. 2020, table 1 "Base" and "Large", patches of 16×16) and
ViT-S/16 (Touvron et al. 2021, table 1 "DeiT-S", without distillation), in torchvision's form.

    patches    conv 16×16 / 16, width    a class token before them, plus a learned position each
    depth ×    layer norm, attention, added to the block's input
               layer norm, 4 · width, GELU, width, added again
    head       layer norm, the class token only, fully connected

Layer norms have an epsilon of 1e-6, GELU is the error function's, and there is no dropout (its rate
is 0.0 in torchvision; the paper trains on ImageNet-1k with 0.1). Biases start at zero, and the head
from N(0, 0.02²), where torchvision starts it at zero, so that the first step already trains every
layer. Nodes are called as torchvision's modules, so weights carry over by name but for these:

    encoder.pos_embedding.weight (length, width)      encoder.pos_embedding (1, length, width)
    class_token.token (width,)                        class_token (1, 1, width)
    ….self_attention.in_proj.weight, .bias            ….self_attention.in_proj_weight, …_bias
"""

from __future__ import annotations

import math

from cubemesh.errors import UsageError
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.graph import Network
from cubemesh.networks.layers import SMALL_NORMAL, Initializer

PATCH = 16
_EPSILON = 1e-6
_FAN_IN = Initializer(kind="he_normal", scale=math.sqrt(0.5))
"""N(0, 1 / fan_in)."""


def vit_s16(image_size: int = 224, classes: int = 1000) -> Network:
    """22,050,664 parameters at 224² and 1000 classes."""
    return vit("vit-s16", image_size, classes, width=384, depth=12, heads=6)


def vit_b16(image_size: int = 224, classes: int = 1000) -> Network:
    """86,567,656 parameters at 224² and 1000 classes."""
    return vit("vit-b16", image_size, classes, width=768, depth=12, heads=12)


def vit_l16(image_size: int = 224, classes: int = 1000) -> Network:
    """304,326,632 parameters at 224² and 1000 classes."""
    return vit("vit-l16", image_size, classes, width=1024, depth=24, heads=16)


def vit(name: str, image_size: int, classes: int, *, width: int, depth: int, heads: int) -> Network:
    """Any network of this family, by its table's columns. UsageError for an image that does not
    divide into patches."""
    if image_size % PATCH and image_size > PATCH:
        raise UsageError(
            f"image_size={image_size} does not divide into patches of {PATCH} pixels: give {name} "
            f"a multiple of {PATCH}, such as {image_size // PATCH * PATCH}."
        )
    net = NetworkBuilder(name)
    x = net.input("image", (3, image_size, image_size))
    with net.segment("patches"):
        x = net.conv(x, width, kernel=PATCH, stride=PATCH, initializer=_FAN_IN, name="conv_proj")
        x = net.tokens(x, name="patches")
        x = net.class_token(x, name="class_token")
        x = net.position_embedding(x, name="encoder.pos_embedding")
    for i in range(depth):
        with net.segment(f"layer{i}"):
            x = _block(net, x, f"encoder.layers.encoder_layer_{i}", heads)
    with net.segment("classifier"):
        x = net.layer_norm(x, epsilon=_EPSILON, name="encoder.ln")
        x = net.select(x, name="class_position")
        x = net.linear(x, classes, initializer=SMALL_NORMAL, name="heads.head")
    net.classify(x)
    return net.build()


def _block(net: NetworkBuilder, x: str, name: str, heads: int) -> str:
    width = net.shape(x)[1]
    y = net.layer_norm(x, epsilon=_EPSILON, name=f"{name}.ln_1")
    y = net.linear(y, 3 * width, name=f"{name}.self_attention.in_proj")
    y = net.attention(y, heads, name=f"{name}.self_attention.attend")
    y = net.linear(y, width, name=f"{name}.self_attention.out_proj")
    x = net.add(x, y, name=f"{name}.add_1")
    y = net.layer_norm(x, epsilon=_EPSILON, name=f"{name}.ln_2")
    y = net.linear(y, 4 * width, name=f"{name}.mlp.0")
    y = net.gelu(y, name=f"{name}.mlp.1")
    y = net.linear(y, width, name=f"{name}.mlp.3")
    return net.add(x, y, name=f"{name}.add_2")
