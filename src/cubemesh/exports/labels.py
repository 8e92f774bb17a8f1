"""Label of a run: its work and settings as text, the same for every run of a workload."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from cubemesh.experiments.analysis.comparison import changes
from cubemesh.schema import Collective, NetworkWork, OwnStep, RunRecord, TrainSteps
from cubemesh.schema.serialization import to_plain
from cubemesh.store.select import format_value

_NAMING = ("kind", "network", "collective", "operation", "step", "import_from")


def run_labels(records: Sequence[RunRecord]) -> list[str]:
    """A label for each run, no two the same: runs of one workload whose budgets differ have the
    budget as well, and those measured again are numbered."""
    labels = [run_label(record) for record in records]
    count = Counter(labels)
    seen: Counter[str] = Counter()
    found = []
    for record, label in zip(records, labels, strict=True):
        full = run_label(record, budget=True) if count[label] > 1 else label
        seen[full] += 1
        found.append(full if seen[full] == 1 else f"{full} measurement={seen[full]}")
    return found


def run_label(record: RunRecord, *, budget: bool = False) -> str:
    """`resnet-50 batch_per_device=32 precision=bf16`: what runs, then each setting of the work, the
    placement and the program that is not at its default, and the number of a repeat."""
    work = record.spec.work
    if isinstance(work, NetworkWork):
        name = work.network if isinstance(work, TrainSteps) else f"{work.network} {work.kind}"
    elif isinstance(work, OwnStep):
        name = f"step {work.name}"
    else:
        name = work.collective if isinstance(work, Collective) else work.operation
    plain = to_plain(record.spec, defaults=False)
    words = [name]
    for part in ("work", "placement", "program", *(("budget",) if budget else ())):
        for key, value in plain.get(part, {}).items():
            if key not in _NAMING:
                words.append(f"{key}={format_value(value)}")
    words += [f"against:{name}={value}" for name, _, value in changes(record)]
    if record.key.repeat:
        words.append(f"repeat={record.key.repeat}")
    if record.attempt > 1:
        words.append(f"attempt={record.attempt}")
    return " ".join(words)
