"""Links between GPUs, and between GPUs and the host, measured in one process that uses all of them.

`copies.py` has the copy engines, `peer_access.py` loads, stores and atomics of kernels,
`page_migration.py` managed memory; `driver.py` the functions of CUDA that PyTorch does not offer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.frameworks.pytorch.links import copies, page_migration, peer_access
from cubemesh.schema.collective import LinkRate
from cubemesh.schema.machine import Unknown
from cubemesh.schema.warning import Warning
from cubemesh.schema.work import Ceiling

__all__ = ["measure_links"]


def measure_links(
    work: Ceiling, devices: Sequence[str], processors: Sequence[Sequence[int]]
) -> Iterator[LinkRate | Unknown | Warning]:
    """See `SupportsLinks`."""
    if any(torch.device(device).type != "cuda" for device in devices):
        raise Unsupported(
            f"operation={work.operation} needs a GPU, and this run is on the CPU. Memory of a CPU "
            "is measured by operation=copy."
        )
    operations = {
        "links": copies.measure,
        "peer_access": peer_access.measure,
        "page_migration": page_migration.measure,
    }
    numbers = [torch.device(device).index or 0 for device in devices]
    yield from operations[work.operation](work.size, numbers, processors)
