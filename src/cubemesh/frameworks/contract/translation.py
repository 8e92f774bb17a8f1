"""Translation: what a program offers whose network has a source and a target of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from cubemesh.batches import Array


@dataclass(frozen=True, kw_only=True)
class BeamSearch:
    """How translations are searched: token by token, with the most probable `beam_width` beginnings
    (hypotheses) of each; 1 is greedy search.

    Complete hypotheses of n tokens are compared by log-probability ÷ ((5 + n) / 6)^length_penalty
    (Wu et al., "Google's neural machine translation system", 2016), so that longer ones are not at
    a disadvantage. A sentence is done with `beam_width` complete hypotheses, or when no other can
    become better than the best of them.
    """

    beam_width: int = 1
    length_penalty: float = 0.6
    begin: int
    """Token before the first."""
    end: int
    """Token after the last."""
    never: tuple[int, ...] = ()
    """Tokens that no translation has."""


@runtime_checkable
class SupportsTranslation(Protocol):
    """Programs that translate; optional."""

    def translate(self, sources: Array, search: BeamSearch) -> list[list[int]]:
        """Sources (sentences, positions), padded → the tokens of each translation without begin and
        end, at most as many as the target has positions. Unsupported for a network without a source
        and a target of tokens."""
