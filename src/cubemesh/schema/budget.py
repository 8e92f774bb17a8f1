"""How long is a run watched, and under which limits? The part of a spec that is no part of what is
measured: the workload's id leaves it out."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cubemesh.errors import UsageError

LEAST_SILENT_S = 2.0
"""Twice the time between two signs of life."""


def at_least(owner: object, low: float, *names: str) -> None:
    """UsageError where a field of `owner` is there and below `low`."""
    for name in names:
        value = getattr(owner, name)
        if value is not None and not value >= low:
            raise UsageError(f"{name}={value} is too small: {name} must be {low:g} or more.")


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How long a run is watched, and the limits it runs under."""

    steps: int = 20
    """Measured steps at least, after the warm-up."""
    seconds: float = 2.0
    """Measured seconds at least, after the warm-up."""
    windows: int = 12
    """Groups of steps the measured time is cut into at least; the interval comes from them."""
    warmup_seconds: float = 20.0
    """The warm-up ends when the step time stops drifting, and after this long at the latest."""
    repeats: int = 1
    """Fresh processes that measure the same spec."""
    time_limit_s: float = 900.0
    heartbeat_timeout_s: float = 30.0
    """A rank of several, or a training, that gives no sign of life for so long is given up."""
    memory_limit_bytes: int | None = None
    """Memory the worker may use; None is what the machine has free."""
    interval: float | None = None
    """Half of the 95 % interval that is wanted, as a share of the figure: 0.01 measures on until it
    is ± 1 %; None measures no longer than the rest asks for."""
    max_seconds: float = 60.0
    """Measured seconds at which that is given up."""
    instances: int = 4
    """Programs that are built of each side where two alternate."""
    attribution: bool = False
    """Whether to find out what each step spends its time on (docs/attribution.md): the host's
    times are stamped in every step, and further steps run under the framework's profiler."""
    trace: bool = False
    """Whether to keep the profiler's trace of a few steps, for Perfetto or chrome://tracing; it
    brings the attribution with it."""

    @property
    def unlimited(self) -> Budget:
        """The same with the usual limits of time: they decide when a run is given up, and change
        nothing of one that came to its end."""
        usual = Budget()
        return replace(
            self, time_limit_s=usual.time_limit_s, heartbeat_timeout_s=usual.heartbeat_timeout_s
        )

    def __post_init__(self) -> None:
        at_least(self, 1, "steps", "windows", "repeats", "memory_limit_bytes", "instances")
        at_least(self, 0, "seconds", "warmup_seconds", "max_seconds")
        if self.interval is not None and not self.interval > 0:
            raise UsageError(
                f"interval={self.interval} must be more than 0: it is half of the 95 % interval as "
                "a share of the figure. interval=0.01 measures until it is ± 1 %."
            )
        if not self.heartbeat_timeout_s >= LEAST_SILENT_S:
            raise UsageError(
                f"heartbeat_timeout_s={self.heartbeat_timeout_s:g} is too short: ranks send a "
                f"heartbeat every second, so it must be {LEAST_SILENT_S:g} or more."
            )
        if not self.time_limit_s > 0:
            raise UsageError(f"time_limit_s={self.time_limit_s} must be more than 0.")
