"""Comparison of stored runs: the ratio of two throughputs with its 95 % interval."""

from __future__ import annotations

from dataclasses import dataclass

from cubemesh.api.arguments import AnyStore, open_store
from cubemesh.experiments.analysis.comparison import Gate, comparison_answer
from cubemesh.schema import Answer
from cubemesh.schema.comparison import Ratio
from cubemesh.store.compare import StoredComparison, compare_texts


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison:
    """Two sides, A and B, and what differs between them."""

    compared: StoredComparison
    gate: Gate | None
    answer: Answer

    @property
    def ratio(self) -> Ratio:
        """B's throughput over A's."""
        return self.compared.ratio

    def __repr__(self) -> str:
        lines = [f"Comparison({self.answer.title})", *(f.text for f in self.answer.findings)]
        return "\n  - ".join(lines)


def compare(
    first: str,
    second: str,
    *,
    store: AnyStore = None,
    store_b: AnyStore = None,
    fail_below: float | None = None,
) -> Comparison:
    """Compare stored runs: each side is an id or its prefix, or settings as KEY=VALUE,KEY=VALUE.

    B's runs are read from `store_b`, by default from A's store. `fail_below` is a threshold for the
    ratio. UsageError where a side has no run with a figure, or runs of different things.
    """
    with (
        open_store(store, reading=True) as a,
        open_store(store if store_b is None else store_b, reading=True) as b,
    ):
        found = compare_texts(first, second, a, b)
    gate = None if fail_below is None else Gate(below=fail_below, ratios=(found.ratio,))
    return Comparison(compared=found, gate=gate, answer=comparison_answer(found, gate))
