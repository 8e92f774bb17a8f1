"""A plan for tests, changed by keyword."""

from cubemesh.forecast.transformers.layout import TrainingPlan, read_layout
from cubemesh.machines.catalogue.systems import system
from cubemesh.networks.transformer_sizes import transformer

GPT_175B = "gpt:hidden=12288,layers=96,heads=96,vocabulary=51200"
GPT_22B = "gpt:hidden=6144,layers=48,heads=64,vocabulary=51200"


def plan(layout="dp=1", network=GPT_175B, machine="selene", **changes) -> TrainingPlan:
    """One sequence of 2,048 tokens for each of data-parallel devices, unless changed."""
    shape = read_layout(layout)
    given = {
        "micro_batch": 1,
        "global_batch": shape.dp,
        "sequence_length": 2048,
        "precision": "bf16",
        **changes,
    }
    return TrainingPlan(network=transformer(network), system=system(machine), layout=shape, **given)
