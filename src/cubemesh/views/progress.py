"""Progress of runs on stderr: a live line with a bar on a terminal; elsewhere a plain line per run,
and one every half minute of a long run.

The time left is the mean wall time of the runs measured so far, times the number of remaining runs,
minus the elapsed time of the current one. It is shown from the end of the first run on, and is
unknown where the last run takes longer than the mean of the others. The number
of runs is `3/8`, or `3/≥8` where a plan may request more. A tuning has a time budget in place of
it.
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from cubemesh.data.prepare.image_set import PrepareProgress
from cubemesh.runs import Observer
from cubemesh.runs.progress import Progress as RunProgress
from cubemesh.schema import RunRecord, RunSpec, Status
from cubemesh.units import format_bytes, format_count, format_seconds
from cubemesh.untrusted import clean
from cubemesh.views import formatting
from cubemesh.views.terminal import outcome_style, stderr_console

INTERVAL_S = 30.0
"""Seconds between lines of one run where there is no live line."""


class TerminalProgress(Observer):
    """An observer of runs that prints.

    Where `console` (stderr by default) is a terminal, the live line is shown from the first run to
    the last planned one. `close` removes it earlier: an interrupted command must not leave the
    cursor hidden.
    """

    def __init__(
        self, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.console = console if console is not None else stderr_console()
        self._clock = clock
        self._expected: int | None = None
        """Number of runs of the session, where known exactly."""
        self._printed_at = clock()
        self._planned = 0
        self._least = 0
        """Least number of runs of the session."""
        self._finished = 0
        self._walls_s: list[float] = []
        self._running: RunSpec | None = None
        self._started = 0.0
        self._latest: RunProgress | None = None
        self._printed: set[str] = set()
        self._live: Progress | None = None
        self._task = TaskID(0)

    def close(self) -> None:
        """Remove the live line, if it is shown."""
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
            redirect_stdout=False,  # stdout carries data
        )
        self._task = self._live.add_task("", total=None, done="", now="", left="")
        self._live.start()
        atexit.register(self.close)

    def message(self, text: str) -> None:
        """A line above the live one, wrapped at the width of a terminal."""
        self.console.print(Text(clean(text)), soft_wrap=not self.console.is_terminal)

    def expect(self, runs: int, *, exact: bool) -> None:
        """The number of runs of the session."""
        self._least, self._expected = runs, runs if exact else None

    def plan(self, specs: Sequence[RunSpec]) -> None:
        """More runs are planned."""
        self._planned += sum(spec.budget.repeats for spec in specs)
        self._draw()

    def start(self, spec: RunSpec) -> None:
        """A run begins."""
        self._running, self._started, self._latest = spec, self._clock(), None
        self._open()
        self._draw()

    def progress(self, progress: RunProgress) -> None:
        """Progress of the current run."""
        self._latest = progress
        self._draw()
        if not self.console.is_terminal and self._clock() - self._printed_at >= INTERVAL_S:
            self._printed_at = self._clock()
            spent = format_seconds(round(self._clock() - self._started))
            parts = [f"  {self._position()}", self._now(), f"{spent} so far", self._left_text()]
            self.console.print(Text("  ".join(filter(None, parts))), soft_wrap=True)

    def finish(self, record: RunRecord, *, reused: bool) -> None:
        """A run has ended: its line is printed above the live one. One without its framework has
        none: it did not begin, and the answer has the reason."""
        self._finished += 1
        if not reused:
            self._walls_s.append(record.elapsed_s)
        self._running = self._latest = None
        if record.outcome.status is not Status.NOT_INSTALLED:
            self.console.print(self.line(record, reused=reused), soft_wrap=True)
        self._printed_at = self._clock()
        self._draw()
        if self._finished >= self._total:
            self.close()

    @property
    def _total(self) -> int:
        """Least number of runs, as far as is known."""
        return max(self._least, self._planned, self._finished)

    def _position(self) -> str:
        """`5/8`, or `5/≥8` where more runs may be requested."""
        least = "" if self._expected == self._total else "≥"
        return f"{self._finished}/{least}{self._total}"

    def _left_text(self) -> str:
        """`3 min left`, or `≥ 3 min left`."""
        left = self.time_left_s()
        if left is None:
            return ""
        if left <= 0:
            return "longer than estimated"
        least = "" if self._expected == self._total else "≥ "
        return f"{least}{format_seconds(max(1, round(left)))} left"

    def line(self, record: RunRecord, *, reused: bool) -> Text:
        """`  5/8  resnet-50 · batch size 16  19.9 ± 0.2 images/s`, or the outcome."""
        text = self._named(self._position(), record)
        if reused:
            text.append("  (stored)")
        if record.warnings:
            text.append(f"  ! {len(record.warnings)}", style="not dim yellow")
        return text

    def _named(self, position: str, record: RunRecord) -> Text:
        """The position of a run, its name, and its result or outcome."""
        text = Text(f"  {position}  ", style="dim")
        text.append(f"{formatting.run_name(record.spec)}  ", style="not dim")
        result = formatting.result_text(record) if record.ok else ""
        text.append(
            result or formatting.ending(record, self._printed),
            style=f"not dim {outcome_style(record)}",
        )
        return text

    def time_left_s(self) -> float | None:
        """Seconds until the last planned run ends; None before any run has ended."""
        if not self._walls_s or self._finished >= self._total:
            return None
        typical = sum(self._walls_s) / len(self._walls_s)
        spent = min(typical, self._clock() - self._started) if self._running else 0.0
        return typical * (self._total - self._finished) - spent

    def _draw(self) -> None:
        if self._live is None:
            return
        self._live.update(
            self._task,
            total=self._total or None,
            completed=self._finished + self._share(),
            done=self._position(),
            now=self._now(),
            left=self._left_text(),
        )

    def _share(self) -> float:
        """Fraction of the current run that is done."""
        if self._running is None or self._latest is None or self._latest.fraction is None:
            return 0.0
        return min(1.0, max(0.0, self._latest.fraction))

    def _now(self) -> str:
        """`resnet-50 · batch size 16  measure  0.81 s/step`."""
        if self._running is None:
            return ""
        parts = [formatting.run_name(self._running)]
        if self._latest is not None:
            parts.append(clean(self._latest.phase))
            if self._latest.step_s:
                parts.append(step_speed(self._latest.step_s))
            if self._latest.note:
                parts.append(clean(self._latest.note))
        return "  ".join(parts)


class TuningProgress(TerminalProgress):
    """An observer of trials that ends `seconds` after the first one began."""

    def __init__(
        self,
        seconds: float,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(console, clock)
        self._seconds = seconds
        self._began: float | None = None
        self._first: float | None = None
        """Samples per second of the first trial."""

    def start(self, spec: RunSpec) -> None:
        """A trial begins."""
        if self._began is None:
            self._began = self._clock()
        super().start(spec)

    def finish(self, record: RunRecord, *, reused: bool) -> None:
        """A trial has ended; another may follow, so the live line stays."""
        self._planned = self._finished + 2
        super().finish(record, reused=reused)

    def time_left_s(self) -> float | None:
        """Remaining seconds of the budget."""
        if self._began is None:
            return None
        return max(0.0, self._began + self._seconds - self._clock())

    def _position(self) -> str:
        """Number of trials; the time decides how many there will be."""
        return str(self._finished)

    def _left_text(self) -> str:
        left = self.time_left_s()
        return "" if left is None else f"{format_seconds(max(1, round(left)))} left"

    def line(self, record: RunRecord, *, reused: bool) -> Text:
        """`  12 s  little-cnn · batch size 64 · bf16  5,120 ± 30 images/s  1.31× first`."""
        left = self.time_left_s()
        spent = 0.0 if left is None else self._seconds - left
        text = self._named(f"{format_seconds(round(spent)):>5}", record)
        text.append(self._versus_first(record), style="not dim")
        if reused:
            text.append("  (stored)")
        return text

    def _versus_first(self, record: RunRecord) -> str:
        rate = record.figure("throughput_per_s") if record.ok else None
        if rate is None or record.spec.against is not None:
            return ""
        if record.spec.budget.seconds == 0:
            return "  loss curve of another seed"
        if self._first is None:
            self._first = rate
            return ""
        return f"  {rate / self._first:.2f}× first"


def step_speed(step_s: float) -> str:
    """`0.81 s/step`, or `45 steps/s` where steps are short."""
    if step_s >= 0.1:
        return f"{formatting.number(step_s, 2)} s/step"
    return f"{formatting.number(1 / step_s, 2)} steps/s"


class ShardProgress:
    """Progress of `cubemesh prepare`: one line that changes on a terminal, elsewhere one every half
    minute. It starts no thread, since processes are forked meanwhile."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._printed_at = clock()
        self._line_open = False

    def __call__(self, now: PrepareProgress) -> None:
        """Show how far the preparation is."""
        text = (
            f"{format_count(now.shards)} of {format_count(now.all_shards)} shards, "
            f"{format_count(now.samples)} images, {format_bytes(now.bytes)}"
        )
        if now.skipped:
            text += f", {format_count(now.skipped)} cannot be used"
        if self._console.is_terminal:
            self._console.file.write(f"\r\x1b[K{text}")
            self._console.file.flush()
            self._line_open = True
        elif now.shards == now.all_shards or self._clock() - self._printed_at >= INTERVAL_S:
            self._console.print(Text(text), soft_wrap=True)
            self._printed_at = self._clock()

    def __enter__(self) -> ShardProgress:
        return self

    def __exit__(self, *error: object) -> None:
        if self._line_open:
            self._console.file.write("\n")
            self._console.file.flush()
