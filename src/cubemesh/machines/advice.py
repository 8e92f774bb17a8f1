"""Advice: properties of this machine that are likely to slow down training.

Host memory against GPU memory, by DGX-1 V100 white paper [002], section 2.1: a DGX-1 has four times
the memory of its GPUs, which gives "greater flexibility for managing in-memory working sets"; twice
"would normally be sufficient to manage background data moves and double buffering". Below twice,
input may wait for memory.
"""

from __future__ import annotations

from cubemesh.schema import Machine, Warning, warn
from cubemesh.units import format_bytes, format_number

ENOUGH = 2.0
"""Host memory as a multiple of GPU memory that would normally be enough."""


def advice(machine: Machine) -> tuple[Warning, ...]:
    """Advice about the machine; empty if there is none.

    A rule that needs an unknown figure gives no warning; the figure is in `Machine.unknown`.
    """
    times = machine.host_to_gpu_memory
    if times is None or times >= ENOUGH:
        return ()
    gpu = sum(g.memory_bytes or 0 for g in machine.gpus)
    limit, installed = machine.memory.cgroup_limit_bytes, machine.memory.installed_bytes
    limited = limit is not None and installed is not None and limit < installed
    warning = warn(
        "low-host-memory",
        f"{'The control group grants' if limited else 'The host has'} {format_bytes(times * gpu)} "
        f"of memory; the GPUs have {format_bytes(gpu)}: {format_number(times)} times as much, "
        f"where {format_number(ENOUGH)} times is normally enough and a DGX-1 has 4.",
        f"{'Raise the memory limit' if limited else 'Add memory'} to "
        f"{format_bytes(ENOUGH * gpu)}, or load less in advance: fewer batches in "
        "flight, and no data set in memory.",
    )
    return (warning,)
