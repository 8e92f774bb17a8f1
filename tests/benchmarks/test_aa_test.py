"""Trials of a program against itself: planted work, and the count of reported differences."""

import itertools
import re
from types import SimpleNamespace

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


def test_planted_work_is_a_fraction_of_the_step(script, monkeypatch):
    trials = script("aa_test")
    clock = itertools.count()  # each reading of it takes a second
    monkeypatch.setattr(trials, "time", SimpleNamespace(thread_time=lambda: next(clock)))
    trials.longer(lambda: [next(clock) for _ in range(99)], 0.5)()
    assert next(clock) == 151, "a step of 100 s, then 50 s more"


def test_repeats_are_counted_by_their_verdict(script):
    trials = script("aa_test")
    repeats = [
        {"trial": "planted", "windows": to_plain(windows(s))} for s in (1.03, 1.05, 1.0, 0.97, 1.04)
    ]
    planted = trials.summary("planted", repeats)
    assert planted.split()[0] == "planted"
    assert re.findall(r"[\d.]+", planted)[:3] == ["3", "5", "60.0"]
    assert "slower" in planted
    hot = [{"trial": "hot", "windows": line["windows"]} for line in repeats]
    assert re.findall(r"\d+", trials.summary("hot", hot))[:2] == ["4", "5"]
    none = trials.summary("cold", repeats)
    assert none.split()[0] == "cold"
    assert re.findall(r"\d+", none) == ["200"], "the number asked for"
    run = [to_plain(w) for w in windows(1.0)]
    cold = [{"trial": "cold", "runs": [run] * 6}]
    assert re.findall(r"\d+", trials.summary("cold", cold))[:2] == ["0", "1"]


def test_trials_are_interleaved_until_all_repeats_are_made(script, monkeypatch):
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
