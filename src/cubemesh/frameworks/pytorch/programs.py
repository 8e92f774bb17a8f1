"""Which program does a request mean? The whole network on one device, or a part of it."""

from __future__ import annotations

from cubemesh.frameworks.base import BuildRequest
from cubemesh.frameworks.exchange import SplitsNetwork
from cubemesh.frameworks.pytorch.program import PyTorchProgram
from cubemesh.frameworks.pytorch.split import SplitProgram


def build(request: BuildRequest) -> PyTorchProgram:
    """The program for `request`."""
    exchange = request.exchange
    if isinstance(exchange, SplitsNetwork) and exchange.group.size > 1:
        return SplitProgram(request, exchange)
    return PyTorchProgram(request)
