import pytest

from cubemesh.schema import Cell, Column
from cubemesh.views.tables import cell_text, gap_from, heading, text_table


def test_a_unit_is_in_the_heading_or_in_the_cells():
    assert heading(Column(name="throughput", unit="images/s")) == "throughput (images/s)"
    assert heading(Column(name="images/s", unit="images/s")) == "images/s"
    assert heading(Column(name="memory", unit="bytes")) == "memory"
    assert cell_text(Cell(value=2.0**30), Column(name="memory", unit="bytes")) == "1 GiB"
    assert cell_text(Cell(value=3.14159), Column(name="x", unit="m", digits=2)) == "3.1"
    assert cell_text(Cell(reason="why"), Column(name="x")) == "why"
    assert cell_text(Cell(), Column(name="x")) == "–"


@pytest.mark.parametrize(
    ("row", "start"),
    [
        ((Cell(text="a"), Cell(value=1)), None),
        ((Cell(text="a"), Cell(reason="r"), Cell(reason="r")), 1),
        ((Cell(text="a"), Cell(reason="r"), Cell()), 1),
        ((Cell(text="a"), Cell(reason="r"), Cell(reason="s")), None),
        ((Cell(text="a"), Cell(reason="r"), Cell(text="b")), None),
        ((Cell(text="a"), Cell()), None),
    ],
)
def test_gaps_with_one_reason_at_the_end_of_a_row(row, start):
    assert gap_from(row) == start


def test_a_tail_of_gaps_becomes_one_cell(sample, made):
    table = text_table(sample.answers[0].tables[0])
    last = table.rows[-1]
    assert [cell.text for cell in last] == ["4,096", made.OOM.message]
    assert last[1].span == 3
    assert all(sum(cell.span for cell in row) == len(table.headings) for row in table.rows)
