"""The search of `tune` and its answer, with simulated records."""

import dataclasses

import pytest

from answers import in_order
from cubemesh.errors import UsageError
from cubemesh.experiments.core.experiment import Context
from cubemesh.experiments.tune import experiment as tune
from cubemesh.experiments.tune.search import NEAR, Search
from cubemesh.experiments.tune.search_space import configuration_of
from cubemesh.schema import Curve, Outcome, Rank, Status
from cubemesh.schema.record import FIRST_LOSSES

LEARNING = tuple(2.3 - 0.05 * step for step in range(20))
CONSTANT = (2.3,) * 20


@dataclasses.dataclass
class Machine:
    """Simulates every trial: how long a step takes and what it learns, by its spec."""

    record_of: object
    step_s: object
    status: object = lambda spec: Status.OK
    losses: object = lambda spec: LEARNING
    device: str = "cpu"
    takes_s: float = 0.0
    now: float = 0.0
    asked: list = dataclasses.field(default_factory=list)

    def clock(self):
        return self.now

    def __call__(self, spec):
        self.asked.append(spec)
        self.now += self.takes_s
        status = self.status(spec)
        record = self.record_of(spec, step_s=self.step_s(spec), status=status, message="no")
        rank = Rank(rank=0, host="h", device=self.device, outcome=Outcome(status=status), threads=4)
        curve = Curve(
            name=FIRST_LOSSES, x_name="step", x=tuple(map(float, range(20))), y=self.losses(spec)
        )
        return dataclasses.replace(
            record,
            run_id=f"run{len(self.asked):09d}",
            elapsed_s=self.takes_s,
            ranks=(rank,),
            curves=(curve,) if spec.work.losses and status is Status.OK else (),
        )


def tuned(machine, play, simulated, **settings):
    """Every record of a tuning, and its search as computed from the store."""
    asked = tune.Settings(frameworks=("pytorch", "pytorch-compiled"), **settings)
    context = Context(machine=machine, clock=simulated.clock)
    _, records = play(tune.plan(asked, context), simulated)
    return asked, records, tune.found(asked, records)


def speed(spec):
    """bf16 and nhwc only gain together; compiling gains; one thread loses."""
    program = spec.program
    step_s = 0.010
    if program.framework == "pytorch-compiled":
        step_s *= 0.8
    both = (program.precision == "bf16", program.layout == "nhwc")
    step_s *= {(True, True): 0.5, (False, False): 1.0}.get(both, 1.2)
    return step_s * (3 if spec.placement.threads == 1 else 1)


def test_settings_that_only_gain_together_are_found(machine, play, record_of):
    simulated = Machine(record_of, speed)
    asked, records, search = tuned(machine, play, simulated)
    best = search.best
    assert (best.framework, best.precision, best.layout) == ("pytorch-compiled", "bf16", "nhwc")
    assert best.threads is None
    answer = tune.answer(asked, records)
    steps = answer.tables[0]
    assert [row[0].text for row in steps.rows] == [
        "stock",
        "precision=bf16, layout=nhwc",
        "framework=pytorch-compiled",
    ]
    assert steps.rows[1][2].value == pytest.approx(2.0)
    assert steps.rows[2][3].value == pytest.approx(2.5)
    assert answer.charts[0].lines[0].points[0].x == "1. stock"
    first = answer.findings[0]
    assert "--set framework=pytorch-compiled --set precision=bf16 --set layout=nhwc" in first.remedy
    assert "--set tuned=true" in first.remedy
    assert first.value == pytest.approx(1.25), "of the stock framework, in the same precision"
    assert in_order(first.text, "pytorch, bf16, nhwc", "2.50 ± 0.03×", "pytorch, fp32, nchw")
    assert answer.run_ids == tuple(r.run_id for r in records)


def test_every_trial_is_a_run_of_its_own(machine, play, record_of):
    simulated = Machine(record_of, lambda spec: 0.01)
    tuned(machine, play, simulated)
    assert len({spec.spec_id for spec in simulated.asked}) == len(simulated.asked)
    assert {spec.global_batch for spec in simulated.asked} == {64}


def test_only_the_first_run_of_a_setting_logs_losses(machine, play, record_of):
    simulated = Machine(record_of, lambda spec: 0.01)
    tuned(machine, play, simulated)
    first = {configuration_of(s) for s in simulated.asked if s.work.losses}
    assert len(first) == sum(s.work.losses > 0 for s in simulated.asked)
    assert first == {configuration_of(s) for s in simulated.asked}


def test_only_settings_near_the_fastest_are_measured_again(machine, play, record_of):
    simulated = Machine(record_of, speed)
    _, _, search = tuned(machine, play, simulated)
    slow = [c for c in search.tried if c.threads == 1]
    assert slow
    assert all(len(search.tried[c]) == 1 for c in slow)
    near = Machine(record_of, lambda s: 0.0099 if s.program.layout == "nhwc" else 0.01)
    _, _, search = tuned(machine, play, near)
    assert NEAR > 0.01
    assert len(search.tried[search.stock]) > 2


def test_a_gain_below_one_percent_is_not_accepted(machine, play, record_of):
    simulated = Machine(record_of, lambda s: 0.00995 if s.program.layout == "nhwc" else 0.01)
    asked, records, search = tuned(machine, play, simulated)
    assert search.best == search.stock
    assert tune.answer(asked, records).findings[0].code == "stock-fastest"


def test_a_faster_setting_that_does_not_learn_is_rejected(machine, play, record_of):
    def losses(spec):
        return CONSTANT if spec.program.precision == "bf16" else LEARNING

    simulated = Machine(record_of, speed, losses=losses)
    asked, records, search = tuned(machine, play, simulated)
    assert search.best.precision == "fp32"
    assert {c.precision for c in search.rejected} == {"bf16"}
    assert {r.code for r in search.rejected.values()} == {"diverges"}
    seeds = {s.work.seed for s in simulated.asked}
    assert seeds == {0, 1, 2}, "the run-to-run spread was measured first"
    rejected = [f for f in tune.answer(asked, records).findings if f.code == "rejected-setting"]
    assert any("bf16, nhwc" in f.text for f in rejected)


def test_divergence_without_time_for_the_spread_has_its_own_code(machine, play, record_of):
    def losses(spec):
        return CONSTANT if spec.program.precision == "bf16" else LEARNING

    simulated = Machine(record_of, speed, losses=losses, takes_s=4.0)
    _, _, search = tuned(machine, play, simulated, minutes=0.3)
    assert {result.code for result in search.rejected.values()} == {"unknown-spread"}


def test_a_difference_within_the_spread_of_seeds_is_admitted(machine, play, record_of):
    def losses(spec):
        shift = 0.1 * spec.work.seed + (0.15 if spec.program.precision == "bf16" else 0.0)
        return tuple(loss + shift for loss in LEARNING)

    simulated = Machine(record_of, speed, losses=losses)
    _, _, search = tuned(machine, play, simulated)
    assert search.best.precision == "bf16"
    assert not search.rejected


@pytest.mark.parametrize(
    "status", [Status.OOM, Status.CRASHED, Status.UNSUPPORTED, Status.DIVERGED, Status.TIMED_OUT]
)
def test_a_failed_trial_is_listed_and_the_search_continues(machine, play, record_of, status):
    def ends(spec):
        return status if spec.program.precision == "bf16" else Status.OK

    simulated = Machine(record_of, speed, status=ends)
    asked, records, search = tuned(machine, play, simulated)
    assert search.best.framework == "pytorch-compiled"
    table = tune.answer(asked, records).tables[1]
    failed = [row for row in table.rows if "bf16" in row[0].text]
    assert failed
    assert all(row[1].reason for row in failed)


def test_a_missing_framework_is_tried_once(machine, play, record_of):
    def ends(spec):
        absent = spec.program.framework == "pytorch-compiled"
        return Status.NOT_INSTALLED if absent else Status.OK

    simulated = Machine(record_of, speed, status=ends)
    tuned(machine, play, simulated)
    assert sum(s.program.framework == "pytorch-compiled" for s in simulated.asked) == 1


def test_fused_kernels_are_only_tried_in_nhwc(machine, play, record_of):
    simulated = Machine(record_of, lambda spec: 0.01)
    asked = tune.Settings(frameworks=("pytorch", "pytorch-captured"))
    play(tune.plan(asked, Context(machine=machine, clock=simulated.clock)), simulated)
    layouts = {
        s.program.layout for s in simulated.asked if s.program.framework == "pytorch-captured"
    }
    assert layouts == {"nhwc"}


def test_if_the_first_framework_is_not_installed_the_next_is_stock(machine, play, record_of):
    def ends(spec):
        return Status.NOT_INSTALLED if spec.program.framework == "pytorch" else Status.OK

    simulated = Machine(record_of, speed, status=ends)
    _, _, search = tuned(machine, play, simulated)
    assert search.stock.framework == "pytorch-compiled"


def test_nothing_measured(machine, play, record_of):
    simulated = Machine(record_of, speed, status=lambda spec: Status.NOT_INSTALLED)
    asked, records, search = tuned(machine, play, simulated)
    assert search.best is None
    answer = tune.answer(asked, records)
    assert answer.findings[0].code == "nothing-measured"
    assert "pytorch: not installed" in answer.findings[0].text
    assert not answer.charts
    assert tune.answer(asked, []).findings[0].code == "nothing-measured"


def test_the_time_limit_holds_and_untried_settings_are_named(machine, play, record_of):
    simulated = Machine(record_of, speed, takes_s=4.0)
    asked, records, search = tuned(machine, play, simulated, minutes=0.5)
    assert simulated.now <= 30.0
    assert all(s.budget.time_limit_s <= 30.0 for s in simulated.asked)
    assert search.cut_short
    assert search.untried
    findings = {f.code: f.text for f in tune.answer(asked, records).findings}
    text = findings["untried-settings"]
    assert "bf16" in text or "thread" in text


def test_more_minutes_reuse_earlier_trials(machine, play, record_of):
    first, second = (Machine(record_of, speed, takes_s=4.0) for _ in range(2))
    tuned(machine, play, first, minutes=0.5)
    tuned(machine, play, second, minutes=1.0)
    limits = [{s.budget.time_limit_s for s in simulated.asked} for simulated in (first, second)]
    assert limits[0] != limits[1]
    ids = [[s.spec_id for s in simulated.asked] for simulated in (first, second)]
    assert len(ids[1]) > len(ids[0]) > 0
    assert ids[1][: len(ids[0])] == ids[0]


def test_the_same_records_give_the_same_search(machine, play, record_of):
    """An interrupted tuning has the steps of its records."""
    simulated = Machine(record_of, speed)
    asked, records, search = tuned(machine, play, simulated)
    assert tune.found(asked, records).steps_taken == search.steps_taken
    lengths = []
    for known in range(len(records) + 1):
        part = tune.found(asked, records[:known])
        lengths.append(len(part.steps_taken))
        used = sum(map(len, part.tried.values())) + len(part.seeds) + (part.alternated is not None)
        assert used == known
    assert lengths[0] == 0
    assert lengths[-1] == len(search.steps_taken) >= 2


def test_batch_sizes_vary_only_if_requested(machine, play, record_of):
    simulated = Machine(record_of, lambda spec: 0.01)
    _, _, search = tuned(machine, play, simulated, batch_sizes=(64, 128))
    assert search.best.batch_per_device == 128
    assert search.steps_taken[-1].knob == "batch size"


def test_several_devices_vary_strategies_and_buckets_and_no_threads(machine, play, record_of):
    simulated = Machine(
        record_of, lambda spec: 0.01 if spec.program.bucket_bytes is None else 0.008
    )
    _, _, search = tuned(machine, play, simulated, devices=(2,))
    assert {s.placement.devices for s in simulated.asked} == {2}
    assert {s.program.sync for s in simulated.asked} == {"all-reduce", "all-reduce-16"}
    assert {s.placement.threads for s in simulated.asked} == {None}
    assert search.best.bucket_bytes is not None
    assert search.alternated is None


def test_several_gpus_also_try_strategies_by_copies(machine, play, record_of):
    simulated = Machine(record_of, lambda spec: 0.01, device="cuda:0")
    tuned(machine, play, simulated, devices=(2,))
    by_copies = {"all-reduce-copied", "all-reduce-copied-16"}
    assert {s.program.sync for s in simulated.asked} == {"all-reduce", "all-reduce-16"} | by_copies


def test_a_gpu_has_its_precisions_and_no_threads(machine, play, record_of):
    simulated = Machine(record_of, speed, device="cuda:0")
    tuned(machine, play, simulated)
    assert {s.program.precision for s in simulated.asked} == {"fp32", "tf32", "bf16", "fp16"}
    assert {s.placement.threads for s in simulated.asked} == {None}


def test_a_gpu_starts_with_the_most_promising(machine, play, record_of):
    simulated = Machine(record_of, speed, device="cuda:0")
    tuned(machine, play, simulated)
    firsts = list(dict.fromkeys(map(configuration_of, simulated.asked)))
    tried = [(c.framework, c.precision, c.loss_scale, c.layout) for c in firsts]
    assert firsts[4].compile_by == "segment"
    assert tried[:4] == [
        ("pytorch", "fp32", None, "nchw"),
        ("pytorch", "bf16", None, "nhwc"),
        ("pytorch", "fp16", 1024.0, "nhwc"),
        ("pytorch-compiled", "bf16", None, "nhwc"),
    ]
    assert tried[5] == ("pytorch-compiled", "fp16", 1024.0, "nhwc"), "again from the best"
    assert ("pytorch-compiled", "tf32", None, "nchw") in tried, "the others come later"


def test_a_gpu_continues_if_the_first_pass_gained_nothing(machine, play, record_of):
    faster = {("tf32", "nchw"): 0.005}
    simulated = Machine(
        record_of,
        lambda s: faster.get((s.program.precision, s.program.layout), 0.01),
        device="cuda:0",
    )
    _, _, search = tuned(machine, play, simulated)
    assert (search.best.precision, search.best.layout) == ("tf32", "nchw")


def test_fp16_as_the_stock_precision_has_the_scale_of_the_others(machine, play, record_of):
    simulated = Machine(record_of, lambda spec: 0.01, device="cuda:0")
    _, _, search = tuned(machine, play, simulated, precisions=("fp16", "bf16"))
    assert (search.stock.precision, search.stock.loss_scale) == ("fp16", 1024.0)
    scales = {s.program.precision: s.program.loss_scale for s in simulated.asked}
    assert scales == {"fp16": 1024.0, "bf16": None}


@pytest.mark.parametrize(("precisions", "passes"), [(("fp32",), 1), (("fp32", "bf16"), 2)])
def test_a_gpu_repeats_a_pass_only_if_options_were_left_out(
    machine, play, record_of, precisions, passes
):
    """Both layouts are as fast, so a pass more measures them once more."""
    simulated = Machine(record_of, lambda spec: 0.01, device="cuda:0")
    asked = {"precisions": precisions, "compile_by": ("network",)}
    _, _, search = tuned(machine, play, simulated, **asked)
    by_layout = {c.layout for c in search.tried if c.precision == "fp32"}
    assert by_layout == {"nchw", "nhwc"}
    turns = len(search.tried[search.stock])
    _, _, once = tuned(machine, play, Machine(record_of, lambda spec: 0.01), **asked)
    assert turns > 0
    assert (turns > len(once.tried[once.stock])) == (passes > 1)


def test_requested_layouts_apply_to_every_framework(machine, play, record_of):
    simulated = Machine(record_of, lambda spec: 0.01)
    asked = tune.Settings(frameworks=("jax", "pytorch-captured"), layouts=("nchw",))
    play(tune.plan(asked, Context(machine=machine, clock=simulated.clock)), simulated)
    assert {s.program.layout for s in simulated.asked} == {"nchw"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"minutes": 0.0},
        {"losses": 2},
        {"layouts": ()},
        {"batch_sizes": (0,)},
        {"frameworks": ("pytroch",)},
    ],
)
def test_invalid_settings(wrong):
    with pytest.raises(UsageError):
        tune.Settings(**wrong)


def test_an_empty_search():
    request = dataclasses.replace(tune.Settings().request(), frameworks=())
    search = Search(request=request)
    assert list(search.walk()) == []
    assert search.best is None
