"""Parser of the output of `nvidia-smi topo -m` (or `-mp`).

A matrix: a line and a column for each GPU and each network adapter, and in each field the nearest
thing two of them share (NVIDIA, System Management Interface, "topo"): `X` itself, `NV#` so many
NVLinks, `PIX` one PCIe switch, `PXB` several, `PHB` a host bridge, `NODE` a NUMA node, `SYS` (`SOC`
in old drivers) the link between sockets. Columns with CPU and NUMA affinity may follow, and below
a legend, also one with the name of adapter NIC0. Colours of a terminal in the text are ignored.
"""

from __future__ import annotations

import re

from cubemesh.errors import DataError
from cubemesh.machines.topology.graph import Topology
from cubemesh.machines.topology.pairs import DevicePairs, Pair, from_pairs
from cubemesh.machines.topology.routes import Reach

MOST_DEVICES = 128
MOST_NVLINKS = 64

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_ADAPTER = re.compile(
    r"(NIC\d+|mlx\w+|ib\w+|hfi\w+|bnxt\w+|irdma\w+|roce\w+|rocep\w+|efa\w*)", re.I
)
_LEGEND = re.compile(r"^\s*(NIC\d+)\s*:\s*(\S+)\s*$")
_LABELS: dict[str, Reach] = {
    "PIX": "pcie-switch",
    "PXB": "pcie-switch",
    "PSB": "pcie-switch",
    "PHB": "host-bridge",
    "NODE": "numa-node",
    "SYS": "system",
    "SOC": "system",
}


def read_smi_matrix(text: str, file: str = "nvidia-smi topo -m") -> Topology:
    """The graph of the matrix; DataError, with line and field, for invalid content."""
    lines = [_COLOURS.sub("", line) for line in text.splitlines()]
    # The heading, not the line of GPU0, whose next field is X.
    start = next(
        (
            i
            for i, line in enumerate(lines)
            if (words := line.split())[:1] == ["GPU0"] and words[1:2] != ["X"]
        ),
        None,
    )
    if start is None:
        raise DataError(
            f"{file}: no line has the heading GPU0. Save the output of `nvidia-smi topo -m` in it."
        )
    names = _heading(file, start + 1, lines[start])
    rows = _rows(file, lines, start, names)
    gpus = [n for n in names if n.startswith("GPU")]
    legend = {m[1]: m[2] for line in lines if (m := _LEGEND.match(line))}
    return from_pairs(
        DevicePairs(
            name=file.rpartition("/")[2],
            gpus=len(gpus),
            numbers=[int(n[3:]) for n in gpus],
            nics=[legend.get(n, n) for n in names if n not in gpus],
            pairs=_pairs(file, names, rows),
            near=[rows[g][2] for g in gpus],
        )
    )


def _heading(file: str, number: int, line: str) -> list[str]:
    """The devices of the matrix: GPUs, then adapters, until the other columns."""
    names: list[str] = []
    for word in line.split():
        if re.fullmatch(r"GPU\d{1,4}", word) or (names and _ADAPTER.fullmatch(word)):
            names.append(word)
        else:
            break
    if len(set(names)) < len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise DataError(f"{file}, line {number}: {twice} appears twice in the heading.")
    if len(names) > MOST_DEVICES:
        raise DataError(f"{file}, line {number}: {len(names)} devices; {MOST_DEVICES} at most.")
    gpus = [n for n in names if n.startswith("GPU")]
    if names[: len(gpus)] != gpus:
        raise DataError(f"{file}, line {number}: GPUs must come before network adapters.")
    return names


def _rows(
    file: str, lines: list[str], start: int, names: list[str]
) -> dict[str, tuple[int, list[str], str]]:
    """Device → (number of its line, labels, CPU affinity)."""
    rows: dict[str, tuple[int, list[str], str]] = {}
    for number, line in enumerate(lines[start + 1 :], start=start + 2):
        words = line.split()
        if not words or words[0] not in names:
            if rows and not words:
                break
            continue
        name, labels = words[0], words[1 : len(names) + 1]
        if name in rows:
            raise DataError(f"{file}, line {number}: {name} has a line already.")
        if len(labels) < len(names):
            raise DataError(
                f"{file}, line {number}, {name}: {len(labels)} fields where the heading has "
                f"{len(names)} devices."
            )
        # Affinity comes as "0-19,40-59", then a NUMA node; either is the same for neighbours.
        rows[name] = (number, labels, "".join(words[len(names) + 1 : len(names) + 2]))
    lost = [n for n in names if n not in rows]
    if lost:
        raise DataError(f"{file}, line {start + 1}: {lost[0]} is in the heading and has no line.")
    return rows


def _pairs(
    file: str, names: list[str], rows: dict[str, tuple[int, list[str], str]]
) -> dict[tuple[int, int], Pair]:
    pairs: dict[tuple[int, int], Pair] = {}
    for i, name in enumerate(names):
        number, labels, _ = rows[name]
        for j, label in enumerate(labels):
            where = f"{file}, line {number}, field {names[j]}"
            if (label == "X") != (i == j):
                raise DataError(f"{where}: '{label}'; X belongs on the diagonal only.")
            if i == j:
                continue
            pair = _pair(where, label)
            ends = (min(i, j), max(i, j))
            if pairs.setdefault(ends, pair) != pair:
                raise DataError(
                    f"{where}: '{label}' differs from the line of {names[j]} for {name}."
                )
    return pairs


def _pair(where: str, label: str) -> Pair:
    links = re.fullmatch(r"NV(\d{1,4})", label)
    if links and 1 <= int(links[1]) <= MOST_NVLINKS:
        return Pair(reach="nvlink", nvlinks=int(links[1]))
    if label not in _LABELS:
        known = ", ".join(("X", "NV1 and up", *_LABELS))
        raise DataError(f"{where}: '{label}' is not a label of nvidia-smi. Known: {known}.")
    return Pair(reach=_LABELS[label])
