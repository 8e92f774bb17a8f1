"""SENT HOW: specs become worker processes, and what they report becomes records."""

from cubemesh.runs.executor import Executor
from cubemesh.runs.progress import Observer, Progress, Silent

__all__ = ["Executor", "Observer", "Progress", "Silent"]
