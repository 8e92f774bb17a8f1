"""Generated German–English sentence pairs, made by a small grammar: `generated-sentences`.

No text of anybody: 6,000 different German sentences and their English translations, made by rules
from a list of words, the same on every machine. The rules have what makes such a pair of languages
more than a word for a word: gender and case in articles and adjectives, the verb in second place
after an adverb, at the end after `dass`, participles and infinitives at the end, and compounds
(`Gartentür`, garden door). A translator learns it on a CPU in minutes. Accuracy and BLEU on it say
whether a program learns; they do not compare with those of real text.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, TypeVar

NAME = "generated-sentences"
PAIRS = 6000
_SEED = 2017

T = TypeVar("T")
Gender = Literal["m", "f", "n"]
Case = Literal["nominative", "accusative"]


@dataclass(frozen=True)
class _Noun:
    german: str
    gender: Gender
    english: str


@dataclass(frozen=True)
class _Verb:
    third: str
    participle: str
    infinitive: str
    english: str
    """Its base form."""
    english_third: str
    english_past: str


_PERSONS = (
    *(_Noun("Mann", "m", "man"), _Noun("Frau", "f", "woman"), _Noun("Kind", "n", "child")),
    *(_Noun("Lehrer", "m", "teacher"), _Noun("Ärztin", "f", "doctor")),
    *(_Noun("Mädchen", "n", "girl"), _Noun("Freund", "m", "friend")),
    *(_Noun("Nachbarin", "f", "neighbour"), _Noun("Bäcker", "m", "baker")),
    *(_Noun("Schwester", "f", "sister"), _Noun("Onkel", "m", "uncle")),
    *(_Noun("Künstlerin", "f", "artist"), _Noun("Gärtner", "m", "gardener")),
)
_SIMPLE = (
    *(_Noun("Hund", "m", "dog"), _Noun("Katze", "f", "cat"), _Noun("Pferd", "n", "horse")),
    *(_Noun("Apfel", "m", "apple"), _Noun("Brücke", "f", "bridge"), _Noun("Bild", "n", "picture")),
    *(_Noun("Vogel", "m", "bird"), _Noun("Karte", "f", "map"), _Noun("Fahrrad", "n", "bicycle")),
    *(_Noun("Brief", "m", "letter"), _Noun("Uhr", "f", "clock"), _Noun("Ei", "n", "egg")),
)
_FIRST = (
    *(("Garten", "garden"), ("Haus", "house"), ("Holz", "wood"), ("Stadt", "city")),
    *(("Schul", "school"), ("Küchen", "kitchen"), ("Winter", "winter"), ("Dorf", "village")),
)
_SECOND = (
    *(_Noun("tür", "f", "door"), _Noun("buch", "n", "book"), _Noun("tisch", "m", "table")),
    *(_Noun("mauer", "f", "wall"), _Noun("fenster", "n", "window"), _Noun("weg", "m", "path")),
    *(_Noun("lampe", "f", "lamp"), _Noun("schrank", "m", "cupboard")),
)
_THINGS = (
    *_SIMPLE,
    *(
        _Noun(first + second.german, second.gender, f"{english} {second.english}")
        for first, english in _FIRST
        for second in _SECOND
    ),
)
_ADJECTIVES = (
    *(("alt", "old"), ("klein", "small"), ("neu", "new"), ("schön", "beautiful")),
    *(("rot", "red"), ("schwer", "heavy"), ("jung", "young"), ("ruhig", "quiet")),
)
_VERBS = (
    _Verb("sieht", "gesehen", "sehen", "see", "sees", "saw"),
    _Verb("kauft", "gekauft", "kaufen", "buy", "buys", "bought"),
    _Verb("findet", "gefunden", "finden", "find", "finds", "found"),
    _Verb("malt", "gemalt", "malen", "paint", "paints", "painted"),
    _Verb("sucht", "gesucht", "suchen", "look for", "looks for", "looked for"),
    _Verb("zeigt", "gezeigt", "zeigen", "show", "shows", "showed"),
    _Verb("vergisst", "vergessen", "vergessen", "forget", "forgets", "forgot"),
    _Verb("beschreibt", "beschrieben", "beschreiben", "describe", "describes", "described"),
)
_NOW = (
    *(("heute", "today"), ("jetzt", "now"), ("am Abend", "in the evening")),
    *(("jeden Tag", "every day"), ("im Garten", "in the garden"), ("oft", "often")),
)
_BEFORE = (
    *(("gestern", "yesterday"), ("am Montag", "on Monday"), ("im Winter", "in winter")),
    *(("vor einer Stunde", "an hour ago"), ("letzte Woche", "last week")),
)
_MODALS = (("will", "wants to"), ("kann", "can"), ("muss", "must"), ("soll", "should"))
_OPINIONS = (
    *(("ich glaube", "I believe"), ("wir wissen", "we know"), ("sie sagt", "she says")),
    *(("er hofft", "he hopes"), ("man hört", "one hears")),
)
_DEFINITE = {
    "nominative": {"m": "der", "f": "die", "n": "das"},
    "accusative": {"m": "den", "f": "die", "n": "das"},
}
_INDEFINITE = {
    "nominative": {"m": "ein", "f": "eine", "n": "ein"},
    "accusative": {"m": "einen", "f": "eine", "n": "ein"},
}
_STRONG = {"m": "er", "f": "e", "n": "es"}
"""Endings of an adjective after `ein` in the nominative."""


@cache
def pairs() -> tuple[tuple[str, str], ...]:
    """All pairs, German and English, tokens separated by spaces."""
    generator = random.Random(_SEED)
    found: dict[str, str] = {}
    while len(found) < PAIRS:
        german, english = _sentence(generator)
        found.setdefault(f"{german} .", f"{english} .")
    return tuple(found.items())


def words() -> Iterator[tuple[list[str], list[str]]]:
    """The words of each pair."""
    for german, english in pairs():
        yield german.split(), english.split()


def _sentence(generator: random.Random) -> tuple[str, str]:
    who, who_english = _phrase(generator, _PERSONS, "nominative")
    what, what_english = _phrase(generator, _THINGS, "accusative")
    verb = _pick(generator, _VERBS)
    now, now_english = _pick(generator, _NOW)
    plain = f"{who_english} {verb.english_third} {what_english}"
    form = int(generator.random() * 5)
    if form == 0:
        return f"{who} {verb.third} {now} {what}", f"{plain} {now_english}"
    if form == 1:
        return f"{now} {verb.third} {who} {what}", f"{now_english} {plain}"
    if form == 2:
        before, english = _pick(generator, _BEFORE)
        german = f"{who} hat {before} {what} {verb.participle}"
        return german, f"{who_english} {verb.english_past} {what_english} {english}"
    if form == 3:
        modal, english = _pick(generator, _MODALS)
        german = f"{who} {modal} {what} {verb.infinitive}"
        return german, f"{who_english} {english} {verb.english} {what_english}"
    opinion, english = _pick(generator, _OPINIONS)
    return f"{opinion} , dass {who} {what} {verb.third}", f"{english} that {plain}"


def _phrase(generator: random.Random, nouns: Sequence[_Noun], case: Case) -> tuple[str, str]:
    """A noun with its article and, in half of them, an adjective."""
    noun = _pick(generator, nouns)
    definite, described = generator.random() < 0.5, generator.random() < 0.5
    article = (_DEFINITE if definite else _INDEFINITE)[case][noun.gender]
    german, english = noun.german, noun.english
    if described:
        adjective, adjective_english = _pick(generator, _ADJECTIVES)
        ending = "e" if definite else _STRONG[noun.gender]
        if case == "accusative" and noun.gender == "m":
            ending = "en"
        german, english = f"{adjective}{ending} {german}", f"{adjective_english} {english}"
    english_article = "the" if definite else "an" if english[0] in "aeiou" else "a"
    return f"{article} {german}", f"{english_article} {english}"


def _pick(generator: random.Random, items: Sequence[T]) -> T:
    """One of `items`; `random.random` gives the same numbers in every version of Python."""
    return items[int(generator.random() * len(items))]
