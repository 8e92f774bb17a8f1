"""BLEU of a corpus (Papineni, Roukos, Ward and Zhu, "BLEU: a method for automatic evaluation of
machine translation", 2002).

    BLEU = 100 · BP · (p1 p2 p3 p4)^(1/4),   BP = 1 if c > r, else e^(1 − r/c)

pn is the fraction of the translations' n-grams that are in their reference, each counted at most as
often as it is there; c and r are the words of all translations and of all references. One reference
a sentence. Text is divided as by mteval-v13a, SacreBLEU's default (Post, "A call for clarity in
reporting BLEU scores", 2018), upper and lower case differ, and a pn without a match counts as
1 / (2^k · n-grams), k = 1 for the first such pn and one more for each (SacreBLEU's `exp`); without
any match BLEU is 0.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

ORDER = 4
"""Longest n-grams."""
_ENTITIES = (("&quot;", '"'), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">"))
_RULES = (
    (re.compile(r"([\{-\~\[-\` -\&\(-\+\:-\@\/])"), r" \1 "),
    (re.compile(r"([^0-9])([\.,])"), r"\1 \2 "),
    (re.compile(r"([\.,])([^0-9])"), r" \1 \2"),
    (re.compile(r"([0-9])(-)"), r"\1 \2 "),
)
"""Punctuation is separated: of ASCII all but dashes, apostrophes, periods and commas; periods and
commas except between digits; a dash after a digit."""


def tokenize(text: str) -> list[str]:
    """The words and punctuation of a text, as mteval-v13a divides it."""
    text = text.replace("<skipped>", "").replace("-\n", "").replace("\n", " ")
    for entity, character in _ENTITIES:
        text = text.replace(entity, character)
    text = f" {text} "
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text.split()


@dataclass(frozen=True)
class BleuCounts:
    """Counts over sentences, which add up."""

    matches: tuple[int, ...] = (0,) * ORDER
    """By n: n-grams of translations that are in their reference."""
    totals: tuple[int, ...] = (0,) * ORDER
    """By n: n-grams of translations."""
    translated: int = 0
    """Words of translations."""
    reference: int = 0
    """Words of references."""

    def __add__(self, other: BleuCounts) -> BleuCounts:
        return BleuCounts(
            tuple(a + b for a, b in zip(self.matches, other.matches, strict=True)),
            tuple(a + b for a, b in zip(self.totals, other.totals, strict=True)),
            self.translated + other.translated,
            self.reference + other.reference,
        )

    @property
    def score(self) -> float:
        """BLEU, 0 to 100."""
        if not any(self.matches):
            return 0.0
        logarithms, smoothing = 0.0, 1.0
        for matches, total in zip(self.matches, self.totals, strict=True):
            if not total:  # no translation has so many words
                return 0.0
            if not matches:
                smoothing *= 2
            logarithms += math.log((matches or 1 / smoothing) / total)
        return 100 * self.brevity_penalty * math.exp(logarithms / ORDER)

    @property
    def brevity_penalty(self) -> float:
        """1, or less where the translations have fewer words than the references."""
        if self.translated >= self.reference:
            return 1.0
        return math.exp(1 - self.reference / self.translated) if self.translated else 0.0


def bleu_counts(translations: Iterable[str], references: Iterable[str]) -> BleuCounts:
    """The counts of translations with one reference each; ValueError for unequal numbers."""
    total = BleuCounts()
    for translation, reference in zip(translations, references, strict=True):
        total += _of_sentence(tokenize(translation), tokenize(reference))
    return total


def _of_sentence(translation: list[str], reference: list[str]) -> BleuCounts:
    matches, totals = [], []
    for n in range(1, ORDER + 1):
        own, there = _ngrams(translation, n), _ngrams(reference, n)
        matches.append(sum((own & there).values()))
        totals.append(max(0, len(translation) - n + 1))
    return BleuCounts(tuple(matches), tuple(totals), len(translation), len(reference))


def _ngrams(words: list[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
