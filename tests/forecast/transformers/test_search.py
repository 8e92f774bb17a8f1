"""Search of layouts: the fastest that fits, and why others are slower."""

import pytest

from cubemesh.errors import UsageError
from cubemesh.forecast.calibration import defaults
from cubemesh.forecast.transformers.groups import Groups
from cubemesh.forecast.transformers.layout import read_layout
from cubemesh.forecast.transformers.memory import least_recomputation
from cubemesh.forecast.transformers.search import PART_NAMES, search_layouts
from cubemesh.forecast.transformers.step import device_rates, forecast_layout
from transformer_plans import plan

GROUPS = Groups(plan().system, defaults())


@pytest.fixture(scope="module")
def found():
    return search_layouts(plan(global_batch=512), 128, GROUPS, True)


def test_the_fastest_fits_and_leads(found):
    steps = [one.forecast.step_s for one in found.candidates if one.forecast.fits]
    assert found.fastest.fits
    assert steps == sorted(steps)
    assert 0 < len(steps) <= found.fitting < found.tried
    sizes = [(o.forecast.plan.layout.tp, o.forecast.plan.layout.pp) for o in found.candidates]
    assert len(sizes) == len(set(sizes))


@pytest.mark.parametrize("layout", ["tp=8,pp=8,dp=2", "tp=8,pp=16,dp=1,vp=6", "tp=4,pp=8,dp=4"])
def test_no_layout_by_hand_is_faster(found, layout):
    one = plan(layout, global_batch=512)
    by_hand = least_recomputation(one, device_rates(one.system, "bf16").memory_bytes)
    assert found.fastest.step_s <= forecast_layout(by_hand, GROUPS).step_s


def test_each_other_layout_says_why(found):
    assert found.candidates[0].reason == ""
    for one in found.candidates[1:]:
        words = tuple(PART_NAMES.values()) if one.forecast.fits else ("does not fit",)
        assert one.reason.startswith(words)
    missing = [one for one in found.candidates if not one.forecast.fits]
    assert missing
    assert "GiB of 74.5 GiB per device" in missing[0].reason


def test_recomputation_that_is_asked_for_is_kept():
    asked = plan(global_batch=512, recompute="full")
    searched = search_layouts(asked, 128, GROUPS, False)
    assert {one.forecast.plan.recompute for one in searched.candidates} == {"full"}


def test_a_network_that_fits_nowhere_is_refused_with_what_it_lacks():
    with pytest.raises(UsageError, match=r"No layout of .* fits 8 devices .* of 74\.5 GiB"):
        search_layouts(plan(global_batch=8), 8, GROUPS, True)


def test_a_batch_that_no_layout_divides_is_refused():
    small = plan(network="gpt:hidden=64,layers=1,heads=1", global_batch=1)
    with pytest.raises(UsageError, match="No layout of 64 devices divides"):
        search_layouts(small, 64, GROUPS, True)


def test_long_sequences_are_divided_among_devices_too():
    long = plan(network="llama3-8b", global_batch=8, sequence_length=65536)
    searched = search_layouts(long, 64, GROUPS, True)
    assert any(one.forecast.plan.layout.cp > 1 for one in searched.candidates)
    assert read_layout(str(searched.fastest.plan.layout)) == searched.fastest.plan.layout
