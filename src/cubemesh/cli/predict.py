"""`cubemesh predict`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from cubemesh.cli import completion
from cubemesh.cli.options import AsJson, StoreAt, show, whole_numbers
from cubemesh.errors import UsageError


def predict(
    network: Annotated[
        str,
        typer.Argument(
            help="Network; `cubemesh networks` lists them.", autocompletion=completion.networks
        ),
    ],
    machine: Annotated[
        str,
        typer.Option(
            "--machine",
            metavar="NAME|FILE",
            help="A system or cluster of the catalogue, or a .toml, .xml or .txt file.",
            autocompletion=completion.systems,
        ),
    ],
    devices: Annotated[
        str, typer.Option("--devices", metavar="1,2,…", help="Numbers of devices.")
    ] = "1,2,4,8",
    batch_per_device: Annotated[
        int, typer.Option("--batch-per-device", min=1, help="Batch size per device.")
    ] = 64,
    precision: Annotated[str, typer.Option(help="fp32, tf32, bf16, fp16 or fp64.")] = "fp32",
    mode: Annotated[
        str,
        typer.Option(help="Scaling mode; weak: batch size is per device; strong: it is global."),
    ] = "weak",
    measured: Annotated[
        list[str] | None,
        typer.Option(
            metavar="N=SAMPLES_PER_S", help="Measured rate of N devices; may be repeated."
        ),
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
            help="Gradient synchronization strategy, as in train; also parameter-server-cpu and "
            "parameter-server-spread."
        ),
    ] = "all-reduce",
    style: Annotated[
        str,
        typer.Option(
            help="How the framework sends gradients, instead of --sync: ddp, apex-delayed, "
            "horovod, horovod-two-level, tensorflow-replicated, tensorflow-parameter-server, "
            "mxnet-device, mxnet-dist-sync or paddle-parameter-server."
        ),
    ] = "",
    input_limit: Annotated[
        float | None,
        typer.Option(
            metavar="SAMPLES_PER_S",
            help="Samples/s that a server reads and decodes, as input-pipeline measures; inf "
            "where it never waits.",
        ),
    ] = None,
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Change this after calibration; may be repeated. Keys: machine, device, link, "
            "network, network_gbit_per_s, network_latency_us, ports, sync, precision, "
            "batch_per_device, device_speed, straggler, gradient_bytes, bucket_mib, "
            "average_every, launch_us.",
        ),
    ] = None,
    store: StoreAt = None,
    as_json: AsJson = False,
) -> None:
    """Predict training throughput and its limits. Nothing is run."""
    from cubemesh.api.predict import predict as forecast
    from cubemesh.views import prediction as view

    found = forecast(
        network,
        machine,
        devices=whole_numbers("--devices", devices),
        batch_per_device=batch_per_device,
        precision=precision,  # type: ignore[arg-type]
        mode=mode,  # type: ignore[arg-type]
        sync=sync,
        style=style,
        input_limit=input_limit,
        measured=_rates(measured or ()),
        calibrate=calibrate or (),
        what_if=what_if or (),
        store=store,
    )
    show(view.document(found), as_json, lambda console: view.print_prediction(console, found))


def _rates(given: Iterable[str]) -> dict[int, float]:
    rates = {}
    for text in given:
        count, _, rate = text.partition("=")
        try:
            rates[int(count)] = float(rate)
        except ValueError:
            raise UsageError(
                f"--measured {text}: give DEVICES=SAMPLES_PER_S, a whole number of 1 or more and "
                "a rate above 0, such as 1=219."
            ) from None
    return rates
