"""How long does the GPU need for a call, whatever the host takes to launch it?"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def time_ms(run: Callable[[], object], calls: int = 5, times: int = 5) -> float:
    """Milliseconds of one call on the GPU: the least of `times` replays of a graph of `calls`."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(calls):
            run()
    found: list[float] = []
    for _ in range(times):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end) / calls)
    return min(found)


def both_passes_ms(
    forward: Callable[[], Tensor], wanted: Sequence[Tensor], slopes: Sequence[Tensor] = ()
) -> tuple[float, float]:
    """(forward pass, backward pass): the second is what both take together, less the first. The
    gradient of the result is the sum of `slopes`, one for each reader; ones where none is given."""

    def both() -> None:
        with torch.enable_grad():
            result = forward()
            slope = slopes[0] if slopes else torch.ones_like(result)
            for other in slopes[1:]:
                slope = slope + other
            torch.autograd.grad(result, list(wanted), slope)

    forward_ms = time_ms(forward)
    return forward_ms, max(time_ms(both) - forward_ms, 0.0)
