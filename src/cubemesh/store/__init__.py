"""Store: records, series, machines and experiment runs in one database."""

from cubemesh.schema.experiment_run import ExperimentRun
from cubemesh.store.store import Store

__all__ = ["ExperimentRun", "Store"]
