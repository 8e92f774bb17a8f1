"""Validation of a spec against a framework's capabilities, and of the weights and layers given to
it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import NoReturn

from cubemesh.batches import Array
from cubemesh.errors import UsageError, unknown_name
from cubemesh.frameworks.api.program import Capabilities, Unsupported
from cubemesh.networks.graph import Network
from cubemesh.networks.layers import Layer
from cubemesh.schema.spec import RunSpec


def check_supported(spec: RunSpec, able: Capabilities) -> None:
    """Raise `Unsupported` for the first thing in `spec` that `able` does not cover."""
    program, work = spec.program, spec.work
    if work.kind not in able.works:
        _refuse("work", work.kind, able.works, program.framework)
    if not able.devices:
        words = f"{program.framework} finds no device it can use here."
        raise Unsupported(" ".join(filter(None, (words, able.hint))))
    kinds = {d.split(":")[0] for d in able.devices}
    if spec.placement.device not in ("auto", *kinds):
        _refuse("device", spec.placement.device, kinds, program.framework, able.hint)
    kind = able.devices[0].split(":")[0]
    kind = kind if spec.placement.device == "auto" else spec.placement.device
    if program.precision not in able.precisions[kind]:
        what = f"on {kind} the precision"
        _refuse(what, program.precision, able.precisions[kind], program.framework)
    if program.precision_of and not able.precision_by_layer:
        raise Unsupported(
            f"{program.framework} computes every layer in one precision and takes no precision_of. "
            "Leave it out."
        )
    if program.loss_scale is not None:
        asked = "dynamic" if program.loss_scale == "dynamic" else "static"
        if asked not in able.loss_scales:
            offered = able.loss_scales | {"its own (leave loss_scale out)"}
            _refuse("loss scaling", asked, offered, program.framework)
    if program.layout not in able.layouts:
        hint = f"Set layout={min(able.layouts)}." if len(able.layouts) == 1 else ""
        _refuse("layout", program.layout, able.layouts, program.framework, hint)
    if spec.placement.devices > 1 and able.exchanges == {"none"}:
        raise Unsupported(
            f"{program.framework} trains on one device at a time; devices={spec.placement.devices} "
            "needs a framework that exchanges gradients. Set devices=1."
        )
    if program.sync not in able.exchanges:
        _refuse("sync", program.sync, able.exchanges, program.framework)
    if spec.placement.devices > 1 and program.batch_norm not in able.batch_norms:
        _refuse("batch_norm", program.batch_norm, able.batch_norms, program.framework)
    if program.deterministic and not able.deterministic:
        raise Unsupported(
            f"{program.framework} is not held to the same steps every time by cubemesh. Leave "
            "deterministic out, or set framework=pytorch."
        )
    if program.decode_location == "device" and not able.decodes:
        _refuse("decode_location", "device", {"host"}, program.framework)
    if program.compile_by == "segment" and not able.compiles_segments:
        _refuse("compile_by", "segment", {"network"}, program.framework)
    optimizer = getattr(work, "optimizer", None)
    if optimizer is not None and optimizer not in able.optimizers:
        _refuse("optimizer", optimizer, able.optimizers, program.framework)
    if program.script is not None and not able.scripted:
        raise Unsupported(
            f"{program.framework} computes for real and takes no script; framework=null does."
        )


def check_weights(given: Mapping[str, Array], network: Network) -> None:
    """UsageError unless `given` holds every parameter and state array of `network`, no other, each
    in its shape."""
    wanted = {**network.parameters, **network.state}
    missing = [name for name in wanted if name not in given]
    if missing:
        raise UsageError(
            f"{network.name}: {len(missing)} of its {len(wanted)} arrays are missing from the "
            f"weights, '{missing[0]}' first. Take them from draw() or state() of this network."
        )
    for name, array in given.items():
        if name not in wanted:
            raise unknown_name(f"array of {network.name}", name, wanted, plural="arrays")
        if array.shape != wanted[name].shape:
            raise UsageError(
                f"{network.name}: '{name}' is of shape {array.shape} and must be "
                f"{wanted[name].shape}."
            )


def check_layers(network: Network, lowered: Container[type[Layer]], framework: str) -> None:
    """`Unsupported` where `network` has a layer that is not among those `framework` lowers."""
    for node in network.nodes:
        if type(node.layer) not in lowered:
            raise Unsupported(
                f"{framework} has no {type(node.layer).__name__} layer, and {network.name} needs "
                "one. pytorch, jax and tensorflow have every layer."
            )


def _refuse(what: str, asked: str, able: Iterable[str], framework: str, hint: str = "") -> NoReturn:
    offered = ", ".join(sorted(able))
    words = f"{framework} does not offer {what} '{asked}' here; it offers {offered}."
    raise Unsupported(" ".join(filter(None, (words, hint))))
