"""Manifest of a checkpoint folder: the one training whose checkpoints it has.

    checkpoints/training.json    the training's id, the settings that decide its weights, and a
                                 digest of its data files

A training resumes only in its own folder and with its own data. What may differ: its length,
learning rate, schedule and target. With `reshard` the devices may differ too, where every device
has the whole state and the global batch stays the same: then the steps stay the same, except for
the rounding of a sum. While there is no checkpoint, any training may begin in the folder.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from cubemesh import networks
from cubemesh.data.data_digest import data_digest
from cubemesh.durable_files import write_durably
from cubemesh.errors import DataError, UsageError
from cubemesh.networks.layers import Attention, BatchNorm, Dropout
from cubemesh.parallel.strategies import STRATEGIES, strategy
from cubemesh.schema.own_network import OwnNetwork
from cubemesh.schema.serialization import digest, from_plain, to_plain
from cubemesh.schema.spec import RunSpec
from cubemesh.schema.work import NetworkWork, Train
from cubemesh.training.checkpoint import read_patiently, step_folders
from cubemesh.training.folder_lock import FolderLock, holder_of, in_use
from cubemesh.untrusted import clean, read_regular_file

MANIFEST = "training.json"
_OF_WORK = (
    *("network", "image_size", "classes", "sequence_length", "vocabulary", "hidden"),
    *("data", "data_path", "max_image_pixels", "batch_per_device", "seed"),
    *("optimizer", "momentum", "weight_decay"),
)
_OF_PROGRAM = (
    *("framework", "precision", "precision_of", "loss_scale", "layout", "sync", "compile_by"),
    *("batch_norm", "deterministic", "decode_location", "cache_decoded"),
)
_OWN = "own_network"
"""Of an own network the digest of its source files."""
_LATER = {_OWN, *(entry.group_setting for entry in STRATEGIES.values())}
"""What manifests of an earlier version do not have."""
_OF_DEVICES = ("devices", "batch_per_device", "sync", "batch_norm")
"""Settings that resharding may change."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What identifies a training."""

    training: str
    """Id, which every checkpoint of it has too."""
    started_utc: str
    settings: Mapping[str, Any]
    """Those that decide its weights, as plain data."""
    data_digest: str = ""
    """Of the files at its `data_path` when it began (data/data_digest.py); empty for data without
    files (generated, or made by the user's code), and in folders of an earlier version."""


@dataclass(kw_only=True)
class Claim:
    """A folder that this run alone writes to, until `close`."""

    folder: Path
    manifest: Manifest
    lock: FolderLock

    def adopt(self, spec: RunSpec) -> None:
        """Record the settings with which the training goes on."""
        settings = settings_of(spec)
        if settings != self.manifest.settings:
            self.manifest = replace(self.manifest, settings=settings)
            _write(self.folder, self.manifest)

    def check(self) -> None:
        """UsageError if another run took the folder over."""
        self.lock.check()

    def close(self) -> None:
        """Let other runs write to the folder."""
        self.lock.close()


def settings_of(spec: RunSpec) -> dict[str, Any]:
    """The settings that must be the same in a resumed training, as plain data."""
    work, program = to_plain(spec.work), to_plain(spec.program)
    accumulated = work.get("accumulation_steps", 1)
    packing = work.get("packing", "none")
    divides = work["tokenizer"] != "words"  # the only one of checkpoints without that setting
    own = cast(NetworkWork, spec.work).own_network
    group = strategy(spec.program.sync).group_setting
    return {
        **{name: work[name] for name in _OF_WORK},
        **({_OWN: _identity(own)} if own is not None else {}),
        **({"accumulation_steps": accumulated} if accumulated > 1 else {}),
        **({"packing": packing} if packing != "none" else {}),
        **({"tokenizer": work["tokenizer"]} if divides else {}),
        **{name: program[name] for name in _OF_PROGRAM},
        **({group: program[group]} if group else {}),
        "devices": spec.placement.devices,
    }


def _identity(own: OwnNetwork) -> str:
    """Identifies an own network by its source files; one without, such as that of an installed
    package, by its layers."""
    return own.digest or digest(own.graph)


def check(spec: RunSpec) -> None:
    """UsageError if `spec` may not write its checkpoints where it asks to, BusyError if another run
    does. Changes nothing, and accepts a folder that this host does not see."""
    if spec.checkpointing.checkpoints is None:
        return
    folder = Path(spec.checkpointing.checkpoints)
    try:
        holder = holder_of(folder)
        if holder is not None:
            raise in_use(folder, holder)
        _continued(folder, spec)
    except OSError as error:
        raise UsageError(f"checkpoints={folder}: {error.strerror}. Name another folder.") from error


def claim(folder: Path, spec: RunSpec) -> Claim:
    """The folder for this run alone, with the manifest of the training that it continues or begins.
    Errors as of `check`."""
    lock = FolderLock(folder)
    try:
        manifest = _continued(folder, spec)
        if manifest is None:
            started_utc = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            manifest = Manifest(
                training=lock.run,
                started_utc=started_utc,
                settings=settings_of(spec),
                data_digest=_digest_of_data(spec),
            )
            _write(folder, manifest)
        elif not manifest.data_digest and (found := _digest_of_data(spec)):
            manifest = replace(manifest, data_digest=found)
            _write(folder, manifest)
    except BaseException:
        lock.close()
        raise
    return Claim(folder=folder, manifest=manifest, lock=lock)


def _continued(folder: Path, spec: RunSpec) -> Manifest | None:
    """The training that `spec` continues; None if it begins one. UsageError if the folder has
    checkpoints of another training."""
    steps = step_folders(folder)
    if not steps:
        return None
    has = f"'{folder}' has checkpoints up to step {max(steps)}"
    other = "choose another folder with --checkpoints"
    manifest = read(folder)
    if manifest is None:
        raise UsageError(
            f"{has} and no {MANIFEST} that tells which training they are of. Move them away, or "
            f"{other}."
        )
    if not spec.checkpointing.resume:
        raise UsageError(
            f"{has}, of the training {manifest.training} of {manifest.settings.get('network')} "
            f"begun {manifest.started_utc}. Add --resume to continue it, or {other}."
        )
    if differing := _differing(manifest.settings, settings_of(spec)):
        if not spec.checkpointing.reshard:
            only_devices = set(differing) <= set(_OF_DEVICES)
            reshard = "add --reshard to continue on other devices"
            ways = [other, reshard] if only_devices else [other]
            raise UsageError(
                f"{has}, of a training with "
                f"{', '.join(f'{n}={v[0]}' for n, v in differing.items())}; this one has "
                f"{', '.join(f'{n}={v[1]}' for n, v in differing.items())}. Set them as before, "
                f"or {' or '.join(ways)}."
            )
        _check_reshardable(manifest.settings, spec)
    now = _digest_of_data(spec) if manifest.data_digest else ""
    if now and now != manifest.data_digest:  # empty: this host does not see the files
        raise UsageError(
            f"{has}, of a training that began with other data: the files at data_path="
            f"{clean(str(_data_path(spec)))} have changed since (data_digest="
            f"{clean(manifest.data_digest, 40)}, now {now}). Restore them, with their times of "
            f"change, or {other}. To continue with the data as they are now, set "
            f'"data_digest" to "" in \'{folder / MANIFEST}\'.'
        )
    return manifest


def _digest_of_data(spec: RunSpec) -> str:
    """The digest of the data files of a training; empty for data without files, and where this host
    does not see them."""
    path = _data_path(spec)
    return data_digest(path) if path else ""


def _data_path(spec: RunSpec) -> str | None:
    return cast(NetworkWork, spec.work).data_path


def _differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Settings that differ → before and now."""
    names = dict.fromkeys([*now, *before])
    if all(before.get(name) == now.get(name) for name in ("network", "sync")):
        names = {name: None for name in names if name in before or name not in _LATER}
    values = {name: (before.get(name), now.get(name)) for name in names}
    return {name: (one, other) for name, (one, other) in values.items() if one != other}


def _check_reshardable(before: Mapping[str, Any], spec: RunSpec) -> None:
    """UsageError unless the training with the settings `before` makes the same steps with those of
    `spec`, except for the rounding of a sum."""
    now, work = settings_of(spec), cast(Train, spec.work)
    for settings in (before, now):
        if settings["devices"] > 1 and not strategy(settings["sync"]).replicated:
            raise UsageError(
                f"--reshard: with sync={settings['sync']} each of {settings['devices']} devices "
                "has state of its own, which cannot be resharded. Resume on as many devices as "
                "before."
            )
    nodes = networks.build_for(work).nodes
    layers = {type(node.layer) for node in nodes}
    sides = [_steps_of(settings, BatchNorm in layers) for settings in (before, now)]
    if differing := _differing(*sides):
        words = [f"{name}={one} (now {other})" for name, (one, other) in differing.items()]
        each, rest = divmod(sides[0]["global_batch"], now["devices"])
        fits = f"batch_per_device={each} keeps" if not rest else "no batch_per_device keeps"
        raise UsageError(
            "--reshard continues a training on other devices, and otherwise as it was: "
            f"{', '.join(words)}. Set them as before; on devices={now['devices']} {fits} the "
            "global batch."
        )
    if any(isinstance(node.layer, Attention) and node.layer.dropout for node in nodes):
        raise UsageError(
            f"--reshard: {work.network} has attention with dropout, and each device draws its own "
            "numbers, which cannot be resharded. Resume on as many devices as before."
        )
    if work.accumulation_steps > 1 and not layers.isdisjoint((BatchNorm, Dropout)):
        raise UsageError(
            f"--reshard: {work.network} has batch normalization or dropout, whose micro-batches "
            "(accumulation_steps) would have other samples on other devices. Resume on as many "
            "devices as before."
        )
    if Dropout in layers and not now["deterministic"]:
        raise UsageError(
            f"--reshard: {work.network} has dropout, and each device draws its own numbers, which "
            "cannot be resharded. Resume on as many devices as before; a training begun with "
            "--set deterministic=true can be resharded."
        )
    if work.rate_scaling != "none":
        raise UsageError(
            f"--reshard with rate_scaling={work.rate_scaling} changes the learning rate with the "
            "number of devices. Leave it out, and set learning_rate to the rate of the training."
        )


def _steps_of(settings: Mapping[str, Any], normalizes: bool) -> dict[str, Any]:
    """The settings that decide the steps, whatever the devices. One device normalizes over the
    global batch, and an exact mean of gradients is what one device computes."""
    one = settings["devices"] == 1
    steps = {name: value for name, value in settings.items() if name not in _OF_DEVICES}
    steps["global_batch"] = settings["batch_per_device"] * settings["devices"]
    exact = one or not strategy(settings["sync"]).low_precision
    steps["sync"] = "all-reduce" if exact else "all-reduce-16"
    if normalizes:
        steps["batch_norm"] = "global" if one else settings["batch_norm"]
    return steps


def read(folder: Path) -> Manifest | None:
    """The manifest; None if there is none. DataError if it is damaged."""
    path = folder / MANIFEST
    try:
        text = read_patiently(lambda: read_regular_file(path)).decode()
        manifest = from_plain(Manifest, json.loads(text))
        for name in ("devices", "batch_per_device"):
            if type(manifest.settings.get(name)) is not int:
                raise ValueError(f"{name} is missing")
        return manifest
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, RecursionError) as error:
        raise DataError(
            f"'{path}' is damaged, so nothing tells which training the checkpoints are of. Move "
            "them away, or choose another folder with --checkpoints."
        ) from error


def _write(folder: Path, manifest: Manifest) -> None:
    write_durably(folder / MANIFEST, json.dumps(asdict(manifest), indent=2) + "\n")
