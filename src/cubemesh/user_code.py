"""User code: an object of the user's own Python, named `file.py:name` or `package.module:name`.

A network may also be a file without code: `model.onnx`, or a folder with a configuration of Hugging
Face.

    locate     in the process that plans: finds the file and imports nothing
    digest     of that file and of the user's files that it imports, for the key of a run
    load       in a worker: imports it and returns the object
    attempt    in a worker: calls it
    NamedCode  networks or data that the running command named; no other code of a user runs

User code runs in workers alone, so whatever it does (an endless loop, `sys.exit`, a crash) is the
outcome of a run. What `load` and `attempt` raise is a UserCodeError, one sentence with the line;
only a refused allocation and an interrupt are raised as they are.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import importlib.util
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from traceback import TracebackException
from typing import Any, Generic, Literal, NoReturn, Protocol, TypeVar

from cubemesh.errors import DataError, UsageError
from cubemesh.untrusted import clean, quoted

Recognizer = Callable[[BaseException], bool]
"""Whether an error of a framework is a refused allocation."""
Form = Literal["python", "onnx", "configuration"]
CONFIGURATION = "config.json"
"""The file of a folder that is a configuration of Hugging Face."""
MOST_FILES = 1000
"""Most files that a digest covers."""
MOST_WORDS = 300
"""Most characters of an error's text in a sentence."""
MOST_NAMES = 8
"""Most names of a module in a sentence."""


class UserCodeError(DataError):
    """User code could not be imported, or raised; the message is one sentence."""


@dataclass(frozen=True, kw_only=True)
class UserObject:
    """An object of the user's code that is not imported yet, or a file of a network."""

    name: str
    """`/home/me/train.py:make_step` or `my_package.steps:make_step`; `/home/me/model.onnx`, or
    `/home/me/gpt2/`, a folder."""
    folder: str
    """Folder that is first on the path of its imports: of the file, or of the top package; empty
    for an installed package."""

    @property
    def source(self) -> str:
        """The file, the folder or the module."""
        return without_object(self.name)

    @property
    def attribute(self) -> str:
        """The name within it, which may have dots; empty for a file without code."""
        return self.name.rpartition(":")[2] if self.form == "python" else ""

    @property
    def form(self) -> Form:
        """What it is: an object in Python code, or a file without code."""
        return form_of(self.name)

    @property
    def is_file(self) -> bool:
        """Whether it is named by its file."""
        return self.source.endswith(".py")

    @property
    def files(self) -> list[Path]:
        """The file, after those of the packages that it is in; empty where it is gone."""
        if self.is_file or self.form != "python":
            path = Path(self.source, CONFIGURATION if self.form == "configuration" else "")
            return [path] if path.is_file() else []
        return _files_of(self.source, self.path)

    @property
    def path(self) -> list[str]:
        """Folders that its imports are found in."""
        return [self.folder, *sys.path] if self.folder else sys.path

    @property
    def short(self) -> str:
        """`train.py:make_step`."""
        return short_name(self.name)


def form_of(name: str) -> Form:
    """What a name means: `model.onnx` is an ONNX file, a path without a colon a folder, and
    everything else an object in Python code."""
    slash, last = name.strip().rpartition("/")[1:]
    if last.endswith(".onnx"):
        return "onnx"
    return "configuration" if slash and ":" not in last and last[-3:] != ".py" else "python"


def short_name(name: str) -> str:
    """A name without the folder of its file: `model.py:Net`, `model.onnx`; `gpt2/` of a folder."""
    if form_of(name) == "configuration":
        return f"{os.path.basename(_folder(name))}/"
    return name.strip().rpartition("/")[2]


def without_object(name: str) -> str:
    """The file, folder or module of a name: `model.py` of `model.py:Net`."""
    return name.strip().rpartition(":")[0] if form_of(name) == "python" else name.strip()


def _folder(name: str) -> str:
    """The folder of a configuration, which may be named by its file."""
    path = os.path.abspath(os.path.expanduser(name.strip()))
    return os.path.dirname(path) if os.path.basename(path) == CONFIGURATION else path


def locate_network(text: str, *, elsewhere: bool = False) -> UserObject:
    """The network that `text` names: as `locate`, or a file without code. UsageError for an invalid
    name, and where there is no such file."""
    form = form_of(text)
    if form == "python":
        return locate(text, "networks", elsewhere=elsewhere)
    if form == "onnx":
        file = os.path.abspath(os.path.expanduser(text.strip()))
        if not os.path.isfile(file):
            raise UsageError(f"networks={text}: there is no file {file}.")
        return UserObject(name=file, folder="")
    folder = _folder(text)
    if not os.path.isdir(folder):
        what = "is a file" if os.path.exists(folder) else "does not exist"
        raise UsageError(
            f"networks={text}: {folder} {what}. A network of your own is FILE.py:NAME, "
            f"PACKAGE.MODULE:NAME, FILE.onnx, or a folder with the {CONFIGURATION} of Hugging Face."
        )
    if not os.path.isfile(os.path.join(folder, CONFIGURATION)):
        raise UsageError(
            f"networks={text}: there is no {CONFIGURATION} in {folder}. Name the folder with the "
            "configuration of a model of Hugging Face."
        )
    return UserObject(name=f"{folder}/", folder="")


class HasSource(Protocol):
    """What is imported, or read, from a file or module of the user's."""

    @property
    def name(self) -> str:
        """Its name in a record."""

    @property
    def source(self) -> str:
        """The file or module, with the name of the object in it."""


Named = TypeVar("Named", bound=HasSource)


class NamedCode(Generic[Named]):
    """Networks or data of the user's own that a command named, by name, while it runs.

    Code of a user runs only where a command of the user names it: a store, a page and a queue know
    no such name. `refusal` is the sentence for another name, with `{name}` in it.
    """

    def __init__(self, refusal: str) -> None:
        self._refusal = refusal
        self._named: dict[str, Named] = {}

    @contextmanager
    def named(self, objects: Iterable[Named]) -> Iterator[None]:
        """Within it these can be found by name. UsageError for two of one name."""
        before = dict(self._named)
        try:
            for own in objects:
                other = self._named.setdefault(own.name, own)
                if other != own:
                    raise UsageError(
                        f"{other.source} and {own.source} have the same name, {own.name}. Rename "
                        "one, or measure them in two commands."
                    )
            yield
        finally:
            self._named.clear()
            self._named.update(before)

    def find(self, name: str) -> Named | None:
        """What the command named so; None if it named none."""
        return self._named.get(short_name(name))

    def get(self, name: str) -> Named:
        """What the command named so; UsageError if it named none."""
        own = self.find(name)
        if own is None:
            raise UsageError(self._refusal.format(name=name))
        return own

    def is_named(self, own: Named) -> bool:
        """Whether this command named exactly this."""
        return self._named.get(own.name) == own


def locate(text: str, setting: str, *, elsewhere: bool = False) -> UserObject:
    """The object that `text` names, of a file relative to the working folder. UsageError, naming
    the `setting`, for an invalid name or a missing file; whether the file has the object is known
    when it is loaded. A module may be missing if Python `elsewhere` imports it."""
    source, colon, attribute = text.strip().rpartition(":")
    if not colon or not source or not all(map(str.isidentifier, attribute.split("."))):
        raise UsageError(
            f"{setting}={text} does not name an object. Write FILE.py:NAME or PACKAGE.MODULE:NAME, "
            "with the name of an object in Python."
        )
    if source.endswith(".py"):
        path = Path(os.path.abspath(os.path.expanduser(source)))
        if not path.is_file():
            raise UsageError(f"{setting}={text}: there is no file {path}.")
        return UserObject(name=f"{path}:{attribute}", folder=str(path.parent))
    if not all(map(str.isidentifier, source.split("."))):
        raise UsageError(
            f"{setting}={text}: {source} is neither a file that ends in .py nor the name of a "
            "module."
        )
    here = os.getcwd()
    found = _files_of(source, [here, *sys.path])
    if found:
        levels = source.count(".") + (found[-1].name == "__init__.py")
        folder = "" if _is_installed(found[-1]) else str(found[-1].parents[levels])
    elif elsewhere:
        folder = here
    else:
        raise UsageError(
            f"{setting}={text}: there is no module {source} in {here} or on the path of Python. "
            "Run the command in the folder of the package, or set PYTHONPATH."
        )
    return UserObject(name=f"{source}:{attribute}", folder=folder)


def digest(named: UserObject) -> str:
    """Sixteen hexadecimal digits of the content of its file and of the files that it imports, but
    for installed packages; of a module of an installed package, that of the files of the package.
    Empty where the file is gone."""
    waiting = named.files
    if not waiting:
        return ""
    first, folder = waiting[0], waiting[0].parent
    is_installed = _is_installed(first)
    if is_installed and first.name == "__init__.py":
        waiting = [*sorted(folder.rglob("*.py")), *waiting]
    found = dict[Path, bytes]()
    while waiting and len(found) < MOST_FILES:
        file = waiting.pop()
        if file in found:
            continue
        try:
            found[file] = file.read_bytes()
        except OSError:
            continue
        if not is_installed and named.form == "python":
            imported = _imported_files(file, found[file], named.path)
            waiting += [f for f in imported if not _is_installed(f)]
    total = hashlib.sha256(named.attribute.encode())
    for file in sorted(found):
        name = os.path.relpath(file, folder)
        total.update(f"\0{name}\0{len(found[file])}\0".encode())
        total.update(found[file])
    return total.hexdigest()[:16]


def load(named: UserObject, is_out_of_memory: Recognizer | None = None) -> Any:
    """Import the object. UserCodeError where that fails."""
    if named.folder and named.folder not in sys.path:
        sys.path.insert(0, named.folder)
    module = attempt(named, "importing it", lambda: _import(named), is_out_of_memory)
    found = module
    for part in named.attribute.split("."):
        if not hasattr(found, part):
            known = [name for name, value in vars(module).items() if _is_own(name, value, module)]
            offers = ", ".join(known[:MOST_NAMES]) or "nothing that can be called"
            file = short_name(named.source)
            raise UserCodeError(f"{named.short}: there is no {part} in {file}; it has {offers}.")
        found = getattr(found, part)
    return found


def attempt(
    named: UserObject,
    doing: str,
    call: Callable[[], Any],
    is_out_of_memory: Recognizer | None = None,
) -> Any:
    """The result of `call`, user code; what it raises as of `fail`."""
    try:
        return call()
    except BaseException as error:
        fail(named, doing, error, is_out_of_memory)


def fail(
    named: UserObject,
    doing: str,
    error: BaseException,
    is_out_of_memory: Recognizer | None = None,
) -> NoReturn:
    """Raise UserCodeError for what user code raised while `doing` something: `step 7`. A refused
    allocation, which a framework recognizes, and an interrupt are raised as they are."""
    if isinstance(error, (UserCodeError, MemoryError, KeyboardInterrupt)) or (
        is_out_of_memory is not None and is_out_of_memory(error)
    ):
        raise error
    trace = TracebackException.from_exception(error, lookup_lines=False)
    if isinstance(error, SystemExit):
        did = f"called sys.exit({quoted(error.code)})"
    else:
        words = clean(" ".join(str(trace).split()), MOST_WORDS).rstrip(".")
        did = f"raised {type(error).__name__}{words and f': {words}'}"
    lines = [f for f in trace.stack if f.filename[:1] != "<" and not _is_installed(f.filename)]
    place = f" ({Path(lines[-1].filename).name}, line {lines[-1].lineno})" if lines else ""
    if isinstance(error, SyntaxError) and error.filename:  # its text has the place
        place = ""
    raise UserCodeError(clean(f"{named.short}: {doing} {did}{place}.")) from error


def _import(named: UserObject) -> Any:
    """The module of the object; that of a file under the name that an import of it would have,
    unless another module has that."""
    if not named.is_file:
        return importlib.import_module(named.source)
    path = named.source
    name = re.sub(r"\W", "_", Path(path).stem)
    if name in sys.modules and getattr(sys.modules[name], "__file__", None) != path:
        name = f"user_code_{name}"
    if getattr(sys.modules.get(name), "__file__", None) == path:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "it ends in .py"
    assert spec.loader is not None, "it is a file"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # as for any import; dataclasses and pickle look it up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _is_own(name: str, value: Any, module: Any) -> bool:
    """Whether a name of a module is one to call, and not imported from elsewhere."""
    return (
        not name.startswith("_")
        and callable(value)
        and (not hasattr(value, "__name__") or getattr(value, "__module__", "") == module.__name__)
    )


@functools.cache
def _installed_folders() -> tuple[str, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = {sysconfig.get_path(name) for name in names} | {os.path.dirname(__file__)}
    return tuple(f"{folder}{os.sep}" for folder in folders)


def _is_installed(file: Path | str) -> bool:
    """Whether a file is Python's, of an installed package, or of cubemesh."""
    return bool(
        {"site-packages", "dist-packages"} & {*Path(file).parts}
        or str(file).startswith(_installed_folders())
    )


def _files_of(module: str, path: list[str], *, partly: bool = False) -> list[Path]:
    """The Python files of a module and, before it, of the packages that it is in, found in the
    folders of `path` without importing anything. Empty where the module is not found; `partly`:
    then those of its packages."""
    found: list[Path] = []
    file: str | None = None
    places: list[str] | None = path
    for part in module.split("."):
        try:
            spec = None if places is None else PathFinder.find_spec(part, places)
            if spec is None and places is path:  # of an import hook, as for an editable install
                spec = importlib.util.find_spec(part)
        except (ImportError, ValueError):
            spec = None
        if spec is None:
            return found if partly else []
        places = spec.submodule_search_locations and list(spec.submodule_search_locations)
        file = spec.origin if spec.has_location else None
        if file is not None:
            found.append(Path(file).absolute())
    return found if partly or file is not None else []


def _imported_files(file: Path, text: bytes, path: list[str]) -> Iterator[Path]:
    """Files that a file imports, with those of their packages, which may have none."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files_of(alias.name, path, partly=True)
        elif isinstance(node, ast.ImportFrom):
            places = path
            if 0 < node.level <= len(file.parents):
                package = file.parents[node.level - 1]
                places = [str(package)]
                yield package / "__init__.py"
            for alias in node.names:
                name = f"{node.module}.{alias.name}" if node.module else alias.name
                yield from _files_of(name, places, partly=True)
