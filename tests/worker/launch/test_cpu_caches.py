"""Caches of a rank's processors, from the kernel's files."""

import pytest

from cubemesh.worker.launch.cpu_caches import cache_bytes

KIB = 1 << 10


@pytest.fixture
def sys(tmp_path):
    """Four processors, two hardware threads a core: L1, L2 of a core, L3 of all."""
    for cpu in range(4):
        core = f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}"
        caches = [
            ("Data", 1, "32K", core),
            ("Instruction", 1, "32K", core),
            ("Unified", 2, "1024K", core),
            ("Unified", 3, "8M", "0-3"),
        ]
        for index, (kind, level, size, users) in enumerate(caches):
            folder = tmp_path / f"cpu/cpu{cpu}/cache/index{index}"
            folder.mkdir(parents=True)
            for name, text in (
                ("type", kind),
                ("level", str(level)),
                ("size", size),
                ("shared_cpu_list", users),
            ):
                (folder / name).write_text(f"{text}\n")
    return tmp_path


@pytest.mark.parametrize(
    ("processors", "own", "others"),
    [
        ((0, 1), 1024, 8192),
        ((0,), 0, 1024 + 8192),
        ((0, 1, 2, 3), 2048 + 8192, 0),
        ((0, 2), 0, 2048 + 8192),
    ],
)
def test_each_cache_counts_once_as_private_or_shared(sys, processors, own, others):
    assert cache_bytes(processors, sys) == (own * KIB, others * KIB)


def test_without_the_kernels_files_nothing_is_known(tmp_path):
    assert cache_bytes((0, 1), tmp_path) is None


def test_a_cache_without_a_size_is_left_out(sys):
    (sys / "cpu/cpu0/cache/index3/size").write_text("unknown\n")
    (sys / "cpu/cpu1/cache/index3/size").unlink()
    assert cache_bytes((0, 1), sys) == ((32 + 1024) * KIB, 0)
