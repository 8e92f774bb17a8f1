"""KEPT WHERE: records, series, machines and questions in one database that outlives its writers."""

from cubemesh.schema.experiment_run import ExperimentRun
from cubemesh.store.store import Store

__all__ = ["ExperimentRun", "Store"]
