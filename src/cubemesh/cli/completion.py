"""Shell completion of values: experiments, suites, networks, settings, systems and run ids.

The names come from the registries, whose import takes a second. So they are written once to
`$XDG_CACHE_HOME/cubemesh/completion.json`, with the newest modification time of the package, and
read from there. Run ids are read from the SQLite file of the store, the latest first.

Bash splits words at `=`. `join_assignments` undoes that before the words are parsed.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import typer

from cubemesh.user_folders import cache_folder, data_folder

VARIABLE = "_CUBEMESH_COMPLETE"
"""Environment variable with which a shell asks for completions."""
_MOST_RUNS = 200
_PACKAGE = Path(__file__).parents[1]
_NOT_WORDS = {"integer", "number", "text"}
_pending_key = ""
"""The setting whose value bash completes: `precision` of `--set precision=b`."""

Items = list[tuple[str, str]]
"""Completions, each with its help."""


def experiments_and_suites(incomplete: str) -> Items:
    """Names of experiments and suites."""
    names = _names()
    return _starting({**names["experiments"], **names["suites"]}, incomplete)


def experiments(incomplete: str) -> Items:
    """Names of experiments."""
    return _starting(_names()["experiments"], incomplete)


def networks(incomplete: str) -> Items:
    """Names of networks."""
    return _starting(_names()["networks"], incomplete)


def frameworks(incomplete: str) -> Items:
    """Names of frameworks."""
    return _starting(_names()["frameworks"], incomplete)


def systems(incomplete: str) -> Items:
    """Names of systems of the catalogue."""
    return _starting(_names()["systems"], incomplete)


def strategies(incomplete: str) -> Items:
    """Names of gradient synchronization strategies."""
    return _starting(_names()["strategies"], incomplete)


def formats(incomplete: str) -> Items:
    """Names of the formats of exports, with the ends of their files."""
    return _starting(_names()["formats"], incomplete)


def settings(ctx: typer.Context, incomplete: str) -> Items:
    """KEY=VALUE: the settings of the experiments in the command, then the values of a key."""
    names = _names()
    key, equals, value = incomplete.partition("=")
    if _pending_key:
        return _values(_words_of(names, _pending_key, ctx), incomplete, "")
    if equals:
        return _values(_words_of(names, key.replace("-", "_"), ctx), value, f"{key}=")
    known = _keys(names, ctx)
    matching = [name for name in known if name.startswith(key)]
    if len(matching) == 1:  # its values at once
        return _values(_words_of(names, matching[0], ctx), "", f"{matching[0]}=")
    return [(f"{name}=", _short(known[name])) for name in matching]


def runs(ctx: typer.Context, incomplete: str) -> Items:
    """Ids of stored runs, the latest first, each with what it measured."""
    path = _store_file(ctx.params.get("store"))
    if path is None or not path.is_file():
        return []
    query = (
        "select run_id, coalesce(network, work), framework, coalesce(batch_per_device, ''), outcome"
        " from records where run_id like ? || '%' order by sequence desc limit ?"
    )
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as opened:
            rows = opened.execute(query, (incomplete, _MOST_RUNS)).fetchall()
    except sqlite3.Error:
        return []
    return [(run_id, " ".join(map(str, rest))) for run_id, *rest in rows]


def join_assignments() -> None:
    """Undo bash's splitting at `=` in `COMP_WORDS`; note the key of a value that is typed."""
    global _pending_key
    if os.environ.get(VARIABLE) != "complete_bash":
        return
    line = os.environ.get("COMP_WORDS", "")
    words = line.split("\n" if "\n" in line else " ")  # the script joins words by newlines
    current = int(os.environ.get("COMP_CWORD", "0"))
    before, typed = words[:current], words[current] if current < len(words) else ""
    if typed == "=":
        before, typed = [*before, "="], ""
    joined: list[str] = []
    for word in before:
        if joined and (word == "=" or joined[-1].endswith("=")):
            joined[-1] += word
        else:
            joined.append(word)
    if before and before[-1] == "=":
        _pending_key = joined.pop().removesuffix("=").replace("-", "_")
    os.environ["COMP_WORDS"] = "\n".join([*joined, typed])
    os.environ["COMP_CWORD"] = str(len(joined))


def default_store() -> Path:
    """`store.location.default_path`, without importing SQLAlchemy."""
    return data_folder() / "results.sqlite"


def _store_file(given: str | None) -> Path | None:
    if given is None:
        return default_store()
    text = given.removeprefix("sqlite:///")
    return None if "://" in text else Path(text).expanduser()


def _starting(items: dict[str, str], incomplete: str) -> Items:
    return [(name, _short(text)) for name, text in items.items() if name.startswith(incomplete)]


def _short(text: str) -> str:
    """A help of one line: typer wraps longer ones, and the shells read each line as a value."""
    return textwrap.shorten(text.replace("[", "(").replace("]", ")"), 60, placeholder=" ...")


def _keys(names: dict[str, Any], ctx: typer.Context) -> dict[str, str]:
    """The settings that the command accepts, with their help."""
    return {
        key: names["help"][key]
        for name in _chosen(names, ctx) or names["settings"]
        for key in names["settings"][name]
    }


def _chosen(names: dict[str, Any], ctx: typer.Context) -> list[str]:
    """The experiments of the command. They are among its words: an option without its value yet
    ends click's parsing before they are known."""
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
    chosen: list[str] = []
    for name in (ctx.info_name or "", *line.split()[2:]):
        chosen += names["suite_experiments"].get(name, [name])
    return [name for name in dict.fromkeys(chosen) if name in names["settings"]]


def _words_of(names: dict[str, Any], key: str, ctx: typer.Context) -> list[str]:
    """The words of a setting: those of the command's experiment, where several have one of this
    name."""
    own = (names["own_values"].get(name, {}).get(key) for name in _chosen(names, ctx))
    found: list[str] = next((words for words in own if words), names["values"].get(key, []))
    return found


def _values(words: list[str], typed: str, before: str) -> Items:
    """Values of a setting; of a list, the last one that is typed."""
    earlier, comma, last = typed.rpartition(",")
    return [
        (f"{before}{earlier}{comma}{word}", "")
        for word in words
        if word.startswith(last) and word not in earlier.split(",")
    ]


def _names() -> dict[str, Any]:
    """The names of everything, from the cache unless the package changed since."""
    signature = _signature()
    path = cache_folder() / "completion.json"
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        if found["signature"] == signature:
            return found
    except (OSError, ValueError, KeyError):
        pass  # not written yet, or damaged
    found = {"signature": signature, **collect_names()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(found))
        part.replace(path)
    except OSError:
        pass  # a read-only home: the names are collected each time
    return found


def _signature() -> str:
    """Number of files of the package and the newest modification time."""
    times = [entry.stat().st_mtime_ns for entry in _files(str(_PACKAGE))]
    return f"{len(times)} {max(times)}"


def _files(folder: str) -> Iterator[os.DirEntry[str]]:
    for entry in os.scandir(folder):
        if entry.is_dir():
            if entry.name != "__pycache__":
                yield from _files(entry.path)
        elif entry.name.endswith((".py", ".toml")):
            yield entry


def collect_names() -> dict[str, Any]:
    """The names of everything that can be completed, from the registries."""
    from cubemesh import experiment_settings, list_experiments
    from cubemesh.data import SOURCES
    from cubemesh.exports import FORMATS
    from cubemesh.machines.catalogue.systems import system_names
    from cubemesh.networks import NETWORKS
    from cubemesh.parallel.strategies import STRATEGIES

    listed = list_experiments()
    frameworks = {f.name: f.summary for f in listed.frameworks}
    named = {
        **{key: list(NETWORKS) for key in ("network", "networks")},
        **{key: list(frameworks) for key in ("framework", "frameworks")},
        **{key: list(STRATEGIES) for key in ("sync", "strategies")},
        "data": list(SOURCES),
    }
    keys: dict[str, list[str]] = {}
    helps: dict[str, str] = {}
    values: dict[str, list[str]] = {}
    own: dict[str, dict[str, list[str]]] = {}
    """Experiment → key → words, where another experiment has other words for it."""
    for experiment in listed.experiments:
        found = experiment_settings(experiment.name)
        keys[experiment.name] = [s.name for s in (*found.settings, *found.fields)]
        for setting in (*found.settings, *found.fields):
            helps.setdefault(setting.name, _sentence(setting.means))
            words = named.get(setting.name) or _words(setting.type, setting.default)
            if values.setdefault(setting.name, words) != words:
                own.setdefault(experiment.name, {})[setting.name] = words
    return {
        "experiments": {e.name: e.question for e in listed.experiments},
        "suites": {s.name: s.summary for s in listed.suites},
        "suite_experiments": {
            s.name: list(dict.fromkeys(e.experiment for e in s.experiments)) for s in listed.suites
        },
        "networks": dict.fromkeys(NETWORKS, ""),
        "frameworks": frameworks,
        "strategies": dict.fromkeys(STRATEGIES, ""),
        "formats": {name: " ".join(entry.suffixes) for name, entry in FORMATS.items()},
        "systems": dict.fromkeys(system_names(), ""),
        "settings": keys,
        "help": helps,
        "values": values,
        "own_values": own,
    }


def _sentence(text: str) -> str:
    return re.split(r"[.;:](?:\s|$)", " ".join(text.split()))[0].replace("`", "")


def _words(kind: str, default: Any) -> list[str]:
    """The words of a type such as `true | false`; for another type the default, to be edited."""
    if kind.endswith(",…"):
        # A list of choices is `(a | b),…`, another one is shown as two of its members.
        kind = kind.removesuffix(",…").strip("()").partition(",")[0]
    members = kind.split(" | ")
    words = [word for word in members if re.fullmatch(r"[\w.-]+", word) and word not in _NOT_WORDS]
    if words:
        return words
    return [] if default is None or isinstance(default, Iterable) else [str(default)]
