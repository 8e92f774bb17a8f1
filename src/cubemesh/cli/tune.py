"""`cubemesh tune`: the experiment `tune` with its main settings as options."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from cubemesh.cli import completion
from cubemesh.cli.options import (
    INTERRUPTED,
    AsJson,
    NoCache,
    Pythons,
    Settings,
    StoreAt,
    Wait,
    show,
)


def tune(
    network: Annotated[
        str,
        typer.Argument(
            help="Network; `cubemesh networks` lists them.", autocompletion=completion.networks
        ),
    ],
    devices: Annotated[int, typer.Option(min=1, help="GPUs, or groups of cores.")] = 1,
    minutes: Annotated[
        float | None, typer.Option(help="Time budget; default: 3 on a CPU, 5 on a GPU.")
    ] = None,
    batch_sizes: Annotated[
        str,
        typer.Option(
            "--batch-sizes",
            metavar="64,128,…",
            help="Batch sizes per device to choose from, the baseline first.",
        ),
    ] = "64",
    settings: Settings = None,
    store: StoreAt = None,
    no_cache: NoCache = False,
    wait: Wait = "0",
    pythons: Pythons = None,
    as_json: AsJson = False,
) -> None:
    """Search for the fastest setting of a network here. `--set tuned=true` then uses it."""
    from cubemesh.api.arguments import setting_lines
    from cubemesh.api.tune import budget_s
    from cubemesh.api.tune import tune as search
    from cubemesh.views import terminal
    from cubemesh.views.json_output import tuning_json
    from cubemesh.views.progress import TuningProgress

    given = {"devices": devices, "minutes": minutes, "batch_sizes": batch_sizes}
    with closing(TuningProgress(budget_s(minutes), terminal.stderr_console())) as observer:
        found = search(
            network,
            settings=[*setting_lines(given), *(settings or ())],
            store=store,
            no_cache=no_cache,
            wait=wait,
            pythons=pythons or (),
            observer=observer,
        )
    show(tuning_json(found), as_json, lambda c: terminal.print_experiments(c, [found.answered]))
    if found.interrupted:
        raise typer.Exit(INTERRUPTED)
    raise typer.Exit(found.exit_code)
