"""Fast convolution: multiplications saved by Winograd and FFT algorithms.

Costs count the operations of the definition of a convolution. Libraries have faster algorithms for
kernels of 3 × 3 and more with stride 1:

    Winograd, F(4 × 4, 3 × 3)   4 times fewer       (A. Lavin, S. Gray, CVPR 2016)
    FFT over tiles of 32 × 32   a b (33 − a)(33 − b) / (4 · 32 · 17) times fewer for a kernel of
                                a × b: a tile gives (33 − a)(33 − b) results and takes a complex
                                product of 4 multiply-adds at each of 32 · 17 frequencies
                                (N. Vasilache et al., ICLR 2015)

Transforms are not counted, so this is a bound: a rate above a device's peak is *explained* if the
operations of the best algorithm are below it, otherwise not. The three passes of training are
convolutions of the same kernel with the same savings.
"""

from __future__ import annotations

from dataclasses import dataclass

from cubemesh.networks.cost import costs
from cubemesh.networks.graph import Network
from cubemesh.networks.layers import Convolution, Pair
from cubemesh.schema.warning import Warning, warn

_TILE = 32
_FREQUENCIES = 32 * 17
"""Of a real tile: the other half is their mirror image."""
_COMPLEX = 4


@dataclass(frozen=True, kw_only=True)
class Operations:
    """Matrix operations of a pass, as counted and as few as a fast algorithm leaves."""

    counted: float
    least: float

    def __add__(self, other: Operations) -> Operations:
        return Operations(counted=self.counted + other.counted, least=self.least + other.least)

    def __mul__(self, times: float) -> Operations:
        return Operations(counted=self.counted * times, least=self.least * times)


@dataclass(frozen=True, kw_only=True)
class PassOperations:
    """Those of both passes of training."""

    forward: Operations
    backward: Operations

    @property
    def both(self) -> Operations:
        """Of a training step, without the update."""
        return self.forward + self.backward


def saving(kernel: Pair, stride: Pair = (1, 1)) -> float:
    """The factor by which a fast algorithm reduces a convolution's multiplications; 1 if there
    is none."""
    if stride != (1, 1):
        return 1.0
    a, b = kernel
    fft = a * b * (_TILE + 1 - a) * (_TILE + 1 - b) / (_COMPLEX * _FREQUENCIES)
    winograd = 4.0 if kernel == (3, 3) else 1.0
    return max(1.0, fft if max(kernel) <= _TILE else 1.0, winograd)


def operations(network: Network, batch: int = 1) -> PassOperations:
    """What training on `batch` samples takes, as counted and at the least."""
    savings = {
        node.name: saving(node.layer.kernel, node.layer.stride)
        for node in network.nodes
        if isinstance(node.layer, Convolution) and node.layer.dilation == (1, 1)
    }
    forward = backward = Operations(counted=0.0, least=0.0)
    for name, cost in costs(network, batch).items():
        times = savings.get(name, 1.0)
        ahead, back = cost.forward.matrix_flops, cost.backward.matrix_flops
        forward += Operations(counted=ahead, least=ahead / times)
        backward += Operations(counted=back, least=back / times)
    return PassOperations(forward=forward, backward=backward)


def above_peak(
    share: float, done: Operations, what: str, peak: str, *, at_least: bool = False
) -> Warning | None:
    """The warning if `what` reached more than 1 times `peak` (`share`, or `at_least` so much),
    with the operations `done`; None otherwise."""
    if share <= 1:
        return None
    least = done.least / done.counted
    reached = f"{'at least ' if at_least else ''}{100 * share:.0f} %"
    cause = f"{what} reaches {reached} of {peak}: "
    if share * least <= 1:
        cause += (
            "convolutions of 3×3 and more can run by Winograd's or an FFT algorithm, which need "
            f"as little as {100 * least:.0f} % of the operations that are counted."
        )
        return warn(
            "above-peak", cause, "Compare like with like by it; it is not a fraction of a peak."
        )
    cause += (
        f"no fast algorithm explains this: they need {100 * least:.0f} % of the operations "
        "at the least."
    )
    return warn("above-peak", cause, "Check the device, the precision and the input size.")
