"""Modules of other libraries as own networks: which become a graph, and why others do not.

Each classification model of torchvision and timm and each transformer of transformers and PyTorch
is built with random weights, without a download, and described as `cubemesh run … --set
networks=MODULE:NAME` describes it (docs/own_network.md), in a process of its own with a time limit.

    python benchmarks/own_modules.py
    python benchmarks/own_modules.py --only resnet18 bert --json modules.json

Prints for each module its parameters, the layers of its graph or the reason why it runs as it is,
and the largest difference of an output of the graph from the module's, relative to the largest
output. A module whose library is missing is "not installed". Exit code 1 if fewer than 80 % of the
modules become a graph, 2 if nothing could be described.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

FILE = Path(__file__).resolve()
LIMIT_S = 300.0
"""Time limit of a module."""
GOAL = 0.8
"""Share of the modules that become a graph."""
TOKENS = "32:1000"
LIBRARIES = ("torch", "torchvision", "timm", "transformers")


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A module to describe."""

    name: str
    library: str
    source: str
    """As in `--set networks=SOURCE`."""
    input_shape: str


@dataclass(frozen=True, kw_only=True)
class Row:
    """What became of a module."""

    name: str
    library: str
    input_shape: str
    outcome: Literal["graph", "as it is", "fault", "not installed"]
    reason: str = ""
    """Why it is no graph."""
    parameters: int | None = None
    layers: int | None = None
    layer_types: dict[str, int] | None = None
    """Of the graph: how many of each."""
    difference: float | None = None
    """Largest of an output, relative to the largest output."""
    seconds: float | None = None


def _image_models() -> list[Candidate]:
    """Image classification: the smallest image that a model's strides and windows permit, or 64."""
    sizes = {
        "torchvision": {
            **dict.fromkeys(("alexnet", "vgg11_bn", "vgg16"), 224),
            **dict.fromkeys(("resnet18", "resnet50", "resnext50_32x4d", "wide_resnet50_2"), 64),
            **dict.fromkeys(("densenet121", "squeezenet1_1", "mnasnet1_0"), 64),
            **dict.fromkeys(("mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large"), 64),
            **dict.fromkeys(("shufflenet_v2_x1_0", "efficientnet_b0", "efficientnet_v2_s"), 64),
            **dict.fromkeys(("regnet_x_400mf", "convnext_tiny", "swin_t"), 64),
            "vit_b_16": 224,
            "regnet_y_400mf": 128,
            "googlenet": 64,
            "inception_v3": 96,
        },
        "timm": {
            **dict.fromkeys(("resnet26d", "seresnet18", "cspdarknet53", "ghostnet_100"), 64),
            "mixer_s16_224": 224,
            "deit_tiny_patch16_224": 224,
            "convnextv2_atto": 64,
        },
    }
    folder = {"torchvision": "torchvision.models", "timm": "timm.models"}
    made_here = ("googlenet", "inception_v3")
    return [
        Candidate(
            name=name,
            library=library,
            source=f"{FILE}:{name}" if name in made_here else f"{folder[library]}:{name}",
            input_shape=f"3x{size}x{size}",
        )
        for library, models in sizes.items()
        for name, size in models.items()
    ]


def googlenet() -> Any:
    """Without the auxiliary heads, whose scores are no tensor."""
    from torchvision import models

    return models.googlenet(aux_logits=False, init_weights=False)


def inception_v3() -> Any:
    """Without the auxiliary head."""
    from torchvision import models

    return models.inception_v3(aux_logits=False, init_weights=False)


def _transformer(model: str, configuration: str, **settings: Any) -> Callable[[], Any]:
    def make() -> Any:
        import transformers

        made = getattr(transformers, configuration)(**settings)
        return getattr(transformers, model)(made)

    return make


_SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
_ENCODER = {**_SMALL, "vocab_size": 1000, "intermediate_size": 128}
_DECODER = {**_ENCODER, "use_cache": False}
bert = _transformer("BertForSequenceClassification", "BertConfig", **_ENCODER)
roberta = _transformer("RobertaForSequenceClassification", "RobertaConfig", **_ENCODER)
distilbert = _transformer(
    "DistilBertForSequenceClassification",
    "DistilBertConfig",
    vocab_size=1000,
    dim=64,
    n_layers=2,
    n_heads=4,
    hidden_dim=128,
)
gpt2 = _transformer(
    "GPT2LMHeadModel",
    "GPT2Config",
    vocab_size=1000,
    n_embd=64,
    n_layer=2,
    n_head=4,
    use_cache=False,
)
opt = _transformer(
    "OPTForCausalLM",
    "OPTConfig",
    **{**_SMALL, "vocab_size": 1000, "ffn_dim": 128, "word_embed_proj_dim": 64},
    use_cache=False,
)
llama = _transformer("LlamaForCausalLM", "LlamaConfig", **_DECODER)
mistral = _transformer(
    "MistralForCausalLM", "MistralConfig", **_DECODER, num_key_value_heads=2, head_dim=16
)
qwen2 = _transformer("Qwen2ForCausalLM", "Qwen2Config", **_DECODER, num_key_value_heads=2)
vit = _transformer(
    "ViTForImageClassification",
    "ViTConfig",
    **{**_SMALL, "intermediate_size": 128, "image_size": 64},
)


def encoder() -> Any:
    """A classifier of texts with PyTorch's own encoder."""
    import torch
    from torch import Tensor, nn

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(1000, 64)
            self.places = nn.Parameter(torch.randn(1, 32, 64) * 0.02)
            layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Linear(64, 10)

        def forward(self, tokens: Tensor) -> Any:
            return self.head(self.encoder(self.words(tokens) + self.places).mean(1))

    return Classifier()


_OF_TOKENS = ("bert", "roberta", "distilbert", "gpt2", "opt", "llama", "mistral", "qwen2")
CANDIDATES: tuple[Candidate, ...] = (
    *_image_models(),
    *(
        Candidate(name=name, library=library, source=f"{FILE}:{name}", input_shape=input_shape)
        for name, library, input_shape in (
            *((name, "transformers", TOKENS) for name in _OF_TOKENS),
            ("vit", "transformers", "3x64x64"),
            ("encoder", "torch", TOKENS),
        )
    ),
)
"""30 models of images, 10 transformers."""


def described(candidate: Candidate) -> Row:
    """What becomes of a module, described in this process."""
    from cubemesh.frameworks.pytorch.own.description import (
        DescriptionRequest,
        describe_and_compare,
    )
    from cubemesh.networks.layers import ALL_LAYERS
    from cubemesh.networks.own_networks import network_of
    from cubemesh.user_code import locate

    started = time.monotonic()
    length, _, vocabulary = candidate.input_shape.partition(":")
    own, difference = describe_and_compare(
        DescriptionRequest(
            named=locate(candidate.source, "networks"),
            input_shape=tuple(int(part) for part in length.split("x")),
            vocabulary=int(vocabulary) if vocabulary else None,
        )
    )
    network = network_of(own)
    names = {kind: name for name, kind in ALL_LAYERS.items()}
    is_graph = not own.fault and not own.untraced
    kinds = Counter(names[type(node.layer)] for node in network.nodes) if is_graph else None
    return Row(
        name=candidate.name,
        library=candidate.library,
        input_shape=candidate.input_shape,
        outcome="fault" if own.fault else "graph" if is_graph else "as it is",
        reason=own.fault or own.untraced,
        parameters=None if own.fault else network.parameter_count,
        layers=len(network.nodes) if is_graph else None,
        layer_types=dict(kinds) if kinds is not None else None,
        difference=difference,
        seconds=round(time.monotonic() - started, 1),
    )


def described_in_process(candidate: Candidate, limit_s: float) -> Row:
    """The same in a process of its own, which has `limit_s` seconds."""
    row = {
        "name": candidate.name,
        "library": candidate.library,
        "input_shape": candidate.input_shape,
    }
    if importlib.util.find_spec(candidate.library) is None:
        return Row(**row, outcome="not installed")
    command = [sys.executable, str(FILE), "--describe", json.dumps(asdict(candidate))]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=limit_s, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        return Row(**row, outcome="fault", reason=f"it took longer than {limit_s:g} s")
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        last = (done.stderr.strip().splitlines() or ["without a message"])[-1]
        return Row(**row, outcome="fault", reason=f"its process ended: {last[:200]}")
    return Row(**json.loads(lines[-1]))


def summary(rows: Sequence[Row]) -> str:
    """How many of the modules that could be described become a graph."""
    tried = [row for row in rows if row.outcome != "not installed"]
    graphs = sum(row.outcome == "graph" for row in tried)
    return f"{graphs} of {len(tried)} modules become a graph"


def table(rows: Iterable[Row]) -> str:
    """One line a module."""
    heads = ("module", "library", "parameters", "layers", "difference", "why")
    lines = [_line(*heads)]
    for row in rows:
        parameters = "" if row.parameters is None else f"{row.parameters:,}"
        layers = "" if row.layers is None else str(row.layers)
        difference = "" if row.difference is None else f"{row.difference:.1e}"
        why = row.reason or ("" if row.outcome == "graph" else row.outcome)
        lines.append(_line(row.name, row.library, parameters, layers, difference, why))
    return "\n".join(lines)


def _line(name: str, library: str, parameters: str, layers: str, difference: str, why: str) -> str:
    columns = f"{name:24}{library:14}{parameters:>12}  {layers:>6}  {difference:>10}"
    return f"{columns}  {why}".rstrip()


def record(rows: Sequence[Row]) -> dict[str, Any]:
    """The table with machine, date and versions, as JSON."""
    versions = {
        name: importlib.metadata.version(name)
        for name in LIBRARIES
        if importlib.util.find_spec(name) is not None
    }
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "versions": versions,
        "summary": summary(rows),
        "modules": [asdict(row) for row in rows],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="modules; default: all")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for a module")
    parser.add_argument("--json", type=Path, metavar="FILE", help="file for the table as JSON")
    parser.add_argument("--describe", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.describe:
        print(json.dumps(asdict(described(Candidate(**json.loads(given.describe))))))
        return 0
    known = {candidate.name for candidate in CANDIDATES}
    if unknown := sorted(set(given.only or ()) - known):
        parser.error(f"unknown modules {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    rows = []
    for candidate in CANDIDATES:
        if not given.only or candidate.name in given.only:
            rows.append(described_in_process(candidate, given.limit))
            print(table(rows[-1:]).splitlines()[1], file=sys.stderr, flush=True)
    print(table(rows))
    print(summary(rows))
    if given.json:
        given.json.write_text(json.dumps(record(rows), indent=1) + "\n")
    tried = [row for row in rows if row.outcome != "not installed"]
    if not tried:
        return 2
    return 0 if sum(row.outcome == "graph" for row in tried) >= GOAL * len(tried) else 1


if __name__ == "__main__":
    sys.exit(main())
