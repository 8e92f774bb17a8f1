"""Does a program learn? Its losses in the first steps from the initial weights, on one minibatch.

The same minibatch again and again is learned by heart whatever the data are, so that the loss falls
in a few steps wherever the arithmetic is right. From the same weights and the same minibatch two
programs must tell nearly the same curve; how near is for whoever compares them to say.
"""

from __future__ import annotations

import math

from cubemesh.batches import Batch
from cubemesh.frameworks.api.program import Diverged, Program
from cubemesh.measure.log import Log
from cubemesh.schema.record import Curve

CURVE = "first_losses"
"""Name of the curve."""


def log_losses(program: Program, batch: Batch, steps: int, log: Log) -> None:
    """Make `steps` steps on `batch`, and tell the log the loss of each. Diverged where one is no
    finite number."""
    placed, losses = program.place(batch), []
    for step in range(1, steps + 1):
        program.train_step(placed)
        loss = program.loss()
        if not math.isfinite(loss):
            raise Diverged(f"the loss was {loss} in step {step}. Lower learning_rate.")
        losses.append(loss)
    numbers = tuple(float(step) for step in range(1, steps + 1))
    log.curve(Curve(name=CURVE, x_name="step", x=numbers, y=tuple(losses)))
