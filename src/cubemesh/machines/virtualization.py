"""Virtualization: whether this process runs in a virtual machine or a container.

On x86 a hypervisor sets the `hypervisor` flag of /proc/cpuinfo; without it the machine is bare
metal, whatever the firmware's name (a cloud's bare-metal servers have the cloud's). The name of the
hypervisor is in the firmware's DMI table, in the ACPI tables' OEM id (readable as root), in
/sys/hypervisor or in the device tree; systemd-detect-virt, where installed, also reads the CPUID
instruction. A container leaves marker files, environment variables or its name in the path of the
control group. Sources: systemd's src/basic/virt.c for the DMI names and the
`container` variable; the documentation of each container engine.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping

from cubemesh.cgroups import cgroup_paths
from cubemesh.machines.cpuinfo import Cpuinfo
from cubemesh.machines.files import Tree

DMI = "/sys/class/dmi/id"
MOST_ANSWER_S = 10.0
"""Of systemd-detect-virt."""

DMI_NAMES: tuple[tuple[str, str], ...] = (
    ("Amazon EC2", "Amazon EC2"),
    ("Google Compute Engine", "Google Compute Engine"),
    ("Microsoft Corporation Virtual Machine", "Hyper-V"),
    ("Hyper-V", "Hyper-V"),
    ("VMware", "VMware"),
    ("VirtualBox", "VirtualBox"),
    ("Parallels", "Parallels"),
    ("Apple Virtualization", "Apple Virtualization"),
    ("BHYVE", "bhyve"),
    ("Xen", "Xen"),
    ("OpenStack", "KVM (OpenStack)"),
    ("KubeVirt", "KVM (KubeVirt)"),
    ("QEMU", "QEMU"),
    ("KVM", "KVM"),
    ("Bochs", "Bochs"),
)
"""Text in the DMI table (maker and product, joined by a space) → name used here."""

ACPI_NAMES: Mapping[str, str] = {
    "FIRECK": "Firecracker",
    "CLOUDH": "Cloud Hypervisor",
    "BOCHS": "QEMU",
    "VBOX": "VirtualBox",
    "Xen": "Xen",
}
"""OEM id in the header of an ACPI table → name used here."""

UNNAMED = "unnamed"
"""Name of a hypervisor that does not give its own."""

CGROUP_NAMES: tuple[tuple[str, str], ...] = (
    (r"kubepods", "kubernetes"),
    (r"/libpod[-_]", "podman"),
    (r"/docker[-/]", "docker"),
    (r"/lxc[./]", "lxc"),
    (r"cri-containerd|/containerd/", "containerd"),
    (r"/machine\.slice/(systemd-nspawn|machine-)", "systemd-nspawn"),
)
"""Pattern in the path of the control group → the container's name used here."""


def virtualization(tree: Tree, info: Cpuinfo) -> str | None:
    """The hypervisor's name; "unnamed" if it gives none, None without a visible hypervisor."""
    shown = "hypervisor" in info.flags
    if info.is_x86 and not shown:
        return None
    name = _named_by_files(tree) or _named_by_systemd(tree)
    if name is None and shown:
        tree.missing("hypervisor's name", "the processor shows one, its vendor is unknown")
        return UNNAMED
    return name


def container(tree: Tree, environment: Mapping[str, str]) -> str | None:
    """`docker`, `podman`, `kubernetes`, `apptainer`, …; `slurm` for a bare Slurm job, whose control
    group limits the process as a container's does; None without a sign of one.

    Where several apply, the innermost or most specific one: Apptainer inside a Kubernetes pod
    is `apptainer`, Docker under Kubernetes is `kubernetes`.
    """
    paths = " ".join(cgroup_paths(tree.root).values())
    by_group = next((name for word, name in CGROUP_NAMES if re.search(word, paths)), None)
    manager = environment.get("container") or tree.text("/run/host/container-manager")
    signs = (
        ("apptainer", bool({"APPTAINER_CONTAINER", "APPTAINER_NAME"} & environment.keys())),
        ("singularity", bool({"SINGULARITY_CONTAINER", "SINGULARITY_NAME"} & environment.keys())),
        ("kubernetes", "KUBERNETES_SERVICE_HOST" in environment or by_group == "kubernetes"),
        ("podman", tree.exists("/run/.containerenv")),
        ("docker", tree.exists("/.dockerenv")),
        (by_group, by_group is not None),
        (manager, bool(manager)),
        ("slurm", "SLURM_JOB_ID" in environment),
    )
    return next((name for name, seen in signs if seen), None)


def _named_by_files(tree: Tree) -> str | None:
    fields = ("sys_vendor", "product_name", "board_vendor", "bios_vendor")
    dmi = " ".join(tree.text(f"{DMI}/{field}") or "" for field in fields)
    if ".metal" not in dmi:  # Amazon's bare-metal servers: "m5.metal"
        for words, name in DMI_NAMES:
            if words in dmi:
                return name
    # The OEM id is the six bytes from the tenth on (ACPI specification, table header).
    header = tree.raw("/sys/firmware/acpi/tables/DSDT") or b""
    oem = header[10:16].decode("ascii", errors="replace").strip("\0 ")
    if oem in ACPI_NAMES:
        return ACPI_NAMES[oem]
    if (tree.text("/sys/hypervisor/type") or "").lower() == "xen":
        return "Xen"
    if "microsoft" in (tree.text("/proc/sys/kernel/osrelease") or "").lower():
        return "WSL"
    compatible = tree.text("/proc/device-tree/hypervisor/compatible") or ""
    return "KVM" if "kvm" in compatible else ("Xen" if "xen" in compatible else None)


def _named_by_systemd(tree: Tree) -> str | None:
    """The name that systemd-detect-virt gives; it knows more hypervisors than the tables here."""
    program = shutil.which("systemd-detect-virt") if tree.live else None
    if program is None:
        return None
    try:
        answer = subprocess.run(
            [program, "--vm"], capture_output=True, text=True, timeout=MOST_ANSWER_S
        )
    except (OSError, subprocess.SubprocessError):
        return None
    name = answer.stdout.strip()
    return name if name and name != "none" else None
