"""Store migrations: an older store is brought to the current schema version when it is opened.

`MIGRATIONS[i]` rewrites a store of version i + 1 as i + 2. All that a store lacks run in one
transaction. A new one is a function in a file of its own, added at the end of `MIGRATIONS`, with
the tables that it makes added to `metadata` (tables.py) for new stores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from sqlalchemy import Connection

from cubemesh.store.migrations.job_tables import add_job_tables
from cubemesh.store.migrations.list_tables import add_list_tables
from cubemesh.store.migrations.renamed_fields import rename_fields
from cubemesh.store.migrations.schedule_paused_column import add_schedule_paused_column
from cubemesh.store.migrations.schedule_tables import add_schedule_tables
from cubemesh.store.migrations.slurm_column import add_slurm_column
from cubemesh.store.migrations.team_tables import add_team_tables

Migration: TypeAlias = Callable[[Connection], None]

MIGRATIONS: tuple[Migration, ...] = (
    *(rename_fields, add_list_tables, add_job_tables),
    *(add_schedule_tables, add_slurm_column, add_team_tables),
    add_schedule_paused_column,
)
"""In order, never changed once released."""
RECOMPUTED: frozenset[Migration] = frozenset({rename_fields, add_list_tables})
"""Those after which the ids in the records, and the tables computed from records (`runs`,
`figures`, `run_experiments`), are computed again: they changed the records, or these tables."""

__all__ = ["MIGRATIONS", "RECOMPUTED", "Migration"]
