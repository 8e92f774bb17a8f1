"""Names: two things that a reader must distinguish do not have the same name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from cubemesh.audit.evidence import Evidence
from cubemesh.audit.inconsistency import Inconsistency, inconsistency


def answers(several: Sequence[Evidence]) -> Iterator[Inconsistency]:
    """Answers of one experiment with the same title."""
    titled = Counter((e.answer.experiment, e.answer.title) for e in several if e.answer is not None)
    for evidence in several:
        answer = evidence.answer
        if answer is not None and titled[answer.experiment, answer.title] > 1:
            yield inconsistency(
                "same-name",
                f"{titled[answer.experiment, answer.title]} answers of {answer.experiment} are "
                f"called “{answer.title}”.",
                evidence.place(),
                "Add what differs to the titles: network, setting or date.",
            )


def columns(evidence: Evidence) -> Iterator[Inconsistency]:
    """Tables in which two columns have the same name and unit."""
    for table in evidence.answer.tables if evidence.answer else ():
        named = Counter((column.name, column.unit) for column in table.columns)
        for (name, unit), times in named.items():
            if times > 1:
                yield inconsistency(
                    "same-name",
                    f"{times} columns are called “{name}”{f' ({unit})' if unit else ''}.",
                    evidence.place(table=table.title),
                    "Add what differs to the names of the columns.",
                )
