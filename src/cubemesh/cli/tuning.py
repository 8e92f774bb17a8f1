"""The verb that looks for the fastest setting: the experiment `tune` with options."""

from __future__ import annotations

import datetime
import sys
from typing import Annotated

import typer

from cubemesh.cli.options import AsJson, Fresh, Pythons, Settings, StoreAt, open_store, show

_INTERRUPTED = 130


def tune(
    network: Annotated[str, typer.Argument(help="The network; `cubemesh networks` lists them.")],
    devices: Annotated[int, typer.Option(min=1, help="GPUs, or groups of cores.")] = 1,
    minutes: Annotated[
        float | None, typer.Option(help="The most it may take; default: 3 on a CPU, 5 on a GPU.")
    ] = None,
    batch_per_device: Annotated[
        int, typer.Option("--batch-per-device", min=1, help="Samples of each device in a step.")
    ] = 64,
    batches: Annotated[
        str | None,
        typer.Option(metavar="32,64,…", help="Minibatches to choose among; default: it stays."),
    ] = None,
    settings: Settings = None,
    store: StoreAt = None,
    fresh: Fresh = False,
    pythons: Pythons = None,
    as_json: AsJson = False,
) -> None:
    """Find the fastest setting for a network here. `--set tuned=true` then uses it."""
    from cubemesh.experiments.session import latest_result, run_names
    from cubemesh.machines import probe
    from cubemesh.views import terminal, tuning

    given = {
        "networks": network,
        "devices": devices,
        "minutes": minutes,
        "batch_sizes": ",".join(filter(None, (str(batch_per_device), batches))),
    }
    code = 0
    began = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    budget_s = tuning.budget_s(minutes, on_gpu=bool(probe().gpus))
    watcher = tuning.TuningProgress(budget_s, terminal.stderr_console())
    with open_store(store) as opened, watcher:
        try:
            (answered,) = run_names(
                ["tune"],
                [*(f"{k}={v}" for k, v in given.items() if v is not None), *(settings or [])],
                scale=None,
                store=opened,
                observer=watcher,
                fresh=fresh,
                pythons=pythons or [],
            )
        except KeyboardInterrupt:
            found = latest_result("tune", opened, since_utc=began)
            if found is None:
                raise
            answered, code = found, _INTERRUPTED
    document = tuning.document(answered)
    show(
        document,
        as_json,
        lambda console: terminal.print_answers(console, [answered.answer]),
    )
    if code == 0 and not document["ladder"]:
        code = 1
    if code == _INTERRUPTED:
        print("cubemesh: interrupted; what was found is kept.", file=sys.stderr)
    raise typer.Exit(code)
