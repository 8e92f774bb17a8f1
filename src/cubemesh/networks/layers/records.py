"""Layer types of records: numbers (features,), and categories (indices,), which are integers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from cubemesh.errors import UsageError
from cubemesh.networks.layers.base import Initializer, Layer, ParameterSpec, Shape


@dataclass(frozen=True, kw_only=True)
class EmbeddingBags(Layer):
    """A table of learned vectors for each categorical feature, and for each sample the sum of the
    rows that its indices select (PyTorch's `EmbeddingBag`, mode `sum`).

    The input has `indices` indices of the first feature, then those of the second, and so on; those
    of a feature are below its number of `rows`.
    """

    category: ClassVar[str] = "embedding"
    rows: tuple[int, ...]
    """Of each table."""
    features: int
    indices: int = 1
    """Of each feature in a sample."""
    sparse: bool = False
    """Whether the gradient of a table has the rows that a batch selects, not all."""

    def output_shape(self, *inputs: Shape) -> Shape:
        """(tables, features), from indices (tables · indices,)."""
        if not self.rows or min(self.rows) < 1 or self.indices < 1:
            raise UsageError(
                f"EmbeddingBags needs tables of 1 row or more and 1 index or more, was given rows "
                f"{self.rows} and indices={self.indices}."
            )
        if inputs != ((len(self.rows) * self.indices,),):
            raise UsageError(
                f"EmbeddingBags of {len(self.rows)} tables, {self.indices} indices each, needs "
                f"({len(self.rows) * self.indices},), was given {inputs[0]}."
            )
        return (len(self.rows), self.features)

    def parameters(self, *inputs: Shape) -> dict[str, ParameterSpec]:
        """`table1`, `table2`, … (rows, features), uniform in ± 1 / √rows as DLRM's own code draws
        them."""
        found = {}
        for number, rows in enumerate(self.rows, start=1):
            # Glorot's limit is scale · √(6 / (rows + features)).
            scale = math.sqrt((rows + self.features) / (6 * rows))
            initializer = Initializer(kind="glorot_uniform", scale=scale)
            found[f"table{number}"] = ParameterSpec(
                shape=(rows, self.features), initializer=initializer
            )
        return found


@dataclass(frozen=True, kw_only=True)
class DotInteraction(Layer):
    """The inner products of all pairs of vectors (Naumov et al. 2019): x and the rows of e.

        T = [x; e],  y = [x, (T Tᵀ) below its diagonal, row by row]

    The whole product T Tᵀ is computed, of which fewer than half of the values are used.
    """

    category: ClassVar[str] = "matrix product"

    def output_shape(self, *inputs: Shape) -> Shape:
        """(features + n (n − 1) / 2,) of n = 1 + vectors, from x (features,) and e (vectors,
        features)."""
        if len(inputs) != 2 or len(inputs[0]) != 1 or inputs[1][1:] != inputs[0]:
            raise UsageError(
                "DotInteraction needs (features,) and (vectors, features), was given "
                f"{', '.join(map(str, inputs))}."
            )
        (features,), (vectors, _) = inputs
        return (features + vectors * (vectors + 1) // 2,)


@dataclass(frozen=True, kw_only=True)
class BinaryScores(Layer):
    """A logit as the scores of two classes, (0, z). Their softmax cross-entropy is the binary
    cross-entropy of the logit: the probability of the second class is 1 / (1 + e^−z)."""

    category: ClassVar[str] = "copy"

    def output_shape(self, *inputs: Shape) -> Shape:
        """(2,), from (1,)."""
        if inputs != ((1,),):
            raise UsageError(f"BinaryScores needs one logit (1,), was given {inputs[0]}.")
        return (2,)
