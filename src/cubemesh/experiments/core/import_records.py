"""What other machines measured: their stores' machines and records, copied into this one's."""

from __future__ import annotations

from collections.abc import Sequence

from cubemesh.schema import RunRecord
from cubemesh.store import Store


def take_in(store: Store, locations: Sequence[str]) -> list[RunRecord]:
    """Copy into `store` what the stores at `locations` (paths or addresses) hold and it does not;
    all records they hold. DataError where there is no store."""
    known = {r.run_id for r in store.records()}
    held = []
    for location in locations:
        with Store.open(location, must_exist=True, read_only=True) as other:
            machines = {m.machine_id for m in store.machines()}
            for machine in other.machines():
                if machine.machine_id not in machines:
                    store.save_machine(machine)
            for record in other.records():
                held.append(record)
                if record.run_id not in known:
                    known.add(record.run_id)
                    store.save(record, other.series(record.run_id))
    return held
