"""Layer types of images and of sequences: what each computes, its shapes and its parameters.

A layer is a frozen dataclass of its settings. It knows nothing of batches or frameworks: shapes are
per sample, `(channels, height, width)` or `(features,)`; of a sequence `(length, features)`, of its
tokens, which are integers, `(length,)`. A framework has a table of lowerings, one line a layer
type; `networks/cost.py` counts what each costs.

Weights are laid out `(out, in / groups, height, width)` for convolutions and `(out, in)` for matrix
products, whatever layout a program runs in.
"""

from __future__ import annotations

from cubemesh.networks.layers.base import (
    GLOROT,
    HE_IN,
    HE_OUT,
    ONES,
    SMALL_NORMAL,
    ZEROS,
    Initializer,
    Layer,
    Pair,
    ParameterSpec,
    Shape,
)
from cubemesh.networks.layers.images import (
    Activation,
    Add,
    AveragePool,
    BatchNorm,
    Concat,
    Convolution,
    Dropout,
    Flatten,
    GlobalAveragePool,
    Linear,
    LocalResponseNorm,
    MaxPool,
    Multiply,
    ReLU,
    Scale,
    SelectChannels,
    Sigmoid,
)
from cubemesh.networks.layers.sequences import (
    GELU,
    LSTM,
    Attention,
    ClassToken,
    Embedding,
    LayerNorm,
    Mix,
    PairProduct,
    PairSum,
    PositionEmbedding,
    RMSNorm,
    RotaryEmbedding,
    SelectPosition,
    Tanh,
    ToImage,
    Tokens,
    Transpose,
)

__all__ = [
    "ALL_LAYERS",
    "GELU",
    "GLOROT",
    "HE_IN",
    "HE_OUT",
    "LAYERS",
    "LSTM",
    "ONES",
    "SEQUENCE_LAYERS",
    "SMALL_NORMAL",
    "ZEROS",
    "Activation",
    "Add",
    "Attention",
    "AveragePool",
    "BatchNorm",
    "ClassToken",
    "Concat",
    "Convolution",
    "Dropout",
    "Embedding",
    "Flatten",
    "GlobalAveragePool",
    "Initializer",
    "Layer",
    "LayerNorm",
    "Linear",
    "LocalResponseNorm",
    "MaxPool",
    "Mix",
    "Multiply",
    "Pair",
    "PairProduct",
    "PairSum",
    "ParameterSpec",
    "PositionEmbedding",
    "RMSNorm",
    "ReLU",
    "RotaryEmbedding",
    "Scale",
    "SelectChannels",
    "SelectPosition",
    "Shape",
    "Sigmoid",
    "Tanh",
    "ToImage",
    "Tokens",
    "Transpose",
]

LAYERS: dict[str, type[Layer]] = {
    "convolution": Convolution,
    "linear": Linear,
    "batch-norm": BatchNorm,
    "local-response-norm": LocalResponseNorm,
    "relu": ReLU,
    "add": Add,
    "concat": Concat,
    "dropout": Dropout,
    "flatten": Flatten,
    "max-pool": MaxPool,
    "average-pool": AveragePool,
    "global-average-pool": GlobalAveragePool,
}
"""The layer types of image networks, which every framework lowers."""
SEQUENCE_LAYERS: dict[str, type[Layer]] = {
    "layer-norm": LayerNorm,
    "gelu": GELU,
    "attention": Attention,
    "tokens": Tokens,
    "embedding": Embedding,
    "class-token": ClassToken,
    "position-embedding": PositionEmbedding,
    "select-position": SelectPosition,
    "tanh": Tanh,
    "lstm": LSTM,
    "pair-sum": PairSum,
    "pair-product": PairProduct,
    "mix": Mix,
    "rms-norm": RMSNorm,
    "rotary-embedding": RotaryEmbedding,
    "to-image": ToImage,
    "transpose": Transpose,
    "select-channels": SelectChannels,
    "sigmoid": Sigmoid,
    "activation": Activation,
    "multiply": Multiply,
    "scale": Scale,
}
"""The layer types of sequences and of gates; a framework that lacks one refuses the networks that
have it."""
ALL_LAYERS: dict[str, type[Layer]] = {**LAYERS, **SEQUENCE_LAYERS}
