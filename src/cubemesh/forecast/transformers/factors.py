"""Factors of transformers' forecasts, fitted to published rates, and styles of programs.

What a device attains differs little between networks and much between generations of devices and
of software. A generation without published rates takes another's shares (`_AS`). The values and
what each was fitted to are printed by benchmarks/transformer_accuracy.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

from cubemesh.forecast.calibration import Factor

StyleName = Literal["megatron", "nemo", "fsdp", "fsdp-compiled", "jax"]
STYLE_NAMES: tuple[StyleName, ...] = get_args(StyleName)


@dataclass(frozen=True, kw_only=True)
class ProgramStyle:
    """How a framework trains transformers."""

    framework: str
    elementwise: str
    """The factor of how often it moves values between matrix products."""
    fused: bool
    """Whether norms and activations are one kernel each."""
    attention: str
    """The factor of fused attention, without the device's generation."""
    gradient_bytes: int
    """Of a summed gradient in memory."""
    reduced_bytes: int
    """Of a gradient on its way between devices."""
    selective_per_op: bool
    """Whether selective recomputation is of every second matrix product and all between them, as
    in PyTorch; else of unfused attention's scores."""
    logit_bytes: int
    """Of an output value while the loss is computed: 16 bits and 32 bits; without fusion also
    the softmax and the gradient."""


STYLES: Mapping[StyleName, ProgramStyle] = {
    "megatron": ProgramStyle(
        framework="Megatron-LM, 2021 and 2022",
        elementwise="elementwise_megatron",
        fused=True,
        attention="attention",
        gradient_bytes=4,
        reduced_bytes=4,
        selective_per_op=False,
        logit_bytes=6,
    ),
    "nemo": ProgramStyle(
        framework="NeMo and Megatron-Bridge with Transformer Engine, 2024 on",
        elementwise="elementwise_compiled",
        fused=True,
        attention="attention_cudnn",
        gradient_bytes=2,
        reduced_bytes=2,
        selective_per_op=False,
        logit_bytes=6,
    ),
    "fsdp": ProgramStyle(
        framework="PyTorch FSDP, 2023 on",
        elementwise="elementwise_fsdp",
        fused=False,
        attention="attention",
        gradient_bytes=2,
        reduced_bytes=4,
        selective_per_op=True,
        logit_bytes=14,
    ),
    "fsdp-compiled": ProgramStyle(
        framework="PyTorch FSDP with torch.compile, 2024 on",
        elementwise="elementwise_compiled",
        fused=True,
        attention="attention",
        gradient_bytes=2,
        reduced_bytes=4,
        selective_per_op=True,
        logit_bytes=14,
    ),
    "jax": ProgramStyle(
        framework="JAX (MaxText, Paxml), 2024 on",
        elementwise="elementwise_compiled",
        fused=True,
        attention="attention_cudnn",
        gradient_bytes=2,
        reduced_bytes=2,
        selective_per_op=False,
        logit_bytes=6,
    ),
}

_AS: Mapping[str, str] = {
    "Ampere": "ampere",
    "Volta": "ampere",
    "Turing": "ampere",
    "Ada": "ampere",
}
"""Architecture → the generation whose shares it takes; Hopper's for all others."""


def generation(architecture: str) -> str:
    """Whose shares a device of this architecture takes."""
    return _AS.get(architecture, "hopper")


@dataclass(frozen=True, kw_only=True)
class FittedFactor:
    """A factor, and where its fit starts."""

    value: float
    prior: float
    means: str
    least: float
    most: float
    scale: float = 0.0
    """Distance from the prior that costs as much as a factor of e does for shares; 0 for these."""


def _share(value: float, prior: float, means: str) -> FittedFactor:
    return FittedFactor(value=value, prior=prior, means=means, least=0.15, most=0.99)


def _passes(value: float, prior: float, means: str) -> FittedFactor:
    return FittedFactor(value=value, prior=prior, means=means, least=0.3, most=8.0)


def _exposed(value: float, prior: float, means: str) -> FittedFactor:
    return FittedFactor(value=value, prior=prior, means=means, least=0.0, most=1.0, scale=0.5)


_OF_PEAK = "rate of matrix products, over the dense peak of their precision"
_FUSED = "rate of fused attention, over the peak in 16 bits"
_MOVED = "bytes moved between matrix products, over each value once in and once out"
FITTED: Mapping[str, FittedFactor] = MappingProxyType(
    {
        "ampere_16": _share(0.7654, 0.75, f"{_OF_PEAK}: Ampere, 16 bits"),
        "hopper_16": _share(0.6757, 0.65, f"{_OF_PEAK}: Hopper, 16 bits"),
        "hopper_8": _share(0.556, 0.55, f"{_OF_PEAK}: Hopper, 8 bits, casts included"),
        "ampere_attention": _share(0.5591, 0.50, f"{_FUSED}: Ampere"),
        "hopper_attention": _share(0.2973, 0.35, f"{_FUSED}: Hopper"),
        "hopper_attention_cudnn": _share(0.5882, 0.50, f"{_FUSED}: Hopper, by cuDNN"),
        "flash_v1": _share(0.5597, 0.5, "rate of the first FlashAttention, over the second's"),
        "elementwise_megatron": _passes(1.2201, 1.0, f"{_MOVED}: Megatron-LM"),
        "elementwise_fsdp": _passes(0.9897, 1.0, f"{_MOVED}: PyTorch"),
        "elementwise_compiled": _passes(1.1253, 1.0, f"{_MOVED}: compiled or hand-fused"),
        "exposed_tensor": _exposed(
            0.4777, 0.5, "share of tensor- and context-parallel communication that is not hidden"
        ),
        "exposed_data": _exposed(0.2236, 0.25, "the same of gradients, and of weights once a step"),
        "exposed_fsdp": _exposed(0.3297, 0.25, "the same of weights and gradients per micro-batch"),
        "step_s": FittedFactor(
            value=0.0227,
            prior=0.02,
            means="seconds of a step that depend on nothing else",
            least=0.0,
            most=0.1,
            scale=0.03,
        ),
    }
)
"""Priors are round figures: what matrix products and attention reach alone (T. Dao,
arXiv:2307.08691, where the second FlashAttention is twice as fast as the first; J. Shah et al.,
arXiv:2407.08608), and one pass over each value."""
BAND = 1.2
"""Factor that holds nine of ten published rates, by models that have not seen their source."""
BAND_CALIBRATED = 1.05
"""The same where the layout was measured on fewer devices, of 103 rates on 16 to 2,304 devices."""
BYTES_SHARE = 0.85
"""Of a memory's bandwidth that streaming kernels attain: an assumption."""
_SOURCE = "fitted to 391 published rates (benchmarks/transformer_accuracy.py)"


def fitted_values() -> dict[str, float]:
    """Name → value of every fitted factor."""
    return {name: factor.value for name, factor in FITTED.items()}


def listed() -> dict[str, Factor]:
    """Every factor with its origin and source."""
    found = {
        name: Factor(
            value=one.value,
            unit="s" if name.endswith("_s") else "",
            origin="fitted",
            source=f"{one.means}; {_SOURCE}",
        )
        for name, one in FITTED.items()
    }
    assumed = {
        "bytes_share": (BYTES_SHARE, "share of the memory's bandwidth that training attains"),
        "band": (BAND, "factor within which nine of ten published rates are"),
    }
    for name, (value, source) in assumed.items():
        found[name] = Factor(value=value, unit="", origin="assumed", source=source)
    return found
