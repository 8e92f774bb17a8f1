"""docs/python_api.ipynb: its cells run in order, as in Jupyter, with the values that they show."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "docs" / "python_api.ipynb"


def run_cells(path: Path) -> tuple[dict[str, Any], list[Any]]:
    """Names that the code cells define, and the values of those that end in an expression."""
    names: dict[str, Any] = {}
    values = []
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        if cell["cell_type"] != "code":
            continue
        *body, last = ast.parse("".join(cell["source"])).body
        shown = isinstance(last, ast.Expr)
        exec(compile(ast.Module(body if shown else [*body, last], []), str(path), "exec"), names)
        if isinstance(last, ast.Expr):
            values.append(eval(compile(ast.Expression(last.value), str(path), "eval"), names))
    return names, values


def test_the_notebook_runs() -> None:
    pytest.importorskip("jinja2")
    names, values = run_cells(NOTEBOOK)
    assert names["fastest"].spec.batch_per_device == 32
    assert names["table"][0]["outcome"] == "ok"
    assert names["comparison"].ratio.value == pytest.approx((32 / 5.2) / (8 / 2.8), rel=0.05)
    assert names["forecast"].points[0].point.samples_per_s == pytest.approx(750)
    assert names["trained"].records[-1].figure("target_epoch") == 4
    assert names["tuned"].best["precision"] == "bf16"
    assert True in values, "stored runs are reused"
    assert values[-1] is True, "the report is a page"


def test_the_notebook_is_saved_without_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    assert [c for c in cells if c.get("outputs") or c.get("execution_count")] == []
