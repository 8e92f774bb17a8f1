"""Which sockets listen while ranks run on one host, and what a stranger can do with them."""

import os
import pickle
import signal
import time
from contextlib import contextmanager, suppress
from importlib.util import find_spec

import psutil
import pytest

from listening_sockets import SLOW_DATA, Harm, attack, family, is_loopback, listening
from patience import wait_until

pytestmark = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="two devices on a CPU are two cores"
)
ON_CPU = ("--set", "device=cpu", "--set", "threads=1", "--set", "image_size=8")
BRIEF = ("seconds=0.1", "warmup_seconds=0.1", "windows=6", "repeats=1", "networks=little-cnn")
SHORT = (*ON_CPU, *(word for setting in BRIEF for word in ("--set", setting)))
MINIBATCH = ("run", "minibatch", *SHORT, "--set", "devices=2", "--set", "batch_sizes=16")
VERBS = {
    "collectives": ("collectives", "all-reduce", "-e", "1K", "-g", "2", "--device", "cpu"),
    "run": (*MINIBATCH, "--set", "sync=asynchronous"),
}
OTHERS = ("jax", "tensorflow")


@contextmanager
def started(forkserver, tmp_path, *words):
    process = forkserver.start(*words, "--store", str(tmp_path / "r.db"))
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.communicate()


def sockets(process):
    with suppress(psutil.NoSuchProcess):
        return listening(*(member.pid for member in family(psutil.Process(process.pid))))
    return set()


def watched(forkserver, tmp_path, *words):
    """The sockets that were seen listening during a command that ends well: none, where this
    process stood still meanwhile."""
    seen = set()
    with started(forkserver, tmp_path, *words) as process:
        while process.poll() is None:
            seen |= sockets(process)
            time.sleep(0.1)
        assert process.returncode == 0, process.stderr.read()
    return seen


@pytest.mark.parametrize("verb", VERBS)  # `train` is below
def test_ranks_of_one_host_listen_on_the_loopback_interface_only(
    pytorch_forkserver, tmp_path, verb
):
    pytest.importorskip("torch")
    seen = watched(pytorch_forkserver, tmp_path, *VERBS[verb])
    assert all(is_loopback(address) for address, _ in seen), seen


@pytest.mark.parametrize("framework", OTHERS)
def test_other_frameworks_listen_nowhere_else(forkserver, tmp_path, framework):
    if find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    seen = watched(
        forkserver, tmp_path, *MINIBATCH, "--set", f"framework={framework}", "--set", "layout=nhwc"
    )
    assert all(is_loopback(address) for address, _ in seen), seen


def test_what_a_stranger_sends_is_not_executed(pytorch_forkserver, tmp_path):
    pytest.importorskip("torch")
    trace, tried = tmp_path / "trace", tmp_path / "tried"
    pickle.loads(pickle.dumps(Harm(tried)))
    assert tried.exists(), "the payload is a real one"
    (tmp_path / "slow.py").write_text(SLOW_DATA)
    endless = ("train", "little-cnn", "--devices", "2", "--epochs", "100000", *ON_CPU)
    endless += ("--data", f"{tmp_path}/slow.py:data", "--batch-per-device", "4")
    with started(pytorch_forkserver, tmp_path, *endless) as process:
        wait_until(lambda: len(sockets(process)) >= 2 or process.poll() is not None)
        found = sorted(sockets(process))
        attack(trace, found)
    assert len(found) >= 2, "gloo has a socket in each rank"
    assert all(is_loopback(address) for address, _ in found), found
    assert not trace.exists()
