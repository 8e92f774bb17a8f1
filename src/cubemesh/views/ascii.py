"""ASCII output: replacements of ×, ±, –, µ and other characters that an encoding lacks.

Python takes the encoding of stdout from the locale or from PYTHONIOENCODING; ASCII and Latin-1 lack
characters of tables and findings, and Python would raise UnicodeEncodeError. `make_encodable`
installs an error handler on the streams, which is called for such characters only: an output in
UTF-8 is unchanged.
"""

from __future__ import annotations

import codecs
import io
import sys
import unicodedata

HANDLER = "cubemesh-ascii"
CODEC = "cubemesh_ascii"
"""ASCII by another name: Click writes UTF-8 to a stream whose encoding is named `ascii`, since it
takes that for a mistake."""

REPLACEMENTS: dict[str, str] = {
    "×": "x",
    "·": "-",
    "–": "-",
    "—": "-",
    "−": "-",
    "±": "+-",
    "÷": "/",
    "…": "...",
    "→": "->",
    "←": "<-",
    "↔": "<->",
    "≤": "<=",
    "≥": ">=",
    "≈": "~",
    "≠": "!=",
    "∞": "inf",
    "µ": "u",
    "μ": "u",
    "σ": "sigma",
    "ε": "epsilon",
    "π": "pi",
    "Σ": "sum",
    "√": "sqrt",
    "α": "alpha",
    "β": "beta",
    "γ": "gamma",
    "φ": "phi",
    "Φ": "Phi",
    "°": " deg ",
    "½": "1/2",
    "‘": "'",
    "’": "'",
    "“": '"',
    "”": '"',
    "‖": "||",
    "•": "*",
    "✓": "yes",
    "✗": "no",
    "⁻": "-",
    "Δ": "d",
    "∂": "d",
    "∫": "int",
    "⌊": "floor(",
    "⌋": ")",
    **dict.fromkeys("─━┄═", "-"),
    **dict.fromkeys("│┃┆║", "|"),
    **dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╯╰╸╺╾╼", "+"),
    **dict(zip("▁▂▃▄▅▆▇█", "_.,-=+*#", strict=True)),
    "▏": "|",
    "▒": ":",
    "░": ".",
    "▶": ">",
    "◀": "<",
    "▲": "^",
    "▼": "v",
    "╱": "/",
    "╲": "\\",
    "\u00a0": " ",
    "\u202f": " ",
    "\u2009": " ",
}
"""Character → text in ASCII. Others are decomposed (ä → a, ² → 2, ᵀ → T), or become a question
mark."""


def to_ascii(text: str) -> str:
    """`text` in ASCII."""
    return "".join(c if c.isascii() else _replacement(c) for c in text)


def make_encodable() -> None:
    """Let stdout and stderr write a replacement for each character that their encoding lacks."""
    codecs.register_error(HANDLER, _replace)
    codecs.register(_find)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # not the stream of a test or notebook
            name = codecs.lookup(stream.encoding).name
            stream.reconfigure(encoding=CODEC if name == "ascii" else name, errors=HANDLER)


def _find(name: str) -> codecs.CodecInfo | None:
    if name != CODEC:
        return None
    ascii_ = codecs.lookup("ascii")
    return codecs.CodecInfo(
        encode=ascii_.encode,
        decode=ascii_.decode,
        incrementalencoder=ascii_.incrementalencoder,
        incrementaldecoder=ascii_.incrementaldecoder,
        streamreader=ascii_.streamreader,
        streamwriter=ascii_.streamwriter,
        name=CODEC,
    )


def _replacement(character: str) -> str:
    if character in REPLACEMENTS:
        return REPLACEMENTS[character]
    plain = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    if plain or unicodedata.combining(character):
        return plain
    return "?"


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return to_ascii(error.object[error.start : error.end]), error.end
