"""Links of a machine: tables GPU × GPU, as nvbandwidth prints them, and findings.

A link that is much slower than the others of its table is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from cubemesh.schema import Cell, Column, Finding, LinkRate, RunRecord, Table
from cubemesh.schema.collective import HOST
from cubemesh.units import format_number, format_quantity

SLOW = 0.8
"""A link below this fraction of the median of its kind is slow; of two, below this fraction of the
faster."""
MOST_NAMED = 8


@dataclass(frozen=True, kw_only=True)
class _Matrix:
    """A table GPU × GPU of one measurement."""

    name: str
    title: str
    unit: str
    by_target: bool = False
    """Whether a row is the device that receives."""
    symmetric: bool = False
    """Whether a pair is measured once."""


MATRICES = (
    _Matrix(
        name="read",
        title="Copies by the reading GPU: from (columns) to (rows)",
        unit="B/s",
        by_target=True,
    ),
    _Matrix(name="write", title="Copies by the writing GPU: from (rows) to (columns)", unit="B/s"),
    _Matrix(
        name="both",
        title="Copies in both directions at once, sum",
        unit="B/s",
        symmetric=True,
    ),
    _Matrix(name="copy_latency", title="Latency of a copy: from (rows) to (columns)", unit="s"),
    _Matrix(
        name="load",
        title="Loads of a kernel: by (rows) from the memory of (columns)",
        unit="B/s",
        by_target=True,
    ),
    _Matrix(
        name="store", title="Stores of a kernel: by (rows) to the memory of (columns)", unit="B/s"
    ),
    _Matrix(
        name="atomic_add",
        title="Atomic additions of a kernel: by (rows) in the memory of (columns)",
        unit="1/s",
    ),
    _Matrix(
        name="load_latency",
        title="Latency of a load: by (rows) from the memory of (columns)",
        unit="s",
        by_target=True,
    ),
)
_HOST_COLUMNS = (
    ("host_to_device", "host to device", "B/s"),
    ("device_to_host", "device to host", "B/s"),
    ("host_both", "both at once, sum", "B/s"),
    ("host_to_device_latency", "latency to device", "s"),
    ("device_to_host_latency", "latency to host", "s"),
)
_MIGRATION_COLUMNS = (
    ("first_touch", "first touch", "B/s"),
    ("fault_to_device", "to the GPU, by faults", "B/s"),
    ("fault_to_host", "to the host, by faults", "B/s"),
    ("prefetch_to_device", "to the GPU, prefetched", "B/s"),
    ("prefetch_to_host", "to the host, prefetched", "B/s"),
    ("gpu_fault", "page fault of the GPU", "s"),
    ("cpu_fault", "page fault of the host", "s"),
)
_WORDS = {
    "host_to_device": "copies to the device",
    "device_to_host": "copies to the host",
    "host_both": "copies in both directions",
    "read": "copies by the reader",
    "write": "copies by the writer",
    "both": "copies in both directions",
    "load": "loads",
    "store": "stores",
    "atomic_add": "atomics",
}
_REMEDY = (
    "Compare with the topology (cubemesh probe): pairs over PCIe or between sockets are slower by "
    "design. Otherwise check the width and generation of PCIe (nvidia-smi -q), the errors of "
    "NVLink (nvidia-smi nvlink -e), and the cooling."
)


def link_tables(records: Sequence[RunRecord]) -> Iterator[Table]:
    """The tables of what `records` measured of links; none for other work."""
    rates = [(rate, record.run_id) for record in records for rate in record.links]
    yield from _by_device(rates, "Host and device, pinned memory, by copy engines", _HOST_COLUMNS)
    for matrix in MATRICES:
        own = [(rate, run_id) for rate, run_id in rates if rate.name == matrix.name]
        if own:
            yield _matrix(matrix, own)
    yield from _by_device(rates, "Managed memory: migration of pages", _MIGRATION_COLUMNS)


def _by_device(
    rates: Sequence[tuple[LinkRate, str]], title: str, columns: Sequence[tuple[str, str, str]]
) -> Iterator[Table]:
    """A row for each device."""
    found = {
        (_device(rate), rate.name): (rate, run_id)
        for rate, run_id in rates
        if rate.name in {name for name, _, _ in columns}
    }
    if not found:
        return
    present = [c for c in columns if any(name == c[0] for _, name in found)]
    rows = []
    for device in sorted({device for device, _ in found}, key=_number):
        run_id = next(run_id for (d, _), (_, run_id) in found.items() if d == device)
        cells = [Cell(text=place(device), run_id=run_id)]
        for name, _, _ in present:
            rate = found.get((device, name))
            cells.append(Cell(text="–") if rate is None else Cell(value=rate[0].value))
        rows.append(tuple(cells))
    yield Table(
        title=title,
        columns=(Column(name="device"), *(Column(name=n, unit=u) for _, n, u in present)),
        rows=tuple(rows),
    )


def _matrix(matrix: _Matrix, rates: Sequence[tuple[LinkRate, str]]) -> Table:
    cells: dict[tuple[str, str], tuple[LinkRate, str]] = {}
    for rate, run_id in rates:
        ends = (rate.target, rate.source) if matrix.by_target else (rate.source, rate.target)
        cells[ends] = rate, run_id
        if matrix.symmetric:
            cells[ends[::-1]] = rate, run_id
    rows = sorted({row for row, _ in cells if row != HOST}, key=_number)
    columns = sorted({column for _, column in cells}, key=_number)
    run_id = rates[0][1]
    return Table(
        title=matrix.title,
        columns=(
            Column(name="GPU"),
            *(Column(name=place(column), unit=matrix.unit) for column in columns),
        ),
        rows=tuple(
            (
                Cell(text=place(row), run_id=run_id),
                *(
                    Cell(text="–") if found is None else Cell(value=found[0].value)
                    for found in (cells.get((row, column)) for column in columns)
                ),
            )
            for row in rows
        ),
    )


def place(name: str) -> str:
    """`GPU 0` for `cuda:0`, `host` for the host."""
    return f"GPU {name.partition(':')[2]}" if name.startswith("cuda:") else name


def _number(name: str) -> tuple[int, str]:
    number = name.partition(":")[2]
    return (int(number) if number.isdecimal() else -1), name


def _device(rate: LinkRate) -> str:
    return rate.target if rate.source == HOST else rate.source


def link_findings(records: Sequence[RunRecord]) -> Iterator[Finding]:
    """What was measured of links: copies, loads and stores, page migration, and slow links."""
    rates = [rate for record in records for rate in record.links]
    yield from _host(rates)
    yield from _pairs(rates)
    yield from _peer_access(rates)
    yield from _migration(rates)
    yield from _slow(rates)


def _named(rates: Sequence[LinkRate], name: str) -> list[LinkRate]:
    return [rate for rate in rates if rate.name == name]


def _host(rates: Sequence[LinkRate]) -> Iterator[Finding]:
    there, back = _named(rates, "host_to_device"), _named(rates, "device_to_host")
    if not (there and back):
        return
    both, latency = _named(rates, "host_both"), _named(rates, "host_to_device_latency")
    text = f"Between host and device, pinned: {_range(there)} to the device, {_range(back)} back"
    if both:
        text += f", {_range(both)} in both directions at once"
    if latency:
        text += f"; the latency of a copy is {_range(latency)}"
    yield Finding(
        code="host-links",
        question="How fast is the link to the host?",
        text=f"{text}.",
        value=min(rate.value for rate in there),
        unit="B/s",
    )


def _pairs(rates: Sequence[LinkRate]) -> Iterator[Finding]:
    written = _named(rates, "write")
    if not written:
        return
    both, latency = _named(rates, "both"), _named(rates, "copy_latency")
    text = f"From GPU to GPU: {_range(written)} by the writing GPU"
    if read := _named(rates, "read"):
        text += f", {_range(read)} by the reading"
    if both:
        text += f", {_range(both)} in both directions at once"
    if latency:
        text += f"; the latency of a copy is {_range(latency)}"
    yield Finding(
        code="device-links",
        question="How fast are the links between GPUs?",
        text=f"{text}.",
        value=min(rate.value for rate in written),
        unit="B/s",
    )


def _peer_access(rates: Sequence[LinkRate]) -> Iterator[Finding]:
    for code, where, chosen in (
        ("own-memory-access", "its own memory", [r for r in rates if r.source == r.target]),
        ("host-memory-access", "the host's memory", [r for r in rates if _at_host(r)]),
        ("peer-access", "another GPU's memory", [r for r in rates if _is_pair(r)]),
    ):
        parts = [
            f"{verb} {_range(own)}"
            for name, verb in (("load", "loads"), ("store", "stores"), ("atomic_add", "atomics"))
            if (own := _named(chosen, name))
        ]
        latency = _named(chosen, "load_latency")
        if not parts or not latency:
            continue
        yield Finding(
            code=code,
            text=f"A kernel in {where}: {', '.join(parts)}; a load takes {_range(latency)}.",
            value=median(rate.value for rate in latency),
            unit="s",
        )


def _migration(rates: Sequence[LinkRate]) -> Iterator[Finding]:
    to_gpu, prefetched = _named(rates, "fault_to_device"), _named(rates, "prefetch_to_device")
    fault = _named(rates, "gpu_fault")
    if not (to_gpu and prefetched and fault):
        return
    ratio = min(r.value for r in prefetched) / min(r.value for r in to_gpu)
    yield Finding(
        code="page-migration",
        text=f"Managed memory moves to the GPU with {_range(to_gpu)} by page faults and with "
        f"{_range(prefetched)} prefetched, {format_number(ratio, 2)}× as fast; a page fault of the "
        f"GPU takes {_range(fault)}.",
        value=min(rate.value for rate in to_gpu),
        unit="B/s",
        remedy=""
        if ratio < 1 / SLOW
        else "Prefetch managed memory (cudaMemPrefetchAsync) before a kernel uses it, or copy it.",
    )


def slow_links(rates: Sequence[LinkRate]) -> list[tuple[LinkRate, float]]:
    """The links that are much slower than the others of their kind, each with the rate that it was
    compared with, the slowest first."""
    kinds: dict[tuple[str, str], list[LinkRate]] = {}
    for rate in rates:
        if rate.unit != "s" and rate.name in _WORDS:
            kinds.setdefault((rate.name, _kind(rate)), []).append(rate)
    found = []
    for own in kinds.values():
        values = [rate.value for rate in own]
        usual = median(values) if len(values) > 2 else max(values)
        found += [(rate, usual) for rate in own if rate.value < SLOW * usual]
    return sorted(found, key=lambda pair: pair[0].value / pair[1])


def _slow(rates: Sequence[LinkRate]) -> Iterator[Finding]:
    found = slow_links(rates)
    if not found:
        return
    named = [
        f"{place(rate.source)} to {place(rate.target)} ({_WORDS[rate.name]}) "
        f"{_rate(rate)}, {format_number(rate.value / usual, 2)} × the usual"
        for rate, usual in found[:MOST_NAMED]
    ]
    more = f"; and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    yield Finding(
        code="slow-link",
        text=f"Slow links: {'; '.join(named)}{more}.",
        value=float(len(found)),
        unit="links",
        remedy=_REMEDY,
    )


def _kind(rate: LinkRate) -> str:
    if rate.source == rate.target:
        return "own"
    return "host" if _at_host(rate) else "pair"


def _at_host(rate: LinkRate) -> bool:
    return HOST in (rate.source, rate.target)


def _is_pair(rate: LinkRate) -> bool:
    return _kind(rate) == "pair"


def _rate(rate: LinkRate) -> str:
    return _quantity(rate.value, rate.unit)


def _quantity(value: float, unit: str) -> str:
    if unit == "1/s":
        return f"{format_number(value / 1e9)} billion/s"
    return format_quantity(value, unit)


def _range(rates: Sequence[LinkRate]) -> str:
    """`55 GB/s`, or `21 GB/s to 55 GB/s` where they differ by more than a twentieth."""
    values, unit = [rate.value for rate in rates], rates[0].unit
    if max(values) <= 1.05 * min(values):
        return _quantity(median(values), unit)
    return f"{_quantity(min(values), unit)} to {_quantity(max(values), unit)}"
