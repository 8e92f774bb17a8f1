"""Which optimizer of PyTorch does a spec mean? The fused one where there is one.

    sgd       g + decay · w;  v = momentum · v + g;  w −= rate · v      Sutskever et al. 2013
    rmsprop   v = 0.99 v + 0.01 g²;  w −= rate · g / (√v + 1e-8)        Tieleman and Hinton 2012
    adam      betas 0.9 and 0.999, epsilon 1e-8                         Kingma and Ba 2015

Weight decay is added to the gradient in all three. A fused update is one kernel over all arrays
(SGD, Adam); RMSprop has none, and takes PyTorch's own choice between a loop and `foreach`.
"""

from __future__ import annotations

from torch import nn, optim

from cubemesh.model.spec import NetworkWork, Train, TrainSteps


def make_optimizer(work: NetworkWork, parameters: list[nn.Parameter]) -> optim.Optimizer | None:
    """The optimizer of `work` over `parameters`; None for work that does not train."""
    if not isinstance(work, (TrainSteps, Train)):
        return None
    rate, decay = work.learning_rate, work.weight_decay
    if work.optimizer == "rmsprop":
        return optim.RMSprop(parameters, lr=rate, weight_decay=decay)
    if work.optimizer == "adam":
        return optim.Adam(parameters, lr=rate, weight_decay=decay, fused=True)
    return optim.SGD(parameters, lr=rate, momentum=work.momentum, weight_decay=decay, fused=True)
