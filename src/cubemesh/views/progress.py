"""How does a suite of runs show that it is getting somewhere?

On a terminal: one live line with a bar, how many runs are done, what runs now, its speed, and the
time left. On a pipe or in a log: a plain line for every run that ended. Both go to stderr, so that
stdout carries data alone.

The time left is the mean wall time of the runs that really ran here, times the runs still to come,
less what the run in hand has had. It is not told before the first run has ended.
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from cubemesh.schema import RunRecord, RunSpec
from cubemesh.schema.outcome import STATUS_WORDS
from cubemesh.units import format_seconds
from cubemesh.views import formatting as wording
from cubemesh.views.terminal import outcome_style, stderr_console

if TYPE_CHECKING:  # the executor behind it is not needed to look at what it says
    from cubemesh.runs.progress import Progress as RunProgress


class TerminalProgress:
    """An observer of runs that prints.

    The live line, where `console` (stderr by default) is a terminal, comes with the first run and
    goes with the last one planned. Leave a `with TerminalProgress() as observer:`, or call
    `close`, to put it away earlier: an interrupted command must not leave the cursor hidden.
    `name` stands in front of the line.
    """

    def __init__(self, console: Console | None = None, *, name: str = "") -> None:
        self.console = console if console is not None else stderr_console()
        self._name = wording.clean(name)
        self._planned = 0
        self._finished = 0
        self._walls_s: list[float] = []
        self._running: RunSpec | None = None
        self._started = 0.0
        self._latest: RunProgress | None = None
        self._told: set[str] = set()
        self._live: Progress | None = None
        self._task = TaskID(0)

    def __enter__(self) -> TerminalProgress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Put the live line away; does nothing where there is none."""
        if self._live is not None:
            self._live.stop()
            self._live = None
            atexit.unregister(self.close)

    def _open(self) -> None:
        if self._live is not None or not self.console.is_terminal:
            return
        self._live = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=28, complete_style="green", finished_style="green"),
            TextColumn("{task.fields[done]}", markup=False),
            TextColumn("{task.fields[now]}", markup=False),
            TextColumn("{task.fields[left]}", markup=False, style="dim"),
            console=self.console,
            transient=True,
            redirect_stdout=False,  # what is printed there is data, for whoever reads it
        )
        self._task = self._live.add_task(self._name, total=None, done="", now="", left="")
        self._live.start()
        atexit.register(self.close)

    def plan(self, specs: Sequence[RunSpec]) -> None:
        """More runs are to come."""
        self._planned += sum(spec.budget.repeats for spec in specs)
        self._draw()

    def start(self, spec: RunSpec) -> None:
        """A run begins."""
        self._running, self._started, self._latest = spec, time.monotonic(), None
        self._open()
        self._draw()

    def progress(self, progress: RunProgress) -> None:
        """News of the run in hand."""
        self._latest = progress
        self._draw()

    def finish(self, record: RunRecord, *, reused: bool) -> None:
        """A run is over: its line is printed, above the live one where there is one."""
        self._finished += 1
        if not reused:
            self._walls_s.append(record.elapsed_s)
        self._running = self._latest = None
        self.console.print(self.line(record, reused=reused), soft_wrap=True)
        self._draw()
        if self._finished >= self._planned:
            self.close()

    def line(self, record: RunRecord, *, reused: bool) -> Text:
        """`  5/8  resnet-50 · minibatch 16  19.9 ± 0.2 samples/s`, or how the run ended."""
        total = max(self._planned, self._finished)
        text = Text(f"  {self._finished}/{total}  ", style="dim")
        text.append(f"{wording.run_name(record.spec)}  ", style="not dim")
        result = wording.result_text(record) if record.ok else ""
        text.append(result or self._ending(record), style=f"not dim {outcome_style(record)}")
        if reused:
            text.append("  measured before")
        if record.warnings:
            text.append(f"  ! {len(record.warnings)}", style="not dim yellow")
        return text

    def _ending(self, record: RunRecord) -> str:
        """How a run ended, with the reason; in two words where a line above has the same reason."""
        text = wording.outcome_text(record)
        short = STATUS_WORDS[record.outcome.status]
        if text in self._told and text != short:
            return f"{short}, for the same reason"
        self._told.add(text)
        return text

    def time_left_s(self) -> float | None:
        """Seconds until the last planned run ends; None before any run has ended."""
        if not self._walls_s or self._finished >= self._planned:
            return None
        typical = sum(self._walls_s) / len(self._walls_s)
        spent = min(typical, time.monotonic() - self._started) if self._running else 0.0
        return typical * (self._planned - self._finished) - spent

    def _draw(self) -> None:
        if self._live is None:
            return
        left = self.time_left_s()
        self._live.update(
            self._task,
            total=max(self._planned, self._finished) or None,
            completed=self._finished + self._share(),
            done=f"{self._finished}/{self._planned}",
            now=self._now(),
            left="" if left is None else f"{format_seconds(max(1, round(left)))} left",
        )

    def _share(self) -> float:
        """How much of the run in hand is done."""
        if self._running is None or self._latest is None or self._latest.fraction is None:
            return 0.0
        return min(1.0, max(0.0, self._latest.fraction))

    def _now(self) -> str:
        """`resnet-50 · minibatch 16  measure  0.81 s/step`."""
        if self._running is None:
            return ""
        parts = [wording.run_name(self._running)]
        if self._latest is not None:
            parts.append(wording.clean(self._latest.phase))
            if self._latest.step_s:
                parts.append(step_speed(self._latest.step_s))
            if self._latest.note:
                parts.append(wording.clean(self._latest.note))
        return "  ".join(parts)


class TuningProgress(TerminalProgress):
    """An observer of trials, over at `seconds` from the first of them."""

    def __init__(self, seconds: float, console: Console | None = None) -> None:
        super().__init__(console)
        self._seconds = seconds
        self._began: float | None = None
        self._first: float | None = None
        """Samples per second of the first trial that came to its end."""

    def start(self, spec: RunSpec) -> None:
        """A trial begins."""
        if self._began is None:
            self._began = time.monotonic()
        super().start(spec)

    def finish(self, record: RunRecord, *, reused: bool) -> None:
        """A trial is over; another may follow, so that the live line stays."""
        self._planned = self._finished + 2
        super().finish(record, reused=reused)

    def time_left_s(self) -> float | None:
        """What is left of the budget."""
        if self._began is None:
            return None
        return max(0.0, self._began + self._seconds - time.monotonic())

    def line(self, record: RunRecord, *, reused: bool) -> Text:
        """`  12 s  little-cnn · minibatch 64 · bf16  5,120 ± 30 samples/s  1.31× the first`."""
        left = self.time_left_s()
        spent = 0.0 if left is None else self._seconds - left
        text = Text(f"  {format_seconds(round(spent)):>5}  ", style="dim")
        text.append(f"{wording.run_name(record.spec)}  ", style="not dim")
        result = wording.result_text(record) if record.ok else ""
        text.append(result or self._ending(record), style=f"not dim {outcome_style(record)}")
        text.append(self._beside_the_first(record), style="not dim")
        if reused:
            text.append("  measured before")
        return text

    def _beside_the_first(self, record: RunRecord) -> str:
        rate = record.figure("throughput_per_s") if record.ok else None
        if rate is None or record.spec.against is not None:
            return ""
        if record.spec.budget.seconds == 0:
            return "  for its losses from another seed"
        if self._first is None:
            self._first = rate
            return ""
        return f"  {rate / self._first:.2f}× the first"


def step_speed(step_s: float) -> str:
    """`0.81 s/step`, or `45 steps/s` where steps are short."""
    if step_s >= 0.1:
        return f"{wording.number(step_s, 2)} s/step"
    return f"{wording.number(1 / step_s, 2)} steps/s"
