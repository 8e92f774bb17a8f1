"""Schedules of pipelines, run by stages that wait for every transfer; the parts of their waits."""

import math
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cubemesh.errors import UsageError
from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.parallel import strategies
from cubemesh.parallel.pipeline import (
    BUBBLE,
    GRADIENTS,
    PARTS,
    WAIT,
    Hybrid,
    Pipeline,
    StageTimes,
    bubble,
    figures,
    log_pipeline,
    schedule,
)
from cubemesh.schema.spec import ProgramSettings

ORDERS = ("1f1b", "gpipe")
FORWARD_S, BACKWARD_S = 1.0, 2.0


def step_time(stages, micro_batches, order):
    """The time of a step whose stages are equally fast and send in no time."""
    waiting = {s: schedule(s, stages, micro_batches, order) for s in range(stages)}
    done, now = {}, dict.fromkeys(range(stages), 0.0)
    while any(waiting.values()):
        ready = []
        for stage, passes in waiting.items():
            if not passes:
                continue
            kind, n = passes[0]
            source = stage - 1 if kind == "forward" else stage + 1
            needs = (kind, n, source)
            if not 0 <= source < stages:
                needs = None if kind == "forward" else ("forward", n, stage)
            if needs is None or needs in done:
                ready.append((stage, kind, n, done.get(needs, 0.0)))
        assert ready, "no stage can go on"
        for stage, kind, n, arrived in ready:
            duration = FORWARD_S if kind == "forward" else BACKWARD_S
            now[stage] = max(now[stage], arrived) + duration
            done[kind, n, stage] = now[stage]
            del waiting[stage][0]
    return max(now.values())


def transfers(stage, stages, passes):
    """Before each pass and after the last, what a stage sends and receives at once, as (kind,
    micro-batch, from, to)."""

    def received(action):
        kind, n = action
        source = stage - 1 if kind == "forward" else stage + 1
        return {(kind, n, source, stage)} if 0 <= source < stages else set()

    def sent(action):
        kind, n = action
        to = stage + 1 if kind == "forward" else stage - 1
        return {(kind, n, stage, to)} if 0 <= to < stages else set()

    yield received(passes[0])
    for before, after in zip(passes, [*passes[1:], None], strict=True):
        yield sent(before) | (received(after) if after else set())


@given(st.integers(1, 6), st.integers(1, 12), st.sampled_from(ORDERS))
@settings(max_examples=40, deadline=None)
def test_stages_that_wait_for_both_ends_of_every_transfer_never_wait_for_each_other(
    stages, micro_batches, order
):
    """A group of transfers begins when the one before is complete: as in NCCL, and stricter."""
    groups = [
        list(transfers(s, stages, schedule(s, stages, micro_batches, order))) for s in range(stages)
    ]
    completed = set()
    while any(groups):
        posted = [own[0] if own else set() for own in groups]
        completed |= {t for own in posted for t in own if t in posted[t[2]] and t in posted[t[3]]}
        left = sum(map(len, groups))
        for own in groups:
            while own and own[0] <= completed:
                del own[0]
        assert sum(map(len, groups)) < left, "every stage waits"


@given(st.integers(1, 6), st.integers(1, 12), st.sampled_from(ORDERS))
@settings(max_examples=40, deadline=None)
def test_the_bubble_of_a_schedule_is_the_forecast(stages, micro_batches, order):
    for stage in range(stages):
        passes = schedule(stage, stages, micro_batches, order)
        for kind in ("forward", "backward"):
            assert [n for k, n in passes if k == kind] == list(range(micro_batches))
    step_s = step_time(stages, micro_batches, order)
    busy_s = micro_batches * (FORWARD_S + BACKWARD_S)
    assert 1 - busy_s / step_s == pytest.approx(bubble(stages, micro_batches))


@pytest.mark.parametrize(("order", "stored"), [("1f1b", 3), ("gpipe", 8)])
def test_1f1b_stores_as_many_micro_batches_as_there_are_stages(order, stored):
    alive = most = 0
    for kind, _ in schedule(0, 3, 8, order):
        alive += 1 if kind == "forward" else -1
        most = max(most, alive)
    assert most == stored


def group(rank=0, size=2, gathered=()):
    return SimpleNamespace(rank=rank, size=size, all_gather_object=lambda own: list(gathered))


def test_micro_batches_are_four_per_stage_and_at_most_one_a_sample():
    sync = Pipeline(group(size=3))
    assert sync.micro_batches(100) == 12
    assert sync.micro_batches(5) == 5
    sync.configure(ProgramSettings(sync="pipeline", micro_batches=7, pipeline_schedule="gpipe"))
    assert (sync.stages, sync.micro_batches(100), sync.order) == (3, 7, "gpipe")
    assert list(sync.actions(2, 2)) == schedule(2, 3, 2, "gpipe")


def test_a_hybrid_has_pipelines_whose_stages_divide_the_devices():
    program = ProgramSettings(sync="hybrid", pipeline_stages=4)
    assert Hybrid.ranks_per_sample(8, program) == 4
    assert Hybrid.ranks_per_sample(8, ProgramSettings(sync="hybrid")) == 2
    assert Hybrid.ranks_per_sample(1, program) == 1
    assert Pipeline.ranks_per_sample(8, program) == 8
    with pytest.raises(Unsupported, match=r"4 stages do not divide devices=6.*pipeline_stages"):
        Hybrid.ranks_per_sample(6, program)
    with pytest.raises(UsageError, match="pipeline_stages"):
        ProgramSettings(pipeline_stages=0)
    assert strategies.strategy("all-reduce").ranks_per_sample(8, program) == 1
    assert strategies.strategy("model-parallel").ranks_per_sample(8, program) == 8


def times(step_s, wait_s, gradients_s=0.0, steps=5, micro_batches=4):
    found = StageTimes()
    for _ in range(3):
        found.add(100.0, 90.0, 0.0, micro_batches)  # the first steps do not count
    for _ in range(steps):
        found.add(step_s, wait_s, gradients_s, micro_batches)
    return found.medians()


def test_the_parts_of_a_wait_add_up():
    """Stages that compute for 8 s and 6 s in a step of 12 s."""
    values = {n: f.value for n, f in figures([times(12.0, 4.0), times(12.0, 6.0)], 2)}
    assert values[WAIT] == pytest.approx(100 * 5 / 12)
    assert (values[f"{WAIT}_rank_0"], values[f"{WAIT}_rank_1"]) == pytest.approx((100 / 3, 50))
    schedule_, imbalance, sending = (values[name] for name in PARTS)
    assert schedule_ == pytest.approx(100 * (8 / 4) / 12)
    assert imbalance == pytest.approx(100 * (8 - 7) / 12)
    assert math.fsum((schedule_, imbalance, sending)) == pytest.approx(values[WAIT])
    assert values[BUBBLE] == pytest.approx(20)
    assert GRADIENTS not in values


def test_rank_0_logs_the_waits_of_all_ranks():
    found = [times(12.0, 4.0, 1.0)] * 4
    logged = {}
    log = SimpleNamespace(figure=lambda name, figure: logged.update({name: figure.value}))
    sync = Hybrid(group(size=4))
    sync.configure(ProgramSettings(sync="hybrid"))
    log_pipeline(sync, group(rank=1, size=4, gathered=found), log)
    log_pipeline(strategies.make("none"), group(size=4, gathered=found), log)
    log_pipeline(sync, group(size=4, gathered=[*found[:3], StageTimes().medians()]), log)
    assert logged == {}
    log_pipeline(sync, group(size=4, gathered=found), log)
    assert logged[GRADIENTS] == pytest.approx(100 / 12)
    assert logged[WAIT] == pytest.approx(100 / 3)
