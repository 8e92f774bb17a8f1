"""Layouts: what is read, and what cannot be."""

import pytest

from cubemesh.errors import UsageError
from cubemesh.forecast.transformers.layout import Layout, check_plan, read_layout
from transformer_plans import plan


def test_a_layout_is_read_and_shown():
    found = read_layout("tp=8, pp=4,dp=2,vp=3,zero=0")
    assert found == Layout(tp=8, pp=4, dp=2, vp=3, zero=0)
    assert found.devices == 64
    assert read_layout(str(found)) == found
    assert str(Layout(tp=2, dp=4, sp=0)) == "tp=2,pp=1,dp=4,sp=0"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tpp=8", "Nearest: tp"),
        ("tp=8,tp=4", "tp is given twice"),
        ("tp=0", "tp=0 must be a whole number 1 or more"),
        ("tp=two", "tp=two must be a whole number"),
        ("zero=4", "zero=4 must be a whole number from 0 to 3"),
        ("tp=99999999999", "must be a whole number"),
        ("", "key of a layout"),
    ],
)
def test_a_layout_that_is_none_is_refused(text, says):
    with pytest.raises(UsageError, match=says):
        read_layout(text)


@pytest.mark.parametrize(
    ("layout", "devices", "changes", "says"),
    [
        ("tp=8,pp=8,dp=2", 100, {}, "= 128, but devices=100. Give a multiple of 64 devices"),
        ("tp=8,pp=8,dp=2", 256, {}, "Give dp=4"),
        ("tp=16", 16, {}, "must be of one system; a selene has 8"),
        ("tp=5", 5, {}, "heads=96, which tp must divide. Possible: 1, 2, 3, 4, 6, 8"),
        ("pp=100", 100, {}, "96 layers do not fill so many stages"),
        ("pp=8,vp=13", 8, {}, "96 layers do not fill so many stages"),
        ("dp=2,vp=2", 2, {}, "vp=2 needs a pipeline"),
        ("dp=8,zero=3,shard=3", 8, {}, "shard=3 must divide dp × cp = 8"),
        ("cp=3", 3, {}, "2048 tokens cannot be divided into 6 parts"),
        ("dp=8", 8, {"global_batch": 12}, "cannot be divided among dp=8. Nearest: 8"),
        ("dp=8", 8, {"micro_batch": 2}, "less than one micro-batch of 2 for each of dp=8"),
        ("dp=8", 8, {"micro_batch": 0}, "both must be 1 or more"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(layout, devices, changes, says):
    with pytest.raises(UsageError, match=says):
        check_plan(plan(layout, **changes), devices)


def test_grouped_keys_limit_tensor_parallelism():
    grouped = "gpt:hidden=1024,layers=4,heads=16,kv_heads=2"
    with pytest.raises(UsageError, match=r"kv_heads=2, which tp must divide\. Possible: 1, 2"):
        check_plan(plan("tp=4", network=grouped), 4)


def test_layers_that_do_not_divide_fill_all_stages_but_the_last():
    uneven = plan("tp=8,pp=8,vp=8", network="llama3-405b", machine="eos", sequence_length=8192)
    check_plan(uneven, 64)
    assert (uneven.chunk_layers, uneven.stage_layers, uneven.last_layers) == (2, 16, 14)


def test_micro_batches_share_what_a_device_has():
    assert plan("dp=16", global_batch=1536, micro_batch=4).micro_batches == 24
    assert plan("dp=8", global_batch=504, micro_batch=10).micro_batches == 7
    assert plan("cp=2,dp=1").tokens == 1024
