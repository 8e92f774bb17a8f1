import dataclasses

import pytest

from cubemesh.experiments.core.cpu_defaults import batch, image_size, reductions
from cubemesh.experiments.registry import Context, Scale
from cubemesh.networks import NETWORKS, build
from cubemesh.schema import Budget, Gpu, Rank, RunSpec, TrainSteps


def with_gpu(machine):
    gpu = Gpu(index=0, name="NVIDIA H200", uuid="GPU-0")
    return dataclasses.replace(machine, gpus=(gpu,))


def test_a_gpu_and_full_use_the_papers_settings(machine):
    for context in (
        Context(machine=with_gpu(machine)),
        Context(machine=machine, scale=Scale.FULL),
    ):
        assert image_size("resnet-50", context) is None
        assert image_size("little-cnn", context, 224) == 224
        assert batch(64, context) == 64


@pytest.mark.parametrize("network", NETWORKS)
def test_every_network_accepts_its_reduced_image_size(machine, network):
    context = Context(machine=machine)
    side = image_size(network, context)
    build(network, side)
    assert side is None or side <= max(
        NETWORKS[network].image_size // 3 + 16, NETWORKS[network].smallest_image_size
    )


def test_small_images_are_not_reduced(machine):
    assert image_size("little-cnn", Context(machine=machine)) is None
    assert image_size("little-cnn", Context(machine=machine), 224) == 80
    assert batch(64, Context(machine=machine)) == 8


def test_every_reduction_is_in_the_warning(record_of):
    work = TrainSteps(network="alexnet", batch_per_device=8, image_size=75)
    record = record_of(RunSpec(work=work, budget=Budget(steps=10)))
    (warning,) = reductions([record], batch_per_device=64, steps=100, missing=["vgg16"])
    assert warning.code == "reduced"
    for reduction in (
        "8 instead of 64",
        "75 instead of 224",
        "10 steps instead of 100",
        "without vgg16",
    ):
        assert reduction in warning.cause
    whole = TrainSteps(network="alexnet", batch_per_device=64)
    full = record_of(RunSpec(work=whole, budget=Budget(steps=100)))
    assert reductions([full], batch_per_device=64, steps=100) == ()


@pytest.mark.parametrize(("device", "said"), [("cpu", True), ("cuda:0", False)])
def test_the_rule_for_cpus_is_not_said_of_a_gpu(record_of, device, said):
    record = record_of(RunSpec(work=TrainSteps(network="alexnet", batch_per_device=8)))
    rank = Rank(rank=0, host="", device=device, outcome=record.outcome)
    record = dataclasses.replace(record, ranks=(rank,))
    (warning,) = reductions([record], batch_per_device=64, steps=1)
    assert ("On a CPU" in warning.cause) is said
