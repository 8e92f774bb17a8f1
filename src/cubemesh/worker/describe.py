"""Description of an own network in a process of its own, whose code may do anything.

`python -m cubemesh.worker describe REQUEST.json RESULT.json`; what it prints is no result. With
`weights` in the request, the module's own arrays are written there (.npz), by their names in the
graph.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from cubemesh.schema.serialization import from_plain, to_plain
from cubemesh.worker.report import limits


def describe_to(request_path: Path, result_path: Path) -> int:
    """Describe the network of a request file and write the description; returns 0."""
    from cubemesh.frameworks.pytorch.own.description import (
        DescriptionRequest,
        describe_with_arrays,
    )

    limits.name_process("cubemesh-describe")
    limits.no_core_dump()
    limits.first_to_be_killed()
    asked = json.loads(request_path.read_text(encoding="utf-8"))
    weights = asked.pop("weights", None)
    own, traced = describe_with_arrays(from_plain(DescriptionRequest, asked))
    if weights is not None and traced is not None:
        arrays: dict[str, Any] = {name: a.numpy() for name, a in traced.arrays.items()}
        np.savez(weights, **arrays)
    part = result_path.with_suffix(".part")
    part.write_text(json.dumps(to_plain(own)), encoding="utf-8")
    part.rename(result_path)
    sys.stdout.flush()
    os._exit(0)  # threads and exit handlers of the user's code are not waited for
