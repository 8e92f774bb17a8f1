"""What programs with arrays on the host need for `SupportsWeightInspection`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cubemesh.batches import Array
from cubemesh.networks.graph import Network

_WORDS = {2: np.int16, 4: np.int32, 8: np.int64}


def fingerprint(arrays: Mapping[str, Array]) -> int:
    """Checksum: the sum of all arrays' bits as integers, each array times its own odd number. One
    changed bit changes its array's sum by a power of two, and so the total."""
    return sum(
        int(np.ascontiguousarray(array).view(_WORDS[array.itemsize]).sum(dtype=np.int64))
        * (2 * place + 1)
        for place, array in enumerate(arrays.values())
    )


def first_nonfinite(
    network: Network, weights: Mapping[str, Array], finite_outputs: Mapping[str, bool]
) -> str:
    """See `SupportsWeightInspection`; `finite_outputs` has for each node whether its output is
    finite."""
    for node in network.nodes:
        for role, name in node.parameters.items():
            if not np.isfinite(weights[name]).all():
                return f"the {role} of {node.name}"
    for node in network.nodes:
        if not finite_outputs[node.name]:
            return f"the output of {node.name}"
    return ""
