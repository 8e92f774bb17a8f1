"""Store: records, series, machines and experiment runs in one database.

`Store` is imported when it is first used, as SQLAlchemy takes long to import and a process that
only reads names, plans or prints needs no database.
"""

from typing import TYPE_CHECKING, Any

from cubemesh.schema.experiment_run import ExperimentRun

if TYPE_CHECKING:
    from cubemesh.store.store import Store

__all__ = ["ExperimentRun", "Store"]


def __getattr__(name: str) -> Any:
    if name != "Store":
        raise AttributeError(f"module 'cubemesh.store' has no attribute {name!r}")
    from cubemesh.store.store import Store

    return Store
