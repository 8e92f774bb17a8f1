"""Layers of records: embedding tables whose rows are summed, and inner products of pairs.

The tables are separate arrays, each with an operation of its own, as in DLRM's own code. A single
index is looked up (`F.embedding`); several are summed as they are read (`F.embedding_bag`), so that
no array has all their rows. Gradients of tables are dense, of every row, or sparse (COO), of the
rows that the batch selects.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from cubemesh.networks import layers


class SummedEmbeddings(nn.Module):
    """Sums of the rows that each feature's indices select."""

    def __init__(self, layer: layers.EmbeddingBags) -> None:
        super().__init__()
        self.indices, self.sparse = layer.indices, layer.sparse
        self.tables = tuple(f"table{number}" for number in range(1, len(layer.rows) + 1))
        for name, rows in zip(self.tables, layer.rows, strict=True):
            self.register_parameter(name, nn.Parameter(torch.empty(rows, layer.features)))

    def forward(self, categories: Tensor) -> Tensor:
        """Indices (batch, tables · indices) → (batch, tables, features)."""
        own = categories.reshape(-1, len(self.tables), self.indices).unbind(1)
        tables = [getattr(self, name) for name in self.tables]
        if self.indices == 1:
            found = [
                F.embedding(i[:, 0], table, sparse=self.sparse)
                for i, table in zip(own, tables, strict=True)
            ]
        else:
            found = [
                F.embedding_bag(i, table, mode="sum", sparse=self.sparse)
                for i, table in zip(own, tables, strict=True)
            ]
        return torch.stack(found, dim=1)

    def extra_repr(self) -> str:
        """What `print` shows between the brackets."""
        return f"{len(self.tables)} tables, indices={self.indices}"


class PairwiseProducts(nn.Module):
    """A vector, and the inner products of all pairs of it and others."""

    def __init__(self) -> None:
        super().__init__()
        self._below: dict[tuple[torch.device, int], Tensor] = {}

    def forward(self, x: Tensor, vectors: Tensor) -> Tensor:
        """(batch, features), (batch, vectors, features) → (batch, features + pairs)."""
        both = torch.cat([x.unsqueeze(1), vectors], dim=1)
        products = torch.bmm(both, both.transpose(1, 2)).flatten(1)
        below = self._below_diagonal(both.shape[1], x.device)
        return torch.cat([x, products.index_select(1, below)], dim=1)

    def _below_diagonal(self, vectors: int, device: torch.device) -> Tensor:
        """Places of the used products among all, row by row."""
        if (device, vectors) not in self._below:
            rows, columns = torch.tril_indices(vectors, vectors, -1, device=device)
            self._below[device, vectors] = rows * vectors + columns
        return self._below[device, vectors]


class LogitAndZero(nn.Module):
    """A logit as the scores of two classes: zero and the logit."""

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 1) → (batch, 2)."""
        return F.pad(x, (1, 0))
