"""Runs: specs become worker processes, and their events become records."""

from cubemesh.runs.executor import Executor
from cubemesh.runs.progress import Observer, Progress, Silent

__all__ = ["Executor", "Observer", "Progress", "Silent"]
