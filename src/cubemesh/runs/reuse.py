"""Reuse of stored records: whether a record is still valid for a new run of its spec.

| the record | reused |
|---|---|
| `not_installed` | while the framework is missing; not if it was another package |
| `oom` | with a memory limit set, or where the whole machine is too small |
| of a training with checkpoints or event files | while those files exist |
| any other | always |

Its key (machine, software, code) is the same already.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from cubemesh.runs.devices import gpus_of
from cubemesh.schema.machine import Machine
from cubemesh.schema.outcome import Status
from cubemesh.schema.record import RunRecord
from cubemesh.training.checkpoint import steps_in
from cubemesh.training.tensorboard import event_files


def is_reusable(record: RunRecord, machine: Machine, installed: Callable[[str], bool]) -> bool:
    """Whether the record is still valid; `installed` checks a framework by name."""
    spec, status = record.spec, record.outcome.status
    if status is Status.NOT_INSTALLED:
        # A framework on PYTHONPATH alone has no version: installing it leaves the key as it was.
        return not installed(spec.program.framework)
    if spec.checkpointing.checkpoints is not None or spec.checkpointing.tensorboard is not None:
        return record.ok and _files_exist(record)
    if status is Status.OOM and spec.budget.memory_limit_bytes is None:
        return _is_too_small(machine, record)
    return True


def _is_too_small(machine: Machine, record: RunRecord) -> bool:
    """Whether the whole machine is too small: memory in use then may be free now."""
    gpus = gpus_of(record.spec, machine, os.environ)
    has = gpus[0].memory_bytes if gpus else machine.memory.usable_bytes
    needs = record.outcome.facts.get("forecast_bytes")
    return has is not None and needs is not None and bool(needs > has)


def _files_exist(record: RunRecord) -> bool:
    """Whether the training's last checkpoint is the newest in its folder, and its event files
    exist."""
    checkpointing = record.spec.checkpointing
    if checkpointing.checkpoints is not None:
        try:
            newest = max(steps_in(Path(checkpointing.checkpoints)), default=None)
        except OSError:
            return False
        if newest != _last_step(record):
            return False
    return checkpointing.tensorboard is None or bool(event_files(Path(checkpointing.tensorboard)))


def _last_step(record: RunRecord) -> int:
    """Last step of a training."""
    made = sum(w.steps for w in record.windows if w.rank == 0 and w.phase != "evaluate")
    return made + round(record.figure("resumed_at_step") or 0)
