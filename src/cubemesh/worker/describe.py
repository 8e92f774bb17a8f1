"""Description of an own network in a process of its own, whose code may do anything.

`python -m cubemesh.worker describe REQUEST.json RESULT.json`; what it prints is no result. With
`weights` in the request, the module's own arrays are written there (.npz), by their names in the
graph.

The framework of a module is found by its type, once the code of the user has built it. An ONNX file
and a configuration of Hugging Face become modules of PyTorch.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from cubemesh.frameworks.contract.own_module import (
    DescriptionRequest,
    faulty,
    framework_of,
    make,
    of_framework,
)
from cubemesh.schema.own_network import OwnNetwork
from cubemesh.schema.serialization import from_plain, to_plain
from cubemesh.user_code import UserCodeError
from cubemesh.worker.report import limits

_OTHERS = {
    "jax": "cubemesh.frameworks.jax.own",
    "keras": "cubemesh.frameworks.keras.own",
}
"""Framework → the module that describes what runs in it as it is."""


def describe_to(request_path: Path, result_path: Path) -> int:
    """Describe the network of a request file and write the description; returns 0."""
    limits.name_process("cubemesh-describe")
    limits.no_core_dump()
    limits.first_to_be_killed()
    asked = json.loads(request_path.read_text(encoding="utf-8"))
    weights = asked.pop("weights", None)
    own, arrays = describe(from_plain(DescriptionRequest, asked))
    if weights is not None and arrays is not None:
        np.savez(weights, **arrays)
    part = result_path.with_suffix(".part")
    part.write_text(json.dumps(to_plain(own)), encoding="utf-8")
    part.rename(result_path)
    sys.stdout.flush()
    os._exit(0)  # threads and exit handlers of the user's code are not waited for


def describe(request: DescriptionRequest) -> tuple[OwnNetwork, dict[str, Any] | None]:
    """The description of an own network, and the arrays of its graph; None where it has none."""
    try:
        return _described(request)
    except UserCodeError as error:
        return faulty(request, str(error)), None


def _described(request: DescriptionRequest) -> tuple[OwnNetwork, dict[str, Any] | None]:
    found: Any = None
    if request.named.form == "python":
        # Its layers run on the framework's TensorFlow, whatever the user's own Keras has.
        os.environ.setdefault("KERAS_BACKEND", "tensorflow")
        found = make(request.named)
        framework = framework_of(found)
        if framework in _OTHERS:
            other = importlib.import_module(_OTHERS[framework])
            own: OwnNetwork = other.describe(request, found)
            return own, None
        of_framework(request.named, found, "pytorch")
    from cubemesh.frameworks.pytorch.own import description, onnx_graph

    traced: Any
    if request.named.form == "onnx":
        from cubemesh.worker.onnx_file import simplified

        request, graph = simplified(request)
        own, traced = onnx_graph.describe_graph(request, graph)
    elif request.named.form == "configuration":
        own, traced = description.describe_with_arrays(request)
    else:
        own, traced = description.describe_module(request, found)
    arrays = None if traced is None else {name: a.numpy() for name, a in traced.arrays.items()}
    return own, arrays
