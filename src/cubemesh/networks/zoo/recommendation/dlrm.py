"""DLRM (Naumov et al. 2019, arXiv:1906.00091): a deep learning recommendation model, which scores
whether a user clicks.

    numbers     → bottom MLP → x (width)               ReLU behind every layer
    categories  → a table each, rows summed → e (tables, width)
    x, e        → x and the inner products of all pairs → top MLP → one logit

The top MLP has a ReLU behind every layer but the last, whose sigmoid is part of the loss. The sizes
are those of the authors' code (github.com/facebookresearch/dlrm: bench/) and of MLPerf's reference
(github.com/mlcommons/inference, main.py of its DLRM), which has the number of rows of each table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.graph import Network
from cubemesh.networks.layers import (
    BinaryScores,
    DotInteraction,
    EmbeddingBags,
    Initializer,
)


@dataclass(frozen=True, kw_only=True)
class RecommendationModel:
    """The sizes of a DLRM."""

    numbers: int
    """Numeric features."""
    rows: tuple[int, ...]
    """Of the table of each categorical feature."""
    most_rows: int = 0
    """Larger tables have so many (`--max-ind-range` there); 0: none is limited."""
    width: int
    """Of the tables' vectors and of the bottom MLP's result."""
    bottom: tuple[int, ...]
    """Hidden layers of the bottom MLP."""
    top: tuple[int, ...]
    """Those of the top MLP."""
    indices: int = 1
    """Of each categorical feature in a sample."""


_KAGGLE = (
    *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992),
    *(5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
)
"""Different values of the 26 features in Criteo's Display Advertising Challenge (7 days)."""
_TERABYTE_10M = (
    *(9980333, 36084, 17217, 7378, 20134, 3, 7112, 1442, 61, 9758201, 1333352, 313829, 10, 2208),
    *(11156, 122, 4, 970, 14, 9994222, 7267859, 9946608, 415421, 12420, 101, 36),
)
"""Of a sample of Criteo's Terabyte Click Logs (24 days), each at most 10 million."""
_TERABYTE_40M = (
    *(39884406, 39043, 17289, 7420, 20263, 3, 7120, 1543, 63, 38532951, 2953546, 403346, 10, 2208),
    *(11938, 155, 4, 976, 14, 39979771, 25641295, 39664984, 585935, 12972, 108, 36),
)
"""Of the same, all records, each at most 40 million."""
_OF_KAGGLE = RecommendationModel(
    numbers=13, rows=_KAGGLE, width=16, bottom=(512, 256, 64), top=(512, 256)
)
MODELS: Mapping[str, RecommendationModel] = {
    "dlrm-small": replace(_OF_KAGGLE, most_rows=10_000),
    "dlrm-kaggle": _OF_KAGGLE,
    "dlrm-benchmark": RecommendationModel(
        numbers=512,
        rows=(1_000_000,) * 8,
        width=64,
        bottom=(512,),
        top=(1024, 1024, 1024),
        indices=100,
    ),
    "dlrm-terabyte": RecommendationModel(
        numbers=13, rows=_TERABYTE_10M, width=64, bottom=(512, 256), top=(512, 512, 256)
    ),
    "dlrm-mlperf": RecommendationModel(
        numbers=13, rows=_TERABYTE_40M, width=128, bottom=(512, 256), top=(1024, 1024, 512, 256)
    ),
}
"""Name → its sizes."""


def dlrm(name: str, indices: int, rows: int, width: int) -> Network:
    """The model called `name` in `MODELS` with so many `indices` a feature, at most `rows` rows a
    table, and vectors of `width`. Its inputs are numbers (features,) and categories (tables ·
    indices,)."""
    sizes = MODELS[name]
    tables = tuple(min(own, rows) for own in sizes.rows)
    net = NetworkBuilder(name)
    x = net.input("numbers", (sizes.numbers,))
    categories = net.categories("categories", [own for own in tables for _ in range(indices)])
    with net.segment("bottom"):
        x = _relu_layers(net, x, (*sizes.bottom, width), "bottom")
    with net.segment("embeddings"):
        layer = EmbeddingBags(rows=tables, features=width, indices=indices)
        e = net.add_layer(layer, categories, name="embeddings")
    with net.segment("interaction"):
        x = net.add_layer(DotInteraction(), x, e, name="interaction")
    with net.segment("top"):
        x = _relu_layers(net, x, sizes.top, "top")
        x = _linear(net, x, 1, f"top{len(sizes.top) + 1}")
        net.classify(net.add_layer(BinaryScores(), x, name="classes"))
    return net.build()


def _relu_layers(net: NetworkBuilder, x: str, widths: Sequence[int], prefix: str) -> str:
    for number, width in enumerate(widths, start=1):
        x = net.relu(_linear(net, x, width, f"{prefix}{number}"), name=f"{prefix}{number}_relu")
    return x


def _linear(net: NetworkBuilder, x: str, width: int, name: str) -> str:
    deviation = math.sqrt(2 / (net.shape(x)[0] + width))
    start = Initializer(kind="normal", scale=deviation)
    return net.linear(x, width, initializer=start, name=name)
