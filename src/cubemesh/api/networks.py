"""Networks of the zoo: their sizes, one layer by layer, and their files in other formats."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path

from cubemesh.batches import Array
from cubemesh.errors import DataError, UsageError
from cubemesh.networks import NETWORKS, build, canonical_name
from cubemesh.networks.describe import LayerRow, NetworkSummary, layer_rows, summary
from cubemesh.networks.graph import Network
from cubemesh.onnx.export import export
from cubemesh.training import manifest
from cubemesh.training.checkpoint import load, path_of, steps_in


@dataclass(frozen=True, kw_only=True)
class NetworkLayers:
    """A network with a row for each layer."""

    summary: NetworkSummary
    layers: tuple[LayerRow, ...]


@dataclass(frozen=True, kw_only=True)
class ExportedNetwork:
    """A file of a network."""

    file: str
    network: str
    format: str
    parameters: int
    size_bytes: int
    weights: str
    """Where they are from: `seed 0`, or a checkpoint."""


def list_networks() -> tuple[NetworkSummary, ...]:
    """Every network that can be trained."""
    return tuple(map(summary, NETWORKS))


def network_layers(name: str) -> NetworkLayers:
    """One network layer by layer; UsageError naming the nearest for an unknown one."""
    found = summary(name)
    return NetworkLayers(summary=found, layers=tuple(layer_rows(build(found.name))))


def export_network(
    name: str | None = None,
    file: str | Path | None = None,
    *,
    checkpoints: str | Path | None = None,
    step: int | None = None,
    image_size: int | None = None,
    classes: int | None = None,
    seed: int = 0,
) -> ExportedNetwork:
    """Write a network with its weights as an ONNX file, by default NAME.onnx. The weights are those
    of the newest checkpoint of a training, or of the one after `step` steps; without `checkpoints`
    they are drawn with `seed`. UsageError where options do not fit, DataError for a checkpoint that
    cannot be read."""
    if checkpoints is None:
        if name is None or step is not None:
            needs = "a network" if name is None else f"--checkpoints for --step {step}"
            raise UsageError(f"export needs {needs}. Example: cubemesh export resnet-50")
        network = build(name, image_size, classes)
        weights: dict[str, Array] = dict(network.draw(seed))
        source = f"seed {seed}"
    else:
        if image_size is not None or classes is not None:
            raise UsageError("A checkpoint has its own image size and classes: leave them out.")
        network, weights, source = _trained(Path(checkpoints), step)
        if name is not None and canonical_name(name) != network.name:
            raise UsageError(f"'{checkpoints}' has checkpoints of {network.name}, not of {name}.")
    path = Path(f"{network.name}.onnx" if file is None else file)
    return ExportedNetwork(
        file=str(path),
        network=network.name,
        format="ONNX",
        parameters=network.evaluation_parameter_count,
        size_bytes=export(network, weights, path),
        weights=source,
    )


def _trained(folder: Path, step: int | None) -> tuple[Network, dict[str, Array], str]:
    """The network of a checkpoint, its weights, and what it is in words."""
    training = manifest.read(folder)
    try:
        steps = steps_in(folder)
    except OSError as error:
        raise UsageError(f"'{folder}' cannot be read: {error.strerror}.") from error
    if training is None or not steps:
        raise UsageError(
            f"'{folder}' has no checkpoints of cubemesh. `cubemesh train NETWORK --checkpoints "
            "DIR` saves some."
        )
    chosen = max(steps) if step is None else step
    if chosen not in steps:
        offered = ", ".join(map(str, steps))
        raise UsageError(f"'{folder}' has no checkpoint after step {chosen}; it has {offered}.")
    of_network = inspect.signature(build).parameters.keys() & training.settings.keys()
    network = build(training.settings["network"], **{n: training.settings[n] for n in of_network})
    path = path_of(folder, chosen, 0, steps[chosen])
    try:
        weights = dict(load(folder, chosen, 0, steps[chosen]).snapshot.weights)
    except OSError as error:
        raise DataError(f"'{path}' cannot be read: {error.strerror}.") from error
    wanted = {n: s.shape for n, s in {**network.parameters, **network.state}.items()}
    if {n: a.shape for n, a in weights.items()} != wanted:
        raise DataError(f"'{path}' does not have the weights of {network.name}.")
    return network, weights, f"checkpoint after step {chosen}"
