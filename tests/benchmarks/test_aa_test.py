"""The trials of A against A: work is really planted, and repeats are judged and counted."""

import re
import time

import pytest

from cubemesh.schema.record import AGAINST, Window
from cubemesh.schema.serialization import to_plain


def windows(second_s):
    """Two instances' blocks of steps that take 1 s, or `second_s`, and a little more each time."""
    return [
        Window(
            phase=phase,
            start_s=0.0,
            elapsed_s=step_s * (1 + 0.001 * instance * (phase == AGAINST)),
            steps=1,
            samples=1,
            marks=(f"instance-{instance}", f"block-{instance}"),
        )
        for instance in range(3)
        for phase, step_s in (("measure", 1.0), (AGAINST, second_s)) * 2
    ]


def test_what_is_planted_is_work(script):
    def step():
        end = time.thread_time() + 0.02
        while time.thread_time() < end:
            pass

    worked = script("aa_test").longer(step, 0.5)
    before = time.thread_time()
    worked()
    assert 0.03 <= time.thread_time() - before < 0.035


def test_repeats_are_counted_by_what_was_called(script):
    trials = script("aa_test")
    kept = [
        {"trial": "planted", "windows": to_plain(windows(s))} for s in (1.03, 1.05, 1.0, 0.97, 1.04)
    ]
    planted = trials.summed_up("planted", kept)
    assert planted.split()[0] == "planted"
    assert re.findall(r"[\d.]+", planted)[:3] == ["3", "5", "60.0"]
    assert "slower" in planted
    hot = [{"trial": "hot", "windows": line["windows"]} for line in kept]
    assert "4 of 5 called different" in trials.summed_up("hot", hot)
    none = trials.summed_up("cold", kept)
    assert none.split()[0] == "cold"
    assert re.findall(r"\d+", none) == ["200"], "of those wanted, without a share"
    run = [to_plain(w) for w in windows(1.0)]
    cold = [{"trial": "cold", "runs": [run] * 6}]
    assert "0 of 1 called different" in trials.summed_up("cold", cold)


def test_trials_take_turns_until_nothing_is_missing(script, monkeypatch):
    trials = script("aa_test")
    made = []
    for name in ("hot", "planted"):
        monkeypatch.setattr(trials, name, lambda name=name: made.append(name))
    for line in trials.repeats({"hot": 2, "planted": 1, "cold": -3}, "unused"):
        line()
    assert made == ["hot", "planted", "hot"]
    assert list(trials.repeats({"hot": 0}, "unused")) == []


@pytest.mark.parametrize("extra", [0.0, 0.5])
def test_a_real_repeat_compares_real_windows(script, extra):
    trials = script("aa_test")
    budget = trials.Budget(steps=1, seconds=0.0, windows=2, warmup_seconds=0.0, instances=2)
    line = trials.alternated("hot", budget, extra)
    assert line["planted"] == extra
    assert len(line["windows"]) == 16
    assert trials.ratio(line).n == 2
