"""Own networks of a command: each is described by a process of its own before anything runs.

The process runs in a Python with PyTorch, where there is one; if the code of a module lacks a
package there, in the next Python that has a framework of modules.

The code of a user is executed there and in the run's worker only, never in the runner. What the
process does is contained: it has a time limit and a session of its own, which is killed at the end
with all that it started; its output goes into a file. A module that cannot be described has a
description with a fault, which is the outcome of each of its runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from cubemesh.batches import Array
from cubemesh.errors import UsageError
from cubemesh.frameworks import entry
from cubemesh.frameworks.contract.own_module import DescriptionRequest, faulty
from cubemesh.networks import own_networks
from cubemesh.networks.graph import Network
from cubemesh.networks.graph_text import from_text
from cubemesh.runs.interpreters import chosen, source_environment
from cubemesh.schema.own_network import OwnNetwork
from cubemesh.schema.serialization import from_plain, to_plain
from cubemesh.untrusted import MOST_FILE_BYTES, clean, parse_json
from cubemesh.user_code import form_of, locate_network

FRAMEWORKS = ("pytorch", "jax", "keras")
"""Frameworks whose modules can be described; PyTorch traces modules, and reads files."""
_MISSING_PACKAGE = "raised ModuleNotFoundError"
"""In the fault of a module whose code imports what its Python lacks."""
LIMIT_S = 120.0
"""Time limit of a description, with the import of PyTorch."""
IMAGE_SIZE = 224
"""Side of the images where no input is given."""
_TOKENS = re.compile(r"(\d{1,9}):(\d{1,9})")
_SHAPE = re.compile(r"\d{1,6}(?:[x×]\d{1,6}){0,3}")


def describe_named(
    names: Iterable[str], settings: Mapping[str, str], pythons: Iterable[str] = ()
) -> list[OwnNetwork]:
    """A description of each own network among `names`, for the input that `settings` give.
    UsageError for a file that does not exist, an invalid input, and where no framework is
    installed that could run it."""
    own = dict.fromkeys(name.strip() for name in names if own_networks.is_own(name))
    if not own:
        return []
    pythons = tuple(pythons)
    found = [_asked(name, settings, pythons) for name in own]
    return [_describe(*one) for one in found]


def _asked(
    name: str, settings: Mapping[str, str], pythons: Iterable[str] = ()
) -> tuple[DescriptionRequest, list[str | None]]:
    """What to describe, and the Pythons that can, None for this one."""
    file = form_of(name) != "python"
    interpreters = _interpreters(name, pythons, FRAMEWORKS[:1] if file else FRAMEWORKS)
    named = locate_network(name, elsewhere=interpreters != [None])
    if file and not settings.get("input_shape", "").strip():
        return DescriptionRequest(
            named=named,
            image_size=_number(settings, "image_size"),
            sequence_length=_number(settings, "sequence_length"),
        ), interpreters
    shape, vocabulary = _input_of(settings)
    request = DescriptionRequest(named=named, input_shape=shape, vocabulary=vocabulary)
    return request, interpreters


@contextlib.contextmanager
def described(names: Iterable[str], input_shape: str = "") -> Iterator[None]:
    """Within it the own networks among `names` can be built by name. UsageError as of
    `describe_named`, and for one that cannot be run."""
    names = list(names)
    if input_shape and not any(map(own_networks.is_own, names)):
        raise UsageError(
            f"--input-shape {input_shape} is the input of a network of your own, such as "
            "model.py:Net. Leave it out."
        )
    own = describe_named(names, {"input_shape": input_shape})
    for one in own:
        if one.fault:
            raise UsageError(one.fault)
    with own_networks.named(own):
        yield


def network_with_weights(name: str, input_shape: str = "") -> tuple[Network, dict[str, Array]]:
    """The graph of an own network and the values that its module has after it was built, by their
    names in the graph. UsageError as of `described`, and for a module without a graph, whose values
    belong to no layer."""
    request, pythons = _asked(name.strip(), {"input_shape": input_shape})
    named = request.named
    with tempfile.TemporaryDirectory(prefix="cubemesh-") as folder:
        file = Path(folder, "weights.npz")
        own = _describe(request, pythons, file)
        if own.fault:
            raise UsageError(own.fault)
        if own.untraced or not file.exists():
            raise UsageError(
                f"{named.short} has no graph: {own.untraced or 'its values were not written'}. "
                "Export it with torch.onnx.export and build the plan of the ONNX file."
            )
        network = from_text(own)
        try:
            with np.load(file, allow_pickle=False) as arrays:
                weights = {key: np.asarray(arrays[key]) for key in arrays.files}
        except (OSError, ValueError, EOFError) as error:
            raise UsageError(f"{named.short}: its values cannot be read: {error}.") from error
    check_weights(network, weights)
    return network, weights


def check_weights(network: Network, weights: Mapping[str, Array]) -> None:
    """UsageError where `weights` are not those of a network, each in its shape."""
    wanted = {n: s.shape for n, s in {**network.parameters, **network.state}.items()}
    found = {name: np.shape(array) for name, array in weights.items()}
    for name in (*wanted, *found):
        if wanted.get(name) != found.get(name):
            has = "is missing" if name not in found else f"has the shape {found[name]}"
            needs = "which it does not have" if name not in wanted else f"it needs {wanted[name]}"
            raise UsageError(f"The weights of {network.name}: {name} {has}, and {needs}.")


def _interpreters(name: str, pythons: Iterable[str], frameworks: Sequence[str]) -> list[str | None]:
    """The Pythons that have one of the frameworks, in their order, None for this one. UsageError
    without one."""
    others = chosen(pythons, os.environ)
    found = [
        others.get(framework)
        for framework in frameworks
        if framework in others or entry(framework).installed
    ]
    if not found:
        what = {
            "onnx": "an ONNX file, which PyTorch traces",
            "configuration": "a configuration of Hugging Face, whose models are PyTorch's",
            "python": "a module of PyTorch, Flax or Keras",
        }[form_of(name)]
        first = frameworks[0]
        raise UsageError(
            f"{name} is {what}, and {entry(first).title.split()[0]} is not installed. Install it "
            f"with: {entry(first).install}, or set a Python that has it: --python {first}=PATH"
        )
    return list(dict.fromkeys(found))


def _input_of(settings: Mapping[str, str]) -> tuple[tuple[int, ...], int | None]:
    """Shape of one sample, and the vocabulary of tokens, of the settings of a command."""
    text = settings.get("input_shape", "").strip()
    vocabulary = _number(settings, "vocabulary")
    length = _number(settings, "sequence_length")
    side = _number(settings, "image_size") or IMAGE_SIZE
    if tokens := _TOKENS.fullmatch(text):
        length, vocabulary = int(tokens[1]), int(tokens[2])
        if min(length, vocabulary) < 1:
            raise UsageError(f"input_shape={text} is not valid: each size is 1 or more.")
        return (length,), vocabulary
    if text:
        if not _SHAPE.fullmatch(text):
            raise UsageError(
                f"input_shape={text} is not valid: write CHANNELSxHEIGHTxWIDTH, as in 3x224x224, "
                "or LENGTH:VOCABULARY for tokens, as in 1024:50257."
            )
        shape = tuple(int(part) for part in re.split("[x×]", text))
        if min(shape) < 1:
            raise UsageError(f"input_shape={text} is not valid: each size is 1 or more.")
    else:
        shape = (3, side, side) if length is None else (length,)
    if len(shape) == 3 and vocabulary is None:
        return shape, None
    if len(shape) == 1 and vocabulary is not None:
        return shape, vocabulary
    raise UsageError(
        f"input_shape={text or 'x'.join(map(str, shape))} with vocabulary={vocabulary or 'none'} "
        "is not an input that data has. Write CHANNELSxHEIGHTxWIDTH for images, as in 3x224x224, "
        "or LENGTH:VOCABULARY for tokens, as in 1024:50257."
    )


def _number(settings: Mapping[str, str], key: str) -> int | None:
    text = settings.get(key, "").strip()
    return int(text) if text.isdigit() and 0 < int(text) < 1 << 31 else None


def _describe(
    request: DescriptionRequest, pythons: Sequence[str | None], weights: Path | None = None
) -> OwnNetwork:
    """The description by the first Python that has what its code imports, or by the first of all;
    its own values are written to the file `weights`."""
    tried = []
    for python in pythons:
        own = _describe_in(request, python, weights)
        if _MISSING_PACKAGE not in own.fault:
            return own
        tried.append(own)
    return tried[0]


def _describe_in(
    request: DescriptionRequest, python: str | None, weights: Path | None
) -> OwnNetwork:
    asked = to_plain(request) | ({} if weights is None else {"weights": str(weights)})
    with tempfile.TemporaryDirectory(prefix="cubemesh-") as temporary:
        own_folder = Path(temporary)
        asked_file, found = own_folder / "request.json", own_folder / "result.json"
        asked_file.write_text(json.dumps(asked), encoding="utf-8")
        fault = _run(asked_file, found, own_folder, python)
        if not fault:
            try:
                if found.stat().st_size > MOST_FILE_BYTES:
                    raise ValueError("it is too large")
                own = from_plain(OwnNetwork, parse_json(found.read_bytes()))
                from_text(own)
            except (OSError, ValueError) as error:
                fault = f"its description cannot be read: {error}"
            else:
                return own
    return faulty(request, f"{request.named.short}: {fault}")


def _run(asked: Path, found: Path, own_folder: Path, python: str | None) -> str:
    """Run the describing process; why it made no description, empty where it did."""
    environment = dict(os.environ)
    if python is not None:
        environment = source_environment(own_folder, os.environ)
    command = [python or sys.executable, "-P", "-m", "cubemesh.worker", "describe"]
    with open(own_folder / "output.txt", "w+b") as output:
        process = subprocess.Popen(
            [*command, str(asked), str(found)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        try:
            code = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            return (
                f"importing, building and running it once took longer than {LIMIT_S:g} s. Move "
                "what trains or loops under `if __name__ == '__main__':`."
            )
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if found.exists():
            return ""
        output.seek(max(0, os.fstat(output.fileno()).st_size - 2000))
        lines = output.read().decode(errors="replace").strip().splitlines()
    ended = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    last = clean(lines[-1], 200).rstrip(".") if lines else ""
    said = f" after it printed: {last}" if last else ""
    return f"its code ended the process ({ended}){said}."
