"""Manual page: writes cubemesh(1) from the command line itself, in man(7). `make man` stores it.

python docs/site/man_page.py > docs/cubemesh.1
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

import typer

from cubemesh import __version__
from cubemesh.cli import app

DATE = "2026-11-22"
"""Date of the version."""
EXIT_CODES = {
    "0": "Done.",
    "1": "A run failed, nothing could be measured, or the store failed.",
    "2": "Wrong usage.",
    "75": "A device, the store or a folder of checkpoints is in use; try again later.",
    "99": "A target was missed: target_accuracy, --accuracy or the threshold of --fail-below.",
    "130": "Interrupted; finished runs are saved.",
}
EXAMPLES = (
    "cubemesh run quick",
    "cubemesh run minibatch --set networks=resnet-18 --set batch_sizes=1,4,16",
    "cubemesh report",
)
ENVIRONMENT = {
    "XDG_DATA_HOME": "Folder of the default store, cubemesh/results.sqlite.",
    "XDG_CACHE_HOME": "Folder of compiled code and of completions.",
    "NO_COLOR": "Set: output without colours.",
}


def man_page() -> str:
    """The page as text."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    command: Any = typer.main.get_command(app)
    yield f'.TH CUBEMESH 1 "{DATE}" "cubemesh {__version__}" "User Commands"'
    yield ".SH NAME"
    yield "cubemesh \\- measure how fast a machine trains neural networks"
    yield ".SH SYNOPSIS"
    yield ".B cubemesh"
    yield "[\\fIoptions\\fR] \\fIcommand\\fR [\\fIarguments\\fR]"
    yield ".SH DESCRIPTION"
    yield escape(command.help)
    yield "Results are printed on standard output, progress and messages on standard error."
    yield ".SH OPTIONS"
    context = command.make_context("cubemesh", [], resilient_parsing=True)
    yield from _options(command, context)
    yield ".SH COMMANDS"
    for name, verb in command.commands.items():
        own = verb.make_context(name, [], parent=context, resilient_parsing=True)
        yield f'.SS "cubemesh {name}"'
        usage = " ".join(verb.collect_usage_pieces(own))
        yield f".B cubemesh {name}"
        yield escape(usage)
        yield ".PP"
        yield escape(verb.help)
        yield from _options(verb, own)
    yield ".SH EXIT STATUS"
    yield from _items(EXIT_CODES)
    yield ".SH ENVIRONMENT"
    yield from _items(ENVIRONMENT)
    yield ".SH EXAMPLES"
    yield ".nf"
    yield from map(escape, EXAMPLES)
    yield ".fi"


def _options(command: Any, context: Any) -> Iterator[str]:
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is None:
            continue
        names, text = record
        yield ".TP"
        yield f"\\fB{escape(' '.join(names.split()))}\\fR"
        yield escape(text) or "See the description."


def _items(items: dict[str, str]) -> Iterator[str]:
    for name, text in items.items():
        yield ".TP"
        yield f".B {escape(name)}"
        yield escape(text)


def escape(text: str | None) -> str:
    """Text for roff: one line, with its special characters escaped."""
    joined = " ".join((text or "").split())
    joined = joined.replace("\\", "\\e").replace("-", "\\-")
    joined = re.sub(r"[^\x00-\x7f]", lambda match: f"\\[u{ord(match[0]):04X}]", joined)
    return f"\\&{joined}" if joined.startswith((".", "'")) else joined


if __name__ == "__main__":
    sys.stdout.write(man_page())
