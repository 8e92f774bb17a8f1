"""Cost of the slow link, from the rates over both."""

import re

import pytest

LINKS = {"eth1": 10e9, "eth0": 1e9}


def numbers(lines, network):
    return [re.findall(r"[\d.]+", line) for line in lines if line.startswith(network)]


def record(network, link, value, low=None, high=None, outcome="ok"):
    figure = {"value": value, "low": low, "high": high}
    return {
        "run_id": "r1",
        "outcome": outcome,
        "outcome_detail": {"message": "host b is gone"},
        "figures": {"throughput_per_s": figure} if outcome == "ok" else {},
        "spec": {"work": {"network": network}, "placement": {"link": link}},
    }


@pytest.fixture
def shaped(script):
    return script("shaped_link")


def measured(alexnet_slow):
    return [
        record("alexnet", "eth1", 10.0, 9.0, 11.0),
        record("alexnet", "eth0", alexnet_slow, alexnet_slow - 0.5, alexnet_slow + 0.5),
        record("googlenet", "eth1", 4.0, 3.9, 4.1),
        record("googlenet", "eth0", 3.6, 3.5, 3.7),
    ]


def test_alexnet_that_loses_more_than_googlenet_meets_the_goal(shaped):
    lines, met = shaped.summary(shaped.rates(measured(3.0)), LINKS)
    assert met
    assert ["70", "61", "77"] in numbers(lines, "alexnet"), "cost in %, lowest, highest"
    assert ["10", "5", "15"] in numbers(lines, "googlenet")
    assert ["10", "10.000", "9.000", "11.000"] in numbers(lines, "alexnet"), "Gb/s, samples/s"


def test_overlapping_intervals_miss_the_goal(shaped):
    lines, met = shaped.summary(shaped.rates(measured(8.5)), LINKS)
    assert not met
    verdict = lines[-1].rstrip(".").split()
    assert (verdict[0], verdict[-1]) == ("AlexNet", "GoogLeNet")
    assert "not" in verdict


def test_a_failed_run_ends_the_benchmark_with_its_reason(shaped):
    with pytest.raises(SystemExit, match="host b is gone"):
        shaped.rates([record("alexnet", "eth0", 0.0, outcome="crashed")])


def test_a_rate_without_an_interval_is_its_own_interval(shaped):
    assert shaped.rates([record("alexnet", "eth0", 2.0)])["alexnet", "eth0"] == (2.0, 2.0, 2.0)


@pytest.mark.parametrize(
    "words",
    ["--gbps 1,10", "--gbps 10", "--gbps ten,one", "--gbps 10,0", "--networks alexnet,vgg16"],
)
def test_other_rates_and_networks_are_refused(shaped, words, capsys):
    with pytest.raises(SystemExit, match="2"):
        shaped.main(words.split())
    assert words.split()[1] in capsys.readouterr().err


def test_two_hosts_need_root(script, monkeypatch):
    two = script("two_hosts")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert re.search(r"\broot\b", two.missing())
