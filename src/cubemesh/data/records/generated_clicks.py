"""Generated click records: numbers, categories, and whether the user clicked.

`generated-clicks` has a rule that a recommendation model learns, of the form of real click logs:

    popularity     the value i of a category has a share that falls as 1 / (i + 1), so that a few
                   values are frequent and most are rare
    numbers        counts, as log(1 + count); their logarithm is normal
    log odds       the sum of an effect of each number, an effect of each category's value (one of
                   two, by a hash), and of products of the effects of pairs of categories
    label          drawn with the probability that follows; about a quarter of the records are
                   clicks, as in Criteo's

Part of the label is chance, so that no model reaches an accuracy of 1; `best_scores` has the log
odds themselves, whose accuracy is the highest there is. The rule is the same for every seed; the
records follow from seed and split. `synthetic` records are uniform, with random labels: every row
of a table is equally likely, which is the worst case for a cache.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cubemesh.data.source import CACHE_BYTES, Split
from cubemesh.data.text.sequences import Sequences
from cubemesh.errors import UsageError
from cubemesh.networks.graph import Input, Network

NAME = "generated-clicks"
SAMPLES = {"train": 65536, "validation": 8192}
_RULE_SEED = 2019
_MIXING = 0x9E3779B97F4A7C15
_COUNT_DEVIATION = 1.5
"""Of the logarithm of a count."""
_NUMBER_EFFECT = 0.25
_CATEGORY_EFFECT = 0.7
_PAIR_EFFECT = 0.8
_ACTIVE = 8
"""Categories that have an effect; those after them have none."""
_LOG_ODDS = -1.8
"""Of a record without effects."""

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]


def takes_records(network: Network) -> bool:
    """Whether `network` takes numbers and categories."""
    return any(i.vocabularies for i in network.inputs)


def open_synthetic(split: Split, network: Network, seed: int, samples_needed: int) -> Sequences:
    """Records uniform in numbers and categories with random labels, the same for the same seed and
    network: 65,536 (8,192 for validation), fewer if they exceed `CACHE_BYTES`, and at least
    `samples_needed`."""
    numbers, categories = _inputs(network)
    samples = _samples(split, network, samples_needed)
    generator = np.random.default_rng((seed, SAMPLES[split]))
    sizes = np.array(categories.vocabularies)
    inputs = (
        generator.random((samples, *numbers.shape), np.float32),
        generator.integers(sizes, size=(samples, *categories.shape)),
    )
    return Sequences("synthetic", inputs, generator.integers(2, size=samples), 2)


def open_generated(split: Split, network: Network, seed: int, samples_needed: int) -> Sequences:
    """Records of the rule, as many as `open_synthetic` has. UsageError for a network of other
    classes than two."""
    if (classes := network.targets[0].classes or 2) != 2:
        raise UsageError(
            f"data={NAME} has two classes, click and no click, and {network.name} has {classes}. "
            "Use a network of two classes, such as network=dlrm-small."
        )
    numbers, categories = _inputs(network)
    samples = _samples(split, network, samples_needed)
    generator = np.random.default_rng((seed, 1, SAMPLES[split]))
    counts = np.floor(np.exp(generator.normal(0, _COUNT_DEVIATION, (samples, *numbers.shape))))
    logarithms = np.log1p(counts).astype(np.float32)
    sizes = np.array(categories.vocabularies)
    chosen = np.floor((sizes + 1.0) ** generator.random((samples, len(sizes)))) - 1
    values = np.minimum(chosen, sizes - 1).astype(np.int64)
    odds = best_scores(logarithms, values)
    clicks = generator.random(samples) < 1 / (1 + np.exp(-odds))
    return Sequences(NAME, (logarithms, values), clicks.astype(np.int64), 2)


def best_scores(numbers: Floats, categories: Integers) -> NDArray[np.float64]:
    """The log odds of a click of each record, by the rule."""
    rule = _rule(numbers.shape[1], categories.shape[1])
    effects = _signs(categories)
    centred = numbers - np.log(2.0)  # of the median count, 1
    odds = _LOG_ODDS + centred @ rule.numbers + effects @ rule.categories
    for one, other in rule.pairs:
        odds += _PAIR_EFFECT / math.sqrt(len(rule.pairs)) * effects[:, one] * effects[:, other]
    found: NDArray[np.float64] = odds
    return found


@dataclass(frozen=True, kw_only=True)
class _Rule:
    numbers: NDArray[np.float64]
    """Change of the log odds for each number."""
    categories: NDArray[np.float64]
    pairs: tuple[tuple[int, int], ...]
    """Columns whose effects are multiplied."""


def _rule(numbers: int, categories: int) -> _Rule:
    """Effects whose sums have the same spread whatever the number of features."""
    generator = np.random.default_rng(_RULE_SEED)
    active = min(_ACTIVE, categories)
    effects = np.zeros(categories)
    effects[:active] = generator.choice([-1.0, 1.0], active) * _CATEGORY_EFFECT
    return _Rule(
        numbers=generator.normal(0, _NUMBER_EFFECT * math.sqrt(13 / numbers), numbers),
        categories=effects * math.sqrt(_ACTIVE / active),
        pairs=tuple((n, n + 1) for n in range(0, active - 1, 2)),
    )


def _signs(categories: Integers) -> NDArray[np.float64]:
    """-1 or 1 for each value of each category, by a hash (the first bit of a product)."""
    columns = np.arange(1, categories.shape[1] + 1, dtype=np.uint64) * np.uint64(_MIXING >> 1)
    with np.errstate(over="ignore"):
        mixed: NDArray[np.uint64] = (categories.astype(np.uint64) + 1) * np.uint64(_MIXING)
        mixed = mixed + columns
        mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(_MIXING)
    return np.where(mixed >> np.uint64(63), 1.0, -1.0)


def _inputs(network: Network) -> tuple[Input, Input]:
    """Numbers and categories. UsageError for a network of other inputs."""
    if [i.dtype for i in network.inputs] != ["float", "integer"] or not takes_records(network):
        raise UsageError(f"{network.name} does not take records of numbers and categories.")
    numbers, categories = network.inputs
    return numbers, categories


def _samples(split: Split, network: Network, needed: int) -> int:
    numbers, categories = _inputs(network)
    each = 4 * numbers.shape[0] + 8 * categories.shape[0] + 8
    return max(1, min(SAMPLES[split], CACHE_BYTES // each), needed)
