"""`cubemesh compare`: stored runs against others, for people, for programs and for CI."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.console import Console

from cubemesh.experiments.analysis.comparison import Gate, comparison_answer
from cubemesh.schema import Answer
from cubemesh.store import Store
from cubemesh.store.compare import compare_texts
from cubemesh.views import terminal
from cubemesh.views.json_output import comparison_json


@dataclass(frozen=True, kw_only=True)
class ShownComparison:
    """What came of it."""

    answer: Answer
    plain: dict[str, Any]
    """For `--json`."""
    exit_code: int

    def print(self, console: Console) -> None:
        """For people."""
        terminal.print_answer(console, self.answer)


def compare_stored(
    first: str, second: str, store: Store, other: Store, below: float | None
) -> ShownComparison:
    """Hold the runs of `other` that `second` means against those of `store` that `first` means;
    `below` is the threshold of `--fail-below`. UsageError where they cannot be compared."""
    found = compare_texts(first, second, store, other)
    gate = None if below is None else Gate(below=below, ratios=(found.ratio,))
    answer = comparison_answer(found, gate)
    return ShownComparison(
        answer=answer,
        plain=comparison_json(found, answer, gate),
        exit_code=gate.exit_code if gate else 0,
    )
