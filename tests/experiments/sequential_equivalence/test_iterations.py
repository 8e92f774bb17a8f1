"""Steps of each network's training: set, or by scale and machine."""

from dataclasses import replace

import pytest

from cubemesh.errors import UsageError
from cubemesh.experiments.core.settings import request
from cubemesh.experiments.registry import Context, Scale
from cubemesh.experiments.sequential_equivalence.experiment import EXPERIMENT, Settings
from cubemesh.schema.machine import Gpu


@pytest.fixture
def iterations(machine, play, record_of):
    """Network → steps of the specs that are planned."""

    def planned(scale, gpu=False, **settings):
        gpus = (Gpu(index=0, name="NVIDIA H200", uuid="GPU-0"),) if gpu else ()
        context = Context(machine=replace(machine, gpus=gpus), scale=scale)
        settings = {"precisions": ("fp32",), "devices": (1,), **settings}
        asked, _ = play(EXPERIMENT.plan(Settings(**settings), context), record_of)
        return {spec.work.network: spec.work.iterations for spec in asked}

    return planned


def test_by_scale(iterations):
    assert iterations(Scale.QUICK) == {"little-cnn": 10}
    assert iterations(Scale.DEFAULT) == {"little-cnn": 30, "resnet-18": 30}
    assert iterations(Scale.FULL) == {"little-cnn": 300, "resnet-18": 300}


def test_full_on_a_gpu_is_the_papers(iterations):
    assert iterations(Scale.FULL, gpu=True) == {
        "cifarnet": 60_000,
        "alexnet": 2_000,
        "googlenet": 1_600,
        "resnet-50": 2_000,
    }
    assert iterations(Scale.FULL, gpu=True, networks=("little-cnn", "ResNet50")) == {
        "little-cnn": 300,
        "ResNet50": 2_000,
    }


def test_one_number_or_one_for_each_network(iterations):
    networks = ("little-cnn", "resnet-18")
    assert set(iterations(Scale.DEFAULT, iterations=("7",)).values()) == {7}
    given = ("resnet18=5", "9")
    found = iterations(Scale.FULL, gpu=True, networks=networks, iterations=given)
    assert found == {"little-cnn": 9, "resnet-18": 5}
    only = iterations(Scale.DEFAULT, iterations=("resnet-18=5",))
    assert only == {"little-cnn": 30, "resnet-18": 5}


@pytest.mark.parametrize(
    "text",
    ["0", "9" * 5000, "many", "=5", "resnet-18=", "resnet-18=-1", "3,4", "resnet-18=3,resnet18=4"],
)
def test_wrong_numbers(text):
    with pytest.raises(UsageError, match="iterations"):
        request(EXPERIMENT, {"iterations": text})


def test_an_unknown_network():
    with pytest.raises(UsageError, match="resnet-18"):
        request(EXPERIMENT, {"iterations": "resnet-19=3"})
