"""Validation of a spec against a framework's capabilities.

A framework declares what it can do (`Capabilities`); whatever a spec asks beyond that is refused
here, with what is offered instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

from cubemesh.frameworks.api.program import Capabilities, Unsupported
from cubemesh.parallel.strategies import STRATEGIES, strategy
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
    if spec.placement.devices > 1 and not able.sync_features:
        raise Unsupported(
            f"{program.framework} trains on one device; devices={spec.placement.devices} needs a "
            "framework that synchronises gradients. Set devices=1."
        )
    needs = strategy(program.sync).needs
    if needs is not None and needs not in able.sync_features:
        _refuse("sync", program.sync, supported_strategies(able), program.framework)
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


def supported_strategies(able: Capabilities) -> list[str]:
    """The strategies that a framework supports."""
    return [
        name
        for name, strategy in STRATEGIES.items()
        if strategy.needs is None or strategy.needs in able.sync_features
    ]


def _refuse(what: str, asked: str, able: Iterable[str], framework: str, hint: str = "") -> NoReturn:
    offered = ", ".join(sorted(able))
    words = f"{framework} does not offer {what} '{asked}' here; it offers {offered}."
    raise Unsupported(" ".join(filter(None, (words, hint))))
