"""Reading answers in tests: findings by code, table cells by column name."""

import re

from cubemesh.schema import Answer, Cell, Finding, Table


def findings(answer: Answer, code: str) -> list[Finding]:
    """All findings with a code, in order."""
    return [finding for finding in answer.findings if finding.code == code]


def finding(answer: Answer, code: str) -> Finding:
    """The only finding with a code."""
    (found,) = findings(answer, code)
    return found


def codes(answer: Answer) -> list[str]:
    """The codes of all findings, in order."""
    return [finding.code for finding in answer.findings]


def in_order(text: str, *parts: str) -> bool:
    """Whether a text has these names and values in this order, with any words between them."""
    whole = (rf"(?<![\w.]){re.escape(part)}(?!\w|[.,]\d)" for part in parts)
    return re.search(".*".join(whole), text, re.DOTALL) is not None


def table(answer: Answer, *columns: str) -> Table:
    """The first table that has all of `columns`."""
    return next(t for t in answer.tables if set(columns) <= {c.name for c in t.columns})


def column(table: Table, name: str) -> list[Cell]:
    """The cells of a column, by its name."""
    index = [c.name for c in table.columns].index(name)
    return [row[index] for row in table.rows]


def values(table: Table, name: str) -> list[float | None]:
    """The values of a column."""
    return [cell.value for cell in column(table, name)]


def texts(table: Table, name: str) -> list[str]:
    """The texts of a column."""
    return [cell.text for cell in column(table, name)]
