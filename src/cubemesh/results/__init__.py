"""KEPT WHERE: records, series, machines and questions in one database that outlives its writers."""

from cubemesh.model.question import Question
from cubemesh.results.store import Store

__all__ = ["Question", "Store"]
