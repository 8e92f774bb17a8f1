"""The verb that says what to expect before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cubemesh.cli.options import AsJson, StoreAt, open_store, show

if TYPE_CHECKING:
    from cubemesh.schema import RunRecord


def predict(
    network: Annotated[str, typer.Argument(help="The network that is trained.")],
    machine: Annotated[
        str,
        typer.Option(
            "--machine",
            metavar="NAME|FILE",
            help="A system or cluster of the catalogue, or of a .toml, .xml or .txt file.",
        ),
    ],
    devices: Annotated[
        str, typer.Option("--devices", metavar="1,2,…", help="On how many devices.")
    ] = "1,2,4,8",
    batch_per_device: Annotated[
        int, typer.Option("--batch-per-device", min=1, help="Samples of each device in a step.")
    ] = 64,
    precision: Annotated[str, typer.Option(help="fp32, tf32, bf16, fp16 or fp64.")] = "fp32",
    regime: Annotated[
        str,
        typer.Option(
            help="weak: the minibatch stands for each device; strong: all devices share it."
        ),
    ] = "weak",
    measured: Annotated[
        list[str] | None,
        typer.Option(metavar="N=SAMPLES_PER_S", help="What N devices reached; may be repeated."),
    ] = None,
    calibrate: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RUN|FILE.csv",
            help="A stored run of training or of a collective, or a file of measured collectives; "
            "may be repeated.",
        ),
    ] = None,
    sync: Annotated[
        str,
        typer.Option(
            help="all-reduce, all-reduce-16, parameter-server, parameter-server-cpu, "
            "parameter-server-spread, asynchronous or local-sgd."
        ),
    ] = "all-reduce",
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="What to change after calibration; may be repeated. Keys: machine, device, link, "
            "network, network_gbit_per_s, network_latency_us, ports, exchange, precision, "
            "batch_per_device, device_speed, straggler, gradient_bytes, bucket_mib, "
            "average_every, launch_us.",
        ),
    ] = None,
    store: StoreAt = None,
    as_json: AsJson = False,
) -> None:
    """How fast so many devices will train a network. And what will limit them."""
    from cubemesh.views.prediction import predicted

    known: list[RunRecord | Path] = []
    for given in calibrate or ():
        if given.lower().endswith(".csv"):
            known.append(Path(given))
            continue
        with open_store(store, reading=True) as opened:
            known.append(opened.record(given))
    plain, drawn = predicted(
        network,
        machine,
        devices,
        batch_per_device,
        precision,
        regime,
        measured or (),
        known,
        sync,
        what_if or (),
    )
    show(plain, as_json, drawn)
