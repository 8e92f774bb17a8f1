"""Comparison with peers: both sides train, the fastest setting is selected, absence is shown."""

import argparse
import contextlib
import re
import sys

import pytest

torch = pytest.importorskip("torch")


@pytest.fixture
def versus(script):
    return script("versus_peers")


@pytest.fixture
def mine(versus):
    return versus.SideSpec(peer=versus.OURS, network="little-cnn", batch=2)


@pytest.fixture
def args():
    return argparse.Namespace(
        device="cpu", precision="fp32", instances=2, seconds=0.2, pythons={}, clock="wall"
    )


def in_this_process(versus, monkeypatch):
    """Processes take seconds to start."""

    @contextlib.contextmanager
    def sides(wanted, pythons, clock):
        yield [versus.build(one) for one in wanted]

    monkeypatch.setattr(versus, "sides", sides)


def test_a_stock_peer_is_compared_and_an_absent_one_shown(versus, mine, args, monkeypatch):
    in_this_process(versus, monkeypatch)
    line = versus.versus("stock eager nhwc", mine, args)
    assert line.found is not None
    assert line.found.low <= line.found.ratio <= line.found.high
    assert "pytorch, nchw" in versus.text(line, mine.batch)
    assert versus.why_absent("stock eager", args, "cifarnet") == ""
    unknown = versus.versus("stock eager", versus.replace(mine, network="overfeat"), args)
    assert unknown.found is None
    assert unknown.absent == versus.why_absent("stock eager", args, "overfeat") != ""
    assert versus.text(unknown, mine.batch).endswith(f"absent: {unknown.absent}")
    assert "--python" in versus.why_absent("jax", args, "little-cnn") or (
        versus.importlib.util.find_spec("jax") is not None
    )


def test_a_missing_precision_of_a_peer_is_the_reason(versus, args):
    args.precision = "bf16"
    args.pythons = {"keras": sys.executable, "jax": sys.executable}
    assert "fp32, tf32" in versus.why_absent("keras", args, "little-cnn")
    assert versus.why_absent("jax", args, "little-cnn") == ""


def test_the_fastest_setting_is_the_one_of_the_shortest_step(versus, mine, monkeypatch):
    steps_s = {("pytorch", "nchw"): 0.2, ("pytorch", "nhwc"): 0.1}
    monkeypatch.setitem(versus.SETTINGS, "cpu", tuple(steps_s))

    @contextlib.contextmanager
    def sides(wanted, pythons, clock):
        yield [steps_s[one.framework, one.layout] for one in wanted]

    monkeypatch.setattr(versus, "sides", sides)
    monkeypatch.setattr(versus, "step_s", lambda side, settling: side)
    found = versus.fastest(mine)
    assert (found.framework, found.layout, found.batch) == ("pytorch", "nhwc", 2)


def test_a_side_in_its_own_process_trains_at_synchronization(versus, mine):
    process = versus.SideProcess(versus.replace(mine, framework="null"), sys.executable)
    side = process.side("processor")
    side.step()
    side.step()
    before = side.clock()
    side.synchronize()
    after = side.clock()
    side.synchronize()  # nothing to wait for
    process.close()
    assert before < after == side.clock()


def test_a_side_that_cannot_be_built_raises_with_the_reason(versus, mine):
    with (
        pytest.raises(versus.BuildFailed, match="no-such-network"),
        versus.sides([versus.replace(mine, network="no-such-network")], {}),
    ):
        pass


def test_the_best_peer_is_the_one_of_the_smallest_ratio(versus):
    def line(peer, ratio):
        found = versus.Comparison(
            pairs=8,
            steps_per_window=1,
            first_step_ms=1.0,
            first_step_mad_ms=0.1,
            second_step_ms=1.0,
            second_step_mad_ms=0.1,
            ratio=ratio,
            low=ratio,
            high=ratio,
        )
        return versus.Line(network="little-cnn", peer=peer, setting="", found=found)

    gone = versus.Line(network="little-cnn", peer="keras", setting="", absent="not installed")
    lines = [line("jax", 3.0), line("stock eager", 1.2), gone]
    missed, reached = versus.verdict(lines, "cpu"), versus.verdict(lines[:1], "cpu")
    assert all(part in missed for part in ("little-cnn", "stock eager: 1.200", "missed", "1.25"))
    assert all(part in reached for part in ("little-cnn", "jax: 3.000", "reached", "1.25"))
    assert versus.verdict(lines, "cuda").endswith("1.200")
    assert not re.search(r"\d|keras|missed|reached", versus.verdict([gone], "cpu"))
