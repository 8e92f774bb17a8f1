"""The verb that trains: the experiment `train` with its settings as options."""

from __future__ import annotations

from typing import Annotated

import typer

from cubemesh.cli.options import AsJson, Fresh, Hosts, Pythons, Settings, StoreAt, open_store, show


def train(
    network: Annotated[str, typer.Argument(help="The network; `cubemesh networks` lists them.")],
    data: Annotated[str, typer.Option(help="What is learned.")] = "digits",
    data_path: Annotated[str | None, typer.Option(help="Folder or file of the data.")] = None,
    devices: Annotated[
        int | None,
        typer.Option(min=1, help="GPUs, or groups of cores; default: one, or one of each host."),
    ] = None,
    hosts: Hosts = None,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the data, at most.")] = 10,
    batch_per_device: Annotated[
        int, typer.Option("--batch-per-device", min=1, help="Samples of each device in a step.")
    ] = 64,
    optimizer: Annotated[str, typer.Option(help="sgd, rmsprop, adam, adamw or lars.")] = "sgd",
    learning_rate: Annotated[float, typer.Option(help="Of one device.")] = 0.01,
    rate_scaling: Annotated[
        str, typer.Option(help="linear: the rate times the devices; none leaves it.")
    ] = "none",
    warmup_epochs: Annotated[float, typer.Option(help="Epochs in which the rate rises.")] = 0.0,
    schedule: Annotated[str, typer.Option(help="constant, step or cosine.")] = "constant",
    precision: Annotated[
        str | None, typer.Option(help="fp32 (usual), tf32, bf16, fp16 or fp64.")
    ] = None,
    sync: Annotated[str | None, typer.Option(help="How devices come to the same weights.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of weights, order and dropout.")] = 0,
    target_accuracy: Annotated[
        float | None, typer.Option(help="Top-1 at which it is done, 0 to 1.")
    ] = None,
    checkpoints: Annotated[
        str | None, typer.Option(metavar="DIR", help="Keep checkpoints in this folder.")
    ] = None,
    checkpoint_every: Annotated[
        int | None, typer.Option(min=1, metavar="STEPS", help="Default: after each epoch.")
    ] = None,
    keep: Annotated[int, typer.Option(min=1, help="Checkpoints that stay, the newest.")] = 3,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the newest checkpoint, if there is one.")
    ] = False,
    restarts: Annotated[
        int, typer.Option(min=0, help="How often a run that fails goes on from its checkpoint.")
    ] = 3,
    tensorboard: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write event files for TensorBoard.")
    ] = None,
    settings: Settings = None,
    store: StoreAt = None,
    fresh: Fresh = False,
    pythons: Pythons = None,
    as_json: AsJson = False,
) -> None:
    """Train a network. To an accuracy if asked, on several devices, through faults."""
    given = {_SETTINGS.get(k, k): v for k, v in locals().items() if k not in _OF_THE_RUN}
    from cubemesh.experiments.session import run_names
    from cubemesh.views import json_output as plain
    from cubemesh.views import terminal
    from cubemesh.views.progress import TerminalProgress

    lines = [f"{name}={value}" for name, value in given.items() if value is not None]
    with open_store(store) as opened:
        (answered,) = run_names(
            ["train"],
            [*lines, *(settings or [])],
            scale=None,
            store=opened,
            observer=TerminalProgress(terminal.stderr_console()),
            fresh=fresh,
            pythons=pythons or [],
        )
    record = answered.records[-1]
    show(
        plain.envelope("record", record=plain.record_json(record)),
        as_json,
        lambda console: terminal.print_answers(console, [answered.answer]),
    )
    raise typer.Exit(0 if record.ok else 1)


_SETTINGS = {"network": "networks"}
"""Option → setting of the experiment, where it is called otherwise."""
_OF_THE_RUN = ("settings", "store", "fresh", "pythons", "as_json")
