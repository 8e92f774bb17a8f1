"""Memory of a device against the equations of ZeRO's and Megatron-LM's papers."""

from dataclasses import replace

import pytest

from cubemesh.forecast.transformers.memory import (
    layer_activation_bytes,
    least_recomputation,
    memory,
    stage_parameters,
)
from transformer_plans import GPT_22B, GPT_175B, plan

SMALL = "gpt:hidden=64,layers=8,heads=4,vocabulary=8"


@pytest.mark.parametrize(
    ("zero", "bytes_per_parameter"), [(0, 16), (1, 4 + 12 / 64), (2, 2 + 14 / 64)]
)
def test_states_are_those_of_the_zero_paper(zero, bytes_per_parameter):
    """arXiv:1910.02054, figure 1: 120, 31.4 and 16.6 GB of 7.5 billion parameters on 64 devices."""
    found = memory(plan(f"dp=64,zero={zero}", network="gpt3-6.7b", style="fsdp"))
    states = found.weight_bytes + found.gradient_bytes + found.optimizer_bytes
    parameters = plan(network="gpt3-6.7b").network.parameters(2048)
    last_norm = 2 * 4096
    assert states == pytest.approx(bytes_per_parameter * (parameters - last_norm))


def test_sharded_weights_leave_two_gathered_layers():
    """Stage 3 of the same figure: 16 / 64 bytes."""
    one = plan("dp=64,zero=3", network="gpt3-6.7b", style="fsdp")
    found = memory(one)
    states = found.weight_bytes + found.gradient_bytes + found.optimizer_bytes
    gathered = 2 * 2 * one.network.layer_parameters
    parameters = stage_parameters(one, 32, first=True, last=True)
    assert states == pytest.approx(parameters * 16 / 64 + gathered)


def test_a_sharded_pipeline_keeps_its_stages_weights():
    sharded = memory(plan("pp=2,dp=8,zero=3", network=SMALL))
    whole = memory(plan("pp=2,dp=8,zero=0", network=SMALL))
    assert sharded.weight_bytes > whole.weight_bytes
    assert sharded.optimizer_bytes == pytest.approx(whole.optimizer_bytes / 8)


@pytest.mark.parametrize(
    ("layout", "recompute", "bytes_per_value"),
    [
        ("tp=1", "none", lambda t, scores: 34 + scores),  # equation 1
        ("tp=8,sp=0", "none", lambda t, scores: 10 + 24 / t + scores / t),  # equation 2
        ("tp=8", "none", lambda t, scores: (34 + scores) / t),  # equation 4
        ("tp=8", "selective", lambda t, scores: 34 / t),  # equation 6
    ],
)
def test_a_layers_activations_are_those_of_the_recomputation_paper(
    layout, recompute, bytes_per_value
):
    """V. Korthikanti et al., arXiv:2205.05198: of s b h values, 5 a s / h bytes of scores."""
    one = plan(
        layout,
        network=GPT_22B,
        micro_batch=4,
        global_batch=4,
        attention="unfused",
        recompute=recompute,
        style="megatron",
    )
    values = 2048 * 4 * 6144
    scores = 5 * 64 * 2048 / 6144
    expected = values * bytes_per_value(one.layout.tp, scores)
    assert layer_activation_bytes(one) == pytest.approx(expected)


def test_the_first_stage_holds_as_many_micro_batches_as_stages():
    """1F1B: p micro-batches of L / p layers; interleaved 1 + (p - 1) / (p v) times as much."""
    shapes = {"tp=8,pp=8,dp=1": 1.0, "tp=8,pp=8,dp=1,vp=3": 1 + 7 / 24}
    for layout, factor in shapes.items():
        one = plan(layout, global_batch=64)
        assert memory(one).activation_bytes == pytest.approx(
            96 * layer_activation_bytes(one) * factor
        )


def test_fewer_micro_batches_than_stages_hold_less():
    one = plan("tp=8,pp=8,dp=1", global_batch=2)
    assert memory(one).activation_bytes == pytest.approx(2 * 12 * layer_activation_bytes(one))


def test_full_recomputation_keeps_inputs_and_one_layer():
    """2 s b h bytes of each of 96 layers; logits of one stage are 6 bytes each."""
    one = plan("tp=8,sp=0", recompute="full")
    whole = layer_activation_bytes(one)
    inputs = 2 * 2048 * 12288
    logits = 6 * 2048 * 51200 / 8
    assert memory(one).activation_bytes == pytest.approx(96 * inputs + whole + logits)


def test_gpt3_on_64_devices_needs_what_is_computed_by_hand():
    """175 billion parameters over tp=8, pp=8: the first stage has 12 layers and the embedding."""
    one = plan("tp=8,pp=8,dp=1,zero=0", global_batch=64, style="megatron")
    layer = 12 * 12288**2 + 13 * 12288
    parameters = (12 * layer + (51200 + 2048) * 12288) / 8
    found = memory(one)
    assert found.weight_bytes == pytest.approx(2 * parameters)
    assert found.gradient_bytes == pytest.approx(4 * parameters)
    assert found.optimizer_bytes == pytest.approx(12 * parameters)


def test_no_more_is_recomputed_than_the_memory_asks():
    one = plan("tp=8,pp=8,dp=1,zero=0", global_batch=64)
    needed = {n: memory(replace(one, recompute="full", recompute_layers=n)) for n in (40, 41)}
    room = (needed[40].total_bytes + needed[41].total_bytes) / 2
    assert least_recomputation(one, room).recompute_layers == 41
    assert least_recomputation(one, memory(one).total_bytes).recompute == "none"
    assert least_recomputation(one, 1.0).recompute_layers == 96


def test_llama_has_less_activations_than_an_ungated_network_of_its_width():
    """10 h + 4 k d + 6 f bytes of a token, of 8,192 and 28,672 with 8 of 64 heads of keys."""
    one = plan("dp=1", network="llama3-70b", machine="eos", sequence_length=8192)
    a_token = 10 * 8192 + 4 * 1024 + 6 * 28672
    assert layer_activation_bytes(one) == pytest.approx(8192 * a_token)


def test_the_largest_stage_is_the_last_where_logits_are():
    wide = "gpt:hidden=64,layers=2,heads=4,vocabulary=1000000"
    found = memory(plan("pp=2", network=wide))
    assert found.activation_bytes > 6 * 2048 * 1_000_000


def test_gpt3_without_parallelism_needs_terabytes():
    assert memory(plan("zero=0", network=GPT_175B)).total_bytes > 16 * 174e9
