"""Who virtualises the machine and what contains the process, by their own signs only."""

import pytest

from cubemesh.machines.cpuinfo import read_cpuinfo
from cubemesh.machines.virtualization import container, virtualization

GUEST = {"/proc/cpuinfo": "processor: 0\nflags: fpu hypervisor avx2\n"}
REAL = {"/proc/cpuinfo": "processor: 0\nflags: fpu avx2\n"}
DMI = "/sys/class/dmi/id"


def hypervisor_of(tree):
    return virtualization(tree, read_cpuinfo(tree))


def acpi(oem: bytes) -> dict[str, bytes]:
    table = b"DSDT" + (624).to_bytes(4, "little") + b"\x02w" + oem.ljust(6) + b"FCVMDSDT"
    return {"/sys/firmware/acpi/tables/DSDT": table}


@pytest.mark.parametrize(
    ("files", "name"),
    [
        ({f"{DMI}/sys_vendor": "QEMU\n", f"{DMI}/product_name": "Standard PC\n"}, "QEMU"),
        ({f"{DMI}/sys_vendor": "Amazon EC2", f"{DMI}/product_name": "p5.48xlarge"}, "Amazon EC2"),
        (
            {
                f"{DMI}/sys_vendor": "Microsoft Corporation",
                f"{DMI}/product_name": "Virtual Machine",
            },
            "Hyper-V",
        ),
        (
            {f"{DMI}/sys_vendor": "Google", f"{DMI}/product_name": "Google Compute Engine"},
            "Google Compute Engine",
        ),
        (acpi(b"FIRECK"), "Firecracker"),
        (acpi(b"BOCHS"), "QEMU"),
        ({"/sys/hypervisor/type": "xen\n"}, "Xen"),
        ({"/proc/sys/kernel/osrelease": "5.15.90.1-microsoft-standard-WSL2\n"}, "WSL"),
    ],
)
def test_a_hypervisor_is_named_by_the_firmware_or_the_kernel(make_tree, files, name):
    tree = make_tree(GUEST, files)
    assert hypervisor_of(tree) == name
    assert tree.unknown == []


def test_a_hypervisor_that_does_not_name_itself(make_tree):
    tree = make_tree(GUEST, acpi(b"INTEL"))
    assert hypervisor_of(tree) == "unnamed"
    assert [u.what for u in tree.unknown] == ["hypervisor's name"]


def test_a_clouds_bare_metal_server_is_no_virtual_machine(make_tree, arm):
    bare = {f"{DMI}/sys_vendor": "Amazon EC2\n", f"{DMI}/product_name": "c7g.metal\n"}
    assert hypervisor_of(make_tree(REAL, bare)) is None
    assert hypervisor_of(make_tree(arm(), bare)) is None


def test_arm_is_judged_by_the_firmware_alone(make_tree, arm):
    assert hypervisor_of(make_tree(arm())) == "Amazon EC2"


def test_a_laptop_is_neither_virtual_nor_contained(make_tree, laptop):
    tree = make_tree(laptop)
    assert hypervisor_of(tree) is None
    assert container(tree, {}) is None


POD = {"/proc/self/cgroup": "0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-9.scope\n"}


@pytest.mark.parametrize(
    ("files", "environment", "name"),
    [
        ({"/.dockerenv": ""}, {}, "docker"),
        ({"/run/.containerenv": ""}, {"container": "podman"}, "podman"),
        (POD, {}, "kubernetes"),
        ({"/.dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        (POD, {"APPTAINER_CONTAINER": "/a.sif", "SINGULARITY_CONTAINER": "/a.sif"}, "apptainer"),
        ({}, {"SINGULARITY_CONTAINER": "/a.sif", "SLURM_JOB_ID": "7"}, "singularity"),
        ({"/proc/self/cgroup": "4:memory:/docker/4fe1\n"}, {}, "docker"),
        ({"/proc/self/cgroup": "0::/system.slice/docker-4fe1.scope\n"}, {}, "docker"),
        ({"/proc/self/cgroup": "0::/system.slice/docker.service\n"}, {}, None),
        ({"/proc/self/cgroup": "4:memory:/lxc/web\n"}, {}, "lxc"),
        ({}, {"container": "systemd-nspawn"}, "systemd-nspawn"),
        ({"/run/host/container-manager": "systemd-nspawn\n"}, {}, "systemd-nspawn"),
        ({}, {"SLURM_JOB_ID": "7"}, "slurm"),
        ({}, {}, None),
    ],
)
def test_a_container_is_recognized_by_its_signs(make_tree, files, environment, name):
    assert container(make_tree(files), environment) == name
