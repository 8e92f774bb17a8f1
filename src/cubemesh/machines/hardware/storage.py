"""Storage probe: drives, RAID arrays of the kernel, and mounted file systems.

Drives are the devices in /sys/block that are not made of others; arrays are those of the md driver
in /proc/mdstat (Documentation/admin-guide/md.rst of the Linux kernel); file systems those of
/proc/mounts that can hold data. The drives below a file system follow from partitions and from the
`slaves` of md and device-mapper devices. A RAID of a controller shows itself as one drive.

Size and free space are `statvfs`. A network server that is gone would block it, so these are asked
in threads and waited for `SERVER_WAIT_S` together.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from cubemesh.machines.files import Tree, size_bytes
from cubemesh.schema import Drive, Mount, RaidArray

BLOCK = "/sys/block"
SECTOR_BYTES = 512
"""Of every size in /sys/block, whatever the drive's sectors are."""
MOST_DEVICES = 1024
MOST_MOUNTS = 256
SERVER_WAIT_S = 2.0

_MADE_OF_OTHERS = re.compile(r"(dm-|md)\d+")
_NO_DRIVE = re.compile(r"(loop|ram|zram|sr|fd|nbd|zd)\d+|nvme\d+c\d+n\d+")
"""Devices of files and memory, removable discs, and the hidden paths of an NVMe device."""

NETWORK_FILE_SYSTEMS = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "wekafs"),
        *("pvfs2", "afs", "9p", "virtiofs", "fuse.glusterfs", "fuse.sshfs", "fuse.s3fs"),
        *("fuse.gcsfuse", "fuse.mount-s3", "fuse.rclone", "fuse.juicefs", "fuse.blobfuse2"),
    }
)
_OTHERS = frozenset({"zfs", "overlay"})
"""File systems that hold data and whose source is not a device."""
_READ_ONLY = frozenset({"squashfs", "iso9660", "udf", "erofs"})
"""Images of software, which hold no data of a user."""
_IN_MEMORY = {"tmpfs": ("/dev/shm", "/tmp")}

_ARRAY = re.compile(r"^(md\w{1,40}) : (active|inactive)\s*(?:\([\w-]+\)\s*)*(.*)$")
_MEMBER = re.compile(r"^([\w!.-]{1,60})\[\d+\]((?:\([A-Z]\))*)$")
_BLOCKS = re.compile(r"^\s+(\d{1,15}) blocks\b")
_CHUNK = re.compile(r"\b(\d{1,9})k chunks?\b")
_PRESENT = re.compile(r"\[(\d{1,4})/(\d{1,4})\]")
_RECOVERY = re.compile(r"\b(recovery|resync|check|reshape)\s*=\s*([\d.]{1,6}%)")


class Sizes(Protocol):
    """The part of `os.statvfs_result` that is used."""

    @property
    def f_frsize(self) -> int:
        """Bytes of a block."""

    @property
    def f_blocks(self) -> int:
        """Blocks of the file system."""

    @property
    def f_bavail(self) -> int:
        """Blocks that are free for users other than root."""


Statvfs = Callable[[str], Sizes]


@dataclass(frozen=True, kw_only=True)
class Storage:
    """Drives, arrays and file systems of a machine."""

    drives: tuple[Drive, ...] = ()
    raid_arrays: tuple[RaidArray, ...] = ()
    mounts: tuple[Mount, ...] = ()


def read_storage(tree: Tree, statvfs: Statvfs | None = None) -> Storage:
    """The storage; `statvfs` gives the sizes of file systems, None leaves them out (a copy of
    another machine's files has none)."""
    names = tree.names(BLOCK)
    if len(names) > MOST_DEVICES:
        tree.missing("some drives", f"{BLOCK} has {len(names):,} devices; {MOST_DEVICES} are read")
    devices = [n for n in names[:MOST_DEVICES] if not _NO_DRIVE.fullmatch(n)]
    drives = [_drive(tree, name) for name in devices if not _MADE_OF_OTHERS.fullmatch(name)]
    found = tuple(drive for drive in drives if drive.size_bytes)
    blocks = _Blocks(tree, devices, {drive.name for drive in found})
    return Storage(
        drives=found,
        raid_arrays=_arrays(tree),
        mounts=_sized(tree, _mounts(tree, blocks), statvfs),
    )


def _drive(tree: Tree, name: str) -> Drive:
    folder = f"{BLOCK}/{name}"
    sectors = tree.number(f"{folder}/size")
    rotational = tree.number(f"{folder}/queue/rotational")
    model = tree.text(f"{folder}/device/model") or tree.text(f"{folder}/device/name")
    return Drive(
        name=name,
        size_bytes=None if sectors is None or sectors < 0 else sectors * SECTOR_BYTES,
        rotational=None if rotational not in (0, 1) else rotational == 1,
        interface=_interface(
            name, tree.target(folder) or "", tree.exists(f"{folder}/device/sas_address")
        ),
        model=" ".join(model.split())[:80] if model else None,
    )


def _interface(name: str, place: str, sas: bool) -> str | None:
    """From the device's name and its place below /sys/devices."""
    signs = (
        ("nvme", name.startswith("nvme")),
        ("usb", "/usb" in place),
        ("sas", sas or "/end_device-" in place),
        ("sata", re.search(r"/ata\d+/", place) is not None),
        ("virtio", name.startswith("vd") or "/virtio" in place),
        ("mmc", name.startswith("mmcblk")),
    )
    return next((interface for interface, seen in signs if seen), None)


class _Blocks:
    """Which devices are made of which."""

    def __init__(self, tree: Tree, devices: Sequence[str], drives: Iterable[str]) -> None:
        self.drives = frozenset(drives)
        self.device_of = {name: name for name in devices}
        self.below: dict[str, list[str]] = {}
        for name in devices:
            for entry in tree.names(f"{BLOCK}/{name}"):
                if entry.startswith(name) and tree.exists(f"{BLOCK}/{name}/{entry}/partition"):
                    self.device_of[entry] = name
            if _MADE_OF_OTHERS.fullmatch(name):
                self.below[name] = tree.names(f"{BLOCK}/{name}/slaves")
            if mapped := tree.text(f"{BLOCK}/{name}/dm/name"):
                self.device_of[f"mapper/{mapped}"] = name

    def device(self, source: str) -> str | None:
        """The device of /sys/block for `/dev/sda1` or `/dev/mapper/data`."""
        return self.device_of.get(source.removeprefix("/dev/"))

    def drives_below(self, device: str | None) -> tuple[str, ...]:
        """The drives that a device is made of; itself if it is one."""
        found, seen, rest = [], set(), [device]
        while rest:
            name = rest.pop(0)
            if name is None or name in seen:
                continue
            seen.add(name)
            if name in self.drives:
                found.append(name)
            rest += [self.device_of.get(part) for part in self.below.get(name, ())]
        return tuple(sorted(found))


def _arrays(tree: Tree) -> tuple[RaidArray, ...]:
    lines = tree.table("/proc/mdstat", "RAID arrays")
    found: list[RaidArray] = []
    for line in lines or ():
        if match := _ARRAY.match(line):
            found.append(_array(match[1], match[2] == "active", match[3].split()))
        elif found and line[:1].isspace():
            found[-1] = _with_details(found[-1], line)
        elif line.startswith("md"):
            tree.missing("a RAID array", f"/proc/mdstat has a line of unknown form: {line[:80]!r}")
    return tuple(found)


def _array(name: str, active: bool, words: list[str]) -> RaidArray:
    """From `md0 : active raid1 sdb1[1](F) sda1[0]`."""
    level = words[0] if words and not _MEMBER.match(words[0]) else None
    members = [match for word in words if (match := _MEMBER.match(word))]
    return RaidArray(
        name=name,
        level=level,
        active=active,
        members=tuple(sorted(match[1] for match in members)),
        failed=tuple(sorted(match[1] for match in members if "(F)" in match[2])),
    )


def _with_details(array: RaidArray, line: str) -> RaidArray:
    """With a line below the array's: size, chunk, how many members are there, recovery."""
    if blocks := _BLOCKS.match(line):
        array = replace(array, size_bytes=int(blocks[1]) << 10)
    if chunk := _CHUNK.search(line):
        array = replace(array, chunk_bytes=size_bytes(f"{chunk[1]}K"))
    if present := _PRESENT.search(line):
        array = replace(array, members_expected=int(present[1]), members_present=int(present[2]))
    if recovery := _RECOVERY.search(line):
        array = replace(array, recovery=f"{recovery[1]} {recovery[2]}")
    return array


def _mounts(tree: Tree, blocks: _Blocks) -> list[Mount]:
    lines = tree.table("/proc/mounts", "some file systems")
    if lines is None:
        tree.missing("file systems", "/proc/mounts cannot be read")
        return []
    found: dict[tuple[str, str], Mount] = {}
    damaged = 0
    for line in lines:
        fields = line.split(" ")
        if len(fields) < 4:
            damaged += bool(line.strip())
            continue
        mount = _mount(blocks, *map(_decoded, fields[:4]))
        if mount is None or (tree.live and _is_file(mount)):
            continue  # a container's /etc/hosts is a file of the host
        # The same source at several places: bind mounts, of which the shortest path is shown.
        key = (mount.source, mount.path if mount.source in (mount.file_system, "none") else "")
        if key not in found or len(mount.path) < len(found[key].path):
            found[key] = mount
    if damaged:
        tree.missing("some file systems", f"/proc/mounts has {damaged} lines of unknown form")
    if len(found) > MOST_MOUNTS:
        tree.missing("some file systems", f"{len(found):,} are mounted; {MOST_MOUNTS} are shown")
    return sorted(found.values(), key=lambda mount: mount.path)[:MOST_MOUNTS]


def _is_file(mount: Mount) -> bool:
    """Not asked of a network server, which may be gone."""
    return mount.file_system not in NETWORK_FILE_SYSTEMS and os.path.isfile(mount.path)


def _mount(blocks: _Blocks, source: str, path: str, kind: str, options: str) -> Mount | None:
    """None for a file system that holds no data of a user."""
    remote = kind in NETWORK_FILE_SYSTEMS
    local = source.startswith("/dev/") or kind in _OTHERS
    if kind in _READ_ONLY or not (remote or local or path in _IN_MEMORY.get(kind, ())):
        return None
    words = options.split(",")
    device = None if remote else blocks.device(source)
    transport = next((w.removeprefix("proto=") for w in words if w.startswith("proto=")), None)
    return Mount(
        path=path,
        file_system=kind,
        source=source,
        device=device,
        drives=blocks.drives_below(device),
        server=_server(source) if remote else None,
        transport="rdma" if "rdma" in words else transport,
        read_only="ro" in words,
    )


def _server(source: str) -> str | None:
    """`server` of `server:/export` and of `//server/share`; None where the source has no host."""
    if source.startswith("//"):
        return source[2:].partition("/")[0] or None
    host, colon, _ = source.rpartition(":/")
    return host.strip("[]") or None if colon else None


def _decoded(field: str) -> str:
    r"""A field of /proc/mounts: space, tab, newline and backslash are octal there (`\040`)."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def _sized(tree: Tree, mounts: Sequence[Mount], statvfs: Statvfs | None) -> tuple[Mount, ...]:
    if statvfs is None:
        return tuple(mounts)
    remote = [m.path for m in mounts if m.file_system in NETWORK_FILE_SYSTEMS]
    answers = _within(SERVER_WAIT_S, statvfs, remote)
    found = []
    for mount in mounts:
        sizes = answers.get(mount.path)
        if mount.path not in remote:
            sizes = _asked(statvfs, mount.path)
        if sizes is None:
            late = mount.path in remote and mount.path not in answers
            why = (
                f"its server does not answer within {SERVER_WAIT_S:g} s"
                if late
                else "statvfs fails"
            )
            tree.missing(f"size of the file system at {mount.path}", why)
            found.append(mount)
            continue
        each = sizes.f_frsize
        found.append(
            replace(mount, size_bytes=each * sizes.f_blocks, free_bytes=each * sizes.f_bavail)
        )
    return tuple(found)


def _asked(statvfs: Statvfs, path: str) -> Sizes | None:
    try:
        return statvfs(path)
    except OSError:
        return None


def _within(seconds: float, statvfs: Statvfs, paths: Sequence[str]) -> Mapping[str, Sizes | None]:
    """The answers that arrive in time; each path has a thread of its own, which a dead server
    blocks until the process ends."""
    answers: dict[str, Sizes | None] = {}
    all_here = threading.Event()

    def ask(path: str) -> None:
        answers[path] = _asked(statvfs, path)
        if len(answers) == len(paths):
            all_here.set()

    for path in paths:
        threading.Thread(target=ask, args=(path,), daemon=True, name="statvfs").start()
    if paths:
        all_here.wait(seconds)
    return dict(answers)
