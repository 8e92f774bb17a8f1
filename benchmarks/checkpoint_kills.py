"""Integrity of checkpoints when the process is killed, at 200 moments.

    python benchmarks/checkpoint_kills.py [KILLS]

A process writes checkpoints one after another, as fast as it can, of weights that identify their
step. It is killed with SIGKILL at moments spread over the time of a checkpoint, and restarted with
what it left. After every kill the newest complete checkpoint must contain the weights of its step,
and be no older than the last that the process reported as written. Exit code 1 otherwise.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import NoReturn

import numpy as np

from cubemesh.frameworks.contract.group import SingleProcessGroup
from cubemesh.frameworks.contract.program import Snapshot
from cubemesh.training.checkpoint import Checkpoint, newest_whole
from cubemesh.training.checkpoint_writer import CheckpointWriter

KILLS = 200
WEIGHTS = 250_000
"""A megabyte: a write takes long enough to be met in its middle."""
SAVES = 3
"""Before each kill; their mean time says how long one takes."""


def weights_of(step: int) -> np.ndarray:
    """What the checkpoint of a step holds."""
    return np.random.default_rng(step).random(WEIGHTS, dtype=np.float32)


def keep_saving(folder: Path, first: int, reported: int) -> NoReturn:
    """Write checkpoints until killed; report each to the file descriptor `reported` when it is on
    the disk."""
    saver = CheckpointWriter(folder, rank=0, ranks=1, keep=2)
    step = first
    while True:
        snapshot = Snapshot(weights={"w": weights_of(step)})
        saver.save(Checkpoint(step=step, snapshot=snapshot))
        saver.wait()
        os.write(reported, f"{saver.newest}\n".encode())
        step += 1


def kill_once(folder: Path, first: int, late_s: float) -> tuple[int, float]:
    """Begin at step `first` in a forked process, and kill it `late_s` after a few saves were
    reported; the last step that was reported, and the mean time of a save."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        keep_saving(folder, first, write)
    os.close(write)
    with open(read) as reported:
        reported.readline()
        begun = time.perf_counter()
        for _ in range(SAVES):
            last = reported.readline()
        save_s = (time.perf_counter() - begun) / SAVES
        time.sleep(late_s)
        os.kill(child, signal.SIGKILL)
        rest = reported.read().split()
    os.waitpid(child, 0)
    return int(rest[-1] if rest else last), save_s


def check(folder: Path, reported: int) -> str:
    """What is wrong with what a kill has left; empty where nothing is."""
    newest, damaged = newest_whole(folder, SingleProcessGroup())
    if damaged:
        return f"damaged: {damaged[0]}"
    step = None if newest is None else newest.step
    if newest is None or newest.step < reported:
        return f"step {reported} was reported as written, and the newest complete is {step}"
    held = newest.snapshot.weights["w"]
    return "" if np.array_equal(held, weights_of(newest.step)) else f"step {step} holds another's"


def kill_often(folder: Path, kills: int) -> list[str]:
    """What was wrong after each kill that left something wrong."""
    wrong, first, save_s = [], 1, 0.0
    for kill in range(kills):
        share = (kill + 0.5) / kills  # of the time of a save: every moment has its turn
        reported, save_s = kill_once(folder, first, share * save_s)
        problem = check(folder, reported)
        if problem:
            wrong.append(f"kill {kill + 1}, {share:.3f} into a save: {problem}")
        newest, _ = newest_whole(folder, SingleProcessGroup())
        first = 1 + (0 if newest is None else newest.step)
    return wrong


def main(arguments: list[str]) -> int:
    """The exit code."""
    kills = int(arguments[0]) if arguments else KILLS
    with tempfile.TemporaryDirectory(prefix="cubemesh-kills-") as folder:
        wrong = kill_often(Path(folder), kills)
    print(*wrong, sep="\n")
    print(f"{kills} kills while checkpoints were written: {kills - len(wrong)} left a whole one.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
