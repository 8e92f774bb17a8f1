"""Sizes of GPT, BERT and Llama-like transformers: parameters, and matrix operations of a token.

A network is named (`gpt3-175b`, `llama3-70b`) or given by its columns, with the defaults of a
family: `gpt:hidden=4096,layers=32,heads=32`. Per layer, with h hidden values, f in the feed-forward
part and k times d of keys and of values (k heads of d, fewer than the queries' under grouped-query
attention), the matrices have

    W = h (h + 2 k d) + h h + 2 h f          3 h f where the feed-forward part is gated (SwiGLU)

weights, and training on a sequence of s tokens takes, for each token, a multiply-add as two

    F = 3 (L (2 W + 4 s h) + 2 V h)

operations: the formula of D. Narayanan et al., arXiv:2104.04473, equation 3, without recomputation.
Attention counts in full, as published utilizations have it, though causal attention needs half.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cubemesh.errors import UsageError, unknown_name

_NUMBERS = ("hidden", "layers", "heads", "ffn", "kv_heads", "vocabulary", "sequence_length")
_KEYS = ("hidden", "layers", "heads", "ffn", "kv_heads", "vocabulary", "tied")
_REQUIRED = ("hidden", "layers", "heads")
_MOST_DIGITS = 9
_EXAMPLE = "gpt:hidden=4096,layers=32,heads=32"


@dataclass(frozen=True, kw_only=True)
class Transformer:
    """One network by its table's columns."""

    name: str
    hidden: int
    layers: int
    heads: int
    ffn: int
    """Width of the feed-forward part."""
    kv_heads: int
    """Heads of keys and values; as many as `heads` without grouped-query attention."""
    vocabulary: int
    sequence_length: int
    """Of its paper."""
    gated: bool = False
    causal: bool = True
    biases: bool = True
    """Of matrices and norms; without, norms have one value per feature (RMSNorm)."""
    positions: bool = True
    """Whether places in a sequence have learned vectors."""
    tied: bool = True
    """Whether the output matrix is the embedding's."""
    segments: int = 0
    """Vectors for the kinds of sentence."""
    rotary_base: int = 10_000
    """Of the frequencies of rotary positions, where they are not learned."""

    def __post_init__(self) -> None:
        for key in _NUMBERS:
            if getattr(self, key) < 1:
                raise UsageError(f"{self.name}: {key}={getattr(self, key)} must be 1 or more.")
        if self.hidden % self.heads:
            raise UsageError(
                f"{self.name}: hidden={self.hidden} cannot be divided among heads={self.heads}; "
                "give a multiple."
            )
        if self.heads % self.kv_heads:
            raise UsageError(
                f"{self.name}: heads={self.heads} is not a multiple of kv_heads={self.kv_heads}."
            )

    @property
    def kv_width(self) -> int:
        """Values of all keys of a token."""
        return self.hidden // self.heads * self.kv_heads

    @property
    def layer_weights(self) -> int:
        """Weights of a layer's matrices."""
        attention = self.hidden * (2 * self.hidden + 2 * self.kv_width)
        return attention + (3 if self.gated else 2) * self.hidden * self.ffn

    @property
    def layer_parameters(self) -> int:
        """All of a layer: matrices, biases and two norms."""
        norms = (4 if self.biases else 2) * self.hidden
        if not self.biases:
            return self.layer_weights + norms
        biases = 3 * self.hidden + 2 * self.kv_width + (2 if self.gated else 1) * self.ffn
        return self.layer_weights + norms + biases

    def embedding_parameters(self, sequence_length: int) -> int:
        """Of tokens and, where they are learned, of so many places."""
        places = (sequence_length if self.positions else 0) + self.segments
        return (self.vocabulary + places) * self.hidden

    @property
    def head_parameters(self) -> int:
        """Of the output matrix, if it is one of its own."""
        return 0 if self.tied else self.vocabulary * self.hidden

    def parameters(self, sequence_length: int | None = None) -> int:
        """All, for sequences of so many tokens."""
        length = sequence_length or self.sequence_length
        norms = (2 if self.biases else 1) * self.hidden
        outside = self.embedding_parameters(length) + self.head_parameters + norms
        return self.layers * self.layer_parameters + outside

    def token_flops(self, sequence_length: int | None = None) -> float:
        """F above: of one token, forward and backward."""
        length = sequence_length or self.sequence_length
        layer = 2 * self.layer_weights + 4 * length * self.hidden
        return 3.0 * (self.layers * layer + 2 * self.vocabulary * self.hidden)


_FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "gpt": {"vocabulary": 50257, "sequence_length": 2048},
    "bert": {"vocabulary": 30522, "sequence_length": 512, "causal": False, "segments": 2},
    "llama": {
        "vocabulary": 32000,
        "sequence_length": 4096,
        "gated": True,
        "biases": False,
        "positions": False,
        "tied": False,
    },
}
"""BERT has no last norm but one of its embedding, with as many parameters."""


def _network(family: str, name: str, sizes: tuple[int, int, int], **more: int) -> Transformer:
    """With (hidden, layers, heads), and what differs from the family's defaults."""
    hidden, layers, heads = sizes
    ffn = _gated_ffn(hidden) if _FAMILIES[family].get("gated") else 4 * hidden
    columns = {"ffn": ffn, "kv_heads": heads, **_FAMILIES[family], **more}
    return Transformer(name=name, hidden=hidden, layers=layers, heads=heads, **columns)


def _gated_ffn(hidden: int) -> int:
    """8/3 of the hidden width, rounded up to 256, as Llama has it."""
    return -(-(8 * hidden // 3) // 256) * 256


_GPT2 = {"sequence_length": 1024}
_LLAMA_2 = {"kv_heads": 8, "ffn": 28672}
_LLAMA_3 = {
    "kv_heads": 8,
    "vocabulary": 128256,
    "sequence_length": 8192,
    "rotary_base": 500_000,
}
_MOBILE = {"kv_heads": 3, "ffn": 1536, "sequence_length": 2048, "tied": True}
TRANSFORMERS: Mapping[str, Transformer] = {
    network.name: network
    for network in (
        # A. Radford et al., Language models are unsupervised multitask learners (2019), table 2
        _network("gpt", "gpt2", (768, 12, 12), **_GPT2),
        _network("gpt", "gpt2-medium", (1024, 24, 16), **_GPT2),
        _network("gpt", "gpt2-large", (1280, 36, 20), **_GPT2),
        _network("gpt", "gpt2-xl", (1600, 48, 25), **_GPT2),
        # T. Brown et al., arXiv:2005.14165, table 2.1
        _network("gpt", "gpt3-1.3b", (2048, 24, 16)),
        _network("gpt", "gpt3-2.7b", (2560, 32, 32)),
        _network("gpt", "gpt3-6.7b", (4096, 32, 32)),
        _network("gpt", "gpt3-13b", (5120, 40, 40)),
        _network("gpt", "gpt3-175b", (12288, 96, 96)),
        # D. Narayanan et al., arXiv:2104.04473, table 1
        _network("gpt", "gpt-530b", (20480, 105, 128), vocabulary=51200),
        _network("gpt", "gpt-1t", (25600, 128, 160), vocabulary=51200),
        # J. Devlin et al., arXiv:1810.04805
        _network("bert", "bert-base", (768, 12, 12)),
        _network("bert", "bert-large", (1024, 24, 16)),
        # H. Touvron et al., arXiv:2307.09288
        _network("llama", "llama2-7b", (4096, 32, 32)),
        _network("llama", "llama2-13b", (5120, 40, 40)),
        _network("llama", "llama2-70b", (8192, 80, 64), **_LLAMA_2),
        # Z. Liu et al., MobileLLM, arXiv:2402.14905, 125M of 30 layers
        _network("llama", "llama-125m", (576, 30, 9), **_MOBILE),
        # Llama 3.2 1B, configuration of its released weights
        _network("llama", "llama3-1b", (2048, 16, 32), ffn=8192, tied=True, **_LLAMA_3),
        # A. Grattafiori et al., arXiv:2407.21783, table 3
        _network("llama", "llama3-8b", (4096, 32, 32), ffn=14336, **_LLAMA_3),
        _network("llama", "llama3-70b", (8192, 80, 64), ffn=28672, **_LLAMA_3),
        _network("llama", "llama3-405b", (16384, 126, 128), ffn=53248, **_LLAMA_3),
    )
}
"""By name, each with its source."""
OTHER_NAMES: Mapping[str, str] = {
    "llama-1b": "llama3-1b",
    "llama-8b": "llama3-8b",
    "llama-70b": "llama3-70b",
}
"""What the networks of `TRANSFORMERS` are also called."""


def is_transformer(name: str) -> bool:
    """Whether a name is one of `TRANSFORMERS`, or another name of one, or begins with a family and
    a colon."""
    return _row(name) in TRANSFORMERS or ":" in name


def _row(name: str) -> str:
    return OTHER_NAMES.get(name.lower(), name.lower())


def transformer(name: str) -> Transformer:
    """The network of a name or of columns; UsageError for another, an unknown or invalid column."""
    family, colon, columns = name.partition(":")
    if not colon:
        if _row(name) not in TRANSFORMERS:
            hint = f"Or give sizes, such as {_EXAMPLE}."
            raise unknown_name("transformer", name, TRANSFORMERS, hint)
        return TRANSFORMERS[_row(name)]
    if family not in _FAMILIES:
        raise unknown_name("family of transformers", family, _FAMILIES, plural="families")
    given: dict[str, int] = {}
    for column in columns.split(","):
        key, _, value = column.strip().partition("=")
        if key not in _KEYS:
            raise unknown_name("size of a transformer", key, _KEYS, plural="sizes")
        if key == "tied" and value in ("yes", "no"):
            given[key] = value == "yes"
        elif value.isdecimal() and 0 < len(value) < _MOST_DIGITS and key != "tied":
            given[key] = int(value)
        else:
            kind = "yes or no" if key == "tied" else "a whole number"
            raise UsageError(f"{name}: {key}={value} must be {kind}, as in {_EXAMPLE}.")
    missing = [key for key in _REQUIRED if key not in given]
    if missing:
        raise UsageError(f"{name}: {', '.join(missing)} is missing; give them, as in {_EXAMPLE}.")
    sizes = given.pop("hidden"), given.pop("layers"), given.pop("heads")
    return _network(family, name, sizes, **given)
