"""Wording: text that users read uses the field's words, as fixed in docs/glossary.md.

Reads the string literals of src/ and benchmarks/ (help, findings, column heads, warnings, errors),
the docstrings, and the pages of documentation. As a script it prints what it finds in a room, a
benchmark or a page:

    python tests/test_wording.py experiments/minibatch
    python tests/test_wording.py benchmarks/aa_test.py
    python tests/test_wording.py docs/statistics.md
"""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "cubemesh"
BENCHMARKS = sorted((ROOT / "benchmarks").glob("*.py"))
PAGES = [
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "docs").glob("*.ipynb")),
    *(ROOT / n for n in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md")),
    *sorted((ROOT / "src").rglob("README.md")),
]

AVOID = {
    r"told|tells? (itself|apart)": "reported, logged; distinguishes",
    r"nobody|whoever": "name the person or thing, or drop it",
    r"(take|takes|taken|took|taking)( \w+){0,4} apart": "profiled, attributed, broken down",
    r"(hold|holds|held|holding)( \w+){0,5} against": "compared with",
    r"each for itself|for itself": "no synchronization, single device",
    r"by turns|take turns": "interleaved",
    r"lies? on|lying on|lies there": "is on, is resident on",
    r"that (is|are|was|were) (?-i:none)": "is not a ...",
    r"broken off|breaks off|broke off": "interrupted",
    r"starv(e|es|ed|ing|ation)": "input-bound",
    r"play(s|ed)?( \w+)? (by|from) (a )?script|scripts? plays?": "simulated (null framework)",
    r"minibatch(es)? (of )?(\{\}|\d)|at (no |a |this |that )?minibatch(es)?": "batch size N",
    r"dear|dearer|dearest": "expensive, slow",
    r"documents? (00\d|\d{3})": "the paper's title, its id in brackets (docs/published.md)",
}
"""Patterns to avoid everywhere, docstrings too, and what to write instead."""

AVOID_SHOWN = {
    r"kept|keeper": "stored, saved, unchanged",
    r"slopes?": "gradient; for a fitted line: trend",
    r"bends?|bent": "knee (of throughput), curvature",
    r"levers?|rungs?": "setting, knob; step",
    r"winners?": "fastest; argmax",
    r"disturb(s|ed|ing|ance|ances)?": "noisy, interference",
    r"doubts?|doubtful": "caveat, unreliable",
    r"stands? for|stands? beside|stands? (alone|by itself)": "means; is shown with",
    r"beside": "next to, with",
    r"apart(?! from)": "separately",
    r"(says?|said) (so|of|nothing|itself)": "shows, reports",
    r"an exchange|the exchange|exchanges|exchange of gradients|gradient exchange": (
        "gradient synchronization (strategy), sync"
    ),
    r"(hand|hands|handed|handing) (over|on)": "communicated, passed",
    r"goes on|go on|went on": "continues, resumes",
    r"(walk|walks|walked|walking|out of) (in )?step": "lockstep",
    r"surely|seldom|thereof|lest|whence|wherein|ere|behold": "plain modern English",
    r"nothing much|most is lost to": "largest overhead",
    r"none of|(is|are|was|were|has|have) (?-i:none)": "no ..., is not a ...",
    r"(call|calls|called) (a|any|no) difference|nothing is called": "significant difference",
    r"departs?|departed": "diverges",
    r"comes? to (this|that|the same)|came to": "selects, reaches",
    r"asks? nothing|asked what": "plain statement",
    r"of itself|in itself|tells itself": "drop it",
    # the worst of the list that this test began with
    r"who is charged": "Slurm account",
    r"the minibatch stands": "batch size is per device, or global",
    r"come to the same weights": "gradient synchronization strategy",
    r"how it begins|beginning of its id": "run id or unique prefix",
    r"ended so": "filter by outcome",
    r"how often more": "ratio between successive message sizes",
    r"trust nothing": "results are wrong; check link error counters",
    r"of slowest alone": "vs slowest device without sync",
    r"^of a copy$|^for seconds$": "% of memcpy bandwidth; sustained",
    r"for each watt": "samples/J",
    r"keeps no board": "rendezvous store not reachable",
    r"is no name of|no share of": "is not a valid ...; must be between 0 and 1",
    r"mean step as a sum|step as a sum": "breakdown of the mean step time",
    r"in a word": "summary",
}
"""Patterns to avoid in strings that are shown, in the help of verbs and settings, and in docs."""

ALLOWED = {
    "change of slope",
    "lie on one side",
    "lies on one side",
    "there is none",
    "there was none",
    "there are none",
}
"""Phrases that an avoided pattern may occur in."""


@cache
def compiled(shown: bool) -> list[tuple[re.Pattern[str], str]]:
    words = AVOID | AVOID_SHOWN if shown else AVOID
    return [
        (re.compile(rf"\b(?:{p.replace(' ', chr(92) + 's+')})\b", re.I), instead)
        for p, instead in words.items()
    ]


@cache
def any_of(shown: bool) -> re.Pattern[str]:
    """Finds, in lower case, wherever one of `compiled` does: most texts have none."""
    words = "|".join(p.replace("(?-i:", "(?:") for p in (AVOID | AVOID_SHOWN if shown else AVOID))
    return re.compile(rf"\b(?:{words.replace(' ', chr(92) + 's+')})\b")


OLD_NAMES = {"src/cubemesh/store/migrations/renamed_fields.py"}
"""Files that list names of earlier versions."""


def wrong_words(text: str, shown: bool = True) -> Iterator[tuple[int, str, str]]:
    """(offset, words found, what to write instead) for each avoided pattern in a text."""
    for phrase in ALLOWED:
        text = re.sub(re.escape(phrase), lambda m: " " * len(m.group()), text, flags=re.I)
    if not any_of(shown).search(text.lower()):
        return
    for pattern, instead in compiled(shown):
        for match in pattern.finditer(text):
            yield match.start(), match.group(), instead


def docstring_nodes(tree: ast.Module) -> dict[ast.Constant, str]:
    """String statements (docstrings, and those below an attribute) and the class or function that
    they describe."""
    found: dict[ast.Constant, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in node.body:
                if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                    found[statement.value] = getattr(node, "name", "")
    return found


def strings(path: Path) -> Iterator[tuple[int, str, bool]]:
    """(line, text, whether users read it) of each string in a source file; the values in an
    f-string are given as {}."""
    tree = ast.parse(path.read_text())
    docstrings = docstring_nodes(tree)
    help_files = path in BENCHMARKS or path.relative_to(SOURCE).parts[0] in ("cli", "api")
    parts = {
        id(v) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for v in node.values
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            texts = [v.value if isinstance(v, ast.Constant) else "{}" for v in node.values]
            yield node.lineno, "".join(map(str, texts)), True
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts
        ):
            shown = node not in docstrings or help_files or docstrings[node] == "Settings"
            yield node.lineno, node.value, shown


def prose(path: Path) -> str:
    """The text of a page without code, link targets and quotations; lines keep their numbers."""
    text = re.sub(r"```.*?```", lambda m: "\n" * m[0].count("\n"), path.read_text(), flags=re.S)
    return re.sub(r"^    .*|`[^`\n]*`|\]\([^)]*\)|^>.*", "", text, flags=re.M)


def offenders(path: Path) -> list[str]:
    """`file:line: words → what to write instead` for each avoided pattern in a file."""
    texts = strings(path) if path.suffix == ".py" else [(1, prose(path), True)]
    name = str(path.relative_to(ROOT))
    if name in OLD_NAMES:
        return []
    return [
        f"{name}:{line + text.count(chr(10), 0, offset)}: “{words}” → {instead}"
        for line, text, shown in texts
        for offset, words, instead in wrong_words(text, shown)
    ]


ROOMS = sorted({p.relative_to(SOURCE).parts[0].removesuffix(".py") for p in SOURCE.rglob("*.py")})


def files_of(room: str) -> list[Path]:
    """Source files of a room, a folder or file below src/cubemesh, benchmarks, or pages of
    documentation."""
    if room.startswith(("docs", "README", "CONTRIBUTING", "benchmarks")):
        return [p for p in (*BENCHMARKS, *PAGES) if str(p.relative_to(ROOT)).startswith(room)]
    return [p for p in sorted(SOURCE.rglob("*.py")) if str(p.relative_to(SOURCE)).startswith(room)]


@pytest.mark.parametrize("room", ROOMS)
def test_strings_use_the_words_of_the_field(room: str) -> None:
    assert [found for path in files_of(room) for found in offenders(path)] == []


@pytest.mark.parametrize("script", BENCHMARKS, ids=lambda script: script.stem)
def test_benchmarks_use_the_words_of_the_field(script: Path) -> None:
    assert offenders(script) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_use_the_words_of_the_field(page: Path) -> None:
    assert offenders(page) == []


@pytest.mark.parametrize(
    "text",
    [
        "what is told",
        "It starves.",
        "Document 003",
        "at minibatch {}",
        "lies on the device",
        "kept",
    ],
)
def test_the_wording_test_detects_a_wrong_word(text: str) -> None:
    assert list(wrong_words(text))


@pytest.mark.parametrize(
    "text", ["keep the newest", "apart from", "kepteth", "a minibatch", "slide"]
)
def test_the_wording_test_accepts_plain_words(text: str) -> None:
    assert not list(wrong_words(text))


if __name__ == "__main__":
    rooms = sys.argv[1:] or [*ROOMS, "docs", "README", "CONTRIBUTING", "benchmarks"]
    lines = [found for room in rooms for path in files_of(room) for found in offenders(path)]
    print(*lines, f"{len(lines)} to rewrite", sep="\n")
