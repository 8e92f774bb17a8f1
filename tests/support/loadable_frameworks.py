"""Frameworks that one process of the tests can load: Keras has one backend in each process, that of
KERAS_BACKEND or the first installed one."""

import os

from cubemesh.frameworks import FRAMEWORKS

KERAS = {"tensorflow": "keras", "jax": "keras-jax", "torch": "keras-torch"}
"""Backend → framework."""


def _keras():
    """The framework of this process's Keras; None where none is installed."""
    wanted = os.environ.get("KERAS_BACKEND")
    names = [KERAS[wanted]] if wanted in KERAS else KERAS.values()
    return next((name for name in names if FRAMEWORKS[name].installed), None)


LOADABLE = tuple(
    name
    for name, entry in FRAMEWORKS.items()
    if entry.installed and (name not in KERAS.values() or name == _keras())
)
TRAINING = tuple(name for name in LOADABLE if FRAMEWORKS[name].trains)
