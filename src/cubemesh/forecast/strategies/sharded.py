"""What FSDP2 (`fully_shard`) adds to a step besides collectives: copies, and time of the host.

Of weights of G bytes in fp32, over n devices; a gathered weight has w G bytes, w = 1/2 where the
network computes in 16-bit weights (PyTorch, torch/distributed/fsdp/_fully_shard/
_fsdp_collectives.py), bytes read and written:

    gather    on a stream of its own: cast of the own rows, w < 1          (1 + w) G / n
              and rows to the message                                          2 w G / n
              before the pass: message to whole arrays                         2 w G
    reduce    after the pass: gradients to the message, in fp32              (w + 1) G
    saved     w < 1: autocast's casts of weights and of gradients        - 2 (1 + w) G

Those before and after a pass are exposed. The host runs Python and dispatches operations for each
unit and each of its parameters: before the forward pass (gather), before the backward pass where
weights were freed (stage 3), after it (reduce), and for each gradient in the update. These were
measured as processor time without a GPU (benchmarks/sharding_host_time.py). Added are the launches
of a gather (cast, copy, collective, copy) and of a reduction (copy, collective), each as long as
one of a layer. What units share, such as tied embeddings, belongs to the root, which is gathered
first and reduced last.
"""

from __future__ import annotations

from cubemesh.forecast.calibration import Calibration
from cubemesh.forecast.launch_overhead import SHARES, HostWork
from cubemesh.networks.graph import Network, sharded_units

COPIES = "copies of gathered weights and gradients"
LAUNCHES = {"gather": 4, "gather_again": 4, "reduce": 2}
"""Of the device, for a unit."""


def exposed_copies(weights: float, gathers: int, gathered: float) -> float:
    """Bytes read and written by copies that no pass hides, of fp32 weights with so many bytes,
    which are gathered so many times a step at `gathered` of their bytes; less the casts of
    autocast, which are not made."""
    saved = 2 * (1 + gathered) if gathered < 1 else 0.0
    return weights * max(0.0, gathers * 2 * gathered + gathered + 1 - saved)


def sharded_host_work(network: Network, zero_stage: int, known: Calibration) -> HostWork:
    """Seconds of the host in a step of ZeRO stage 2 or 3."""
    launch_s = SHARES[0] * known["launch_layer_s"]  # a layer is launched once in a forward pass

    def cost(what: str, parameters: int) -> float:
        unit_s, each_s = (known[f"sharded_{what}_{of}_s"] for of in ("unit", "parameter"))
        return unit_s + parameters * each_s + LAUNCHES[what] * launch_s

    units = sharded_units(network)
    own = [unit for unit in units if unit.parameters and not unit.shares]
    of_root = len(network.parameters) - sum(len(unit.parameters) for unit in own)
    place = {node.name: number for number, node in enumerate(network.nodes)}
    forward = [0.0] * len(network.nodes)
    backward = [0.0] * len(network.nodes)  # by node, in the order of the forward pass
    forward[0] += cost("gather", of_root)
    for unit in own:
        first, last = place[unit.nodes[0]], place[unit.nodes[-1]]
        parameters = len(unit.parameters)
        forward[first] += cost("gather", parameters)
        if zero_stage == 3 and unit is not own[-1]:  # the last is not freed
            backward[last] += cost("gather_again", parameters)
        backward[first] += cost("reduce", parameters)
    read_s = len(network.parameters) * known["sharded_read_parameter_s"]
    return HostWork(
        forward=tuple(forward),
        backward=tuple(reversed(backward)),
        update_s=cost("reduce", of_root) + read_s,
    )
