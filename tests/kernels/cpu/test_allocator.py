"""Freed memory is reused by the process, unless the user configured the allocator."""

import sys
import textwrap

import pytest

pytest.importorskip("torch")

from cubemesh.cpp_compiler import cpp_compiler
from cubemesh.kernels.cpu.allocator import user_has_chosen
from script_server import run_code

UNCHOSEN = """
import os
from cubemesh.kernels.cpu.allocator import keep_freed_memory, library, user_has_chosen
for name, value in list(os.environ.items()):
    if user_has_chosen({name: value}):
        del os.environ[name]
"""
STEPS = """
import resource, sys
reused = keep_freed_memory() if sys.argv[1] == "keep" else False
def step():
    return len(b"x" * (48 << 20))
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    step()
print(reused, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how):
    """(whether the settings were applied, page faults of three steps)."""
    reused, count = run_code(UNCHOSEN + STEPS, how).split()
    return reused == "True", int(count)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator is Linux's")
def test_freed_memory_is_not_requested_again():
    reused, count = faults("keep")
    if not reused:
        pytest.skip("this C library has no mallopt")
    assert count < 200  # of some thousand pages of 4 KiB in each step
    assert faults("leave")[1] > 10 * (count + 1)


def test_a_configured_allocator_is_not_changed():
    assert user_has_chosen({"MALLOC_ARENA_MAX": "2"})
    assert user_has_chosen({"LD_PRELOAD": "/usr/lib/libjemalloc.so.2"})
    assert not user_has_chosen({"HOME": "/", "THP_MEM_ALLOC_ENABLE": "1"})


needs_a_compiler = pytest.mark.skipif(
    sys.platform != "linux" or cpp_compiler() is None, reason="needs Linux and a C++ compiler"
)


BEFORE = """
import resource, threading
import torch
MB = 1 << 20
def made(megabytes, value=0.0):
    return torch.full((megabytes * MB // 4,), float(value))
def held():
    return library().held_bytes() // MB
assert keep_freed_memory()
keep_freed_memory()  # a second time is as once
"""


def output_of(script):
    """Words that a script prints in a process of its own, with `made`, `held` and `torch`."""
    return run_code(UNCHOSEN + BEFORE + textwrap.dedent(script)).split()


@needs_a_compiler
def test_a_freed_array_is_reused_for_its_size():
    output = output_of("""
        places = set()
        for _ in range(3):  # as many as exist at once, however often they are made
            arrays = [made(48, 1.0), made(48, 2.0), made(30, 3.0), made(3, 4.0)]
            places |= {a.data_ptr() for a in arrays}
            assert [float(a.sum()) / a.numel() for a in arrays] == [1, 2, 3, 4]
            del arrays
        print(len(places), held())
        small = torch.ones(100)
        before = held()
        grown = made(5, 7.0)
        grown.resize_(9 * MB // 4)[5 * MB // 4 :] = 7.0  # the sum of what was there and what is new
        print(float(grown.mean()), float(small.sum()), held() > before)
    """)
    assert output == ["4", "129", "7.0", "100.0", "True"]


@needs_a_compiler
def test_varying_sizes_do_not_add_up():
    (most,) = output_of("""
        most = 0
        for megabytes in range(20, 120, 3):
            del_me = made(megabytes)
            del del_me
            most = max(most, held())
        print(most)
    """)
    assert int(most) <= 2 * 128  # of 2,200 requested one after another


@needs_a_compiler
def test_unused_memory_is_released_on_request():
    output = output_of("""
        from cubemesh.frameworks import entry
        from cubemesh.frameworks.contract.program import SupportsMemoryRelease
        used, freed = made(30, 5.0), made(50)
        del freed
        before = held()
        for name in ("pytorch", "pytorch-captured", "pytorch-compiled"):
            framework = entry(name).load()
            assert isinstance(framework, SupportsMemoryRelease)
            framework.release_freed_memory()
        print(before, held(), float(used.mean()))
    """)
    assert output == ["82", "30", "5.0"]


@needs_a_compiler
def test_unused_memory_is_released_before_an_allocation_fails():
    output = output_of("""
        arrays = [made(64) for _ in range(8)]
        del arrays
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 100 * MB,) * 2)
        large = made(400, 1.0)  # no room next to the others
        print(float(large.mean()), held())
        try:
            made(4000)
        except RuntimeError as error:
            print("can't allocate memory" in str(error))
    """)
    assert output == ["1.0", "416", "True"]


@needs_a_compiler
def test_threads_have_arrays_of_their_own():
    output = output_of("""
        wrong = []
        def work(number):
            for turn in range(20):
                a, b = made(2, number), made(3, -number)
                if not (bool((a == number).all()) and bool((b == -number).all())):
                    wrong.append(turn)
        threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        print(len(wrong), held() <= 2 * 4 * (2 + 3))
    """)
    assert output == ["0", "True"]
