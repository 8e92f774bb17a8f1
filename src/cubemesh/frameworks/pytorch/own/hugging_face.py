"""Models of Hugging Face by their configuration: a folder with `config.json`, weights at random.

transformers builds the model. Nothing is downloaded, and no code of the folder is run: a model that
transformers itself does not have, or that another package builds, is refused.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import nn

from cubemesh.frameworks.contract.own_module import IMAGE, DescriptionRequest
from cubemesh.frameworks.pytorch.runtime import is_out_of_memory
from cubemesh.units import format_bytes, format_count
from cubemesh.untrusted import clean, parse_json
from cubemesh.user_code import CONFIGURATION, UserCodeError, UserObject, attempt

MOST_BYTES = 1 << 20
"""Of a configuration."""
BYTES_A_PARAMETER = 12
"""Of a description: the parameter, a copy of it and its gradient, 32 bits each. A model that takes
more than the machine's memory is refused."""
LENGTH = 512
"""Tokens of a sequence where none are given, or as many as the model has positions for."""
HEADS = {
    "ForImageClassification": "AutoModelForImageClassification",
    "ForCausalLM": "AutoModelForCausalLM",
    "LMHeadModel": "AutoModelForCausalLM",
    "ForSequenceClassification": "AutoModelForSequenceClassification",
    "ForTokenClassification": "AutoModelForTokenClassification",
    "ForMaskedLM": "AutoModelForMaskedLM",
    "ForPreTraining": "AutoModelForMaskedLM",
}
"""End of the name of an architecture → the class that builds it."""
DEFAULTS = (
    "AutoModelForImageClassification",
    "AutoModelForMaskedLM",
    "AutoModelForCausalLM",
    "AutoModelForSequenceClassification",
)
"""Classes for a configuration that names no architecture with a head; the first that has it."""
_BY_OTHERS = frozenset({"timm_wrapper", "timm_backbone"})
"""Model types that another package builds, which reads files that a configuration names."""
_LOADING = ("use_timm_backbone", "use_pretrained_backbone")
"""Settings by which a part of a model is built by another package, or its weights are loaded."""
_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx")


def build(named: UserObject) -> nn.Module:
    """The model of a configuration, with seed 0. UserCodeError where transformers is missing or
    has no such model, and for one that does not fit the memory."""
    configuration = _configuration(named)
    builder = _builder(named, configuration)
    if getattr(configuration, "use_cache", None):
        configuration.use_cache = False  # keys and values, which training does not return

    def make() -> Any:
        return builder.from_config(configuration, trust_remote_code=False)

    _check_size(named, make)
    torch.manual_seed(0)
    found = attempt(named, "building it", make, is_out_of_memory)
    assert isinstance(found, nn.Module)
    return found.float()


def _check_size(named: UserObject, make: Callable[[], Any]) -> None:
    """UserCodeError where a description of the model takes more than the machine's memory. A model
    that cannot be built without values is not checked."""
    try:
        with torch.device("meta"):
            parameters = sum(p.numel() for p in make().parameters())
    except Exception:  # whatever a model raises that needs values
        return
    most = psutil.virtual_memory().total
    if BYTES_A_PARAMETER * parameters > most:
        raise UserCodeError(
            f"{named.short} has {format_count(parameters)} parameters, whose description takes "
            f"{format_bytes(BYTES_A_PARAMETER * parameters)} of memory, and this machine has "
            f"{format_bytes(most)}."
        )


def with_input(request: DescriptionRequest) -> DescriptionRequest:
    """The request with the input of the configuration, where none is given. UserCodeError as of
    `build`."""
    if request.input_shape is not None:
        return request
    own = _configuration(request.named)
    vocabulary = getattr(own, "vocab_size", None)
    if isinstance(vocabulary, int) and vocabulary > 0:
        positions = [n for name in _POSITIONS if isinstance(n := getattr(own, name, None), int)]
        first = 2 if own.model_type in _PADDED_POSITIONS else 0
        most = min((n - first for n in positions if n > first), default=LENGTH)
        length = request.sequence_length or min(LENGTH, most)
        return replace(request, input_shape=(length,), vocabulary=vocabulary)
    size = getattr(own, "image_size", None)
    given: list[Any] = list(size) if isinstance(size, (list, tuple)) else [size] * 2
    sides = [int(n) for n in given if isinstance(n, int) and n > 0]
    if request.image_size is not None or len(sides) < 2:
        sides = [request.image_size or IMAGE[1]] * 2
    channels = getattr(own, "num_channels", None)
    shape = (channels if isinstance(channels, int) else IMAGE[0], *sides[-2:])
    return replace(request, input_shape=shape)


_PADDED_POSITIONS = frozenset({"roberta", "xlm-roberta", "camembert", "xlm-roberta-xl"})
"""Model types whose first positions are those of padding."""


def _configuration(named: UserObject) -> Any:
    """The configuration of a folder, as transformers reads it."""
    file = Path(named.source, CONFIGURATION)
    try:
        if file.stat().st_size > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES:,} bytes")
        plain = parse_json(file.read_bytes())
    except (OSError, ValueError) as error:
        reason = clean(str(getattr(error, "strerror", None) or error), 200).rstrip(".")
        raise UserCodeError(f"{named.short}: {CONFIGURATION} cannot be read: {reason}.") from error
    kind = plain.get("model_type") if isinstance(plain, dict) else None
    if not isinstance(kind, str):
        raise UserCodeError(
            f"{named.short}: {CONFIGURATION} has no model_type, so it is no configuration of a "
            "model of Hugging Face."
        )
    library = _transformers(named)
    if kind not in library.CONFIG_MAPPING:
        more = " Code in its folder is not run." if "auto_map" in plain else ""
        raise UserCodeError(
            f"{named.short}: transformers {library.__version__} has no model {clean(kind, 60)}."
            f"{more}"
        )
    _check_own(named, plain)
    given = {key: v for key, v in plain.items() if key not in _NOT_READ and key[:1] != "_"}
    configuration = attempt(
        named,
        f"reading {CONFIGURATION}",
        lambda: library.CONFIG_MAPPING[kind].from_dict(given),
        is_out_of_memory,
    )
    _check_own(named, attempt(named, f"reading {CONFIGURATION}", configuration.to_dict))
    return configuration


def _check_own(named: UserObject, plain: Any) -> None:
    """UserCodeError where transformers does not build all parts of a configuration itself."""
    waiting = [plain]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            kind = part.get("model_type")
            wrong = next((key for key in _LOADING if part.get(key)), None)
            if isinstance(kind, str) and kind in _BY_OTHERS:
                wrong = kind
            if wrong is not None:
                raise UserCodeError(
                    f"{named.short}: {CONFIGURATION} has {wrong}, by which another package builds "
                    "the model and reads files. Only models of transformers itself are built."
                )
        if isinstance(part, (dict, list, tuple)):
            waiting += part.values() if isinstance(part, dict) else part


_NOT_READ = frozenset({"model_type", "auto_map", "attn_implementation", "quantization_config"})
"""Keys of a configuration that would name code or kernels to fetch, or change weights."""


def _builder(named: UserObject, configuration: Any) -> Any:
    """The class that builds the model of a configuration, with its head."""
    library = _transformers(named)
    given = getattr(configuration, "architectures", None)
    names = [name for name in given or () if isinstance(name, str)]
    heads = [HEADS[end] for name in names for end in HEADS if name.endswith(end)]
    one_input = not getattr(configuration, "is_encoder_decoder", False)
    for head in (*heads, *DEFAULTS) if one_input else ():
        builder = getattr(library, head)
        if type(configuration) in builder._model_mapping:
            return builder
    model = clean(names[0] if names else configuration.model_type, 60)
    raise UserCodeError(
        f"{named.short}: {model} has no scores of one input: causal language models, encoders and "
        "image classifiers are measured."
    )


def _transformers(named: UserObject) -> Any:
    """The package, which makes no connection."""
    if importlib.util.find_spec("transformers") is None:
        raise UserCodeError(
            f"{named.short} is a configuration of Hugging Face, and transformers is not installed. "
            "Install it with: pip install transformers"
        )
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
    return importlib.import_module("transformers")
