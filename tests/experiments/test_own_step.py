"""`own-step`: steps of one's own in real workers, good and broken, and the answer about them.

A network of one's own is described and run by the same workers, so that PyTorch is imported once.
"""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cubemesh.errors import UsageError
from cubemesh.experiments.core.ab_overrides import parse_against
from cubemesh.experiments.core.experiment import Context
from cubemesh.experiments.core.settings import apply, request, split
from cubemesh.experiments.own_step import EXPERIMENT, Settings
from cubemesh.frameworks import FRAMEWORKS
from cubemesh.networks import own_networks
from cubemesh.runs import Executor
from cubemesh.runs.own_networks import describe_named
from cubemesh.schema import (
    Answer,
    Budget,
    OwnStep,
    Placement,
    ProgramSettings,
    RunRecord,
    RunSpec,
    Status,
    TrainSteps,
    Window,
)
from cubemesh.store import Store
from cubemesh.user_code import locate
from cubemesh.web.page import RefusedFormError
from cubemesh.web.question_form import form_of, submit_form
from cubemesh.worker.run.own_step import input_wait, scalar
from record_fixtures import MACHINE

if not FRAMEWORKS["pytorch"].installed:  # and not imported here, which takes seconds
    pytest.skip("PyTorch is not installed", allow_module_level=True)
BUDGET = Budget(steps=10, seconds=0.0, windows=6, warmup_seconds=0.0)

CODE = """
import os, sys, time
import torch
from torch import nn

def make_step(device):
    net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4)).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def step(batch):
        optimizer.zero_grad()
        loss = net(batch).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    print("made")
    return step, [torch.randn(16, 32) for _ in range(3)]

def plain():
    return lambda: sum(range(20_000))

def at_seventh(act):
    count = 0
    def step():
        nonlocal count
        count += 1
        if count == 7:
            act()
    return step

def raises():
    return at_seventh(lambda: 1 / 0)

def exits():
    return at_seventh(lambda: sys.exit(5))

def leaves():
    return at_seventh(lambda: os._exit(5))

def loops():
    return at_seventh(lambda: time.sleep(3600))

def forked(act):
    process = os.fork()
    if process == 0:
        act()
    else:
        os.waitpid(process, 0)

def forks():
    return at_seventh(lambda: forked(lambda: None))

def forks_and_raises():
    return at_seventh(lambda: forked(lambda: 1 / 0))

def ends():
    return (lambda batch: None), iter([1, 2, 3])

def has_no_batches():
    return (lambda batch: None), []

def diverges():
    return lambda: torch.tensor(float("nan"))

def refuses_memory():
    def step():
        raise MemoryError
    return step

def makes_a_number():
    return 3

def fails_while_made():
    raise RuntimeError("no such data set")

a_number = 3
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the code."""
    found = tmp_path_factory.mktemp("own")
    (found / "own_steps.py").write_text(CODE)
    return found


@pytest.fixture(scope="module")
def executor(folder: Path) -> Iterator[Executor]:
    """One executor for all runs, so that PyTorch is imported once."""
    with (
        Store.open(str(folder / "results.db")) as opened,
        Executor(opened, machine=MACHINE, runs_folder=folder / "runs") as found,
    ):
        yield found


@pytest.fixture
def measured(executor: Executor, folder: Path):
    """The record of a function of the code."""

    def run(name: str, budget: Budget = BUDGET, **program) -> RunRecord:
        named = locate(f"{folder}/own_steps.py:{name}", "step")
        spec = RunSpec(
            work=OwnStep(step=named.name, samples=16, import_from=named.folder),
            placement=Placement(threads=1, device="cpu"),
            program=ProgramSettings(**program),
            budget=budget,
        )
        (record,) = executor.run([spec])
        return record

    return run


def answer_about(*records: RunRecord) -> Answer:
    return EXPERIMENT.answer(Settings(step="x.py:y"), records)


def test_a_step_with_batches_is_measured_and_attributed(measured) -> None:
    record = measured("make_step", dataclasses.replace(BUDGET, attribution=True, trace=True))
    assert record.ok, record.outcome
    phases = [phase.name for phase in record.phases]
    assert phases == ["import", "build", "warm-up", "measure", "profile", "check"]
    # Of each layer forward 2·16·in·out, the gradient of its weights as much, and of its input too
    # but for the first.
    first, second = 2 * 16 * 32 * 64, 2 * 16 * 64 * 4
    assert record.figure("step_flops") == 2 * first + 3 * second
    rate = record.figure("throughput_per_s")
    assert rate is not None
    assert record.figure("model_flops_per_s") == pytest.approx(rate / 16 * (2 * first + 3 * second))
    assert record.figure("input_wait_s") is not None
    assert record.figure("peak_memory_bytes") is not None
    assert {part.name for part in record.parts} >= {"compute", "input_stall", "unattributed"}
    rows = {b.name: [row.name for row in b.rows] for b in record.breakdowns}
    assert "aten::mm" in rows["operator"]
    assert "matrix product" in rows["category"]
    assert "trace" in record.artifacts
    answer = answer_about(record)
    codes = [finding.code for finding in answer.findings]
    assert codes == ["throughput", "flops", "input-wait", "largest-overhead"]
    assert answer.findings[0].text.startswith("own_steps.py:make_step: ")
    titles = [table.title.partition(": ")[2] for table in answer.tables]
    assert titles == ["breakdown of the mean step time", "work by category", "longest operators"]


def test_a_command_of_the_page_is_measured(executor, tmp_path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "own_step.md").read_text()
    (text,) = re.findall(r"```python\n# plain\.py\n(.*?)```", page, re.S)
    (command,) = re.findall(r"cubemesh run own-step (.*plain\.py.*)", page)
    (tmp_path / "plain.py").write_text(text)
    given = command.replace("--set ", "").replace("plain.py", f"{tmp_path}/plain.py").split()
    asked = request(EXPERIMENT, split(given))
    specs = next(EXPERIMENT.plan(asked.settings, Context(machine=MACHINE)))
    (spec,) = (dataclasses.replace(apply(s, asked.overrides), budget=BUDGET) for s in specs)
    (record,) = executor.run([spec])
    assert record.ok, record.outcome
    assert record.figure("step_flops") == 2 * 256**3


def test_a_network_is_described_by_its_process_and_run_as_it_is(executor, monkeypatch) -> None:
    folder = Path(__file__).parent.parent / "support"
    monkeypatch.chdir(folder)
    own = describe_named(["own_modules:Gated"], {"input_shape": "3x8x8"})
    assert (own[0].fault, own[0].folder) == ("", str(folder))
    work = TrainSteps(network="own_modules:Gated", batch_per_device=8)
    budget = dataclasses.replace(BUDGET, steps=2, windows=2)
    spec = RunSpec(work=work, program=ProgramSettings(framework="pytorch"), budget=budget)
    with own_networks.named(own):
        (record,) = executor.run([apply(spec, {"device": "cpu"})])
    assert record.ok, record.outcome
    assert record.figure("throughput_per_s") > 0
    assert record.figure("model_flops_per_s") > 0
    assert "no-graph" in {w.code for w in record.warnings}


def test_a_step_without_operators_is_measured_without_a_breakdown(measured) -> None:
    record = measured("plain", dataclasses.replace(BUDGET, attribution=True))
    assert record.ok, record.outcome
    assert record.parts == ()
    assert {unknown.what for unknown in record.unmeasured} >= {"attribution", "FLOPs"}
    assert [f.code for f in answer_about(record).findings] == ["throughput", "no-attribution"]


def test_an_edited_file_is_measured_again(executor, folder, measured) -> None:
    (folder / "edited.py").write_text("def make():\n    return lambda: 1\n")
    named = locate(f"{folder}/edited.py:make", "step")
    work = OwnStep(step=named.name, import_from=named.folder)
    spec = RunSpec(work=work, budget=BUDGET)
    before = executor.key(spec)
    assert before.data_id
    (folder / "edited.py").write_text("def make():\n    return lambda: 2\n")
    executor._data_ids.clear()
    assert executor.key(spec) != before


@pytest.mark.parametrize(
    ("name", "status", "sentence"),
    [
        (
            "raises",
            Status.CRASHED,
            "step 7 raised ZeroDivisionError: division by zero (own_steps.py, line ",
        ),
        ("exits", Status.CRASHED, "step 7 called sys.exit(5) (own_steps.py, line "),
        ("leaves", Status.CRASHED, "the worker exited with code 5 during "),
        ("forks", Status.CRASHED, "forked a process that returned from the step"),
        ("forks_and_raises", Status.CRASHED, "forked a process that returned from the step"),
        ("ends", Status.CRASHED, "ended after 3 and do not begin again"),
        ("has_no_batches", Status.CRASHED, "are empty; give an iterable"),
        ("diverges", Status.DIVERGED, "the step returned nan"),
        ("refuses_memory", Status.OOM, "out of memory"),
        ("makes_a_number", Status.CRASHED, "returned an object of type int; it must return a"),
        (
            "fails_while_made",
            Status.CRASHED,
            "making the step raised RuntimeError: no such data set (own_st",
        ),
        ("a_number", Status.CRASHED, "is of type int; it must be a function"),
        (
            "not_there",
            Status.CRASHED,
            "there is no not_there in own_steps.py; it has make_step, plain, ",
        ),
    ],
)
def test_a_broken_step_is_an_outcome(measured, name, status, sentence) -> None:
    record = measured(name)
    assert record.outcome.status is status
    assert sentence in record.outcome.message
    assert "\n" not in record.outcome.message
    (finding,) = answer_about(record).findings
    assert finding.code == "failed-run"


def test_a_step_that_never_ends_is_ended_at_the_time_limit(measured) -> None:
    record = measured("loops", dataclasses.replace(BUDGET, time_limit_s=1.0))
    assert record.outcome.status is Status.TIMED_OUT


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ({"layout": "nhwc"}, "layout=nhwc has no effect"),
        ({"deterministic": True}, "deterministic=True has no effect"),
        ({"framework": "null"}, "null does not support work 'own_step'"),
    ],
)
def test_settings_that_the_code_decides_are_refused(measured, program, words) -> None:
    outcome = measured("plain", **program).outcome
    assert outcome.status is Status.UNSUPPORTED
    assert words in outcome.message


def test_a_plan_needs_a_step_and_measures_the_ceiling_of_its_precision(folder) -> None:
    context = Context(machine=MACHINE)
    with pytest.raises(UsageError, match="--set step="):
        next(EXPERIMENT.plan(Settings(), context))
    with pytest.raises(UsageError, match="there is no file"):
        next(EXPERIMENT.plan(Settings(step=f"{folder}/missing.py:make"), context))
    settings = Settings(step=f"{folder}/own_steps.py:plain", samples=4)
    product, own = next(EXPERIMENT.plan(settings, context))
    assert product.work.kind == "ceiling"
    assert own.work == OwnStep(
        step=f"{folder}/own_steps.py:plain", samples=4, import_from=str(folder)
    )
    assert own.budget.attribution
    without = dataclasses.replace(settings, ceiling=False)
    assert [s.work.kind for s in next(EXPERIMENT.plan(without, context))] == ["own_step"]


def test_it_cannot_be_interleaved() -> None:
    with pytest.raises(UsageError, match="cannot be interleaved"):
        parse_against(EXPERIMENT, {"precision": "bf16"})


def test_a_page_names_no_code() -> None:
    form = form_of("own-step", {}, {}, [])
    fields = {f.name for part in ("own", "common", "others") for f in form[part]}
    assert {"step", "import_from"}.isdisjoint(fields)
    with pytest.raises((RefusedFormError, UsageError)):
        submit_form(None, None, "own-step", {"step": ("train.py:make",)}, who="me")  # type: ignore[arg-type]


def test_the_wait_is_that_of_batches_in_measured_windows() -> None:
    windows = tuple(
        Window(start_s=start, elapsed_s=1.0, steps=2, samples=2) for start in (1.0, 3.0)
    )
    waits = [(0.5, 100.0), (1.0, 0.25), (1.5, 0.25), (2.5, 100.0), (3.9, 0.5), (4.5, 100.0)]
    assert input_wait(waits, windows).value == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        *((1, 1.0), (0.5, 0.5), (None, None), ("1", None), ([1.0], None)),
        *((np.ones(()), 1.0), (np.ones(2), None)),
    ],
)
def test_a_loss_is_a_number_or_an_array_of_one(value, number) -> None:
    """A tensor is the loss of a step that diverges, above."""
    assert scalar(value) == number
