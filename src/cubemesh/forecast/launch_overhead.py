"""Launch overhead: the time that a device waits for the host to launch its work.

Host and device run concurrently. The host launches one layer after another without waiting; the
device starts a layer when the previous one is done and the host has launched it:

    launched += host time of one layer
    done      = max(done, launched) + device time of it

A step of large layers hides the launches, one with a small batch size waits for nearly all of them.
A layer is launched once forward, about twice backward and once in the update (`SHARES`); host and
device synchronize at the end of a step. Captured steps, or those compiled into one launch, have no
launch overhead. A strategy may have the host do more before some layers (`HostWork`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cubemesh.forecast.passes import Passes

SHARES = (0.25, 0.5, 0.25)
"""Of what a layer takes the host in a step: forward, backward, update."""


@dataclass(frozen=True, kw_only=True)
class HostWork:
    """Seconds of the host besides launching layers."""

    forward: tuple[float, ...] = ()
    """Before each node of the network, in the order in which they run."""
    backward: tuple[float, ...] = ()
    """Before the backward pass of each node, in the order in which these run."""
    update_s: float = 0.0

    @property
    def step_s(self) -> float:
        """All of it."""
        return sum(self.forward) + sum(self.backward) + self.update_s

    def scaled(self, times: float) -> HostWork:
        """The same, so many times as long."""
        return HostWork(
            forward=tuple(s * times for s in self.forward),
            backward=tuple(s * times for s in self.backward),
            update_s=self.update_s * times,
        )


NO_WORK = HostWork()


def _launches(
    own: Passes, layer_s: float, more: HostWork = NO_WORK
) -> tuple[list[tuple[float, float]], float]:
    """((host seconds, device seconds) of each layer and pass in order, host seconds of the
    update)."""
    forward, backward, update = (share * layer_s for share in SHARES)
    ahead = _with_work(own.forward, forward, more.forward)
    # The losses are the first of the backward pass, and have no node.
    seconds = [layer.seconds for layer in own.backward]
    back = _with_work(seconds, backward, (0.0, *more.backward))
    launched = sum(1 for seconds in own.forward if seconds)
    return [*ahead, *back], update * launched + more.update_s


def _with_work(
    passes: Sequence[float], launch_s: float, more: Sequence[float]
) -> list[tuple[float, float]]:
    """(host seconds, device seconds) of each pass in which either does something."""
    extra = [*more, *[0.0] * (len(passes) - len(more))]
    pairs = zip(passes, extra, strict=False)
    return [((launch_s if s else 0.0) + work, s) for s, work in pairs if s or work]


def host_s(own: Passes, layer_s: float) -> float:
    """Seconds in which the host has launched a step, at so many a layer."""
    launches, update_s = _launches(own, layer_s)
    return sum(host for host, _ in launches) + update_s


def stall_s(own: Passes, layer_s: float, times: float = 1.0, more: HostWork = NO_WORK) -> float:
    """Seconds in a step during which the device waits for the host, where its passes take so many
    times as long as `own`, and the host does `more`."""
    if not layer_s and not more.step_s:
        return 0.0
    launches, update_s = _launches(own, layer_s, more)
    launched = done = 0.0
    for host, device in launches:
        launched += host
        done = max(done, launched) + device * times
    return max(done + own.update_s * times, launched + update_s) - own.step_s * times


def times_for(own: Passes, layer_s: float, step_s: float) -> float:
    """The factor on the passes with which a step including launches takes `step_s`, which is
    longer than the launches."""
    low, high = 0.0, step_s / own.step_s
    times = (step_s - stall_s(own, layer_s, high)) / own.step_s
    for _ in range(60):
        found = own.step_s * times + stall_s(own, layer_s, times)
        if abs(found / step_s - 1) < 1e-9:
            break
        low, high = (times, high) if found < step_s else (low, times)
        times = (low + high) / 2
    return times
