"""`cubemesh experiments`."""

from __future__ import annotations

from typing import Annotated

import typer

from cubemesh.cli import completion
from cubemesh.cli.options import AsJson, show


def experiments(
    name: Annotated[
        str | None,
        typer.Argument(
            help="List the settings of this experiment.", autocompletion=completion.experiments
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List experiments, suites and frameworks. With a name, the settings of an experiment."""
    from cubemesh import experiment_settings, list_experiments
    from cubemesh.views import catalogue as view

    if name is None:
        found = list_experiments()
        show(view.experiments_document(found), as_json, lambda c: view.print_experiments(c, found))
        return
    one = experiment_settings(name)
    show(view.experiment_document(one), as_json, lambda c: view.print_experiment(c, one))
