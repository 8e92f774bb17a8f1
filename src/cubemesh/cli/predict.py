"""`cubemesh predict`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated

import typer

from cubemesh.cli import completion
from cubemesh.cli.options import AsJson, InputShape, StoreAt, show, whole_numbers
from cubemesh.errors import UsageError
from cubemesh.forecast.styles import STYLES


def predict(
    network: Annotated[
        str,
        typer.Argument(
            help="Network; `cubemesh networks` lists them; or your own, FILE.py:NAME, FILE.onnx "
            "or FOLDER/. With a layout a transformer, such as gpt3-175b or "
            "gpt:hidden=4096,layers=32,heads=32.",
            autocompletion=completion.networks,
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
        str | None,
        typer.Option(
            "--devices",
            metavar="1,2,…",
            help="Numbers of devices; default 1,2,4,8, or the layout's.",
        ),
    ] = None,
    batch_per_device: Annotated[
        int | None,
        typer.Option("--batch-per-device", min=1, help="Batch size per device; default 64."),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            help="fp32 (default), tf32, bf16, fp16 or fp64; with a layout bf16 (default), fp16 or "
            "fp8."
        ),
    ] = None,
    framework: Annotated[
        str | None,
        typer.Option(
            help="Framework whose layout, fusion and launches a forecast from a datasheet assumes; "
            "default pytorch.",
            autocompletion=completion.frameworks,
        ),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            help="Scaling mode; weak (default): batch size is per device; strong: it is global."
        ),
    ] = None,
    measured: Annotated[
        list[str] | None,
        typer.Option(
            metavar="N|NETWORK@BATCH=SAMPLES_PER_S",
            help="Measured rate of N devices, or of one device with another network or batch size; "
            "may be repeated.",
        ),
    ] = None,
    calibrate: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RUN|FILE.csv",
            help="A stored run of training, of a collective or of a processor's ceiling, or a file "
            "of measured collectives; may be repeated.",
        ),
    ] = None,
    sync: Annotated[
        str | None,
        typer.Option(
            help="Gradient synchronization strategy, as in train, such as parameter-server-cpu or "
            "hybrid-by-layer; also parameter-server-spread; default all-reduce. tensor-parallel "
            "and context-parallel: of a transformer, over --devices, or with tp or cp, and dp, of "
            "--layout."
        ),
    ] = None,
    style: Annotated[
        str,
        typer.Option(
            help=f"How the framework sends gradients, instead of --sync: {', '.join(STYLES)}. "
            "With a layout: nemo (default), megatron, fsdp, fsdp-compiled or jax."
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
    cost: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=NUMBER",
            help="Price of a training; may be repeated: price_per_hour or purchase_price of a "
            "device, depreciation_years (3), power_price and co2_per_kwh (kg) of a kWh; epochs "
            "(90) and samples (1.28 million) of the training, or its tokens.",
        ),
    ] = None,
    epochs: Annotated[
        str | None,
        typer.Option(
            metavar="goyal-2017|mlperf|90|90@20000",
            help="Epochs of a training by its global batch size, for the time to train: those of "
            "Goyal et al. or of MLPerf, a number, or one with the critical batch size.",
        ),
    ] = None,
    samples_per_epoch: Annotated[
        int | None,
        typer.Option(
            "--samples-per-epoch", min=1, help="With --epochs; default: ImageNet's 1,281,167."
        ),
    ] = None,
    layout: Annotated[
        str,
        typer.Option(
            metavar="tp=8,pp=8,dp=16",
            help="Layout of a transformer: tensor, pipeline, context and data parallel sizes (tp, "
            "pp, cp, dp), interleaved parts (vp), ZeRO stage (zero), sharding group (shard), "
            "sequence parallel (sp).",
        ),
    ] = "",
    search: Annotated[
        bool, typer.Option("--search", help="Find the fastest layout that fits so many devices.")
    ] = False,
    micro_batch: Annotated[
        int | None,
        typer.Option(
            "--micro-batch",
            min=1,
            help="Sequences at once on a device; default 1, with --sync tensor-parallel or "
            "context-parallel all.",
        ),
    ] = None,
    global_batch: Annotated[
        int | None,
        typer.Option("--global-batch", min=1, help="Sequences per step of all devices."),
    ] = None,
    sequence_length: Annotated[
        int | None,
        typer.Option("--sequence-length", min=1, help="Tokens; default: of the network's paper."),
    ] = None,
    recompute: Annotated[
        str | None,
        typer.Option(
            help="Activation recomputation: none, selective, full, or auto (default), as little "
            "as fits the memory."
        ),
    ] = None,
    attention: Annotated[
        str | None,
        typer.Option(help="flash (default), flash-v1 or unfused, which writes its scores."),
    ] = None,
    input_shape: InputShape = "",
    store: StoreAt = None,
    as_json: AsJson = False,
) -> None:
    """Predict training throughput and its limits. Nothing is run."""
    from cubemesh.api.layouts import DIVIDING, predict_layout
    from cubemesh.networks import NETWORKS
    from cubemesh.networks.own_networks import is_own
    from cubemesh.networks.transformer_sizes import is_transformer, transformer

    of_layout = {
        "--micro-batch": micro_batch,
        "--global-batch": global_batch,
        "--sequence-length": sequence_length,
        "--recompute": recompute,
        "--attention": attention,
    }
    of_network = {
        "--input-shape": input_shape or None,
        "--batch-per-device": batch_per_device,
        "--framework": framework,
        "--mode": mode,
        "--calibrate": calibrate,
        "--sync": sync,
        "--input-limit": input_limit,
        "--what-if": what_if,
        "--cost": cost,
        "--epochs": epochs,
        "--samples-per-epoch": samples_per_epoch,
    }
    sized = is_transformer(network) and not is_own(network)
    divided = sync in DIVIDING and sized
    if divided:
        of_network |= {"--sync": None, "--batch-per-device": None}
    if layout or search or divided or (sized and transformer(network).name not in NETWORKS):
        _refuse(
            of_network, "is not for a transformer with a layout; docs/transformers.md lists its"
        )
        from cubemesh.views.layouts import layout_document, print_layout

        counts = whole_numbers("--devices", devices) if devices else [None]
        if len(counts) != 1:
            raise UsageError(f"--devices {devices}: a layout has one number of devices.")
        if batch_per_device is not None and global_batch is not None:
            raise UsageError("Give one of --batch-per-device and --global-batch.")
        if batch_per_device is not None and counts[0] is not None:
            global_batch = batch_per_device * counts[0]
        if global_batch is None:
            raise UsageError("Give --global-batch, the sequences per step of all devices.")
        planned = predict_layout(
            network,
            machine,
            global_batch=global_batch,
            layout=layout,
            devices=counts[0],
            search=search,
            sync=sync or "",
            micro_batch=micro_batch,
            sequence_length=sequence_length,
            precision=precision or "bf16",
            recompute=recompute or "auto",  # type: ignore[arg-type]
            attention=attention or "flash",  # type: ignore[arg-type]
            style=style or "nemo",  # type: ignore[arg-type]
            measured=_rates(measured or ()),
        )
        show(layout_document(planned), as_json, lambda console: print_layout(console, planned))
        return
    _refuse(
        of_layout,
        "is for a transformer with a layout; give --layout or --search, or leave out such",
    )
    from cubemesh.api.predict import predict as forecast
    from cubemesh.views import prediction as view

    found = forecast(
        network,
        machine,
        devices=whole_numbers("--devices", devices or "1,2,4,8"),
        batch_per_device=batch_per_device or 64,
        framework=framework or "pytorch",
        precision=precision or "fp32",  # type: ignore[arg-type]
        mode=mode or "weak",  # type: ignore[arg-type]
        sync=sync or "all-reduce",
        style=style,
        input_limit=input_limit,
        measured=_rates(measured or ()),
        calibrate=calibrate or (),
        what_if=what_if or (),
        input_shape=input_shape,
        store=store,
        cost=cost or (),
        epochs=epochs,
        samples_per_epoch=samples_per_epoch,
    )
    show(view.document(found), as_json, lambda console: view.print_prediction(console, found))


def _refuse(given: Mapping[str, object], why: str) -> None:
    """UsageError naming the first option that was given."""
    for option, value in given.items():
        if value is not None and value != []:
            raise UsageError(f"{option} {why} options.")


def _rates(given: Iterable[str]) -> dict[int | str, float]:
    rates: dict[int | str, float] = {}
    for text in given:
        count, _, rate = text.partition("=")
        try:
            rates[count if "@" in count else int(count)] = float(rate)
        except ValueError:
            raise UsageError(
                f"--measured {text}: give DEVICES=SAMPLES_PER_S, a whole number of 1 or more and "
                "a rate above 0, such as 1=219, or NETWORK@BATCH=SAMPLES_PER_S."
            ) from None
    return rates
