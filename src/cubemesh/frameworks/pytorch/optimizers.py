"""Which optimizer of PyTorch does a spec mean? The fused one where there is one.

    sgd       g + decay · w;  v = momentum · v + g;  w −= rate · v      Sutskever et al. 2013
    rmsprop   v = 0.99 v + 0.01 g²;  w −= rate · g / (√v + 1e-8)        Tieleman and Hinton 2012
    adam      betas 0.9 and 0.999, epsilon 1e-8                         Kingma and Ba 2015
    adamw     w −= rate · decay · w;  then as adam, without decay       Loshchilov and Hutter 2019
    lars      lars.py                                                   You et al. 2017

In the first three weight decay is added to the gradient. A fused update is one kernel over all
arrays (SGD, Adam, AdamW); RMSprop has none, and takes PyTorch's own choice between a loop and
`foreach`.
"""

from __future__ import annotations

import torch
from torch import nn, optim

from cubemesh.frameworks.pytorch.lars import Lars
from cubemesh.schema.work import NetworkWork, Training


def make_optimizer(work: NetworkWork, parameters: list[nn.Parameter]) -> optim.Optimizer | None:
    """The optimizer of `work` over `parameters`; None for work that does not train."""
    if not isinstance(work, Training):
        return None
    rate, decay = work.learning_rate, work.weight_decay
    if work.optimizer == "rmsprop":
        return optim.RMSprop(parameters, lr=rate, weight_decay=decay)
    if work.optimizer == "adam":
        return optim.Adam(parameters, lr=rate, weight_decay=decay, fused=True)
    if work.optimizer == "adamw":
        return optim.AdamW(parameters, lr=rate, weight_decay=decay, fused=True)
    if work.optimizer == "lars":
        return Lars(parameters, rate=rate, momentum=work.momentum, decay=decay)
    sgd = optim.SGD(parameters, lr=rate, momentum=work.momentum, weight_decay=decay, fused=True)
    if work.momentum:
        # Its first step would make them, and leaves them as the memory was (PyTorch 2.13) when
        # scaled gradients overflow and the step is skipped. From zero the first step is the same.
        for parameter in parameters:
            sgd.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return sgd
