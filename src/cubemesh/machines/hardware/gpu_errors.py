"""GPU errors: ECC counters, replaced memory rows, and Xid errors of the driver.

Counters are NVML's (NVML API reference guide): errors since the driver was loaded (volatile) and
over the life of the GPU (aggregate); rows of memory remapped by Ampere and later, pages retired by
earlier GPUs. GPUs without ECC answer none of them.

An Xid is an error that the driver writes to the kernel's log with the GPU's PCI address (NVIDIA,
Xid Errors): `NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.` It is read from
/dev/kmsg, which has the messages since the kernel started, else from the end of the log files.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cubemesh.machines.files import Tree
from cubemesh.schema import Gpu, GpuErrors, XidCount

KERNEL_LOG = "/dev/kmsg"
LOG_FILES = ("/var/log/kern.log", "/var/log/messages", "/var/log/syslog")
MOST_LOG_BYTES = 8 << 20
"""Read at most, the newest of a log file."""
RECORD_BYTES = 8192
"""Size of the largest record of /dev/kmsg (CONSOLE_EXT_LOG_MAX of the kernel)."""

_XID = re.compile(
    rb"NVRM: Xid \((?:PCI:)?([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})[^)]{0,8}\): (\d{1,4})"
)


def read_gpu_errors(nvml: Any, handle: Any) -> GpuErrors | None:
    """The counters of one GPU; None where NVML answers none of them."""

    def ask(name: str, *arguments: Any) -> Any:
        query: Callable[..., Any] | None = getattr(nvml, name, None)  # of a newer NVML
        if query is None:
            return None
        with contextlib.suppress(nvml.NVMLError):
            return query(handle, *arguments)
        return None

    def ecc(kind: int, counter: int) -> int | None:
        count = ask("nvmlDeviceGetTotalEccErrors", kind, counter)
        return None if count is None else int(count)

    corrected, uncorrected = (
        nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED,
        nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
    )
    mode = ask("nvmlDeviceGetEccMode")
    rows = ask("nvmlDeviceGetRemappedRows") or (None,) * 4
    found = GpuErrors(
        ecc_enabled=None if mode is None else bool(mode[0]),
        corrected=ecc(corrected, nvml.NVML_VOLATILE_ECC),
        uncorrected=ecc(uncorrected, nvml.NVML_VOLATILE_ECC),
        corrected_lifetime=ecc(corrected, nvml.NVML_AGGREGATE_ECC),
        uncorrected_lifetime=ecc(uncorrected, nvml.NVML_AGGREGATE_ECC),
        remapped_rows_corrected=rows[0],
        remapped_rows_uncorrected=rows[1],
        remap_pending=None if rows[2] is None else bool(rows[2]),
        remap_failed=None if rows[3] is None else bool(rows[3]),
        retired_pages=_retired_pages(nvml, ask),
    )
    return None if found == GpuErrors() else found


def _retired_pages(nvml: Any, ask: Callable[..., Any]) -> int | None:
    causes = (
        nvml.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS,
        nvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR,
    )
    pages = [ask("nvmlDeviceGetRetiredPages", cause) for cause in causes]
    known = [len(found) for found in pages if found is not None]
    return sum(known) if known else None


def with_xids(tree: Tree, gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """The GPUs with the Xid errors in the kernel's log; a note where it cannot be read."""
    if not gpus:
        return ()
    counts = read_xids(tree)
    if counts is None:
        tree.missing(
            "Xid errors of the GPUs",
            "the kernel's log is not readable by this user (sysctl kernel.dmesg_restrict)",
        )
        return tuple(gpus)
    return tuple(_with_xids(gpu, counts) for gpu in gpus)


def _with_xids(gpu: Gpu, counts: Mapping[tuple[str, int], int]) -> Gpu:
    own = (gpu.pci_address or "").partition(".")[0]
    found = sorted((code, n) for (address, code), n in counts.items() if address == own)
    if not found:
        return gpu
    xids = tuple(XidCount(code=code, count=n) for code, n in found)
    return replace(gpu, errors=replace(gpu.errors or GpuErrors(), xids=xids))


def read_xids(tree: Tree) -> Mapping[tuple[str, int], int] | None:
    """(PCI address without the function, Xid) → its messages in the kernel's log; None where no log
    can be read."""
    for path in (KERNEL_LOG, *LOG_FILES):
        with contextlib.suppress(OSError):
            return Counter(
                (_address(match[1]), int(match[2]))
                for part in _log(f"{tree.root}/{path}")
                for match in _XID.finditer(part)
            )
    return None


def _address(found: bytes) -> str:
    """`0000:3b:00` of `00000000:3B:00`."""
    domain, _, rest = found.decode().lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _log(path: str) -> Iterator[bytes]:
    """The newest `MOST_LOG_BYTES` of a log, in parts that end with a line. /dev/kmsg gives a record
    a read, and EAGAIN after the last; EPIPE where records were overwritten meanwhile."""
    log = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        with contextlib.suppress(OSError):  # a device has no end to seek from
            size = os.fstat(log).st_size
            os.lseek(log, max(0, size - MOST_LOG_BYTES), os.SEEK_SET) if size else None
        rest, read = b"", 0
        while read <= MOST_LOG_BYTES:
            try:
                part = os.read(log, RECORD_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.EPIPE:
                    raise
                continue
            if not part:
                break
            read += len(part)
            whole, newline, rest = (rest + part).rpartition(b"\n")
            if len(rest) > RECORD_BYTES:  # no text of a log
                rest = b""
            yield whole + newline
        yield rest
    finally:
        os.close(log)
