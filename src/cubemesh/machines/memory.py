"""Memory probe: memory of the machine, and how much this process may use.

/proc/meminfo for what the kernel manages, the control groups for their limit. The total of a
virtual machine may change: some microVMs start with a part of their memory and add more on use, and
a balloon can reserve some. The kernel knows all of it from the start, as memory blocks
(/sys/devices/system/memory, Documentation/admin-guide/mm/memory-hotplug.rst of the Linux kernel):
if these exceed the total clearly, that is recorded.
"""

from __future__ import annotations

from cubemesh.cgroups import cgroup_memory_bytes
from cubemesh.machines.files import Tree, meminfo_bytes
from cubemesh.schema import Memory
from cubemesh.units import format_bytes

BLOCKS = "/sys/devices/system/memory"

MOST_BLOCKS = 1.25
"""Size of the blocks of an ordinary machine, at most, as a multiple of its total: the rest is the
kernel's own, reserved at boot, and holes in the last block."""


def read_memory(tree: Tree) -> Memory:
    """The memory; unknown properties are noted in `tree`."""
    total = _noted(tree, "MemTotal", "total memory")
    present = _present_bytes(tree)
    if total and present and present > total * MOST_BLOCKS:
        tree.missing(
            "memory this machine will have",
            f"the total is {format_bytes(total)} so far, but the memory blocks hold "
            f"{format_bytes(present)}: the rest is added on use, or reserved by a balloon",
        )
    return Memory(
        total_bytes=total,
        available_bytes=_noted(tree, "MemAvailable", "available memory"),
        cgroup_limit_bytes=cgroup_memory_bytes(tree.root),
        swap_bytes=_noted(tree, "SwapTotal", "swap space"),
        present_bytes=present,
    )


def _noted(tree: Tree, entry: str, what: str) -> int | None:
    value = meminfo_bytes(tree, entry)
    if value is None:
        tree.missing(what, f"/proc/meminfo has no {entry}")
    return value


def _present_bytes(tree: Tree) -> int | None:
    """Total of all memory blocks in bytes; None if the kernel has no blocks.

    Not noted as unknown: the figure only says whether the total may still grow.
    """
    try:
        block = int(tree.text(f"{BLOCKS}/block_size_bytes") or "", 16)
    except ValueError:
        return None
    return len(tree.numbered(BLOCKS, "memory")) * block or None
