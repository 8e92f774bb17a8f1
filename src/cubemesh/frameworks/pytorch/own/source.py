"""Source of an own network: its code is imported and its module built, in a worker only.

Whatever the code does, importing it ends in a module or in an `OwnNetworkError` with one sentence.
The digest covers the files that were imported with it: those in its folder, in its package, and
elsewhere outside Python's own folders.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

import cubemesh
from cubemesh.errors import DataError
from cubemesh.schema.own_network import OwnNetwork
from cubemesh.untrusted import clean

MOST_WORDS = 300
"""Characters of an error's text in a sentence."""
_loaded: dict[str, str] = {}
"""Source → digest of what this process imported of it."""


class OwnNetworkError(DataError):
    """The code of an own network cannot be used, in one sentence."""


@dataclass(frozen=True, kw_only=True)
class LoadedModule:
    """A module that the code of a user built."""

    module: nn.Module
    digest: str
    folder: str
    """The folder that had to be searched for it; empty for an installed package."""


def load(source: str, folder: str) -> LoadedModule:
    """The module of `source`, as its code builds it with seed 0. `folder` is searched first.
    OwnNetworkError where there is none."""
    where, _, attribute = source.rpartition(":")
    name = source.rpartition("/")[2]
    before = set(sys.modules)
    if folder and folder not in sys.path:
        sys.path.insert(0, folder)
    imported = attempt(name, "importing it", lambda: _import(where))
    found: Any = imported
    for part in attribute.split("."):
        if not hasattr(found, part):
            known = [n for n, v in vars(imported).items() if _is_candidate(n, v, imported)]
            offers = f"it has {', '.join(known[:8])}" if known else "it has no module or function"
            raise OwnNetworkError(f"{name}: there is no {part} in {Path(where).name}; {offers}.")
        found = getattr(found, part)
    if not isinstance(found, nn.Module):
        if not callable(found):
            raise OwnNetworkError(
                f"{name} is of type {type(found).__name__}. Name a torch.nn.Module, or a class or "
                "function without arguments that returns one."
            )
        build: Callable[[], Any] = found

        def make() -> Any:
            torch.manual_seed(0)
            return build()

        found = attempt(name, "building it", make)
    if not isinstance(found, nn.Module):
        raise OwnNetworkError(
            f"{name} returned an object of type {type(found).__name__}, and a torch.nn.Module is "
            "needed."
        )
    if source not in _loaded:
        _loaded[source] = _digest(imported, before)
    file = getattr(imported, "__file__", None) or ""
    own_folder = folder if folder and Path(file).is_relative_to(folder) else ""
    return LoadedModule(module=found, digest=_loaded[source], folder=own_folder)


def load_described(own: OwnNetwork) -> nn.Module:
    """The module of a description. OwnNetworkError where it cannot be built, or its files are no
    longer those that were described."""
    if own.fault:
        raise OwnNetworkError(own.fault)
    loaded = load(own.source, own.folder)
    if loaded.digest != own.digest:
        raise OwnNetworkError(
            f"{own.name}: its source changed after the command began. Run the command again."
        )
    return loaded.module


class Scores(nn.Module):
    """A module of the user, whose result is the tensor of its scores."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Tensor) -> Tensor:
        """As the module: (batch, …) → (batch, classes) or (batch, positions, classes)."""
        return scores_of(self.module(*inputs))


def scores_of(result: Any) -> Tensor:
    """The scores in a module's result: the tensor itself, `logits` of an object or a dict, or the
    first of several. TypeError where there are none."""
    if isinstance(result, Tensor):
        return result
    logits = result.get("logits") if isinstance(result, dict) else getattr(result, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    if isinstance(result, (tuple, list)) and result and isinstance(result[0], Tensor):
        return result[0]
    raise TypeError(f"it returned {type(result).__name__} instead of a tensor of scores")


def attempt(name: str, doing: str, call: Callable[[], Any]) -> Any:
    """The result of `call`, code of a user; OwnNetworkError for anything that it raises."""
    try:
        return call()
    except OwnNetworkError:
        raise
    except BaseException as error:
        if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
            raise
        text = clean(" ".join(str(error).split()), MOST_WORDS).rstrip(".")
        words = f"{type(error).__name__}: {text}" if text else type(error).__name__
        raise OwnNetworkError(f"{name}: {doing} raised {words}{_place(error)}.") from None


def _place(error: BaseException) -> str:
    """Where code of the user raised it: the innermost line outside of Python's own folders."""
    if isinstance(error, SyntaxError) and error.filename:  # its text has the place
        return ""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith("<") and not _is_others(f.filename)]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""


def _import(where: str) -> ModuleType:
    if not where.endswith(".py"):
        return importlib.import_module(where)
    path = Path(where)
    name = re.sub(r"\W", "_", path.stem)
    if name in sys.modules and getattr(sys.modules[name], "__file__", None) == str(path):
        return sys.modules[name]
    if name in sys.modules:  # a library has this name
        name = f"own_network_{name}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "it ends in .py"
    assert spec.loader is not None, "it is a file"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # as for any import; dataclasses and pickle look it up
    spec.loader.exec_module(module)
    return module


def _is_candidate(name: str, value: Any, module: ModuleType) -> bool:
    return not name.startswith("_") and (
        isinstance(value, nn.Module)
        or (callable(value) and getattr(value, "__module__", "") == module.__name__)
    )


def _digest(module: ModuleType, before: set[str]) -> str:
    """Digest of the source files of `module` and of what was imported with it."""
    package = module.__name__.partition(".")[0]
    files = {}
    for name, other in sorted(sys.modules.items()):
        file = getattr(other, "__file__", None)
        inside = name == package or name.startswith(f"{package}.")
        if file and (other is module or inside or (name not in before and not _is_others(file))):
            files[name] = file
    found = hashlib.sha256()
    for name, file in files.items():
        try:
            content = Path(file).read_bytes()
        except OSError:
            content = b""
        found.update(f"{name}\n{hashlib.sha256(content).hexdigest()}\n".encode())
    return found.hexdigest()[:16]


def _is_others(file: str) -> bool:
    """Whether a file is Python's, of an installed package, or of cubemesh."""
    folders = {sysconfig.get_path(n) for n in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders.add(str(Path(cubemesh.__file__).parent))
    if {"site-packages", "dist-packages"} & {*Path(file).parts}:
        return True
    return any(file.startswith(f"{folder}/") for folder in folders if folder)
