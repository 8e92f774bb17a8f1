"""Vocabulary of a translator: whole words, or sub-words by byte-pair encoding.

Both begin with `<pad>`, `<unk>`, `<s>`, `</s>`. `words`: the most frequent words of the training
texts. `bpe`: sub-words (Sennrich, Haddow and Birch, "Neural machine translation of rare words with
subword units", 2016): the characters, most frequent first, and then, again and again, the pair of
neighbours within words that is most frequent, merged into one token, until the vocabulary is full
or no pair occurs twice. The last token of a word ends with a space, so sub-words join into words
again. A text is encoded by the same merges in the same order. Ties are broken by the order of the
alphabet, so the same texts give the same vocabulary everywhere.

`vocabulary.json` in a folder of checkpoints has the tokens and merges of its training.
"""

from __future__ import annotations

import heapq
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from cubemesh.durable_files import write_durably
from cubemesh.errors import DataError
from cubemesh.schema.work import Tokenizer
from cubemesh.untrusted import parse_json, shown_path

SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")
PAD, UNKNOWN, BEGIN, END = range(len(SPECIAL))
WORD_END = " "
"""What the last sub-word of a word ends with."""
FILE = "vocabulary.json"
MOST_FILE_BYTES = 256 << 20
MOST_WORD = 1000
"""Characters of a word that is divided; a longer one is one unknown token."""
_REMEMBERED = 200_000
"""Words whose sub-words are remembered."""

Merge = tuple[str, str]


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a training and how texts are divided into them."""

    tokenizer: Tokenizer
    tokens: tuple[str, ...]
    """By number; the special ones first."""
    merges: tuple[Merge, ...] = ()
    """Of sub-words, in the order in which they were learned."""

    @cached_property
    def ids(self) -> Mapping[str, int]:
        """Token → its number, without the special ones."""
        return {token: n for n, token in enumerate(self.tokens) if n >= len(SPECIAL)}

    @cached_property
    def _ranks(self) -> Mapping[Merge, int]:
        return {merge: rank for rank, merge in enumerate(self.merges)}

    @cached_property
    def _remembered(self) -> dict[str, list[int]]:
        return {}

    def encode(self, words: Iterable[str]) -> list[int]:
        """The tokens of the words of a text."""
        if self.tokenizer == "words":
            return [self.ids.get(word, UNKNOWN) for word in words]
        return [token for word in words for token in self._of_word(word)]

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens up to the first `</s>`, without padding and `<s>`."""
        found = []
        for token in tokens:
            if token == END:
                break
            if token == UNKNOWN:
                found.append(SPECIAL[UNKNOWN] + WORD_END)
            elif len(SPECIAL) <= token < len(self.tokens):
                found.append(self.tokens[token])
        if self.tokenizer == "words":
            return " ".join(word.strip() for word in found)
        return " ".join("".join(found).split())

    def _of_word(self, word: str) -> list[int]:
        known = self._remembered.get(word)
        if known is not None:
            return known
        if len(word) > MOST_WORD:
            return [UNKNOWN]
        found = [self.ids.get(part, UNKNOWN) for part in divide(word, self._ranks)]
        if len(self._remembered) < _REMEMBERED:
            self._remembered[word] = found
        return found

    def save(self, folder: Path) -> None:
        """Write `vocabulary.json`; OSError if that fails."""
        content = {
            "tokenizer": self.tokenizer,
            "tokens": self.tokens,
            "merges": self.merges,
        }
        write_durably(folder / FILE, json.dumps(content, ensure_ascii=False, indent=0) + "\n")


def load_vocabulary(folder: Path) -> Vocabulary | None:
    """The vocabulary of a folder of checkpoints; None if it has none. DataError if it is damaged,
    OSError if it cannot be read."""
    path = folder / FILE
    try:
        with path.open("rb") as file:
            content = file.read(MOST_FILE_BYTES + 1)
    except FileNotFoundError:
        return None
    try:
        if len(content) > MOST_FILE_BYTES:
            raise ValueError("it is too large")
        return _from_plain(parse_json(content))
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(
            f"{shown_path(path)} is no vocabulary of cubemesh: {error}. Continue the training from "
            "its start, or copy the file from where the training wrote it."
        ) from error


def _from_plain(plain: Any) -> Vocabulary:
    if not isinstance(plain, dict):
        raise ValueError("it is no object")
    tokenizer, tokens, merges = plain["tokenizer"], plain["tokens"], plain["merges"]
    if tokenizer not in ("words", "bpe"):
        raise ValueError("its tokenizer is neither words nor bpe")
    if not isinstance(tokens, list) or not all(isinstance(t, str) for t in tokens):
        raise ValueError("its tokens are no list of texts")
    if tuple(tokens[: len(SPECIAL)]) != SPECIAL:
        raise ValueError(f"its tokens do not begin with {', '.join(SPECIAL)}")
    if not isinstance(merges, list):
        raise ValueError("its merges are no list")
    pairs = []
    for merge in merges:
        if not isinstance(merge, list) or [type(part) for part in merge] != [str, str]:
            raise ValueError("a merge is no pair of texts")
        pairs.append((merge[0], merge[1]))
    return Vocabulary(tokenizer, tuple(tokens), tuple(pairs))


def learn_vocabulary(texts: Iterable[Sequence[str]], size: int, tokenizer: Tokenizer) -> Vocabulary:
    """The vocabulary of at most `size` tokens from the words of training texts."""
    counts: Counter[str] = Counter()
    for words in texts:
        counts.update(words)
    room = size - len(SPECIAL)
    if tokenizer == "words":
        for word in SPECIAL:  # a text that spells one out has no word there
            counts.pop(word, None)
        return Vocabulary("words", SPECIAL + tuple(_most_frequent(counts, room)))
    tokens, merges = _learn_merges(counts, room)
    return Vocabulary("bpe", SPECIAL + tuple(tokens), tuple(merges))


def _most_frequent(counts: Mapping[str, int], most: int) -> list[str]:
    return sorted(counts, key=lambda one: (-counts[one], one))[:most]


def symbols(word: str) -> list[str]:
    """The characters of a word, the last one with the end of the word."""
    return [*word[:-1], word[-1] + WORD_END]


def divide(word: str, ranks: Mapping[Merge, int]) -> list[str]:
    """The sub-words of a word: of the pairs of neighbours that have a merge, the one learned first
    is merged everywhere, until there is none."""
    parts = symbols(word)
    while len(parts) > 1:
        rank, pair = min((ranks.get(pair, len(ranks)), pair) for pair in pairwise(parts))
        if rank == len(ranks):
            break
        parts = _merged(parts, pair)
    return parts


def _merged(parts: Sequence[str], pair: Merge) -> list[str]:
    """`parts` with every `pair` as one, from the left."""
    found: list[str] = []
    i = 0
    while i < len(parts):
        if i + 1 < len(parts) and (parts[i], parts[i + 1]) == pair:
            found.append(parts[i] + parts[i + 1])
            i += 2
        else:
            found.append(parts[i])
            i += 1
    return found


def _learn_merges(counts: Mapping[str, int], room: int) -> tuple[list[str], list[Merge]]:
    """Tokens, at most `room`, and merges. Counts of pairs are updated for the words that a merge
    changes, and the most frequent pair is at the top of a heap, whose outdated entries are skipped.
    """
    words = sorted(word for word in counts if 0 < len(word) <= MOST_WORD)
    divided = [symbols(word) for word in words]
    characters: Counter[str] = Counter()
    frequency: Counter[Merge] = Counter()
    places: defaultdict[Merge, set[int]] = defaultdict(set)
    for number, parts in enumerate(divided):
        count = counts[words[number]]
        for part in parts:
            characters[part] += count
        for pair in pairwise(parts):
            frequency[pair] += count
            places[pair].add(number)
    tokens = _most_frequent(characters, room)
    known = set(tokens)
    heap = [(-count, pair) for pair, count in frequency.items()]
    heapq.heapify(heap)
    merges: list[Merge] = []
    while heap and len(tokens) < room:
        negative, pair = heapq.heappop(heap)
        if frequency[pair] != -negative:
            continue
        if -negative < 2:
            break
        if not known.issuperset(pair):  # a character that has no token
            continue
        merges.append(pair)
        token = pair[0] + pair[1]
        if token not in known:  # several merges may give the same one
            known.add(token)
            tokens.append(token)
        changed: set[Merge] = set()
        for number in sorted(places.pop(pair)):
            count = counts[words[number]]
            before = divided[number]
            after = divided[number] = _merged(before, pair)
            for old in pairwise(before):
                frequency[old] -= count
                changed.add(old)
            for old in set(pairwise(before)).difference(pairwise(after)):
                if old in places:
                    places[old].discard(number)
            for new in pairwise(after):
                frequency[new] += count
                places[new].add(number)
                changed.add(new)
        for one in changed:
            if frequency[one] > 0:
                heapq.heappush(heap, (-frequency[one], one))
    return tokens, merges
