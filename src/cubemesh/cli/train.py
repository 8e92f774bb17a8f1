"""`cubemesh train`, the experiment `train` with its settings as options; `cubemesh prepare`, which
makes the images for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cubemesh.cli import completion
from cubemesh.cli.options import AsJson, Hosts, NoCache, Pythons, Settings, StoreAt, Wait, show
from cubemesh.errors import UsageError

if TYPE_CHECKING:
    from cubemesh.data.prepare.image_set import ImageSet


def train(
    network: Annotated[
        str,
        typer.Argument(
            help="Network; `cubemesh networks` lists them.", autocompletion=completion.networks
        ),
    ],
    data: Annotated[str, typer.Option(help="Data set.")] = "digits",
    data_path: Annotated[
        str | None, typer.Option(help="Folder, file or URL of the data set.")
    ] = None,
    devices: Annotated[
        int | None,
        typer.Option(min=1, help="GPUs, or groups of cores; default: one, or one per host."),
    ] = None,
    hosts: Hosts = None,
    epochs: Annotated[int, typer.Option(min=1, help="Maximum number of epochs.")] = 10,
    batch_per_device: Annotated[
        int, typer.Option("--batch-per-device", min=1, help="Batch size per device.")
    ] = 64,
    optimizer: Annotated[
        str, typer.Option(help="sgd, rmsprop, adam, adamw, adamw-8bit or lars.")
    ] = "sgd",
    learning_rate: Annotated[
        float, typer.Option(help="Learning rate for one device; see --rate-scaling.")
    ] = 0.01,
    rate_scaling: Annotated[
        str,
        typer.Option(help="linear: multiply the learning rate by the number of devices; or none."),
    ] = "none",
    warmup_epochs: Annotated[
        float, typer.Option(help="Epochs of linear learning-rate warm-up.")
    ] = 0.0,
    schedule: Annotated[
        str, typer.Option(help="Learning-rate schedule: constant, step or cosine.")
    ] = "constant",
    precision: Annotated[
        str | None, typer.Option(help="fp32 (default), tf32, bf16, fp16 or fp64.")
    ] = None,
    sync: Annotated[
        str | None,
        typer.Option(
            help="Gradient synchronization strategy.", autocompletion=completion.strategies
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of weights, sample order and dropout.")
    ] = 0,
    target_accuracy: Annotated[
        float | None, typer.Option(help="Stop at this top-1 accuracy, 0 to 1.")
    ] = None,
    checkpoints: Annotated[
        str | None, typer.Option(metavar="DIR", help="Save checkpoints in this folder.")
    ] = None,
    checkpoint_every: Annotated[
        str,
        typer.Option(
            metavar="STEPS",
            help="Steps per checkpoint; epoch; or auto: by Daly's rule from measured times.",
        ),
    ] = "auto",
    fault_every_s: Annotated[
        str,
        typer.Option("--fault-every", metavar="TIME", help="Expected time between faults."),
    ] = "1h",
    keep: Annotated[
        int, typer.Option(min=1, help="Number of most recent checkpoints to keep.")
    ] = 3,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume from the newest checkpoint, if there is one.")
    ] = False,
    reshard: Annotated[
        bool,
        typer.Option("--reshard", help="Resume on other devices, with the same global batch size."),
    ] = False,
    restarts: Annotated[
        int, typer.Option(min=0, help="Maximum number of restarts from a checkpoint on failure.")
    ] = 3,
    tensorboard: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write event files for TensorBoard.")
    ] = None,
    settings: Settings = None,
    store: StoreAt = None,
    no_cache: NoCache = False,
    wait: Wait = "0",
    pythons: Pythons = None,
    as_json: AsJson = False,
) -> None:
    """Train a network on one or several devices. Stops after --epochs or at an accuracy."""
    given = {n: v for n, v in locals().items() if n not in _OTHERS and v is not None}
    from cubemesh.api.arguments import setting_lines
    from cubemesh.api.run import train as train_network
    from cubemesh.exports.record_json import record_json
    from cubemesh.views import terminal
    from cubemesh.views.json_output import envelope
    from cubemesh.views.progress import TerminalProgress

    lines = setting_lines(given)
    found = train_network(
        network,
        settings=[*lines, *(settings or ())],
        hosts=() if hosts is None else hosts,
        store=store,
        no_cache=no_cache,
        wait=wait,
        pythons=pythons or (),
        observer=TerminalProgress(terminal.stderr_console()),
    )
    record = found.records[-1]
    show(
        envelope("record", record=record_json(record)),
        as_json,
        lambda console: terminal.print_experiments(console, found.experiments),
    )
    raise typer.Exit(found.exit_code_if(record.ok))  # earlier attempts may have failed


_OTHERS = ("network", "hosts", "settings", "store", "no_cache", "wait", "pythons", "as_json")
"""Options that are not settings of the experiment."""


def prepare(
    source: Annotated[
        str,
        typer.Argument(
            help="Folder of images or tar shards, ImageNet's archives, or made-images; with "
            "--check or --list the set."
        ),
    ],
    target: Annotated[str | None, typer.Argument(help="Folder for the set.")] = None,
    resize: Annotated[
        int | None,
        typer.Option(
            metavar="PIXELS",
            help="Shrink larger images to this shorter side; default: as they are.",
        ),
    ] = None,
    quality: Annotated[int, typer.Option(help="JPEG quality of shrunk images, 1 to 95.")] = 90,
    shard_size: Annotated[
        str, typer.Option(metavar="SIZE", help="Approximate size of a shard.")
    ] = "256MB",
    validation: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Share of each class for validation, where the source has no split; default 0.1.",
        ),
    ] = None,
    validation_labels: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Classes of the images in ImageNet's val archive."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the order and of the split.")] = 0,
    size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Size of a set of made-images.")
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Processes; default: one per usable core.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Compare a prepared set with its checksums.")
    ] = False,
    list_: Annotated[
        bool, typer.Option("--list", help="List classes and numbers of images; also of a URL.")
    ] = False,
    page: Annotated[
        Path | None,
        typer.Option(
            "--page",
            metavar="FILE",
            help="With --list: write an HTML page with pictures of each class.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make tar shards with checksums from images. The same command resumes after an interruption.

    --check exits with 1 if anything is missing or damaged.
    """
    from cubemesh import check_image_set, list_image_set, prepare_images
    from cubemesh.views import catalogue as view
    from cubemesh.views import terminal
    from cubemesh.views.progress import ShardProgress

    if check and list_:
        raise UsageError("--check and --list exclude each other: give one.")
    if page is not None and not list_:
        raise UsageError(f"--page {page} belongs to --list: cubemesh prepare SET --list --page.")
    if check or list_:
        if target is not None:
            raise UsageError(
                f"{'--check' if check else '--list'} takes one set; leave {target} out."
            )
        if page is not None:
            found = _write_page(source, page)
        elif check:
            found = check_image_set(source, processes=processes)
        else:
            found = list_image_set(source)
        show(
            view.image_set_document(found, page),
            as_json,
            lambda console: view.print_image_set(console, found, classes=list_, page=page),
        )
        raise typer.Exit(0 if found.ok else 1)
    if target is None:
        raise UsageError("Name a folder for the set: cubemesh prepare SOURCE TARGET.")
    with ShardProgress(terminal.stderr_console()) as progress:
        made = prepare_images(
            source,
            target,
            resize=resize,
            quality=quality,
            shard_size=shard_size,
            validation=validation,
            validation_labels=validation_labels,
            seed=seed,
            size=size,
            processes=processes,
            observer=progress,
        )
    show(
        view.image_set_document(made),
        as_json,
        lambda console: view.print_image_set(console, made, classes=False),
    )


def _write_page(source: str, page: Path) -> ImageSet:
    """Write the page of a set; the set."""
    from cubemesh import sample_image_set
    from cubemesh.views.report import image_set

    image_set.check_path(page)
    sample = sample_image_set(source)
    image_set.write_page(page, sample)
    return sample.listed
