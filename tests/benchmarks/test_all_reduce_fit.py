"""benchmarks/all_reduce_fit.py: known factors come back, from sizes of their own range."""

import math

import pytest

from cubemesh.forecast.calibration import defaults


def made(script, machine, known, counts):
    """Rows that the model itself gives."""
    rows = []
    for devices in counts:
        on = script.fabric(script.load_system(machine), devices)
        sweep = {s: script.collective(on, "all-reduce", s, known).seconds for s in script.SIZES}
        rows += script.rows_of(machine, machine, {devices: sweep})
    return rows


def test_the_factors_that_made_the_rows_come_back(script):
    fit = script("all_reduce_fit")
    known = defaults()
    for name, value in (("start_s", 2e-5), ("hop_s", 2e-6), ("share", 0.9), ("fill", 0.4)):
        known = known.with_factor(f"nvlink4_{name}", value, "assumed", "test")
    rows = made(fit, "hgx-h200", known, (2, 4, 8))
    found = fit.calibration(fit.fit(rows), "rows")
    for name in ("start_s", "hop_s", "share", "fill"):
        assert found[f"nvlink4_{name}"] == pytest.approx(known[f"nvlink4_{name}"], rel=0.05)
    assert all(abs(fit.error(row, found)) < 0.01 for row in rows)


def test_one_count_leaves_the_hop_to_nccl_and_no_link_is_exceeded(script):
    fit = script("all_reduce_fit")
    fast = [
        fit.replace(row, seconds=row.seconds / 2)
        for row in made(fit, "dgx1-v100", defaults(), (8,))
    ]
    found = fit.calibration(fit.fit(fast), "rows")
    assert found["nvlink2_hop_s"] == defaults()["ring_hop_nvlink_s"]
    assert found["nvlink2_share"] == 1.0


def test_the_repository_has_rows_of_three_generations(script):
    fit = script("all_reduce_fit")
    rows = fit.carried()
    assert {fit.joined(row).mesh for row in rows} == {"nvlink2", "nvlink3", "nvlink4"}
    assert len({row.source for row in rows}) == 5
    assert all(math.isfinite(fit.error(row, defaults())) for row in rows)
