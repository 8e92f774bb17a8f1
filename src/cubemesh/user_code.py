"""User code: an object of the user's own Python, named `file.py:name` or `package.module:name`.

    locate   in the process that plans: finds the file and imports nothing
    digest   of that file and of the files near it that it imports, for the key of a run
    load     in a worker: imports it and returns the object

User code runs in workers alone, so whatever it does (an endless loop, `sys.exit`, a crash) is the
outcome of a run. What `load` raises is a UserCodeError, one sentence with the line.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.machinery
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cubemesh.errors import UsageError

MOST_FILES = 1000
"""Most files that a digest covers."""


class UserCodeError(Exception):
    """User code could not be imported, or raised; the message is one sentence."""


@dataclass(frozen=True, kw_only=True)
class UserObject:
    """An object of the user's code that is not imported yet."""

    name: str
    """`/home/me/train.py:make_step` or `my_package.steps:make_step`."""
    folder: str
    """Folder that is first on the path of its imports: of the file, or of the top package."""

    @property
    def source(self) -> str:
        """The file or the module."""
        return self.name.rpartition(":")[0]

    @property
    def attribute(self) -> str:
        """The name within it, which may have dots."""
        return self.name.rpartition(":")[2]

    @property
    def is_file(self) -> bool:
        """Whether it is named by its file."""
        return self.source.endswith(".py")

    @property
    def path(self) -> Path | None:
        """The file; None where it is gone."""
        if self.is_file:
            path = Path(self.source)
            return path if path.is_file() else None
        return _file_of(self.source, [self.folder, *sys.path])

    @property
    def short(self) -> str:
        """`train.py:make_step`."""
        return f"{os.path.basename(self.source)}:{self.attribute}" if self.is_file else self.name


def locate(text: str, setting: str) -> UserObject:
    """The object that `text` names, of a file relative to the working folder. UsageError, naming
    the `setting`, for an invalid name or a missing file; whether the file has the object is known
    when it is loaded."""
    source, colon, attribute = text.strip().rpartition(":")
    if not colon or not source or not all(map(str.isidentifier, attribute.split("."))):
        raise UsageError(
            f"{setting}={text} does not name an object. Write FILE.py:NAME or PACKAGE.MODULE:NAME, "
            f"as in {setting}=train.py:make_step."
        )
    if source.endswith(".py"):
        path = Path(source).expanduser().absolute()
        if not path.is_file():
            raise UsageError(f"{setting}={text}: there is no file {path}.")
        return UserObject(name=f"{path}:{attribute}", folder=str(path.parent))
    if not all(map(str.isidentifier, source.split("."))):
        raise UsageError(
            f"{setting}={text}: {source} is neither a file that ends in .py nor the name of a "
            "module."
        )
    found = _file_of(source, [os.getcwd(), *sys.path])
    if found is None:
        raise UsageError(
            f"{setting}={text}: there is no module {source} in {os.getcwd()} or on the path of "
            "Python. Run the command in the folder of the package, or set PYTHONPATH."
        )
    levels = source.count(".") + (found.name == "__init__.py")
    return UserObject(name=f"{source}:{attribute}", folder=str(found.parents[levels]))


def digest(named: UserObject) -> str:
    """Sixteen hexadecimal digits of the content of its file and of the files of the same folder or
    package that it imports; empty where the file is gone."""
    path = named.path
    if path is None:
        return ""
    found, waiting = dict[Path, bytes](), [path]
    while waiting and len(found) < MOST_FILES:
        file = waiting.pop()
        if file in found:
            continue
        try:
            found[file] = file.read_bytes()
        except OSError:
            continue
        waiting += _imported_files(file, found[file], Path(named.folder))
    total = hashlib.sha256(named.attribute.encode())
    for file in sorted(found):
        name = os.path.relpath(file, named.folder)
        total.update(f"\0{name}\0{len(found[file])}\0".encode())
        total.update(found[file])
    return total.hexdigest()[:16]


def load(named: UserObject) -> Any:
    """Import the object. UserCodeError where that fails."""
    if named.folder not in sys.path:
        sys.path.insert(0, named.folder)
    try:
        module = _module_of_file(named) if named.is_file else importlib.import_module(named.source)
    except (Exception, SystemExit) as error:
        raise failure(named, "while its module was imported", error) from error
    found: Any = module
    for part in named.attribute.split("."):
        if not hasattr(found, part):
            names = ", ".join(n for n in vars(module) if not n.startswith("_")) or "no names"
            raise UserCodeError(f"{named.short} does not exist; {named.source} has {names}.")
        found = getattr(found, part)
    return found


def failure(named: UserObject, when: str, error: BaseException) -> UserCodeError:
    """The UserCodeError for what user code raised, `when` in words: `in step 7`."""
    if isinstance(error, UserCodeError):
        return error
    if isinstance(error, SystemExit):
        did = f"called sys.exit({error.code!r})"
    else:
        words = str(error).strip().splitlines()
        first = f": {words[0].rstrip('.')}" if words else ""
        did = f"raised {type(error).__name__}{first}"
    found = UserCodeError(f"{named.short} {did} {when}{_line(named, error)}.")
    found.__cause__ = error
    return found


def _line(named: UserObject, error: BaseException) -> str:
    """` (train.py, line 12)`: the innermost line of the user's own files."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f" ({os.path.basename(error.filename)}, line {error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if os.path.abspath(f.filename).startswith(named.folder + os.sep)]
    if not own:
        return ""
    return f" ({os.path.basename(own[-1].filename)}, line {own[-1].lineno})"


def _module_of_file(named: UserObject) -> Any:
    """The module of a file, under the name that an import of it beside it would have, unless
    another module has that."""
    path = named.source
    stem = Path(path).stem
    name = stem if stem not in sys.modules else f"user_code_{stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _file_of(module: str, path: list[str]) -> Path | None:
    """The Python file of a module, found without importing anything; None for none."""
    places: list[str] | None = path
    spec = None
    parts = module.split(".")
    for n in range(1, len(parts) + 1):
        if places is None:
            return None
        try:
            spec = importlib.machinery.PathFinder.find_spec(".".join(parts[:n]), places)
        except (ImportError, ValueError):
            return None
        if spec is None:
            return None
        locations = spec.submodule_search_locations
        places = None if locations is None else list(locations)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    return Path(spec.origin).absolute()


def _imported_files(file: Path, text: bytes, folder: Path) -> Iterator[Path]:
    """Files below `folder` that a file imports."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        names: list[tuple[Path, str]] = []
        if isinstance(node, ast.Import):
            names = [(folder, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            root = file.parents[node.level - 1] if 0 < node.level <= len(file.parents) else folder
            base = node.module or ""
            names = [(root, base), *((root, f"{base}.{a.name}".strip(".")) for a in node.names)]
        for root, name in names:
            parts = [p for p in name.split(".") if p]
            for n in range(len(parts) + 1):
                place = root.joinpath(*parts[:n])
                candidates = [place / "__init__.py"] if n == 0 else []
                if n:
                    candidates = [place / "__init__.py", place.with_name(f"{place.name}.py")]
                yield from (c for c in candidates if c.is_file() and folder in c.parents)
