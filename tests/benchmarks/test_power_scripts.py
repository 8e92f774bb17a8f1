"""Benchmarks of telemetry and of energy on known input."""

import time

import pytest

torch = pytest.importorskip("torch")


def test_cost_of_sampling(script, monkeypatch):
    cost, pairs = script("telemetry_cost"), script("ab_comparison")
    monkeypatch.setattr(cost, "WARM_S", 0.02)

    class Expensive:
        device, missing = "host", {}

        def read(self):
            end = time.thread_time() + 0.004
            while time.thread_time() < end:
                pass
            return {"memory_used_bytes": 1.0}

        def needs(self):
            return None

    def step():
        end = time.perf_counter() + 0.002
        while time.perf_counter() < end:
            pass

    side = pairs.Side(step=step, synchronize=lambda: None)
    found = cost.cost(side, samples=1, meters=[Expensive()], every_s=0.02, seconds=0, window_s=0.1)
    assert found.blocks == 3
    assert found.readings >= 12
    assert found.cpu_percent > 2
    assert not found.reached
    assert found.low <= found.ratio <= found.high


def test_each_query_is_timed(script):
    cost = script("telemetry_cost")
    (own, *others) = cost.queries(cost.open_meters(None), times=3)
    assert own.wall_ms > 0
    assert any("memory_used_bytes" in q.name for q in others)


def test_windows_are_compared_with_their_goal(script):
    check = script("energy_check")
    need = check.Need(seconds=1.0, why="")

    def window(seconds, counter=None, integrated=None, reason=""):
        return check.Checked(
            seconds=seconds,
            steps=1,
            counter_joules=counter,
            integrated_joules=integrated,
            reason=reason,
        )

    assert window(0.5, reason="not measurable: …").reached(need)
    assert not window(0.5, 100.0, 100.0).reached(need)
    assert window(2.0, 100.0, 120.0).reached(need)
    assert window(5.0, 1000.0, 1049.0).reached(need)
    assert not window(5.0, 1000.0, 1060.0).reached(need)
    assert not window(5.0, reason="not measurable").reached(need)
    assert "-4.00 %" in check.text(window(5.0, 1000.0, 960.0))
    assert check.text(window(0.5, reason="too short")).endswith("too short")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_energy_check_needs_a_gpu(script, capsys, monkeypatch):
    check = script("energy_check")
    monkeypatch.setattr("sys.argv", ["energy_check.py"])
    assert check.main() == 2
    assert "absent: a GPU" in capsys.readouterr().out
