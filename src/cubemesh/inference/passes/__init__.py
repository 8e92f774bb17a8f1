"""Passes over the graph of a network: what makes it smaller without changing its results.

A pass is a function from graph to graph; where nothing applies it returns the graph that it was
given. To add one: write a file, and add a line to `PASSES`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cubemesh.inference.passes.concats import join_concats
from cubemesh.inference.passes.constants import fold_constants
from cubemesh.inference.passes.duplicates import merge_duplicates
from cubemesh.inference.passes.evaluation import remove_no_ops
from cubemesh.inference.passes.gelu import find_gelu
from cubemesh.inference.passes.gemm import join_biases
from cubemesh.inference.passes.hard_swish import find_hard_swish
from cubemesh.inference.passes.layer_norm import find_layer_norms
from cubemesh.inference.passes.norms import fold_norms, write_norms
from cubemesh.inference.passes.rewrite import MOST_ADDED_BYTES
from cubemesh.inference.passes.scales import fold_scales
from cubemesh.inference.passes.siblings import merge_siblings
from cubemesh.inference.passes.steps import Step, steps
from cubemesh.inference.passes.views import join_views
from cubemesh.onnx.graph import Graph

__all__ = ["OPTIONAL", "PASSES", "PassResult", "Step", "optimize", "steps"]

Pass = Callable[[Graph], Graph]

PASSES: dict[str, Pass] = {
    "evaluation": remove_no_ops,
    "constants": fold_constants,
    "duplicates": merge_duplicates,
    "views": join_views,
    "layer norms": find_layer_norms,
    "gelu": find_gelu,
    "hard swish": find_hard_swish,
    "norms": fold_norms,
    "gemm": join_biases,
    "scales": fold_scales,
    "lone norms": write_norms,
    "concats": join_concats,
}
"""Name → pass, in the order in which they run."""
OPTIONAL: dict[str, Pass] = {"siblings": merge_siblings}
"""Passes that pay on some machines and engines only."""
MOST_ROUNDS = 10
"""Runs of all passes. One or two suffice for networks; files of other people can ask for more."""


@dataclass(frozen=True, kw_only=True)
class PassResult:
    """What one run of a pass did."""

    name: str
    before: int
    """Operators of the graph."""
    after: int
    changes: Mapping[str, int]
    """Kind → how many more operators of it there are; kinds that changed in number."""


def optimize(
    graph: Graph, passes: Mapping[str, Pass] = PASSES
) -> tuple[Graph, tuple[PassResult, ...]]:
    """The graph after `passes`, which run until none changes anything, and what each did: all of
    the first round, and those that changed something in later ones. The result of a pass whose
    constants are too large is not taken."""
    results: list[PassResult] = []
    most_bytes = graph.constant_bytes + MOST_ADDED_BYTES
    for number in range(MOST_ROUNDS):
        start = graph
        for name, run in passes.items():
            made = run(graph)
            if made.constant_bytes > most_bytes:
                made = graph
            if number == 0 or made is not graph:
                results.append(_result(name, graph, made))
            graph = made
        if graph is start:
            break
    return graph, tuple(results)


def _result(name: str, before: Graph, after: Graph) -> PassResult:
    counts = Counter(o.kind for o in after.operators)
    counts.subtract(o.kind for o in before.operators)
    return PassResult(
        name=name,
        before=len(before.operators),
        after=len(after.operators),
        changes={kind: count for kind, count in sorted(counts.items()) if count},
    )
