"""Faults of a training at a step, and so at the same one on any machine: a rank that has written
its checkpoint of step 14 sends itself the signal whose number is in the file `signal-of-rank-N`,
once; 0 makes the file `pause` instead."""

from pathlib import Path

FAULTS = """
import os
import signal
from pathlib import Path
from cubemesh.training import checkpoint_writer

save = checkpoint_writer.save

def save_then_fail(folder, rank, ranks, checkpoint):
    size_bytes = save(folder, rank, ranks, checkpoint)
    fault = Path({folder!r}, f"signal-of-rank-{{rank}}")
    if checkpoint.step == 14 and fault.exists():
        number = int(fault.read_text())
        fault.unlink()  # in the first run only
        if number == 0:
            Path({folder!r}, "pause").touch()
            return size_bytes
        if number == signal.SIGSTOP:
            from stopped_rank import stop_this
            stop_this(Path({folder!r}, "stopped-rank"))
        os.kill(os.getpid(), number)
    return size_bytes

checkpoint_writer.save = save_then_fail
"""


def write_faults(folder: Path) -> None:
    """Write `sitecustomize.py`, which workers import that have `folder` in PYTHONPATH."""
    (folder / "sitecustomize.py").write_text(FAULTS.format(folder=str(folder)))
