"""Own network and own data: what a spec holds of code or files of the user that a command named.

A network is described when the command names it. The description is complete: counts, forecasts and
answers need neither the source nor PyTorch, so records of such a network are read on any machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cubemesh.user_code import short_name

OwnFramework = Literal["pytorch", "jax", "keras"]
"""Framework of a module: of a `torch.nn.Module`, a Flax module or a Keras model."""


@dataclass(frozen=True, kw_only=True)
class OwnNetwork:
    """Source and description of a PyTorch, Flax or Keras module, an ONNX file or a configuration of
    Hugging Face."""

    source: str
    """`/folder/model.py:Net`, `package.module:build`, `/folder/model.onnx` or `/folder/gpt2/`."""
    folder: str = ""
    """Folder that the module is imported from; empty for an installed package."""
    digest: str = ""
    """Digest of the source files that are imported, so that a changed file is another network."""
    graph: str
    """Its layers, or the module as one layer, as JSON (networks/graph_text.py)."""
    untraced: str = ""
    """Why the module runs as it is, in words; empty where it became a graph of layers."""
    framework: OwnFramework = "pytorch"
    """Framework that a module is run in, where it runs as it is."""
    fault: str = ""
    """Why it cannot be run, as a sentence; empty where it can."""

    @property
    def name(self) -> str:
        """Name of the network: `model.py:Net`, `package.module:build`, `model.onnx`, `gpt2/`."""
        return short_name(self.source)


@dataclass(frozen=True, kw_only=True)
class OwnData:
    """Data of the user's own: a data set, or a function that returns one, which a worker
    imports."""

    source: str
    """`/folder/data.py:make` or `package.module:train`."""
    folder: str = ""
    """Folder that the code is imported from; empty for an installed package."""

    @property
    def name(self) -> str:
        """Name of the data: `data.py:make`, `package.module:train`."""
        return short_name(self.source)
