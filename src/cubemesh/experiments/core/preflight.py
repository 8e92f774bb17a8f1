"""What can be known to be wrong before anything runs: names, files, impossible inputs.

A slip in a command ends it at once, with a message; only what must be tried to be known becomes an
outcome in a record.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from cubemesh import data, frameworks, networks
from cubemesh.errors import UsageError
from cubemesh.networks.precision import layer_precisions
from cubemesh.parallel.strategies import strategy
from cubemesh.schema import NetworkWork, RunSpec, Train


def check(specs: Iterable[RunSpec]) -> None:
    """Raise UsageError or DataError for the first spec that names what there is not, whose data
    cannot be read, or whose network cannot take its input."""
    seen = set()
    for spec in specs:
        _check_script(spec)
        strategy(spec.program.sync)
        work = spec.work
        if not isinstance(work, NetworkWork):
            continue
        if isinstance(work, Train) and spec.program.data_location == "device":
            raise UsageError(
                "data_location=device feeds one batch again and again, which trains nothing to an "
                "accuracy. Leave data_on out here."
            )
        batch = work.batch_per_device
        layers = spec.program.precision_of
        key = (dataclasses.replace(work, seed=0), layers)
        if key in seen:
            continue
        seen.add(key)
        network = networks.build_for(work)
        layer_precisions(network, layers)
        data.check(work.data, work.data_path, batch)
        data.check_feeds(work.data, network)
        classes = network.targets[0].classes or 0
        needed = data.SOURCES[work.data].classes
        if needed is not None and classes < needed:
            raise UsageError(
                f"{work.data} has {needed} classes and {work.network} was given {classes}. "
                f"Leave classes out, or set classes={needed} or more."
            )


def _check_script(spec: RunSpec) -> None:
    framework, script = spec.program.framework, spec.program.script
    read = frameworks.entry(framework).read_script
    if script is None:
        return
    if read is None:
        raise UsageError(f"{framework} computes for real and takes no script; framework=null does.")
    read(script)
