"""Page of the five documents: writes docs/documents.md from docs/documents.toml. `make documents`
stores it.

python docs/site/documents_page.py > docs/documents.md
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from cubemesh.papers.published import claims
from cubemesh.schema.published import PAPERS, SHORT_PAPERS

DOCS = Path(__file__).parent.parent
SOURCE = DOCS / "documents.toml"
VERDICTS = DOCS.parent / "benchmarks" / "records" / "2026-11-26-claim-verdicts.json"
"""Written by benchmarks/claim_verdicts.py."""
STATES = {
    "works": "cubemesh does it, and the evidence shows it",
    "partial": "a part of it works; what is missing is named",
    "missing": "nothing of it is there",
    "superseded": "it no longer exists; what serves in its place is named",
}
"""State of a row → its meaning."""
DOCUMENTS = {**{id: f"{title} [{id}]" for id, title in PAPERS.items()}, "suites": "Replays"}
"""Document of a row → heading of its table."""


def documents_page() -> str:
    """The page as text."""
    return "\n".join(_lines(load())) + "\n"


def load() -> dict[str, Any]:
    """The contents of docs/documents.toml."""
    return tomllib.loads(SOURCE.read_text(encoding="utf-8"))


def _lines(content: Mapping[str, Any]) -> Iterator[str]:
    rows = content["row"]
    yield "# The five documents"
    yield ""
    yield content["introduction"].strip().format(rows=len(rows))
    yield ""
    yield from _table(("state", "meaning"), STATES.items())
    yield ""
    counts = {d: Counter(r["state"] for r in rows if r["document"] == d) for d in DOCUMENTS}
    yield from _table(
        ("document", "rows", *STATES),
        (
            *((DOCUMENTS[d], c.total(), *(c[s] for s in STATES)) for d, c in counts.items()),
            ("total", len(rows), *(sum(c[s] for c in counts.values()) for s in STATES)),
        ),
    )
    yield ""
    yield "## What is still true"
    yield ""
    yield "Statements of the documents that cubemesh measured again, on other hardware:"
    yield ""
    yield from _table(
        ("statement", "stated by", "still true", "measured", "evidence"),
        (
            (
                result["statement"],
                ", ".join(f"{SHORT_PAPERS[d]} [{d}]" for d in result["documents"]),
                result["holds"],
                result["measured"],
                _evidence(result["evidence"]),
            )
            for result in content["result"]
        ),
    )
    yield ""
    verdicts = json.loads(VERDICTS.read_text(encoding="utf-8"))
    yield from _claims(verdicts["rows"])
    yield ""
    yield from _replays(verdicts["replays"])
    for document, title in DOCUMENTS.items():
        yield ""
        yield f"## {title}"
        yield ""
        if document in PAPERS:
            yield f"Suite `doc-{document}`."
            yield ""
        yield from _table(
            ("row", "place", "describes", "state", "evidence", "missing, or in its place"),
            (
                (
                    row["number"],
                    row["place"],
                    row["described"],
                    row["state"],
                    _evidence(row["evidence"]),
                    _remarks(row),
                )
                for row in rows
                if row["document"] == document
            ),
        )


def _claims(rows: list[dict[str, Any]]) -> Iterator[str]:
    """The verdicts of all claims by the stored records, else by forecast."""
    texts = {claim.id: claim for claim in claims()}
    settled = Counter(row["basis"] for row in rows if row["basis"])
    yield "## Claims"
    yield ""
    others = settled["specification"] + settled["published"]
    yield (
        f"Of the {len(rows)} claims of the documents {settled.total()} have a verdict by the "
        f"stored records: {settled['measured']} measured, {settled['forecast']} by forecast for "
        f"the document's own machine, {others} by a specification or a published figure of "
        "another source. A measured verdict links to its record; in a noisy one other programs "
        "used the processors too. The [rule](published.md#claims) of a verdict is in published "
        "results; `python benchmarks/claim_verdicts.py benchmarks/records/*.sqlite` computes them."
    )
    yield ""
    yield from _table(
        ("claim", "network", "quantity", "document", "measured", "forecast", "verdict", "reason"),
        (
            (
                row["claim"],
                texts[row["claim"]].network or "–",
                texts[row["claim"]].quantity or texts[row["claim"]].place,
                f"{row['paper']} {row['unit']}".strip() or "–",
                _figure(row["measured"]),
                _figure(row["forecast"]),
                _verdict(row),
                row["reason"],
            )
            for row in rows
        ),
    )


def _replays(replays: list[dict[str, Any]]) -> Iterator[str]:
    """What ran in the replay of each suite on each machine, and its verdicts."""
    yield "### Stored replays"
    yield ""
    yield (
        "Each suite was replayed with a limited time, which its experiments shared: most were "
        "begun and few completed. Claims with a figure are those that the replay measured; without "
        "a verdict the conditions of the claim (device, batch size, epochs) were others. "
        "`cubemesh report --store STORE` renders the page of a replay, with the verdict and reason "
        "of each claim."
    )
    yield ""
    yield from _table(
        (
            "document",
            "machine",
            "runs",
            "experiments begun, completed",
            "claims with a figure",
            "hold",
            "do not hold",
            "store",
        ),
        (
            (
                f"[{one['paper']}]",
                one["machine"],
                f"{one['runs']}, {one['failed']} refused" if one["failed"] else one["runs"],
                f"{one['experiments']}, {one['complete']}",
                f"{one['with_figure']} of {one['claims']}",
                one["hold"],
                one["do_not_hold"],
                f"[`{one['record']}`](../benchmarks/records/{one['record']})",
            )
            for one in sorted(replays, key=lambda one: (one["paper"], one["record"]))
        ),
    )


def _verdict(row: Mapping[str, Any]) -> str:
    """The verdict, its basis, whether its runs were noisy, and the record that settles it."""
    words = (row["verdict"], row["basis"], "noisy" if row["noisy"] else "")
    text = ", ".join(filter(None, words))
    path = f"../benchmarks/records/{row['record']}"
    return f"[{text}]({path})" if row["record"] and row["basis"] == "measured" else text


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def _remarks(row: Mapping[str, Any]) -> str:
    """What is missing, then what serves in its place."""
    texts = [row["lacks"]] if "lacks" in row else []
    if "replacement" in row:
        texts.append(f"In its place: {row['replacement']}")
    return "<br>".join(texts)


def _evidence(references: Iterable[Mapping[str, str]]) -> str:
    return "<br>".join(_reference(*pair) for one in references for pair in one.items())


def _reference(kind: str, value: str) -> str:
    """A reference as Markdown, with links relative to docs/."""
    if kind == "command":
        return f"`{value}`"
    path, _, place = value.partition("::" if kind == "test" else "#")
    link = path.removeprefix("docs/") if path.startswith("docs/") else f"../{path}"
    if kind == "test":
        return f"[`{place}`]({link})"
    return f"[`{PurePosixPath(path).name}`]({link}{'#' if place else ''}{place})"


def _table(heads: Iterable[str], rows: Iterable[Iterable[Any]]) -> Iterator[str]:
    columns = tuple(heads)
    yield _line(columns)
    yield "|" + "---|" * len(columns)
    yield from map(_line, rows)


def _line(cells: Iterable[Any]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    sys.stdout.write(documents_page())
