"""A process that was told to keeps what it frees, and who has chosen an allocator keeps that."""

import subprocess
import sys

import pytest

pytest.importorskip("torch")

from cubemesh.frameworks.pytorch import host_memory
from cubemesh.frameworks.pytorch.host_memory import user_has_chosen

STEPS = """
import resource, runpy, sys
module, how = sys.argv[1:]
kept = runpy.run_path(module)["keep_freed_memory"]() if how == "keep" else False
def step():
    return len(b"x" * (48 << 20))
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    step()
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how):
    """(whether memory is kept, pages that the kernel had to hand out in three steps)."""
    command = [sys.executable, "-c", STEPS, host_memory.__file__, how]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={})
    kept, count = done.stdout.split()
    return kept == "True", int(count)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator is Linux's")
def test_memory_that_was_freed_is_not_asked_for_again():
    kept, count = faults("keep")
    if not kept:
        pytest.skip("this C library has no mallopt")
    assert count < 200  # of some thousand pages of 4 KiB in each step
    assert faults("leave")[1] > 10 * (count + 1)


def test_an_allocator_that_was_chosen_is_left_alone():
    assert user_has_chosen({"MALLOC_ARENA_MAX": "2"})
    assert user_has_chosen({"LD_PRELOAD": "/usr/lib/libjemalloc.so.2"})
    assert not user_has_chosen({"HOME": "/", "THP_MEM_ALLOC_ENABLE": "1"})
