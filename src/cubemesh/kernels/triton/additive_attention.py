# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""Additive attention scores (Bahdanau) in Triton: v · tanh(query + key) for all pairs.

Unfused, the sum, its tanh and their gradients are arrays of (batch, queries, keys, features),
features times as large as the scores, each written once and read once or twice. Here a tile of them
stays in registers in both passes; the backward pass recomputes the tanh. Queries and keys are
matrices of (batch · positions, features); sums are fp32.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _tanh(x):
    return 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)


@triton.jit
def _rows(array, first, position, positions, feature, features):
    """A tile (positions, features) of one sequence; 0 beyond its ends."""
    inside = (position < positions)[:, None] & (feature < features)[None, :]
    at = (first + position)[:, None] * features + feature[None, :]
    return tl.load(array + at, mask=inside, other=0).to(tl.float32)


@triton.jit
def scores_forward_kernel(
    queries, keys, weight, scores, many_queries, many_keys, features,
    block_queries: tl.constexpr, block_keys: tl.constexpr, block_features: tl.constexpr,
):  # fmt: skip
    """scores (batch, queries, keys) from queries, keys and weight (features,)."""
    batch = tl.program_id(0)
    query = tl.program_id(1) * block_queries + tl.arange(0, block_queries)
    key = tl.program_id(2) * block_keys + tl.arange(0, block_keys)
    total = tl.zeros([block_queries, block_keys, block_features], tl.float32)
    for start in range(0, features, block_features):
        feature = start + tl.arange(0, block_features)
        v = tl.load(weight + feature, mask=feature < features, other=0).to(tl.float32)
        q = _rows(queries, batch * many_queries, query, many_queries, feature, features)
        k = _rows(keys, batch * many_keys, key, many_keys, feature, features)
        total += _tanh(q[:, None, :] + k[None, :, :]) * v[None, None, :]
    found = tl.sum(total, 2)
    at = (batch * many_queries + query)[:, None] * many_keys + key[None, :]
    inside = (query < many_queries)[:, None] & (key < many_keys)[None, :]
    tl.store(scores + at, found.to(scores.dtype.element_ty), mask=inside)


@triton.jit
def scores_backward_kernel(
    rows, others, weight, grad_output, row_gradients, weight_gradients,
    many_rows, many_others, features, stride_row, stride_other, for_weight: tl.constexpr,
    block_rows: tl.constexpr, block_others: tl.constexpr, block_features: tl.constexpr,
):  # fmt: skip
    """The gradient of queries (`rows`; `others` are keys), or of keys, with both exchanged: v times
    the sum over the others of grad · (1 - tanh²). `grad_output` (batch, …) with the strides of a
    row and of another. With `for_weight` also this program's part of v's gradient, the sum of
    grad · tanh, into its row of `weight_gradients` (batch · blocks of rows, features)."""
    batch, block = tl.program_id(0), tl.program_id(1)
    row = block * block_rows + tl.arange(0, block_rows)
    feature = tl.program_id(2) * block_features + tl.arange(0, block_features)
    of_row = _rows(rows, batch * many_rows, row, many_rows, feature, features)
    row_sum = tl.zeros([block_rows, block_others, block_features], tl.float32)
    weight_sum = tl.zeros([block_rows, block_others, block_features], tl.float32)
    for start in range(0, many_others, block_others):
        other = start + tl.arange(0, block_others)
        of_other = _rows(others, batch * many_others, other, many_others, feature, features)
        at = batch * many_rows * many_others + row[:, None] * stride_row
        at += other[None, :] * stride_other
        inside = (row < many_rows)[:, None] & (other < many_others)[None, :]
        grad = tl.load(grad_output + at, mask=inside, other=0).to(tl.float32)[:, :, None]
        t = _tanh(of_row[:, None, :] + of_other[None, :, :])
        if for_weight:
            weight_sum += grad * t
        row_sum += grad * (1.0 - t * t)
    v = tl.load(weight + feature, mask=feature < features, other=0).to(tl.float32)
    found = tl.sum(row_sum, 1) * v[None, :]
    at = (batch * many_rows + row)[:, None] * features + feature[None, :]
    inside = (row < many_rows)[:, None] & (feature < features)[None, :]
    tl.store(row_gradients + at, found.to(row_gradients.dtype.element_ty), mask=inside)
    if for_weight:
        line = (batch * tl.num_programs(1) + block) * features
        own = tl.sum(tl.sum(weight_sum, 1), 0)
        tl.store(weight_gradients + line + feature, own, mask=feature < features)
