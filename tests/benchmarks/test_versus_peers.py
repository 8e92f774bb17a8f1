"""Both sides train, the faster setting is taken, and what is not there is told."""

import argparse

import pytest

torch = pytest.importorskip("torch")


@pytest.fixture
def args():
    return argparse.Namespace(
        device="cpu", precision="fp32", threads=1, batch=2, instances=2, seconds=0.2
    )


def test_a_stock_peer_is_compared_and_an_absent_one_told(script, args, monkeypatch):
    versus = script("versus_peers")
    from cubemesh import networks

    network = networks.build("little-cnn")
    batch = versus.random_batch(network, args.batch)
    setting = ("pytorch", "nchw")
    monkeypatch.setitem(versus.SETTINGS, "cpu", (setting,))
    assert versus.fastest(network, batch, args) == setting
    line = versus.versus("stock eager", network, setting, args, batch)
    assert line.found is not None
    assert line.found.low <= line.found.ratio <= line.found.high
    assert "pytorch, nchw" in versus.text(line, args.batch)
    other = versus.why_absent("stock eager", networks.build("cifarnet"), args)
    assert other == ""
    unknown = versus.versus("stock eager", networks.build("overfeat"), setting, args, batch)
    assert "absent: no stock module" in versus.text(unknown, args.batch)


def test_the_fastest_setting_is_the_one_of_the_shortest_step(script, args, monkeypatch):
    versus = script("versus_peers")
    taken = {("a", "nchw"): 0.2, ("b", "nhwc"): 0.1}
    monkeypatch.setitem(versus.SETTINGS, "cpu", tuple(taken))
    monkeypatch.setattr(versus, "request_for", lambda *of: of[2:])
    monkeypatch.setattr(versus, "ours", lambda request, batch: request)
    monkeypatch.setattr(versus, "step_s", lambda side: taken[side])

    class Here:
        def load(self):
            return self

        def capabilities(self):
            return argparse.Namespace(devices=("cpu",))

    monkeypatch.setattr(versus, "entry", lambda name: Here())
    assert versus.fastest(None, None, args) == ("b", "nhwc")
