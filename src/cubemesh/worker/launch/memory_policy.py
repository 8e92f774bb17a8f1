"""Memory of a process: the NUMA nodes that its pages come from, and huge pages.

    memory_policy  default      the node of the thread that touches a page first
                   interleave   all nodes in turn (`numactl --interleave=all`)
                   preferred    one node while it has memory: `numa_node`, else the first
    huge_pages     never        no transparent huge pages in this process, whatever asks for them

Set before the framework allocates anything; threads inherit both. Sources: set_mempolicy(2),
prctl(2), and Documentation/admin-guide/mm/transhuge.rst of the Linux kernel.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path

from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.schema.spec import Placement
from cubemesh.worker.launch.pinning import parse_numbers

STATUS = Path("/proc/self/status")
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
MODES = {"preferred": 1, "interleave": 3}
"""MPOL_PREFERRED and MPOL_INTERLEAVE."""
SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237, "riscv64": 237, "ppc64le": 261, "s390x": 270}
"""Architecture → number of the system call."""
_PR_SET_THP_DISABLE = 41
_WORD_BITS = 8 * ctypes.sizeof(ctypes.c_ulong)

Call = Callable[..., int]
"""Calls the C library; -1 with errno for a failure."""


def apply_memory_settings(placement: Placement) -> None:
    """Apply those of `placement` to this process; Unsupported where the machine or the kernel has
    no such choice."""
    if placement.memory_policy != "default":
        set_policy(placement.memory_policy, policy_nodes(placement, allowed_nodes()))
    if placement.huge_pages == "never":
        check_huge_pages(HUGE_PAGES)
        if _libc("prctl")(_PR_SET_THP_DISABLE, 1, 0, 0, 0):
            raise Unsupported(f"huge_pages=never: the kernel refuses it ({_last_error()}).")


def allowed_nodes(status: Path = STATUS) -> tuple[int, ...]:
    """NUMA nodes whose memory this process may use."""
    try:
        lines = status.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return (0,)
    found = next((line for line in lines if line.startswith("Mems_allowed_list:")), ":0")
    return tuple(parse_numbers(found.partition(":")[2].strip())) or (0,)


def policy_nodes(placement: Placement, nodes: Sequence[int]) -> tuple[int, ...]:
    """The nodes of the policy of `placement`, of those that are allowed; Unsupported where there is
    nothing to choose."""
    policy, node = placement.memory_policy, placement.numa_node
    if len(nodes) < 2:
        raise Unsupported(
            f"memory_policy={policy}: this process may use the memory of one NUMA node only. Leave "
            "memory_policy out."
        )
    if policy == "interleave":
        return tuple(nodes)
    if node is not None and node not in nodes:
        raise Unsupported(
            f"memory_policy=preferred with numa_node={node}: this process may use the memory of "
            f"nodes {', '.join(map(str, nodes))} only. Set numa_node to one of them."
        )
    return (nodes[0] if node is None else node,)


def set_policy(policy: str, nodes: Sequence[int], call: Call | None = None) -> None:
    """Set the memory policy of this thread, and of those that it starts."""
    number = SET_MEMPOLICY.get(platform.machine())
    if number is None:
        raise Unsupported(
            f"memory_policy={policy} is not supported on {platform.machine()}. Leave it out."
        )
    words = [0] * (max(nodes) // _WORD_BITS + 1)
    for node in nodes:
        words[node // _WORD_BITS] |= 1 << node % _WORD_BITS
    mask = (ctypes.c_ulong * len(words))(*words)
    bits = len(words) * _WORD_BITS + 1  # the kernel reads one less
    if (call or _libc("syscall"))(number, MODES[policy], mask, ctypes.c_ulong(bits)):
        raise Unsupported(
            f"memory_policy={policy}: the kernel refuses set_mempolicy ({_last_error()}), as in "
            "many containers. Leave memory_policy out."
        )


def check_huge_pages(enabled: Path) -> None:
    """Unsupported where the kernel gives no transparent huge pages anyway."""
    try:
        text = enabled.read_text(encoding="ascii", errors="replace")
    except OSError:
        text = ""
    if not text or "[never]" in text:
        found = f"{enabled} is set to never" if text else f"there is no {enabled}"
        raise Unsupported(
            f"huge_pages=never: the kernel gives no transparent huge pages here ({found}). Leave "
            "huge_pages out."
        )


def _libc(name: str) -> Call:
    function: Call = getattr(ctypes.CDLL(None, use_errno=True), name)
    return function


def _last_error() -> str:
    number = ctypes.get_errno()
    return f"{errno.errorcode.get(number, number)}: {os.strerror(number)}"
