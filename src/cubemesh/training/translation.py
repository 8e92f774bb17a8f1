"""Translation of validation sentences in an evaluation, judged by BLEU (bleu.py).

Each rank translates its share of the sentences; counts are added. Translations are joined to words
and compared with the text's own, so a word that is unknown to the vocabulary counts as wrong.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cubemesh.data.text.parallel_text import SentencePairs
from cubemesh.data.text.vocabulary import BEGIN, END, PAD, Vocabulary
from cubemesh.frameworks.contract.group import Group
from cubemesh.frameworks.contract.program import Program
from cubemesh.frameworks.contract.translation import BeamSearch, SupportsTranslation
from cubemesh.training.bleu import BleuCounts, bleu_counts


@dataclass(frozen=True, kw_only=True)
class Translated:
    """Translations of all ranks."""

    counts: BleuCounts
    sentences: int
    seconds: float
    """Of the slowest rank."""


def beam_search(beam_width: int, length_penalty: float) -> BeamSearch:
    """A search among the tokens of a vocabulary."""
    return BeamSearch(
        beam_width=beam_width,
        length_penalty=length_penalty,
        begin=BEGIN,
        end=END,
        never=(PAD, BEGIN),
    )


def translate_all(
    program: Program, source: SentencePairs, search: BeamSearch, batch: int, group: Group
) -> Translated:
    """Translate the sentences of `source`, in batches that the ranks of `group` share; every rank
    calls this."""
    assert isinstance(program, SupportsTranslation), "checked before the training"
    start, counts, sentences = program.clock(), BleuCounts(), 0
    for first in range(group.rank * batch, source.samples, group.size * batch):
        indices = np.arange(first, min(first + batch, source.samples))
        given = source.batch(indices).inputs[0]
        found = program.translate(given, search)
        counts += bleu_counts(texts(found, source.vocabulary), source.references(indices))
        sentences += len(indices)
    own = [*counts.matches, *counts.totals, counts.translated, counts.reference, sentences]
    total, seconds = BleuCounts(), 0.0
    sentences = 0
    for part in group.all_gather_object([*own, program.clock() - start]):
        *numbers, words, reference, count, taken = part
        half = len(numbers) // 2
        total += BleuCounts(tuple(numbers[:half]), tuple(numbers[half:]), words, reference)
        sentences += count
        seconds = max(seconds, taken)
    return Translated(counts=total, sentences=sentences, seconds=seconds)


def texts(translations: list[list[int]], vocabulary: Vocabulary) -> list[str]:
    """Translations as text."""
    return [vocabulary.decode(tokens) for tokens in translations]
