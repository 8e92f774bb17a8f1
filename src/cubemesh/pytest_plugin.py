"""pytest plugin: a test fails when a step or a network became slower than its stored baseline.

    def test_step(cubemesh_benchmark):
        cubemesh_benchmark(train_step, samples=32, synchronize=torch.cuda.synchronize)

    def test_resnet(cubemesh_benchmark):
        cubemesh_benchmark.network("resnet-18", batch_per_device=16)

    pytest --cubemesh-save                 # three or more times: the baseline
    pytest --cubemesh-fail-below 0.95      # in CI

A callable is timed in this process by the timer of cubemesh (warm-up until steady, then windows of
steps); each saved session is one run of the baseline, so that the interval includes the variation
between processes. A network runs in worker processes, three repeats by default. The verdict is that
of `cubemesh compare`: a test fails if the whole 95 % interval of the ratio is below the threshold.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from cubemesh.schema.comparison import Ratio
    from cubemesh.schema.record import Window

FOLDER = ".cubemesh-baseline"
"""Default folder of the baseline, below pytest's root folder."""
MOST_RUNS = 20
"""Runs that the baseline of a callable has at most; the oldest are dropped."""
_PROPERTY = "cubemesh"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of the plugin."""
    group = parser.getgroup("cubemesh", "regressions of training speed (cubemesh)")
    group.addoption(
        "--cubemesh-fail-below",
        type=_ratio,
        metavar="RATIO",
        help="Fail a test if the whole 95 % interval of its throughput over the baseline's is "
        "below RATIO, or if there is no baseline.".replace("%", "%%"),
    )
    group.addoption(
        "--cubemesh-baseline",
        metavar="FOLDER",
        help=f"Folder of the baseline; default: {FOLDER} in the root folder.",
    )
    group.addoption(
        "--cubemesh-save",
        action="store_true",
        help="Add the measurements of this session to the baseline, and compare nothing.",
    )


def _ratio(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"'{text}' is not a ratio above 0, such as 0.95")
    return value


@dataclass(frozen=True, kw_only=True)
class BenchmarkResult:
    """A measurement of a test and its comparison with the baseline."""

    throughput_per_s: float
    ratio: Ratio | None
    """This throughput over the baseline's; None without a baseline, and while saving one."""
    sentence: str


class Benchmark:
    """The fixture `cubemesh_benchmark`: measures a callable, or a network by its name."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        config = request.config
        self._request, self._calls = request, 0
        self._folder = config.rootpath / (config.getoption("--cubemesh-baseline") or FOLDER)
        self._saves = bool(config.getoption("--cubemesh-save"))
        self._below: float | None = config.getoption("--cubemesh-fail-below")

    def __call__(
        self,
        step: Callable[[], object],
        *,
        samples: int = 1,
        synchronize: Callable[[], object] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        seconds: float = 1.0,
        windows: int = 12,
        warmup_seconds: float = 5.0,
    ) -> BenchmarkResult:
        """Time `step`, which processes `samples` samples; the test fails on a regression.

        `synchronize` waits until the device is done, for a step that only queues its work. `clock`
        returns seconds. At least `seconds` seconds in `windows` windows are measured, after a
        warm-up that ends when the time of a step shows no drift, or after `warmup_seconds`.
        """
        from cubemesh.measure.timing.timer import measure
        from cubemesh.schema.spec import Budget

        budget = Budget(
            steps=windows, seconds=seconds, windows=windows, warmup_seconds=warmup_seconds
        )
        log = _log()
        measured = measure(
            lambda: _discard(step()),
            lambda: _discard(synchronize() if synchronize else None),
            clock,
            samples_per_step=samples,
            budget=budget,
            log=log,
        ).windows
        for warning in log.warnings:
            warnings.warn(f"cubemesh: {warning}", stacklevel=2)
        return self._with_callable(measured)

    def network(
        self, network: str, *, batch_per_device: int, repeats: int = 3, **settings: Any
    ) -> BenchmarkResult:
        """Measure training steps of a network, as `cubemesh run minibatch` does, in `repeats`
        processes; the test fails on a regression. `settings` are those of `--set`."""
        import cubemesh

        stored = self._folder / "networks.sqlite"
        store = stored if self._saves else self._temporary_store()
        self._folder.mkdir(parents=True, exist_ok=True)
        found = cubemesh.run(
            "minibatch",
            store=store,
            no_cache=True,
            baseline=stored if stored.exists() and not self._saves else None,
            **{
                "networks": [network],
                "batch_sizes": [batch_per_device],
                "ceiling": False,
                "forward": False,
                "repeats": repeats,
                **settings,
            },
        )
        good = [record for record in found.records if record.ok and record.measured]
        if not good:
            why = [r.outcome.message or r.outcome.status.value for r in found.records]
            pytest.fail(f"{network} was not measured: {'; '.join(why)}", pytrace=False)
        own = [w for record in good for w in record.measured]
        ratio = found.comparisons[0].ratio if found.comparisons else None
        return self._conclude(own, ratio, "" if ratio else "no run of this workload")

    def _with_callable(self, windows: tuple[Window, ...]) -> BenchmarkResult:
        from cubemesh.schema.record import Window
        from cubemesh.store.run_statistics import ratio_of_runs

        path, machine = self._file(), _machine()
        runs = json.loads(path.read_text())["runs"] if path.exists() else []
        if self._saves:
            own = [[w.steps, w.samples, w.start_s, w.elapsed_s] for w in windows]
            runs = [*runs, {"machine": machine, "windows": own}][-MOST_RUNS:]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"test": self._request.node.nodeid, "runs": runs}) + "\n")
            return self._conclude(windows, None, "")
        same = [
            [
                Window(steps=steps, samples=samples, start_s=start_s, elapsed_s=elapsed_s)
                for steps, samples, start_s, elapsed_s in run["windows"]
            ]
            for run in runs
            if run["machine"] == machine
        ]
        if not same:
            others = sorted({run["machine"] for run in runs})
            return self._conclude(
                windows, None, f"its runs are of {', '.join(others)}" if others else "no run"
            )
        return self._conclude(windows, ratio_of_runs(same, [windows], None), "")

    def _conclude(self, own: Any, ratio: Ratio | None, missing: str) -> BenchmarkResult:
        """Report the figure and the comparison, and fail the test on a regression."""
        from cubemesh.experiments.analysis.comparison import Gate, sentence

        throughput = sum(w.samples for w in own) / sum(w.elapsed_s for w in own)
        gate = None
        if self._saves:
            text = "Saved in the baseline."
        elif ratio is None:
            text = (
                f"The baseline in {self._folder} has nothing to compare with ({missing}). "
                "Save one on this machine with three or more sessions of pytest --cubemesh-save."
            )
        else:
            text = sentence(ratio, "the baseline", "this version")
        if self._below is not None and not self._saves:
            gate = Gate(below=self._below, ratios=() if ratio is None else (ratio,))
            text = f"{text} {gate.sentence}"
        result = BenchmarkResult(throughput_per_s=throughput, ratio=ratio, sentence=text)
        self._request.node.user_properties.append((_PROPERTY, f"{throughput:.4g}/s. {text}"))
        if gate is not None and gate.exit_code:
            pytest.fail(text, pytrace=False)
        return result

    def _file(self) -> Path:
        """The baseline of this call of a callable: `tests-test_speed.py-test_step.json`."""
        self._calls += 1
        name = re.sub(r"[^\w.\[\]]+", "-", self._request.node.nodeid)
        number = f"-{self._calls}" if self._calls > 1 else ""
        return self._folder / f"{name}{number}.json"

    def _temporary_store(self) -> Path:
        factory: pytest.TempPathFactory = self._request.getfixturevalue("tmp_path_factory")
        return factory.mktemp("cubemesh") / "results.sqlite"


@pytest.fixture
def cubemesh_benchmark(request: pytest.FixtureRequest) -> Benchmark:
    """Measure a callable or a network, and compare it with the stored baseline."""
    if int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1:
        warnings.warn(
            "cubemesh: other tests run at the same time (pytest -n) and share the processors: "
            "measure with -n 0.",
            stacklevel=1,
        )
    return Benchmark(request)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """One line for each measurement."""
    lines = [
        f"{report.nodeid}: {text}"
        for report in _reports(terminalreporter)
        for name, text in report.user_properties
        if name == _PROPERTY
    ]
    if lines:
        terminalreporter.section("cubemesh")
        for line in lines:
            terminalreporter.write_line(line)


def _reports(terminalreporter: Any) -> Iterator[Any]:
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, ()):
            if getattr(report, "when", None) == "call":
                yield report


def _discard(_: object) -> None:
    pass


def _log() -> Any:
    from cubemesh.measure.log import Log

    class WarningLog(Log):
        """Collects the warnings about the windows."""

        def __init__(self) -> None:
            self.warnings: list[str] = []

        def emit(self, event: str, **fields: Any) -> None:
            if event == "warning":
                warning = fields["warning"]
                self.warnings.append(f"{warning.code}: {warning.cause} {warning.remedy}")

    return WarningLog()


def _machine() -> str:
    """The hardware as a baseline names it. Not the host name: runners of one kind share theirs."""
    from cubemesh.machines import probe

    machine = probe()
    gpus = [gpu.name for gpu in machine.gpus]
    return ", ".join([f"{machine.cpu.usable_cores} cores of {machine.cpu.model}", *gpus])
