"""Ask: the experiments, each with the question that it answers."""

from __future__ import annotations

from typing import Any

from cubemesh.experiments.registry import EXPERIMENTS
from cubemesh.views.json_output import envelope
from cubemesh.web.page import Asked, Parameter

PARAMETERS: tuple[Parameter, ...] = ()


def document(asked: Asked) -> dict[str, Any]:
    """Experiments with their questions."""
    return envelope(
        "experiments",
        experiments=[{"name": one.name, "question": one.question} for one in EXPERIMENTS.values()],
    )


def view(asked: Asked) -> dict[str, Any]:
    """The list."""
    return {"experiments": list(EXPERIMENTS.values())}
