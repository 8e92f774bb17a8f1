"""GPU time of a call, by CUDA events around a replayed graph: without the host's launch time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def time_ms(run: Callable[[], object], calls: int = 5, times: int = 5) -> float:
    """Milliseconds of one call on the GPU: the minimum over `times` replays of a graph of `calls`
    calls. RuntimeError where the memory does not suffice or `run` cannot be captured."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            for _ in range(calls):
                run()
    except RuntimeError:
        _end_failed_capture()
        raise
    found: list[float] = []
    for _ in range(times):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end) / calls)
    return min(found)


def _end_failed_capture() -> None:
    """Capture nothing: after a capture that failed, the random number generator of PyTorch 2.11
    still expects to be captured, and every later dropout fails."""
    torch.cuda.synchronize()
    with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
        torch.zeros(1, device="cuda")


def both_passes_ms(
    forward: Callable[[], Tensor], wanted: Sequence[Tensor], grad_outputs: Sequence[Tensor] = ()
) -> tuple[float, float]:
    """(forward pass, backward pass) in milliseconds; the second is both together less the first.
    The gradient of the result is the sum of `grad_outputs`, one per reader; ones without any."""

    def both() -> None:
        with torch.enable_grad():
            result = forward()
            gradient = grad_outputs[0] if grad_outputs else torch.ones_like(result)
            for other in grad_outputs[1:]:
                gradient = gradient + other
            torch.autograd.grad(result, list(wanted), gradient)

    forward_ms = time_ms(forward)
    return forward_ms, max(time_ms(both) - forward_ms, 0.0)


def step_ms(
    forward: Callable[[], Sequence[Tensor]],
    wanted: Sequence[Tensor],
    join: Callable[[], None] = lambda: None,
) -> float:
    """Both passes together, of a function with several results; gradients of ones. `join` makes
    the current stream wait for the gradients of other streams."""

    def both() -> None:
        with torch.enable_grad():
            results = [result for result in forward() if result.requires_grad]
            ones = [torch.ones_like(result) for result in results]
            torch.autograd.grad(results, list(wanted), ones, allow_unused=True)
            join()

    return time_ms(both, calls=2)
