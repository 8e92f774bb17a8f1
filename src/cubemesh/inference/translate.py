"""Translation of texts by a trained translator: divided into tokens as in its training, searched,
and joined to words again.

Words are separated by white space, so a text should be divided as that of the training was:
`die Katze schläft .` where its punctuation stands alone. A text that cannot be translated has its
reason, and the others are translated.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cubemesh.batches import Array
from cubemesh.data.text.parallel_text import MOST_LINE, padded_sources
from cubemesh.data.text.vocabulary import UNKNOWN, Vocabulary
from cubemesh.errors import UsageError
from cubemesh.frameworks import entry
from cubemesh.frameworks.contract.program import BuildRequest, Program, Unsupported
from cubemesh.frameworks.contract.translation import SupportsTranslation
from cubemesh.networks.graph import Network
from cubemesh.parallel import strategies
from cubemesh.schema.spec import Placement, ProgramSettings
from cubemesh.schema.work import Infer
from cubemesh.training.translation import beam_search, texts

BATCH = 64
"""Texts that are translated at once."""
MOST_ROWS = 4096
"""Hypotheses of a batch."""
MOST_WIDTH = 1000
FRAMEWORK = "pytorch"


@dataclass(frozen=True, kw_only=True)
class TranslatedText:
    """A text and its translation."""

    text: str
    translation: str = ""
    unknown: int = 0
    """Words or sub-words of the text that the training did not have."""
    reason: str = ""
    """Why it was not translated."""


def check_search(beam_width: int, length_penalty: float) -> None:
    """UsageError for a search that is not possible."""
    if not 1 <= beam_width <= MOST_WIDTH:
        raise UsageError(f"beam_width={beam_width}: it must be 1 (greedy) to {MOST_WIDTH}.")
    if not 0 <= length_penalty <= 10:
        raise UsageError(f"length_penalty={length_penalty:g}: it must be 0 to 10.")


def translate(
    program: Program,
    network: Network,
    vocabulary: Vocabulary,
    given: Sequence[str],
    beam_width: int,
    length_penalty: float,
) -> tuple[TranslatedText, ...]:
    """The translation of each text by a program with the weights of `network`. UsageError for a
    network that does not translate."""
    assert isinstance(program, SupportsTranslation), "its framework was chosen for it"
    search = beam_search(beam_width, length_penalty)
    (length,) = network.inputs[0].shape
    found = [_encode(text, vocabulary, length) for text in given]
    ready = [i for i, (_, reason) in enumerate(found) if not reason]
    batch = max(1, min(BATCH, MOST_ROWS // beam_width))
    translations: dict[int, str] = {}
    for first in range(0, len(ready), batch):
        numbers = ready[first : first + batch]
        sources = padded_sources([found[i][0] for i in numbers], length)
        try:
            tokens = program.translate(sources, search)
        except Unsupported as error:
            raise UsageError(str(error)) from error
        translations.update(zip(numbers, texts(tokens, vocabulary), strict=True))
    return tuple(
        TranslatedText(
            text=text,
            translation=translations.get(i, ""),
            unknown=found[i][0].count(UNKNOWN),
            reason=found[i][1],
        )
        for i, text in enumerate(given)
    )


def _encode(text: str, vocabulary: Vocabulary, length: int) -> tuple[list[int], str]:
    """The tokens of a text, or why it cannot be translated."""
    if len(text) > MOST_LINE:
        return [], f"It has {len(text):,} characters; at most {MOST_LINE:,} are one sentence."
    for character in text:
        category = unicodedata.category(character)
        if category == "Cs":
            return [], "It has bytes that are not UTF-8: convert it."
        if category == "Cc" and not character.isspace():
            return [], f"It has the control character U+{ord(character):04X}: remove it."
    words = text.split()
    if not words:
        return [], "It has no words."
    tokens = vocabulary.encode(words)
    if len(tokens) >= length:
        unit = "words" if vocabulary.tokenizer == "words" else "sub-words"
        return [], (
            f"It has {len(tokens):,} {unit}, and the translator takes at most {length - 1}: divide "
            "it, or train with a longer sequence_length."
        )
    return tokens, ""


def translator_program(
    network: Network, weights: Mapping[str, Array], device: str, threads: int
) -> Program:
    """A program in fp32 with the weights of a checkpoint. UsageError where the framework or the
    device is missing."""
    line = entry(FRAMEWORK)
    if not line.installed:
        raise UsageError(f"Translating needs PyTorch: {line.install}")
    framework = line.load()
    offered = framework.capabilities().devices
    if device not in offered:
        raise UsageError(
            f"--device {device}: PyTorch does not have it here. Choose {', '.join(offered)}."
        )
    program = framework.build(
        BuildRequest(
            network=network,
            work=Infer(network=network.name, batch_per_device=1),
            placement=Placement(device="cpu" if device == "cpu" else "cuda"),
            program=ProgramSettings(framework=FRAMEWORK),
            sync=strategies.make("none"),
            device=device,
            threads=threads,
        )
    )
    program.load(weights)
    return program
