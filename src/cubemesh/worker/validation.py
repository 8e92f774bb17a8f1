"""Validation of a spec: `check_names` before anything runs, `check_supported` in the worker.

A mistake in a command (an unknown name, a file that cannot be read) ends it at once with UsageError
or DataError. What depends on the framework or the device becomes an outcome: a framework declares
what it can do (`Capabilities`), and `check_supported` refuses everything beyond that, with what is
offered instead. Only limits of the machine (cores, GPUs, memory) are checked later, where they are
known.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import NoReturn

from cubemesh import data, frameworks, networks
from cubemesh.data import own as own_data
from cubemesh.errors import UsageError
from cubemesh.frameworks.contract.program import Capabilities, NotInstalled, Unsupported
from cubemesh.networks.precision import layer_precisions
from cubemesh.parallel.strategies import STRATEGIES, strategy
from cubemesh.schema.collective import Collective
from cubemesh.schema.spec import ProgramSettings, RunSpec
from cubemesh.schema.work import (
    LINK_OPERATIONS,
    AccumulatedWork,
    Ceiling,
    FirstSteps,
    Forward,
    ForwardBackward,
    Infer,
    InferLoad,
    InferPrecision,
    Input,
    NetworkWork,
    OwnStep,
    Train,
    TrainSteps,
)


def check_names(specs: Iterable[RunSpec]) -> None:
    """UsageError or DataError for the first spec with an unknown name, data that cannot be read, or
    a network that cannot take its input."""
    seen = set()
    for spec in specs:
        work, program = spec.work, spec.program
        if program.script is not None:
            _read_script(program.framework, program.script)
        strategy(program.sync)
        if not isinstance(work, NetworkWork):
            continue
        if isinstance(work, Train) and program.data_location == "device":
            raise UsageError(
                "data_location=device repeats one batch, which trains to no accuracy. Leave "
                "data_location out."
            )
        key = (dataclasses.replace(work, seed=0), program.precision_of)
        if key in seen:
            continue
        seen.add(key)
        network = networks.build_for(work)
        layer_precisions(network, program.precision_of)
        if own_data.is_own(work.data):
            own_data.get(work.data)
        data.check(work.data, work.data_path, work.batch_per_device)
        data.check_feeds(work.data, network)
        classes = network.targets[0].classes or 0
        needed = data.entry(work.data).classes
        if needed is not None and classes < needed:
            raise UsageError(
                f"{work.data} has {needed} classes and {work.network} was given {classes}. "
                f"Leave classes out, or set classes={needed} or more."
            )


def check_supported(spec: RunSpec, able: Capabilities) -> None:
    """Raise `Unsupported` for the first setting in `spec` that `able` does not cover, or that
    excludes another."""
    kind = _check_device(spec, able)
    _check_program(spec, able, kind)
    _check_devices(spec, able, kind)
    _check_input(spec, able)
    if isinstance(spec.work, OwnStep):
        _check_own_step(spec)
    if spec.budget.memory_limit_bytes is not None and kind != "cpu":
        raise Unsupported(
            f"memory_limit_bytes={spec.budget.memory_limit_bytes}: only a run on the CPU can be "
            f"limited, and this one is on {kind}. Leave it out, or set device=cpu."
        )
    sync = strategy(spec.program.sync)
    if spec.checkpointing.checkpoints is not None and not sync.checkpoints:
        what = (
            "always has gradients in transit, which no checkpoint holds"
            if sync.free_running
            else "has its optimizer state on the server, which no checkpoint holds"
        )
        raise Unsupported(
            f"sync={spec.program.sync} {what}. Leave checkpoints out, or set another sync."
        )
    if spec.against is not None:
        _check_alternating(spec)


def supported_strategies(able: Capabilities) -> list[str]:
    """The strategies that a framework supports."""
    return [
        name
        for name, strategy in STRATEGIES.items()
        if strategy.needs is None or strategy.needs in able.sync_features
    ]


def _read_script(framework: str, script: str) -> None:
    read = frameworks.entry(framework).read_script
    if read is None:
        raise UsageError(f"{framework} takes no script; framework=null does.")
    read(script)


def _check_device(spec: RunSpec, able: Capabilities) -> str:
    """The kind of device, `cpu` or `cuda`."""
    program, asked = spec.program, spec.placement.device
    if spec.work.kind not in able.works:
        _refuse("work", spec.work.kind, able.works, program.framework)
    if not able.devices:
        words = f"{program.framework} finds no device it can use here."
        error = NotInstalled if able.lacking else Unsupported
        raise error(" ".join(filter(None, (words, able.hint))))
    kinds = [d.split(":")[0] for d in able.devices]
    if asked not in ("auto", *kinds):
        if asked in able.lacking:
            raise NotInstalled(f"{program.framework} cannot use device={asked} yet. {able.hint}")
        _refuse("device", asked, set(kinds), program.framework, able.hint)
    return kinds[0] if asked == "auto" else asked


def _check_program(spec: RunSpec, able: Capabilities, kind: str) -> None:
    program = spec.program
    name = program.framework
    if program.precision not in able.precisions[kind]:
        _refuse(f"on {kind} the precision", program.precision, able.precisions[kind], name)
    if program.precision_of and not able.layer_precisions.get(kind):
        raise Unsupported(
            f"{name} computes every layer in one precision and takes no precision_of. Leave it out."
        )
    offered = able.layer_precisions.get(kind, frozenset())
    for line in program.precision_of:
        for own in line.partition("=")[2].split("/"):
            if own not in offered:
                _refuse(f"on {kind} the precision of single layers", own, offered, name)
    if program.loss_scale is not None:
        asked = "dynamic" if program.loss_scale == "dynamic" else "static"
        if asked not in able.loss_scales:
            offered = able.loss_scales | {"its own (leave loss_scale out)"}
            _refuse("loss scaling", asked, offered, name)
    if program.layout not in able.layouts:
        hint = f"Set layout={min(able.layouts)}." if len(able.layouts) == 1 else ""
        _refuse("layout", program.layout, able.layouts, name, hint)
    if program.deterministic and not able.deterministic:
        raise Unsupported(
            f"cubemesh does not test {name} for reproducible steps. Leave deterministic out, or "
            "set framework=pytorch."
        )
    if program.compile_by == "segment" and not able.compiles_segments:
        _refuse("compile_by", "segment", {"network"}, name)
    _check_accumulation(spec, able)
    _check_embedding_gradients(spec, able)
    _check_checkpointed_activations(spec, able)
    optimizer = getattr(spec.work, "optimizer", None)
    if optimizer is not None and optimizer not in able.optimizers:
        _refuse("optimizer", optimizer, able.optimizers, name)
    if program.script is not None and not able.scripted:
        raise Unsupported(f"{name} takes no script; framework=null does.")
    if program.plan_file is not None and name != "plan":
        raise Unsupported(f"{name} runs no plan; framework=plan does. Leave plan_file out.")


def _check_accumulation(spec: RunSpec, able: Capabilities) -> None:
    work = spec.work
    if not isinstance(work, AccumulatedWork) or work.accumulation_steps == 1:
        return
    steps, batch = work.accumulation_steps, work.batch_per_device
    if not able.accumulates:
        raise Unsupported(
            f"{spec.program.framework} computes a batch at once, and accumulation_steps={steps}. "
            "Leave it out, or set framework=pytorch, pytorch-compiled or pytorch-captured."
        )
    if batch % steps:
        raise Unsupported(
            f"accumulation_steps={steps} does not divide batch_per_device={batch}: micro-batches "
            "have equal sizes. Set a batch size that is a multiple of it."
        )
    if strategy(spec.program.sync).needs == "model-parallel" and spec.placement.devices > 1:
        raise Unsupported(
            f"accumulation_steps={steps}: sync={spec.program.sync} passes whole batches from "
            "device to device. Leave accumulation_steps out, or set sync=all-reduce."
        )


def _check_embedding_gradients(spec: RunSpec, able: Capabilities) -> None:
    """Whether a step with sparse gradients has no part that needs them dense."""
    work, program = spec.work, spec.program
    if not isinstance(work, AccumulatedWork) or work.embedding_gradients == "dense":
        return
    sparse = "embedding_gradients=sparse"
    if not able.sparse_gradients:
        raise Unsupported(
            f"{program.framework} computes dense gradients. Leave {sparse} out, or set "
            "framework=pytorch."
        )
    if work.optimizer != "sgd" or work.momentum or work.weight_decay:
        raise Unsupported(
            f"{sparse} updates the rows of a batch alone: optimizer={work.optimizer} with "
            f"momentum={work.momentum:g} and weight_decay={work.weight_decay:g} changes every row. "
            "Set optimizer=sgd, momentum=0 and weight_decay=0, or leave it out."
        )
    for name, given, usual in (
        ("accumulation_steps", work.accumulation_steps, 1),
        ("sync", program.sync, "none"),
        ("precision", "fp16" if program.precision == "fp16" else "", ""),
    ):
        if given != usual:
            raise Unsupported(
                f"{name}={given} needs dense gradients. Leave {name} out, or {sparse}."
            )


def _check_checkpointed_activations(spec: RunSpec, able: Capabilities) -> None:
    program = spec.program
    asked = f"checkpoint_activations={program.checkpoint_activations}"
    passes = TrainSteps | Train | ForwardBackward | FirstSteps
    if program.checkpoint_activations == "none" or not isinstance(spec.work, passes):
        return
    if not able.checkpoints_activations:
        raise Unsupported(
            f"{asked}: {program.framework} saves every activation that its backward pass reads. "
            "Leave checkpoint_activations out, or set framework=pytorch."
        )
    if isinstance(spec.work, FirstSteps):
        raise Unsupported(
            f"{asked}: the first steps of a training are traced, and a layer that is computed "
            "twice would be traced twice. Leave checkpoint_activations out."
        )
    if spec.placement.devices == 1:
        return
    if program.batch_norm == "global" or strategy(program.sync).needs == "model-parallel":
        setting = "batch_norm=global" if program.batch_norm == "global" else f"sync={program.sync}"
        raise Unsupported(
            f"{asked}: with {setting} devices communicate within the forward pass, and would do so "
            "again in the backward pass. Leave one of the two out."
        )


def _check_devices(spec: RunSpec, able: Capabilities, kind: str) -> None:
    program, place, sync = spec.program, spec.placement, strategy(spec.program.sync)
    if place.devices == 1 and isinstance(spec.work, Collective):
        raise Unsupported("devices=1: a collective needs two devices or more. Set devices=2.")
    links = isinstance(spec.work, Ceiling) and spec.work.operation in LINK_OPERATIONS
    if links and place.hosts:
        raise Unsupported(
            "Links are measured on one host, by one process. Leave hosts out; run collectives "
            "measures between hosts."
        )
    if place.devices > 1 and not able.sync_features:
        raise Unsupported(
            f"{program.framework} trains on one device; devices={place.devices} needs a framework "
            "that synchronizes gradients. Set devices=1."
        )
    if sync.needs is not None and sync.needs not in able.sync_features:
        _refuse("sync", program.sync, supported_strategies(able), program.framework)
    if spec.budget.exact_steps and sync.free_running:
        raise Unsupported(
            f"exact_steps=true needs ranks that make as many steps as one another; with "
            f"sync={program.sync} each makes as many as it can. Leave exact_steps out, or set "
            "sync=all-reduce."
        )
    if place.devices == 1:
        return
    if isinstance(spec.work, Infer | InferLoad | InferPrecision):
        raise Unsupported(f"devices={place.devices}: inference runs on one device. Set devices=1.")
    if isinstance(spec.work, ForwardBackward):
        raise Unsupported(
            f"devices={place.devices}: a forward and backward pass without an update runs on one "
            "device. Set devices=1, or measure training steps."
        )
    if program.batch_norm not in able.batch_norms:
        _refuse("batch_norm", program.batch_norm, able.batch_norms, program.framework)
    if kind == "cpu" and (place.pinning != "none" or place.numa_node is not None):
        raise Unsupported(
            f"devices={place.devices}: each device on a CPU is pinned to cores of its own. Leave "
            "pinning and numa_node out."
        )
    attributed = spec.budget.attribution or spec.budget.trace
    if attributed and isinstance(spec.work, TrainSteps | Forward) and not sync.profiled:
        profiled = [name for name, s in STRATEGIES.items() if s.profiled]
        _refuse("attribution and trace of sync", program.sync, profiled, "cubemesh")


def _check_input(spec: RunSpec, able: Capabilities) -> None:
    work, program = spec.work, spec.program
    if isinstance(work, Infer | InferLoad | InferPrecision) and (
        spec.budget.attribution or spec.budget.trace
    ):
        raise Unsupported(
            "The latency of a request is not attributed. Leave attribution and trace out, or "
            "measure forward passes (run minibatch --set forward=true)."
        )
    on_device = program.decode_location == "device"
    if isinstance(work, InferLoad) and program.data_location == "device":
        raise Unsupported(
            "Requests of a load test are copied from the host. Set data_location=host."
        )
    if on_device and not able.decodes:
        _refuse("decode_location", "device", {"host"}, program.framework)
    if not isinstance(work, NetworkWork):
        return
    if isinstance(work, Train | InferPrecision) and program.data_location == "device":
        raise Unsupported(
            "Training over epochs feeds every sample, so its batches are copied from the host one "
            "by one. Set data_location=host, or measure single steps with train_steps."
        )
    if own_data.is_own(work.data) and work.own_data is None:
        raise Unsupported(f"data={work.data} is data of your own, and no command named its code.")
    decoded = data.entry(work.data).is_slow
    if program.script is not None and decoded:
        raise Unsupported(
            f"a script simulates time, and data={work.data} takes real time to read and decode. "
            "Set data=synthetic, or leave the script out."
        )
    if on_device and isinstance(work, Input) and work.stage != "decode":
        raise Unsupported(
            f"decode_location=device applies to stage=decode, not to stage={work.stage}. Leave it "
            "out, or set stage=decode."
        )
    if on_device and (not decoded or work.own_data is not None):
        raise Unsupported(
            f"decode_location=device decodes images, and data={work.data} has no files to decode. "
            "Leave it out, or set data=images."
        )


def _check_own_step(spec: RunSpec) -> None:
    """Whether every setting applies to a step of the user's own code, which sets the rest
    itself."""
    if spec.placement.devices > 1:
        raise Unsupported(
            f"devices={spec.placement.devices}: a step of one's own runs in one process. Set "
            "devices=1."
        )
    usual = ProgramSettings(framework=spec.program.framework, precision=spec.program.precision)
    for field in dataclasses.fields(usual):
        value = getattr(spec.program, field.name)
        if value != getattr(usual, field.name):
            raise Unsupported(
                f"{field.name}={value} has no effect on a step of one's own, whose code decides "
                f"it. Leave {field.name} out."
            )


def _check_alternating(spec: RunSpec) -> None:
    """Whether the two programs of `spec` can alternate in one process."""
    other = spec.other
    assert other is not None
    remedy = "Measure both, and compare the runs: cubemesh compare A B."
    if spec.work.kind != other.work.kind or not isinstance(spec.work, NetworkWork):
        raise Unsupported("two programs can alternate in the same kind of work on networks only.")
    if isinstance(spec.work, InferLoad):
        raise Unsupported("load tests do not alternate; interleave latencies (run inference).")
    if isinstance(spec.work, Train | InferPrecision):
        raise Unsupported("training over epochs does not alternate; compare steps (train_steps).")
    if spec.budget.exact_steps:
        raise Unsupported(
            "two programs alternate as long as their ratio needs. Leave exact_steps out."
        )
    if max(spec.placement.devices, other.placement.devices) > 1:
        raise Unsupported(f"two programs alternate on one device. {remedy}")
    for name in ("pinning", "numa_node", "memory_policy", "huge_pages"):
        if getattr(spec.placement, name) != getattr(other.placement, name):
            raise Unsupported(
                f"{name} applies to the whole process, so it cannot differ between two programs "
                f"that alternate in one. {remedy}"
            )
    if spec.placement.device != other.placement.device:
        raise Unsupported(
            f"device={spec.placement.device} and device={other.placement.device} are two devices; "
            f"two programs alternate on one. {remedy}"
        )


def _refuse(what: str, asked: str, able: Iterable[str], framework: str, hint: str = "") -> NoReturn:
    offered = ", ".join(sorted(able))
    words = f"{framework} does not support {what} '{asked}' here; it supports {offered}."
    raise Unsupported(" ".join(filter(None, (words, hint))))
