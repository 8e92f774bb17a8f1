"""Small copies of the kernel's files, as a laptop, servers and containers show them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from cubemesh.machines.files import Tree

Files = Mapping[str, str | bytes]
MakeTree = Callable[..., Tree]

X86_PROCESSOR = """\
processor\t: {cpu}
vendor_id\t: {vendor}
model name\t: {model}
physical id\t: {socket}
core id\t\t: {core}
flags\t\t: {flags}
"""

ARM_PROCESSOR = """\
processor\t: {cpu}
BogoMIPS\t: 2100.00
Features\t: {features}
CPU implementer\t: {implementer}
CPU architecture: 8
CPU variant\t: 0x1
CPU part\t: {part}
"""

V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNTS = (
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory\n"
)


def cpu_files(cores: Mapping[int, tuple[int, tuple[int, ...]]]) -> dict[str, str]:
    """The topology of processors, each given as number: (socket, processors of its core)."""
    files = {"/sys/devices/system/cpu/online": ",".join(map(str, cores))}
    for cpu, (socket, siblings) in cores.items():
        folder = f"/sys/devices/system/cpu/cpu{cpu}/topology"
        files[f"{folder}/physical_package_id"] = f"{socket}\n"
        files[f"{folder}/thread_siblings_list"] = ",".join(map(str, siblings)) + "\n"
    return files


def cache_files(
    cpu: int, index: int, level: int, kind: str, size: str, shared: str
) -> dict[str, str]:
    folder = f"/sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
    return {
        f"{folder}/level": f"{level}\n",
        f"{folder}/type": f"{kind}\n",
        f"{folder}/size": f"{size}\n",
        f"{folder}/shared_cpu_list": f"{shared}\n",
    }


def laptop_files() -> dict[str, str]:
    """Four cores with two hardware threads each: the threads of core n are n and n + 4."""
    flags = "fpu sse4_2 avx f16c fma avx2 avx_vnni"
    files = cpu_files({cpu: (0, (cpu % 4, cpu % 4 + 4)) for cpu in range(8)})
    files["/proc/cpuinfo"] = "\n".join(
        X86_PROCESSOR.format(
            cpu=cpu,
            vendor="GenuineIntel",
            model="11th Gen Intel(R) Core(TM) i7-1165G7 @ 2.80GHz",
            socket=0,
            core=cpu % 4,
            flags=flags,
        )
        for cpu in range(8)
    )
    for cpu in range(8):
        own = f"{cpu % 4},{cpu % 4 + 4}"
        files |= cache_files(cpu, 0, 1, "Data", "48K", own)
        files |= cache_files(cpu, 1, 1, "Instruction", "32K", own)
        files |= cache_files(cpu, 2, 2, "Unified", "1280K", own)
        files |= cache_files(cpu, 3, 3, "Unified", "12288K", "0-7")
        files[f"/sys/devices/system/cpu/cpu{cpu}/cpufreq/cpuinfo_max_freq"] = "4700000\n"
    files["/sys/devices/system/node/node0/cpulist"] = "0-7\n"
    files["/sys/devices/system/node/node0/meminfo"] = "Node 0 MemTotal:  16000000 kB\n"
    files["/proc/meminfo"] = (
        "MemTotal:       16000000 kB\nMemFree:         2000000 kB\n"
        "MemAvailable:    9000000 kB\nSwapTotal:       2097148 kB\n"
    )
    files["/proc/self/status"] = "Name:\tpython\nCpus_allowed:\tff\nCpus_allowed_list:\t0-7\n"
    files["/proc/self/cgroup"] = "0::/user.slice/user-1000.slice/session-2.scope\n"
    files["/proc/self/mountinfo"] = V2_MOUNT
    files["/sys/fs/cgroup/user.slice/cpu.max"] = "max 100000\n"
    files["/sys/fs/cgroup/user.slice/memory.max"] = "max\n"
    files["/sys/class/dmi/id/sys_vendor"] = "LENOVO\n"
    files["/sys/class/dmi/id/product_name"] = "20XW\n"
    files["/proc/sys/kernel/hostname"] = "laptop\n"
    files["/proc/sys/kernel/ostype"] = "Linux\n"
    files["/proc/sys/kernel/osrelease"] = "6.1.0-18-amd64\n"
    files["/proc/sys/kernel/arch"] = "x86_64\n"
    files["/etc/os-release"] = 'NAME="Debian"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n'
    return files


def epyc_files() -> dict[str, str]:
    """Two sockets of four cores, two threads a core, two NUMA nodes; the second threads follow."""
    files = cpu_files({c: (c % 8 // 4, (c % 8, c % 8 + 8)) for c in range(16)})
    files["/proc/cpuinfo"] = "\n".join(
        X86_PROCESSOR.format(
            cpu=cpu,
            vendor="AuthenticAMD",
            model="AMD EPYC 9654 96-Core Processor",
            socket=cpu % 8 // 4,
            core=cpu % 4,
            flags="sse4_2 avx avx2 fma f16c avx512f avx512_vnni avx512_bf16",
        )
        for cpu in range(16)
    )
    for cpu in range(16):
        third = "0-3,8-11" if cpu % 8 < 4 else "4-7,12-15"
        files |= cache_files(cpu, 0, 1, "Data", "32K", f"{cpu % 8},{cpu % 8 + 8}")
        files |= cache_files(cpu, 3, 3, "Unified", "32768K", third)
    for node, cpus in enumerate(("0-3,8-11", "4-7,12-15")):
        folder = f"/sys/devices/system/node/node{node}"
        files[f"{folder}/cpulist"] = f"{cpus}\n"
        files[f"{folder}/meminfo"] = f"Node {node} MemTotal:       32000000 kB\n"
    files["/proc/meminfo"] = "MemTotal: 64000000 kB\nMemAvailable: 60000000 kB\nSwapTotal: 0 kB\n"
    files["/proc/self/status"] = "Cpus_allowed_list:\t0-15\n"
    return files


def arm_files(part: str = "0xd40") -> dict[str, str]:
    """Four Neoverse-V1 cores of a cloud's virtual machine, or another part of Arm's."""
    files = cpu_files({cpu: (0, (cpu,)) for cpu in range(4)})
    files["/proc/cpuinfo"] = "\n".join(
        ARM_PROCESSOR.format(
            cpu=cpu,
            implementer="0x41",
            part=part,
            features="fp asimd asimdhp asimddp sve i8mm bf16",
        )
        for cpu in range(4)
    )
    files["/proc/sys/kernel/arch"] = "aarch64\n"
    files["/sys/class/dmi/id/sys_vendor"] = "Amazon EC2\n"
    files["/sys/class/dmi/id/product_name"] = "c7g.xlarge\n"
    return files


@pytest.fixture
def make_tree(tmp_path: Path) -> MakeTree:
    """Writes files below a fresh root and gives the tree of them."""

    def make(*parts: Files) -> Tree:
        for files in parts:
            for path, content in files.items():
                file = tmp_path / path.lstrip("/")
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content.encode() if isinstance(content, str) else content)
        return Tree(tmp_path)

    return make


@pytest.fixture
def laptop() -> dict[str, str]:
    return laptop_files()


@pytest.fixture
def epyc() -> dict[str, str]:
    return epyc_files()


@pytest.fixture
def arm() -> Callable[..., dict[str, str]]:
    return arm_files


@pytest.fixture
def v2_mount() -> str:
    return V2_MOUNT


@pytest.fixture
def v1_mounts() -> str:
    return V1_MOUNTS
