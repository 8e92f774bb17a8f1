"""Limits apply to a process until it ends, so each test starts one."""

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from patience import wait_until


def python(code, *arguments):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
    )


def test_an_allocation_over_the_limit_is_a_memory_error_and_the_limit_is_lifted():
    done = python(
        """
        import numpy as np
        from cubemesh.worker.report.limits import MemoryLimit
        small = 16 << 20
        try:
            with MemoryLimit(64 << 20, threads=1):
                fits = np.ones(small, np.uint8)
                blocks = []
                while True:
                    blocks.append(np.ones(small, np.uint8))
        except MemoryError:
            print("refused after", len(blocks))
        more = np.ones(256 << 20, np.uint8)
        print("again", more.nbytes >> 20)
        """
    )
    assert done.returncode == 0, done.stderr
    refused, again = done.stdout.splitlines()
    # What is allowed for the stacks of threads (9 × 8 MiB) may be taken by arrays too.
    assert 3 <= int(refused.split()[-1]) <= 9
    assert again == "again 256"


def test_stacks_of_threads_do_not_count_against_the_limit():
    done = python(
        """
        import threading
        from cubemesh.worker.report.limits import MemoryLimit
        wait = threading.Event()
        with MemoryLimit(8 << 20, threads=4):
            threads = [threading.Thread(target=wait.wait) for _ in range(4)]
            for t in threads:
                t.start()
            array = bytearray(6 << 20)
            wait.set()
        print("fine")
        """
    )
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr


def test_an_array_of_torch_over_the_limit_raises():
    pytest.importorskip("torch")
    done = python(
        """
        import torch
        from cubemesh.worker.report.limits import MemoryLimit
        torch.set_num_threads(2)
        try:
            with MemoryLimit(256 << 20, threads=2):
                x = torch.ones(1000, 1000)
                y = x @ x
                z = torch.ones(200 << 20)
        except RuntimeError as error:
            print(type(error).__name__, "allocate" in str(error))
        print(float(y[0, 0]))
        """
    )
    assert done.stdout.splitlines() == ["RuntimeError True", "1000.0"], done.stderr


def _runs(pid):
    """Whether a process runs; a zombie waits only for its new parent to look."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_child_dies_with_its_parent():
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent(
                """
                import os, signal
                from cubemesh.worker.report import limits
                me = os.getpid()
                child = os.fork()
                if child == 0:
                    limits.die_with_parent(me)
                    print(os.getpid(), flush=True)
                signal.pause()
                """
            ),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    wait_until(lambda: not _runs(child))
    parent.stdout.close()


def test_a_child_whose_parent_has_ended_before_ends_at_once():
    done = python(
        "from cubemesh.worker.report import limits; limits.die_with_parent(1 << 22); print(1)"
    )
    assert (done.returncode, done.stdout) == (1, "")


def test_name_core_and_kill_order_are_set():
    done = python(
        """
        import resource
        from pathlib import Path
        from cubemesh.worker.report import limits
        limits.name_process("cubemesh-worker")
        limits.no_core_dump()
        limits.first_to_be_killed()
        print(Path("/proc/self/comm").read_text().strip())
        print(resource.getrlimit(resource.RLIMIT_CORE)[0])
        print(Path("/proc/self/oom_score_adj").read_text().strip())
        """
    )
    assert done.stdout.split() == ["cubemesh-worker", "0", "1000"], done.stderr


def test_orphans_are_ended_with_sigkill():
    done = python(
        """
        import ctypes
        import os
        from cubemesh.worker.report import limits
        limits.die_with_parent(os.getppid())
        asked = ctypes.c_int()
        ctypes.CDLL(None).prctl(2, ctypes.byref(asked), 0, 0, 0)
        print(asked.value)
        """
    )
    assert int(done.stdout) == signal.SIGKILL
