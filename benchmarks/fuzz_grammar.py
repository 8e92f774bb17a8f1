"""Commands by chance, from the parser of the command line and the registries.

An option gets a word that the shell would complete, one of its help, a number, a file, or something
hostile; most commands are almost right, since a wrong word ends a command at its first check.
"""

from __future__ import annotations

import random
import re
import typing
from typing import Any

import typer

from cubemesh.cli import app
from cubemesh.cli.completion import collect_names
from cubemesh.experiments.core.settings import settable
from cubemesh.experiments.registry import EXPERIMENTS
from fuzz_files import HOSTILE, Placed

WAITING = {"serve", "agent", "watch"}
"""Verbs that run until they are ended."""
MEASURING = {"run", "accept", "train", "tune", "submit"}
"""Verbs whose runs are to be short."""
STARTING = {
    "run",
    "accept",
    "train",
    "tune",
    "agent",
    "serve",
    "export",
    "collectives",
    "published",
    "report",
}
"""Verbs that take a second of the processor or more."""
WEIGHTS = {
    **dict.fromkeys(("run", "export", "serve"), 0.3),
    **dict.fromkeys(("accept", "agent", "train", "tune"), 0.1),
    **dict.fromkeys(("probe", "infer", "submit", "report", "audit"), 2.0),
    **dict.fromkeys(("import", "predict", "results", "compare", "jobs"), 4.0),
}
"""Weights of verbs: small where they start processes, large where they read files; else 1."""
CHEAP = {"framework": "null", "ceiling": "false", "frameworks": "null", "networks": "little-cnn"}
"""Settings that keep a run short, unless the command has others."""
_WHOLE = ("0", "1", "1", "2", "2", "3", "4", "7", "8", "16", "64", "-1", "1000000")
_NUMBERS = (*_WHOLE, "0.5", "1e-3", "0.1", "1,2,4")
_TEXTS = ("10m", "0", "1s", "8", "1M", "64KiB", "2G", "1:00:00", "cpu", "auto", "none", "all")
_FILE = re.compile("file|path|folder|DIR|store|STORE|PLAN", re.IGNORECASE)
_WORD = re.compile(r"[a-z0-9_][A-Za-z0-9_.=@:-]*[A-Za-z0-9]")


class Grammar:
    """The verbs of the command line; `only` restricts them."""

    def __init__(self, only: str = "", workers: bool = True) -> None:
        commands: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
        self._kinds = {
            command.name or command.callback.__name__: typing.get_type_hints(command.callback)
            for command in app.registered_commands
            if command.callback is not None
        }
        wanted = [name for name in only.split(",") if name]
        self.verbs = {
            name: command
            for name, command in commands.items()
            if (not wanted or name in wanted) and (workers or name not in STARTING)
        }
        self.names = collect_names()
        self._words: list[str] = [
            *self.names["networks"],
            *self.names["experiments"],
            *self.names["frameworks"],
            *self.names["systems"],
        ]

    def command(self, chance: random.Random, files: Placed) -> tuple[str, list[str]]:
        """A verb, and the words of its command."""
        verbs = sorted(self.verbs)
        (verb,) = chance.choices(verbs, [WEIGHTS.get(name, 1.0) for name in verbs])
        if chance.random() < 0.01:
            return verb, [verb, chance.choice(("--help", "-h"))]
        words = [verb]
        params = self.verbs[verb].params
        often = chance.choice((0.0, 0.03, 0.08, 0.25))
        for param in params:
            argument = param.param_type_name == "argument"
            is_store = param.name == "store"
            likely = 0.97 if param.required else 0.6 if argument else 0.9 if is_store else often
            if chance.random() > likely:
                continue
            repeat = chance.choice((1, 1, 2, 3)) if param.multiple or param.nargs == -1 else 1
            for _ in range(repeat):
                words += self._param(chance, files, param, words)
        if verb in MEASURING:
            words += _cheap(words)
            words += ["--quick"] if "quick" in {param.name for param in params} else []
        if verb == "accept":
            words += ["--burn-in", "0"]  # the last counts
        if verb == "prepare" and "made-images" in words:
            words += ["--size", "64K"]  # the last counts
        if verb == "tune":
            words += ["--minutes", "0.01"]  # the last counts
        if chance.random() < 0.02:
            place = chance.randrange(1, len(words) + 1)
            words.insert(place, _printable(chance.choice(HOSTILE)))
        return verb, words

    def waits(self, verb: str, words: list[str]) -> bool:
        """Whether the command may wait for as long as it is asked to."""
        return verb in WAITING or any(word.startswith("--wait") for word in words)

    def _param(
        self, chance: random.Random, files: Placed, param: Any, words: list[str]
    ) -> list[str]:
        if getattr(param, "is_flag", False):
            return [chance.choice([*param.opts, *param.secondary_opts])]
        if param.name == "settings" or "KEY=VALUE" in (param.metavar or ""):
            value = self._setting(chance, files, words)
        else:
            value = self._value(chance, files, param, words[0])
        value = _printable(value)
        if param.param_type_name == "argument":
            return [value]
        return [chance.choice(param.opts), value]

    def _value(self, chance: random.Random, files: Placed, param: Any, verb: str) -> str:
        text = f"{param.name} {param.metavar or ''}"
        hint = f"{text} {param.help or ''}"
        words: list[str] = self._completed(param, files) or _WORD.findall(hint)
        words += [word for word in (param.metavar or "").split("|") if re.search("[=1-9]", word)]
        kind, accepted = chance.random(), str(self._kinds.get(verb, {}).get(param.name, ""))
        is_store = param.name == "store"
        if (_FILE.search(text) or "Path" in accepted) and kind < (0.9 if is_store else 0.7):
            return files.take(text, hint)
        if re.search("int|float", accepted) and kind < 0.9:
            return chance.choice(_WHOLE if "float" not in accepted else _NUMBERS)
        if kind < 0.9 and words:
            return chance.choice(words)
        if kind < 0.93:
            return chance.choice(_NUMBERS)
        if kind < 0.95:
            return chance.choice(_TEXTS)
        if kind < 0.98:
            return chance.choice(self._words)
        return chance.choice(HOSTILE)

    def _completed(self, param: Any, files: Placed) -> list[str]:
        """What the shell completes for an option or argument."""
        complete = getattr(param, "_custom_shell_complete", None)
        if complete is None:
            return []
        known = {
            "network": self.names["networks"],
            "machine": self.names["systems"],
            "sync": self.names["strategies"],
            "format": self.names["formats"],
            "names": {**self.names["experiments"], **self.names["suites"]},
            "name": {**self.names["experiments"], **self.names["networks"]},
        }
        return list(known.get(param.name, files.run_ids))

    def _setting(self, chance: random.Random, files: Placed, words: list[str]) -> str:
        """`KEY=VALUE` of an experiment in the command, or of another."""
        chosen = [EXPERIMENTS[word] for word in words if word in EXPERIMENTS]
        experiment = chance.choice(chosen or list(EXPERIMENTS.values()))
        key = chance.choice(settable(experiment))
        values = self.names["values"].get(key) or ["1"]
        kind = chance.random()
        if key.endswith(("path", "plan", "checkpoints")) and kind < 0.7:
            value = files.take(key)
        elif kind < 0.75:
            value = ",".join(chance.choices(values, k=chance.choice((1, 1, 1, 2))))
        elif kind < 0.93:
            value = chance.choice(_NUMBERS)
        else:
            value = chance.choice((*HOSTILE, *_TEXTS, *self._words))
        return f"{key}={value}"


def _cheap(words: list[str]) -> list[str]:
    """Settings that the command lacks to be short: those that its experiments know."""
    given = {word.partition("=")[0].replace("-", "_") for word in words if "=" in word}
    named = [EXPERIMENTS[word] for word in words if word in EXPERIMENTS]
    if own := {"accept": "acceptance", "train": "train", "tune": "tune"}.get(words[0]):
        named = [EXPERIMENTS[own]]
    known = [set(settable(experiment)) for experiment in named or [EXPERIMENTS["minibatch"]]]
    return [
        word
        for key, value in CHEAP.items()
        if key not in given and all(key in settings for settings in known)
        for word in ("--set", f"{key}={value}")
    ]


def _printable(word: str) -> str:
    """As the operating system passes it: no zero byte, a lone surrogate as the bytes of a file."""
    return word.replace("\0", "").encode("utf-8", "replace").decode("utf-8")[:100_000]
