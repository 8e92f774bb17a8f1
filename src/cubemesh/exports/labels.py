"""Label of a run: its work and settings as text, the same for every run of a workload."""

from __future__ import annotations

from cubemesh.experiments.analysis.comparison import changes
from cubemesh.schema import Collective, NetworkWork, RunRecord
from cubemesh.schema.serialization import to_plain
from cubemesh.store.select import format_value

_NAMING = ("kind", "network", "collective", "operation")


def run_label(record: RunRecord) -> str:
    """`resnet-50 batch_per_device=32 precision=bf16`: what runs, then each setting of the work, the
    placement and the program that is not at its default, and the number of a repeat."""
    work = record.spec.work
    if isinstance(work, NetworkWork):
        name = work.network
    else:
        name = work.collective if isinstance(work, Collective) else work.operation
    plain = to_plain(record.spec, defaults=False)
    words = [name]
    for part in ("work", "placement", "program"):
        for key, value in plain.get(part, {}).items():
            if key not in _NAMING:
                words.append(f"{key}={format_value(value)}")
    words += [f"against:{name}={value}" for name, _, value in changes(record)]
    if record.key.repeat:
        words.append(f"repeat={record.key.repeat}")
    return " ".join(words)
