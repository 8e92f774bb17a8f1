import os
import subprocess
import sys

import pytest

from cubemesh.worker.report import memory

MOUNTS = (
    "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)
MEMINFO = "MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable:     800 kB\n"


def tree(tmp_path, **files):
    for name, text in {"proc/meminfo": MEMINFO, "proc/self/mountinfo": MOUNTS, **files}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_without_groups_the_available_memory_of_the_machine_counts(tmp_path):
    assert memory.available_bytes(tree(tmp_path)) == int(800 * 1024 * 0.95)


def test_the_tightest_level_of_version_2_counts_without_its_inactive_cache(tmp_path):
    group = "sys/fs/cgroup/user/me"
    root = tree(
        tmp_path,
        **{
            "proc/self/cgroup": "0::/user/me\n",
            f"{group}/memory.max": "max\n",
            f"{group}/memory.current": "5\n",
            "sys/fs/cgroup/user/memory.max": "300000\n",
            "sys/fs/cgroup/user/memory.current": "200000\n",
            "sys/fs/cgroup/user/memory.stat": "anon 1\ninactive_file 50000\n",
        },
    )
    assert memory.available_bytes(root) == int(150_000 * 0.95)


def test_version_1_counts(tmp_path):
    group = "sys/fs/cgroup/memory/job"
    root = tree(
        tmp_path,
        **{
            "proc/self/cgroup": "7:cpu:/job\n4:memory:/job\n0::/\n",
            f"{group}/memory.limit_in_bytes": "100000\n",
            f"{group}/memory.usage_in_bytes": "40000\n",
        },
    )
    assert memory.available_bytes(root) == int(60_000 * 0.95)


def test_a_container_with_the_hosts_path_finds_its_own_group(tmp_path):
    root = tree(
        tmp_path,
        **{
            "proc/self/cgroup": "0::/system/../docker/abc\n",
            "sys/fs/cgroup/memory.max": "100000\n",
            "sys/fs/cgroup/memory.current": "100001\n",
        },
    )
    assert memory.available_bytes(root) == 0


def test_a_kernel_without_memavailable_is_named(tmp_path):
    with pytest.raises(OSError, match="MemAvailable"):
        memory.available_bytes(tree(tmp_path, **{"proc/meminfo": "MemFree: 1 kB\n"}))


def test_the_memory_of_this_process_is_read():
    assert 1 << 20 < memory.held_bytes() <= memory.peak_held_bytes()
    assert memory.private_writable_bytes() > 1 << 20
    assert 0 < memory.available_bytes() < 1 << 50


PEAK = """
from cubemesh.worker.report import memory

block = bytearray(64 << 20)
block[::4096] = b"x" * len(block[::4096])
high = memory.peak_held_bytes()
del block
print(memory.reset_peak(), high, memory.peak_held_bytes())
"""


def test_the_peak_can_be_reset():
    """In a process of its own: here other tests' memory comes and goes."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", PEAK], capture_output=True, text=True, check=True, env=environment
    )
    reset, high, after = done.stdout.split()
    if reset != "True":
        pytest.skip("this kernel does not let a process reset its peak")
    assert int(after) < int(high) - (32 << 20)
