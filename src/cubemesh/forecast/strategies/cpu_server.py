"""Time of a step's exchange with a parameter server in the memory of a CPU
(`parameter-server-cpu`), and the traffic in that memory.

Of n ranks with S bytes of gradients, one part after the other (frameworks/pytorch/distributed/
cpu_server.py); gloo's copies are those of PyTorch's ProcessGroupGloo (`AsyncGatherWork`):

    link      gradients of each GPU to its host's memory, weights back                       2 S
    TCP       gather: n - 1 times S arrive at one process, over gloo; broadcast of the
              weights, by a binomial tree                              (n - 1 + ceil(log2 n)) S
    memory    gather: a fresh array is cleared, the server's own gradients are copied there,
              and all to rows of one buffer                                        (3 n + 2) S
              mean: rows are read, sums written, divided in place                    (n + 3) S
              update: gradient, weight and momentum read, two written                      5 S
              weights copied to be sent                                                    2 S
              ranks on CPUs: gradients and weights copied to and from one flat array      4 n S

Nothing overlaps with the passes. A server as TensorFlow had it (`copied_server_bytes`) adds arrays
as they arrive: (n + 1) S for sums and 5 S for the update, while copies go on.
"""

from __future__ import annotations

import math

from cubemesh.forecast.calibration import Calibration
from cubemesh.forecast.fabric import Fabric

UPDATE_ACCESSES = 5
"""Of SGD with momentum, by a fused kernel: gradient, weight and momentum in, two of them out."""
LINK = "device-to-host link"
TCP = "TCP between the ranks of the CPU's server (gloo)"
SUM = "sum and update on the CPU"


def server_bytes(ranks: int, size: float, on_cpus: bool = False) -> float:
    """Bytes read and written in the server's memory in a step; `on_cpus`: the ranks compute in the
    same memory."""
    gather, mean, send = 3 * ranks + 2, ranks + 3, 2
    own = 4 * ranks if on_cpus else 0
    return (gather + mean + UPDATE_ACCESSES + send + own) * size


def copied_server_bytes(devices: int, size: float) -> float:
    """The same where one process adds up the arrays of all its devices."""
    return (devices + 1 + UPDATE_ACCESSES) * size


def memory_rate(on: Fabric, known: Calibration) -> float:
    """Bytes/s that a processor of the host reads and writes: of a measured copy; else an attained
    share of its datasheet's bandwidth, or of the usual one's."""
    usual = known.factors["host_memory_bytes_per_s"]
    if usual.origin == "measured":
        return usual.value
    return known["attained_bytes"] * (on.host_memory_bytes_per_s or usual.value)


def server_parts(on: Fabric, known: Calibration, size: float, wire: float) -> dict[str, float]:
    """Seconds by limit; `wire` is the rate between systems."""
    ranks = on.devices
    tcp = known["gloo_local_bytes_per_s"]
    if on.systems > 1:
        tcp = min(tcp, wire)
    link = on.host_bytes_per_s
    return {
        LINK: 2 * size / link if link else 0.0,
        TCP: (ranks - 1 + math.ceil(math.log2(ranks))) * size / tcp,
        SUM: server_bytes(ranks, size, link is None) / memory_rate(on, known),
    }
