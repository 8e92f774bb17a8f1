"""Figures per token of a run on sequences, from its throughput, its energy and its network.

    tokens_per_s              samples a second of all devices × tokens of a sample that count
    tokens_per_s_per_device   that by the number of devices
    energy_joules_per_token   energy of a sample by its tokens that count
    mfu_6n_percent            6 N operations a token by the dense peak of the datasheet

The convention of 6 N (Kaplan et al. 2020, arXiv:2001.08361, section 2.1): a forward and backward
pass of a token takes 6 operations a parameter, attention left out. N is the number of parameters
that a token is computed with, of a mixture those of its active experts, without tables that are
looked up only (embeddings that no product reads, learned places). Tokens are those that count:
padding, which MFU counts because it is computed, has no part in it.
"""

from __future__ import annotations

import math
from dataclasses import replace

from cubemesh.forecast.utilization import datasheet_limits
from cubemesh.networks import build_for
from cubemesh.networks.graph import Network
from cubemesh.networks.layers import Embedding, PositionEmbedding
from cubemesh.schema.record import Figure, RunRecord
from cubemesh.schema.work import Train, TrainSteps
from cubemesh.units import format_count, format_quantity


def with_token_figures(record: RunRecord) -> RunRecord:
    """`record` with the figures above; as it is where no tokens were counted."""
    found, devices = record.figures, len(record.ranks)
    rate, each = found.get("throughput_per_s"), found.get("tokens_per_sample")
    if rate is None or each is None or not each.value or not devices:
        return record
    tokens = rate.scaled(each.value, "tokens/s", rate.method)
    figures = {
        "tokens_per_s": tokens,
        "tokens_per_s_per_device": tokens.scaled(1 / devices, "tokens/s"),
    }
    energy = found.get("energy_joules_per_sample")
    if energy is not None:
        figures["energy_joules_per_token"] = energy.scaled(1 / each.value, "J/token", energy.method)
    if isinstance(record.spec.work, TrainSteps | Train) and record.spec.program.script is None:
        figures |= _mfu(record, tokens, build_for(record.spec.work))
    return replace(record, figures={**found, **figures})


def parameters_of_a_token(network: Network) -> int:
    """N above."""
    looked_up: set[str] = set()
    read: set[str] = set()
    for node in network.nodes:
        tables = isinstance(node.layer, Embedding | PositionEmbedding)
        (looked_up if tables else read).update(node.parameters.values())
    unread = sum(math.prod(network.parameters[name].shape) for name in looked_up - read)
    return network.active_parameter_count - unread


def _mfu(record: RunRecord, tokens: Figure, network: Network) -> dict[str, Figure]:
    if any(i.dtype != "integer" for i in network.inputs) or len(network.targets[0].shape) != 1:
        return {}
    limits = datasheet_limits(record).times(len(record.ranks))
    if limits.flops_per_s is None:
        return {}
    count = parameters_of_a_token(network)
    limit = format_quantity(limits.flops_per_s, "FLOP/s")
    method = f"6 × {format_count(count)} parameters a token, of {limit} ({limits.flops_source})"
    share = 100 * 6 * count / limits.flops_per_s
    return {"mfu_6n_percent": tokens.scaled(share, "%", method)}
