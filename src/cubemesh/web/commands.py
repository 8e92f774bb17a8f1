"""The command line that measures an experiment run again."""

from __future__ import annotations

import shlex
from typing import Any

from cubemesh.api.arguments import value_text
from cubemesh.experiments.registry import EXPERIMENTS
from cubemesh.schema import ExperimentRun
from cubemesh.schema.serialization import to_plain
from cubemesh.untrusted import clean


def command_of(run: ExperimentRun) -> str:
    """`cubemesh run EXPERIMENT --set …` with the settings that differ from the defaults."""
    words = ["cubemesh", "run", run.experiment]
    for name, value in own_values(run).items():
        if not isinstance(value, dict):
            words += ["--set", f"{name}={value_text(value)}"]
    return clean(shlex.join(words))


def own_values(run: ExperimentRun) -> dict[str, Any]:
    """The settings and overrides of an experiment run that differ from the defaults."""
    defaults: dict[str, Any] = {}
    if run.experiment in EXPERIMENTS:
        try:
            defaults = to_plain(EXPERIMENTS[run.experiment].settings())
        except TypeError:  # a setting without a default
            defaults = {}
    given = {n: v for n, v in run.settings.items() if n not in defaults or defaults[n] != v}
    return given | {name: value for name, value in run.overrides.items() if name != "against"}
