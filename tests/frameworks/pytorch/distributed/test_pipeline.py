"""What a stage computes on its own; test_ranks.py has stages in processes of their own."""

import dataclasses
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from cubemesh.batches import PADDING
from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.frameworks.pytorch import build
from cubemesh.frameworks.pytorch.distributed.pipeline import _HostClock, _loss_share
from cubemesh.frameworks.pytorch.program import total_loss
from cubemesh.networks.graph import Head
from cubemesh.parallel import strategies
from cubemesh.parallel.pipeline import StageTimes


@pytest.mark.parametrize("weights", [(1.0,), (1.0, 0.3)])
def test_losses_of_micro_batches_add_up_to_the_mean_over_all_labels(weights):
    drawn = torch.Generator().manual_seed(0)
    heads = [Head(value="scores", target="label", weight=weight) for weight in weights]
    scores = [torch.randn(5, 4, 7, dtype=torch.float64, generator=drawn) for _ in weights]
    labels = torch.randint(0, 7, (5, 4), generator=drawn)
    labels[0, 1:], labels[3] = PADDING, PADDING  # one micro-batch of padding alone
    count = (labels != PADDING).sum()
    shares = [
        _loss_share(heads, [s[n : n + 1] for s in scores], labels[n : n + 1], count)
        for n in range(5)
    ]
    assert sum(shares).item() == pytest.approx(total_loss(heads, scores, labels).item())


@pytest.mark.parametrize("sync", ["pipeline", "hybrid"])
def test_batch_norm_over_the_global_batch_is_refused(make_request, sync):
    request = make_request("resnet-18")
    group = SimpleNamespace(rank=0, size=2, point_to_point=lambda: None)
    request = dataclasses.replace(
        request,
        group=group,
        sync=strategies.make(sync, group),
        program=dataclasses.replace(request.program, batch_norm="global"),
    )
    with pytest.raises(Unsupported, match=f"sync={sync} resnet-18 normalizes over one micro-batch"):
        build(request)


def test_waits_count_within_a_step_alone():
    clock, times = _HostClock(), StageTimes()
    with clock.waiting("stage"):
        pass
    for _ in range(2):
        clock.start(micro_batches=3)
        with clock.waiting("stage"), clock.waiting("gradients"):
            sum(range(1000))
        clock.end()
    clock.read(times)
    clock.read(times)
    assert times.micro_batches == [3, 3]
    for step_s, wait_s, gradients_s in zip(
        times.step_s, times.wait_s, times.gradients_s, strict=True
    ):
        assert 0 < gradients_s <= wait_s <= step_s
