"""Step of a layout: its operations, its bubble, its communication, and what becomes larger."""

from dataclasses import replace

import pytest

from cubemesh.errors import UsageError
from cubemesh.forecast.calibration import defaults
from cubemesh.forecast.transformers.factors import FITTED, STYLES, fitted_values, listed
from cubemesh.forecast.transformers.groups import Groups, group_fabric
from cubemesh.forecast.transformers.step import (
    device_rates,
    forecast_layout,
    plan_work,
    step_parts,
)
from cubemesh.machines.catalogue.systems import system
from transformer_plans import plan

BODY = "gpt:hidden=12288,layers=96,heads=96,vocabulary=1"
IDEAL = {**dict.fromkeys(FITTED, 1.0), "step_s": 0.0}
IDEAL |= {name: 0.0 for name in FITTED if name.startswith("exposed")}
"""All of the peak, and all communication hidden."""


def ideal_parts(one):
    """Parts on a device whose memory takes no time."""
    rates = replace(device_rates(one.system, one.precision), bytes_per_s=1e30)
    work = plan_work(one, Groups(one.system, defaults()), rates)
    return step_parts(one, work, rates, IDEAL), rates


def test_operations_are_those_of_megatrons_equation_3():
    """Without recomputation 72 B s l h² (1 + s / 6h + V / 12lh), at the peak of 312 TFLOP/s."""
    one = plan("dp=1", attention="unfused", global_batch=4, style="megatron")
    found, rates = ideal_parts(one)
    batch, s, layers, h, v = 4, 2048, 96, 12288, 51200
    flops = 72 * batch * s * layers * h**2 * (1 + s / (6 * h) + v / (12 * layers * h))
    assert rates.matrix_flops_per_s == 312e12
    assert found["forward"] + found["backward"] == pytest.approx(flops / 312e12)


def test_full_recomputation_adds_the_layers_forward():
    """96 B s l h² (1 + s / 6h + V / 16lh): four passes of the layers, three of the output."""
    one = plan("dp=1", attention="unfused", recompute="full", style="megatron")
    found, _ = ideal_parts(one)
    s, layers, h, v = 2048, 96, 12288, 51200
    flops = 96 * s * layers * h**2 * (1 + s / (6 * h) + v / (16 * layers * h))
    assert sum(found[part] for part in ("forward", "backward", "recompute")) == pytest.approx(
        flops / 312e12
    )


def test_selective_recomputation_adds_attention():
    """One forward of attention's 4 B s² h operations in each layer (arXiv:2205.05198)."""
    one = plan("dp=1", attention="unfused", recompute="selective", style="megatron")
    found, _ = ideal_parts(one)
    s, layers, h = 2048, 96, 12288
    assert found["recompute"] == pytest.approx(4 * s * s * h * layers / 312e12)


def test_fused_causal_attention_computes_half_of_the_pairs_and_again_in_backward():
    fused, _ = ideal_parts(plan("dp=1", network=BODY))
    unfused, _ = ideal_parts(plan("dp=1", network=BODY, attention="unfused"))
    pairs = 4 * 2048 * 2048 * 12288 * 96 / 312e12
    assert unfused["forward"] - fused["forward"] == pytest.approx(pairs / 2)
    assert unfused["backward"] - fused["backward"] == pytest.approx((2 - 2.5 / 2) * pairs)


def test_the_first_flash_attention_takes_longer_than_the_second():
    first = forecast(plan("dp=8", network="gpt3-1.3b", attention="flash-v1", style="fsdp"))
    second = forecast(plan("dp=8", network="gpt3-1.3b", style="fsdp"))
    more = 1 / fitted_values()["flash_v1"] - 1
    pairs = 3.5 * 2 * 2048 * 2048 * 2048 * 24 / 312e12 / fitted_values()["ampere_attention"]
    assert first.step_s - second.step_s == pytest.approx(pairs * more, rel=1e-6)


def test_llama_operation_by_operation_moves_more_than_compiled():
    """RMSNorm in 32 bits: 18 accesses of a value instead of 2, and so on."""
    rates = device_rates(system("selene"), "bf16")
    groups = Groups(system("selene"), defaults())
    moved = {
        style: plan_work(plan("dp=1", network="llama2-7b", style=style), groups, rates)
        for style in ("fsdp", "fsdp-compiled")
    }
    h, f = 4096, 11008
    more = 2 * 2048 * (2 * 16 * h + 8 * 2 * h + 2 * f) / rates.bytes_per_s
    difference = moved["fsdp"].layer.elementwise_s - moved["fsdp-compiled"].layer.elementwise_s
    assert difference == pytest.approx(more)


def test_a_lower_power_limit_lowers_the_clock_by_its_cube_root():
    whole = device_rates(system("eos"), "bf16")
    limited = device_rates(replace(system("eos"), device="h100-sxm5-96gb"), "bf16")
    assert limited.matrix_flops_per_s / whole.matrix_flops_per_s == pytest.approx(
        (500 / 700) ** (1 / 3)
    )
    assert limited.peak_flops_per_s == whole.peak_flops_per_s


def test_work_is_divided_among_tensor_and_pipeline_parallel_devices():
    alone, _ = ideal_parts(plan("dp=1", network=BODY, global_batch=8))
    divided, _ = ideal_parts(plan("tp=8,pp=4", network=BODY, global_batch=8))
    assert divided["forward"] == pytest.approx(alone["forward"] / 32, rel=1e-4)


@pytest.mark.parametrize(("layout", "share"), [("pp=8", 7 / 64), ("pp=8,vp=3", 7 / 3 / 64)])
def test_the_bubble_is_that_of_the_pipeline_papers(layout, share):
    """(p - 1) / (v m) of the time without it: arXiv:2104.04473, section 2.2."""
    found, _ = ideal_parts(plan(f"tp=8,{layout}", network=BODY, global_batch=64))
    busy = found["forward"] + found["backward"] + found["tensor"]
    assert found["bubble"] == pytest.approx(share * busy, rel=1e-3)


def test_a_large_output_matrix_makes_the_last_stage_the_slowest():
    wide = "gpt:hidden=1024,layers=8,heads=8,vocabulary=1000000"
    narrow = "gpt:hidden=1024,layers=8,heads=8,vocabulary=1"
    found, _ = ideal_parts(plan("pp=8", network=wide, global_batch=8))
    other, _ = ideal_parts(plan("pp=8", network=narrow, global_batch=8))
    output = 6 * 2048 * 1024 * (1_000_000 - 1) / 312e12
    more = found["forward"] + found["backward"] - other["forward"] - other["backward"]
    assert more == pytest.approx(8 * output, rel=1e-3)


def test_tensor_parallel_time_is_that_of_the_all_reduces():
    """Four of a layer, of 2 s b h bytes, six with full recomputation."""
    groups = Groups(system("selene"), defaults())
    one = plan("tp=8,dp=1", network=BODY)
    reduce_s = groups.seconds("all-reduce", 2 * 2048 * 12288, 8, 1)
    factors = {**fitted_values(), "exposed_tensor": 1.0}
    rates = device_rates(one.system, "bf16")
    for recompute, count in (("none", 4), ("full", 6)):
        changed = replace(one, recompute=recompute)
        found = step_parts(changed, plan_work(changed, groups, rates), rates, factors)
        assert found["tensor"] == pytest.approx(96 * count * reduce_s)


def test_groups_share_the_ports_of_a_system():
    whole = group_fabric(system("selene"), 128, 1)
    strided = group_fabric(system("selene"), 16, 8)
    assert (whole.devices_per_system, whole.systems) == (8, 16)
    assert (strided.devices_per_system, strided.systems) == (1, 16)
    assert strided.network_bytes_per_s == pytest.approx(whole.network_bytes_per_s / 8)
    half = group_fabric(system("selene"), 32, 4)
    assert (half.devices_per_system, half.systems) == (2, 16)
    assert half.network_bytes_per_s == pytest.approx(whole.network_bytes_per_s / 4)


def test_a_group_beyond_a_server_needs_a_cluster():
    with pytest.raises(UsageError, match="hgx-h100 has 8 devices; for more, name a cluster"):
        group_fabric(system("hgx-h100"), 16, 1)


def slowed(one, gbit_per_s):
    """The plan with another network between systems."""
    cluster = one.system.cluster
    network = replace(cluster.network, gbit_per_s=gbit_per_s)
    return replace(one, system=replace(one.system, cluster=replace(cluster, network=network)))


def forecast(one):
    """The step of a plan."""
    return forecast_layout(one, Groups(one.system, defaults()))


def test_a_slower_network_makes_sharded_training_slower():
    fast = plan("dp=64,zero=3", network="llama2-7b", global_batch=64)
    late = forecast(slowed(fast, 1))
    assert late.parts_s["data"] > 5 * forecast(fast).parts_s["data"]
    assert late.limit == "data"


def test_sharding_within_a_system_spares_a_slow_network():
    common = {"network": "llama2-7b", "global_batch": 128, "style": "fsdp"}
    everywhere = forecast(slowed(plan("dp=128,zero=3", **common), 25))
    within = forecast(slowed(plan("dp=128,zero=3,shard=8", **common), 25))
    assert within.parts_s["data"] < everywhere.parts_s["data"]
    assert within.memory.total_bytes > everywhere.memory.total_bytes


def test_throughput_and_utilization_follow_from_the_step():
    one = plan("tp=8,pp=8,dp=16", global_batch=1536)
    found = forecast(one)
    assert found.step_s == pytest.approx(sum(found.parts_s.values()))
    assert found.tokens_per_s == pytest.approx(1536 * 2048 / found.step_s)
    flops = one.network.token_flops(2048) * found.tokens_per_s / 1024
    assert found.utilization == pytest.approx(flops / 312e12)
    assert 0.3 < found.utilization < 0.8


def test_eight_bits_are_faster_than_sixteen_but_not_twice():
    one = plan("tp=8,pp=8,dp=2", machine="eos", global_batch=256)
    groups = Groups(one.system, defaults())
    sixteen = forecast_layout(one, groups).step_s
    eight = forecast_layout(replace(one, precision="fp8"), groups).step_s
    assert sixteen / 2 < eight < sixteen


@pytest.mark.parametrize(
    ("machine", "precision", "says"),
    [
        ("selene", "fp32", "precision of transformers"),
        ("selene", "fp8", "no peak in fp8"),
        ("dgx1-p100", "bf16", "no peak in bf16"),
    ],
)
def test_a_device_without_the_precision_is_refused(machine, precision, says):
    with pytest.raises(UsageError, match=says):
        device_rates(system(machine), precision)


def test_each_factor_is_listed_with_its_source():
    found = listed()
    assert set(FITTED) < set(found)
    assert all(factor.source for factor in found.values())
    assert {style.elementwise for style in STYLES.values()} < set(FITTED)
    for name, factor in FITTED.items():
        assert factor.least <= factor.value <= factor.most, name
