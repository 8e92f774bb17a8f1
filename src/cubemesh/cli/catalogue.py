"""`cubemesh networks`, `cubemesh experiments` and `cubemesh published`: what there is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cubemesh.cli import completion
from cubemesh.cli.options import AsJson, InputShape, show
from cubemesh.errors import UsageError


def networks(
    name: Annotated[
        str | None,
        typer.Argument(
            help="List the layers of this network, or of your own: FILE.py:NAME, FILE.onnx, "
            "FOLDER/.",
            autocompletion=completion.networks,
        ),
    ] = None,
    input_shape: InputShape = "",
    draw: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw its layers and branches as .svg or .png."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the networks that can be trained. With a name, its layers and their costs."""
    from cubemesh import list_networks, network_layers
    from cubemesh.views import catalogue as view
    from cubemesh.views.networks.drawing import check_path, write_drawing

    if draw is not None:
        check_path(draw)
    if name is None:
        if input_shape:
            raise UsageError("--input-shape is the input of a network; name one.")
        if draw is not None:
            raise UsageError(f"--draw {draw} draws a network; name one.")
        found = list_networks()
        show(view.networks_document(found), as_json, lambda c: view.print_networks(c, found))
        return
    one = network_layers(name, input_shape=input_shape)
    if draw is not None:
        write_drawing(draw, one)
    show(
        view.network_document(one, draw),
        as_json,
        lambda console: view.print_network(console, one, draw),
    )


def experiments(
    name: Annotated[
        str | None,
        typer.Argument(
            help="List the settings of this experiment, or the experiments of this suite.",
            autocompletion=completion.experiments_and_suites,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List experiments, suites and frameworks. With a name, the settings of an experiment or the
    experiments of a suite."""
    from cubemesh import experiment_settings, list_experiments
    from cubemesh.views import catalogue as view

    if name is None:
        found = list_experiments()
        show(view.experiments_document(found), as_json, lambda c: view.print_experiments(c, found))
        return
    suite = next((s for s in list_experiments().suites if s.name == name), None)
    if suite is not None:
        show(view.suite_document(suite), as_json, lambda c: view.print_suite(c, suite))
        return
    one = experiment_settings(name)
    show(view.experiment_document(one), as_json, lambda c: view.print_experiment(c, one))


def published(
    network: Annotated[
        str | None,
        typer.Argument(
            help="Only figures of this network.",
            autocompletion=completion.networks,
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Only devices whose name contains this text.")
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="Only figures in fp64, fp32, tf32, fp16 or bf16.")
    ] = None,
    generations: Annotated[
        bool,
        typer.Option(
            "--generations",
            help="The fastest rate of one GPU of each model, oldest first, with peak and ratio.",
        ),
    ] = False,
    above_peak: Annotated[
        bool, typer.Option("--above-peak", help="Only figures above the peak of their device.")
    ] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Show the first N figures.")] = None,
    as_json: AsJson = False,
) -> None:
    """List published figures with their MFU. It is the fraction of the device's peak."""
    from cubemesh import published_figures, published_generations
    from cubemesh.views import published as view

    if generations:
        if network is None:
            raise UsageError("--generations compares GPUs on one network; name it.")
        if above_peak or limit is not None:
            raise UsageError("--generations has one figure of each GPU: leave out other options.")
        rows = published_generations(network, device=device, precision=precision)
        show(
            view.generations_document(network, rows),
            as_json,
            lambda console: view.print_generations(console, network, rows),
        )
        return
    found = published_figures(
        network, device=device, precision=precision, above_peak=above_peak, limit=limit
    )
    show(view.document(found), as_json, lambda console: view.print_figures(console, found))
