"""Probe: this computer as a `Machine`.

Processors, memory, storage, network adapters, virtual machine and container are read from the
kernel's files, GPUs from NVML, the software stack from the installed distributions. Nothing here
runs anything on a device, imports a framework, or guesses; what could not be determined is in
`Machine.unknown`.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path

from cubemesh.machines.cpu import read_cpu
from cubemesh.machines.cpuinfo import read_cpuinfo
from cubemesh.machines.files import Tree
from cubemesh.machines.hardware.gpu_errors import with_xids
from cubemesh.machines.hardware.network import read_adapters
from cubemesh.machines.hardware.power_sensors import read_power
from cubemesh.machines.hardware.storage import read_storage
from cubemesh.machines.memory import read_memory
from cubemesh.machines.nvidia import probe_nvidia
from cubemesh.machines.software import read_software
from cubemesh.machines.virtualization import container, virtualization
from cubemesh.schema import Machine


def probe(root: Path = Path("/"), *, sensors: bool = False) -> Machine:
    """This machine as the running process may use it; with `sensors` also its power, which its
    management controller takes up to some seconds to answer.

    `root` is where the kernel's files are read from ("/proc/cpuinfo" below it); another folder than
    "/" holds a copy of them. Environment variables, installed packages and GPUs are always those of
    the running process. A missing or malformed file leaves its fields None and a note in
    `Machine.unknown`; it never raises.
    """
    tree = Tree(Path(root))
    info = read_cpuinfo(tree)
    cpu = read_cpu(tree, info)
    memory = read_memory(tree)
    nvidia = probe_nvidia(tree)
    gpus = with_xids(tree, nvidia.gpus)
    storage = read_storage(tree, os.statvfs if tree.live else None)
    network = read_adapters(tree, gpus)
    return Machine(
        hostname=tree.text("/proc/sys/kernel/hostname") or platform.node(),
        cpu=cpu,
        memory=memory,
        gpus=gpus,
        gpu_links=nvidia.links,
        drives=storage.drives,
        raid_arrays=storage.raid_arrays,
        mounts=storage.mounts,
        network_adapters=network.adapters,
        nic_links=network.links,
        power=read_power(tree) if sensors else (),
        software=read_software(tree, driver=nvidia.driver, cuda=nvidia.cuda),
        virtualization=virtualization(tree, info),
        container=container(tree, os.environ),
        unknown=tuple(tree.unknown),
    )
