"""Launch overhead: the time that a device waits for the host to launch its work.

Two clocks run beside each other. The host launches one layer after the other and does not wait; the
device begins a layer when it has ended the one before and the host has launched it:

    launched += what one layer takes the host
    done      = max(done, launched) + what it takes the device

A step of large layers hides the launches, one of a small minibatch waits for nearly all of them. A
layer is launched once forward, about twice in backward and once in the update (`SHARES`); the host
catches up with the device at the end of a step. Steps that are captured whole, or compiled into one
launch, take the host nothing.
"""

from __future__ import annotations

from cubemesh.forecast.passes import Passes

SHARES = (0.25, 0.5, 0.25)
"""Of what a layer takes the host in a step: forward, backward, update."""


def host_s(own: Passes, layer_s: float) -> float:
    """Seconds in which the host has launched a step, at so many a layer."""
    forward, backward, update = SHARES
    working = sum(1 for seconds in own.forward if seconds)
    backing = sum(1 for layer in own.backward if layer.seconds)
    return layer_s * (forward * working + backward * backing + update * working)


def stall_s(own: Passes, layer_s: float, times: float = 1.0) -> float:
    """Seconds in a step during which the device waits for the host, where its passes take so many
    times as long as `own`."""
    if not layer_s:
        return 0.0
    forward, backward, update = SHARES
    launched, done, working = 0.0, 0.0, 0
    for seconds in own.forward:
        if seconds:
            working += 1
            launched += forward * layer_s
            done = max(done, launched) + seconds * times
    for layer in own.backward:
        if layer.seconds:
            launched += backward * layer_s
            done = max(done, launched) + layer.seconds * times
    launched += update * layer_s * working
    return max(done + own.update_s * times, launched) - own.step_s * times


def times_for(own: Passes, layer_s: float, step_s: float) -> float:
    """How many times as long the passes must take for a step with its launches to take `step_s`,
    which is longer than the launches alone."""
    low, high = 0.0, step_s / own.step_s
    times = (step_s - stall_s(own, layer_s, high)) / own.step_s
    for _ in range(60):
        found = own.step_s * times + stall_s(own, layer_s, times)
        if abs(found / step_s - 1) < 1e-9:
            break
        low, high = (times, high) if found < step_s else (low, times)
        times = (low + high) / 2
    return times
