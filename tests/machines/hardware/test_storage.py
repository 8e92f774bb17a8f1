"""Drives, arrays and file systems of copied trees, and of this machine."""

import os
import shutil
import threading
from types import SimpleNamespace

import pytest

from cubemesh.machines.files import MOST_TABLE_BYTES, Tree
from cubemesh.machines.hardware import storage
from cubemesh.machines.hardware.storage import read_storage
from cubemesh.schema import Drive

MDSTAT = """\
Personalities : [raid0] [raid1] [raid6] [raid5] [raid4]
md0 : active raid0 sdd[3] sdc[2] sdb[1] sda[0]
      7501212672 blocks super 1.2 512k chunks

md1 : active (auto-read-only) raid1 nvme1n1p2[1](F) nvme0n1p2[0]
      1046528 blocks super 1.2 [2/1] [U_]
      [==>...........]  recovery = 12.6% (37043392/292945152) finish=127.5min speed=33440K/sec

md127 : inactive sde[0](S)
      976631512 blocks super 1.2

unused devices: <none>
"""
MOUNTS = r"""
proc /proc proc rw,nosuid 0 0
/dev/md1 / ext4 rw,relatime 0 0
/dev/md0 /raid xfs rw,noatime 0 0
/dev/md0 /var/lib/containers/with/a/longer/path xfs rw 0 0
/dev/mapper/vg-home /home ext4 ro,relatime 0 0
nas7:/export/images /data/image\040sets nfs4 rw,vers=4.2,proto=rdma,addr=10.0.0.7 0 0
[fd00::7]:/b /b nfs rw,proto=tcp 0 0
//files/share /share cifs rw 0 0
10.0.0.1@o2ib:10.0.0.2@o2ib:/scratch /scratch lustre rw 0 0
tmpfs /run tmpfs rw 0 0
tmpfs /dev/shm tmpfs rw 0 0
/dev/loop3 /snap/core squashfs ro 0 0
overlay /merged overlay rw 0 0
damaged line
"""


def block(name: str, sectors: int, rotational: int, **more: str) -> dict[str, str]:
    folder = f"/sys/block/{name}"
    files = {f"{folder}/size": f"{sectors}\n", f"{folder}/queue/rotational": f"{rotational}\n"}
    return files | {f"{folder}/{path.replace('__', '/')}": text for path, text in more.items()}


def dgx1() -> dict[str, str]:
    """Four SAS SSDs in a RAID 0, a mirror of two NVMe partitions, and a logical volume."""
    files = {"/proc/mounts": MOUNTS, "/proc/mdstat": MDSTAT}
    for name in "abcd":
        files |= block(
            f"sd{name}",
            3750748848,
            0,
            device__model="PM1633a         \n",
            device__sas_address="0x5002538",
        )
    for number in (0, 1):
        name = f"nvme{number}n1"
        partition = {f"{name}p2__partition": "2\n", f"{name}p3__partition": "3\n"}
        files |= block(name, 937703088, 0, device__model="SAMSUNG MZ1LB", **partition)
    files |= block("sdf", 1000, 1) | block("loop3", 99, 0) | block("sdz", 0, 1)
    for name in "abcd":
        files[f"/sys/block/md0/slaves/sd{name}/x"] = ""
    files |= {f"/sys/block/md1/slaves/nvme{i}n1p2/x": "" for i in (0, 1)}
    files |= {"/sys/block/dm-0/dm/name": "vg-home\n", "/sys/block/dm-0/slaves/nvme1n1p3/x": ""}
    return files


def test_drives_have_size_kind_and_interface(make_tree):
    drives = {d.name: d for d in read_storage(make_tree(dgx1())).drives}
    assert list(drives) == ["nvme0n1", "nvme1n1", "sda", "sdb", "sdc", "sdd", "sdf"]
    assert drives["sda"] == Drive(
        name="sda",
        size_bytes=1920383410176,
        rotational=False,
        interface="sas",
        model="PM1633a",
    )
    assert drives["nvme0n1"].interface == "nvme"
    assert (drives["sdf"].rotational, drives["sdf"].interface) == (True, None)


def test_the_place_of_a_device_gives_its_interface(make_tree, link):
    tree = make_tree({"/sys/block/.keep": ""})
    places = {
        "sda": "ata3/host2/target2:0:0/2:0:0:0",
        "sdb": "usb2/2-1/host4/target4:0:0/4:0:0:0",
        "sdc": "host0/port-0:0/end_device-0:0/target0:0:0/0:0:0:0",
        "xvda": "virtio1",
    }
    for name, place in places.items():
        folder = f"/sys/devices/pci0000:00/0000:00:17.0/{place}/block/{name}"
        link(f"/sys/block/{name}", folder)
        (tree.root / folder[1:] / "size").write_text("8\n")
    found = read_storage(tree).drives
    assert [d.interface for d in found] == ["sata", "usb", "sas", "virtio"]


def test_arrays_of_mdstat(make_tree):
    striped, mirror, inactive = read_storage(make_tree(dgx1())).raid_arrays
    assert (striped.level, striped.members) == ("raid0", ("sda", "sdb", "sdc", "sdd"))
    assert (striped.size_bytes, striped.chunk_bytes) == (7501212672 << 10, 512 << 10)
    assert striped.active
    assert striped.failed == ()
    assert (mirror.level, mirror.failed) == ("raid1", ("nvme1n1p2",))
    assert (mirror.members_expected, mirror.members_present) == (2, 1)
    assert mirror.recovery == "recovery 12.6%"
    assert (inactive.active, inactive.level, inactive.members) == (False, None, ("sde",))


def test_file_systems_and_the_drives_below_them(make_tree):
    tree = make_tree(dgx1())
    mounts = {m.path: m for m in read_storage(tree).mounts}
    assert list(mounts) == [
        *("/", "/b", "/data/image sets", "/dev/shm", "/home", "/merged", "/raid", "/scratch"),
        "/share",
    ]
    assert mounts["/raid"].drives == ("sda", "sdb", "sdc", "sdd")
    assert mounts["/"].drives == ("nvme0n1", "nvme1n1")
    assert (mounts["/home"].device, mounts["/home"].drives) == ("dm-0", ("nvme1n1",))
    assert (mounts["/home"].read_only, mounts["/raid"].read_only) == (True, False)
    nfs = mounts["/data/image sets"]
    assert (nfs.file_system, nfs.server, nfs.transport) == ("nfs4", "nas7", "rdma")
    assert (mounts["/b"].server, mounts["/b"].transport) == ("fd00::7", "tcp")
    assert mounts["/share"].server == "files"
    assert mounts["/scratch"].server == "10.0.0.1@o2ib:10.0.0.2@o2ib"
    assert all(m.size_bytes is None for m in mounts.values()), "a copy has no sizes"
    assert [u.what for u in tree.unknown] == ["some file systems"]


def test_sizes_and_a_server_that_does_not_answer(make_tree, monkeypatch):
    monkeypatch.setattr(storage, "SERVER_WAIT_S", 0.05)
    tree, gone = make_tree(dgx1()), threading.Event()

    def statvfs(path):
        if path == "/b":
            gone.wait()
        if path == "/share":
            raise OSError(5, "I/O error")
        return SimpleNamespace(f_frsize=4096, f_blocks=1000, f_bavail=250)

    try:
        mounts = {m.path: m for m in read_storage(tree, statvfs).mounts}
    finally:
        gone.set()
    assert (mounts["/raid"].size_bytes, mounts["/raid"].free_bytes) == (4096000, 1024000)
    assert mounts["/b"].size_bytes is None
    notes = {u.what: u.why for u in tree.unknown}
    assert "does not answer" in notes["size of the file system at /b"]
    assert "size of the file system at /share" in notes


@pytest.mark.parametrize(
    "content",
    [b"", b"\x00\xff\xfe", b"md9\n md0 : active\nmd0 : active raid0\n \n", b"a b c d e\n" * 9],
)
def test_damaged_files_are_not_an_error(make_tree, content):
    tree = make_tree(dict.fromkeys(dgx1(), content))
    found = read_storage(tree)
    assert found.drives == ()
    assert found.mounts == ()


def test_a_huge_table_is_read_in_part_with_a_note(make_tree):
    many = "".join(f"/dev/sdf{i} /m{i} ext4 rw 0 0\n" for i in range(60_000))
    assert len(many) > MOST_TABLE_BYTES
    tree = make_tree({"/proc/mounts": many})
    assert len(read_storage(tree).mounts) == storage.MOST_MOUNTS
    assert any("1 MiB" in u.why for u in tree.unknown)


def test_no_files_at_all(tmp_path):
    tree = Tree(tmp_path)
    assert read_storage(tree) == storage.Storage()
    assert [u.what for u in tree.unknown] == ["file systems"]


@pytest.mark.skipif(not os.path.exists("/proc/mounts"), reason="needs /proc/mounts")
def test_the_root_file_system_of_this_machine():
    mounts = {m.path: m for m in read_storage(Tree(), os.statvfs).mounts}
    if "/" in mounts:
        assert mounts["/"].size_bytes == shutil.disk_usage("/").total
