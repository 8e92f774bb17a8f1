"""Interpreters: frameworks whose workers run in another Python than the runner.

`--python jax=/path/to/python`, or `CUBEMESH_PYTHON=jax=/path/to/python,…`; the option takes
precedence. Such a Python finds cubemesh's source through PYTHONPATH and needs only NumPy, psutil
and the framework. It is queried before the first run for what it has installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cubemesh
from cubemesh.errors import UsageError
from cubemesh.frameworks import entry
from cubemesh.schema.machine import Software
from cubemesh.schema.record import Environment
from cubemesh.schema.serialization import from_plain

VARIABLE = "CUBEMESH_PYTHON"
OLDEST = (3, 11)
QUERY_S = 60.0
"""Time limit of the query; a cold network file system is slow."""

_QUERY = """
import json, sys
found = {"version": list(sys.version_info[:3])}
if sys.version_info >= (3, 11):
    from importlib.util import find_spec
    found["missing"] = [name for name in sys.argv[1].split(",") if find_spec(name) is None]
    from pathlib import Path
    from cubemesh.machines.files import Tree
    from cubemesh.machines.software import read_software
    from cubemesh.schema.serialization import to_plain
    found["software"] = to_plain(read_software(Tree(Path("/")), driver=None, cuda=None))
print(json.dumps(found))
"""


def chosen(options: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Framework → path of its Python. UsageError for a value that is not FRAMEWORK=PATH, an unknown
    framework, or one given twice."""
    named: dict[str, str] = {}
    from_variable = [line for line in environ.get(VARIABLE, "").split(",") if line.strip()]
    for where, lines in ((VARIABLE, from_variable), ("--python", options)):
        here: dict[str, str] = {}
        for line in lines:
            framework, equals, path = (part.strip() for part in line.partition("="))
            if not framework or not equals or not path:
                raise UsageError(
                    f"{where} {line}: expected FRAMEWORK=PATH, such as jax=/opt/jax/bin/python."
                )
            entry(framework)
            if framework in here:
                raise UsageError(
                    f"{where} has two Pythons for {framework}: {here[framework]} and {path}. "
                    "Remove one."
                )
            here[framework] = path
        named |= here
    return named


def environments(
    options: Iterable[str], environ: Mapping[str, str], own: Software
) -> dict[str, Environment]:
    """Framework → the environment of its workers, for those with another Python. `own` is the
    runner's software, for the driver.

    Raises UsageError for a path that is not a Python, a Python that is too old, and one without the
    framework.
    """
    return {
        framework: _environment(framework, path, own)
        for framework, path in chosen(options, environ).items()
    }


def _environment(framework: str, path: str, own: Software) -> Environment:
    # Not resolved: a virtual environment's python is a link, and its location identifies it.
    python = Path(os.path.abspath(os.path.expanduser(path)))
    given = f"--python {framework}={path}"
    if not python.is_file() or not os.access(python, os.X_OK):
        raise UsageError(
            f"{given}: no Python at {python}. Give the path of an environment's python, such as "
            "/opt/jax/bin/python."
        )
    line = entry(framework)
    needed = [*line.modules, "numpy", "psutil"]
    found = _query(python, needed, given)
    version = ".".join(map(str, found["version"]))
    if tuple(found["version"]) < OLDEST:
        raise UsageError(f"{given} is Python {version}; cubemesh's workers need 3.11 or newer.")
    if found["missing"]:
        missing = found["missing"]
        packages = [line.packages[0] if name == line.requires else name for name in missing]
        raise UsageError(
            f"{given} has no {' and '.join(missing)}. Install it there: {python} -m pip install "
            f"{' '.join(packages)}"
        )
    plain = found["software"] | {"driver": own.driver, "cuda": own.cuda}
    return Environment(python=str(python), software=from_plain(Software, plain))


def _query(python: Path, needed: list[str], given: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="cubemesh-") as folder:
        try:
            done = subprocess.run(
                [str(python), "-c", _QUERY, ",".join(needed)],
                capture_output=True,
                text=True,
                timeout=QUERY_S,
                env=source_environment(Path(folder), os.environ),
                cwd=folder,
                check=False,
            )
            answer = json.loads((done.stdout.strip().splitlines() or ["null"])[-1])
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            raise UsageError(f"{given} is not a working Python: {error}") from None
    if done.returncode != 0 or not isinstance(answer, dict):
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise UsageError(f"{given} is not a working Python: {last}")
    return answer


def source_environment(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` for another Python than this one. Of this one's packages it finds only cubemesh and
    pynvml (one file of pure Python, for the GPU's telemetry), through links in `folder`."""
    link = folder / "source" / "cubemesh"
    if not link.is_symlink():
        link.parent.mkdir(parents=True, exist_ok=True)
        nvml = find_spec("pynvml")
        if nvml is not None and nvml.origin is not None:
            (link.parent / "pynvml.py").symlink_to(nvml.origin)
        link.symlink_to(Path(cubemesh.__file__).parent, target_is_directory=True)
    own = {k: v for k, v in environ.items() if k not in ("PYTHONHOME", "VIRTUAL_ENV")}
    return own | {"PYTHONPATH": str(link.parent)}
