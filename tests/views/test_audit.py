"""The list of inconsistencies in a terminal."""

import io
from dataclasses import replace

from rich.console import Console

from cubemesh.api.audit import AuditResult
from cubemesh.audit.inconsistency import Place, inconsistency
from cubemesh.views.audit import print_audit


def test_what_two_answers_show_alike_is_printed_once():
    text = "resnet-50 has 1,900 samples/s in “one” and 1,490 samples/s in “two”."
    where = Place(run_ids=("a", "b"), answer="weak-scaling", title="one")
    first = inconsistency("different-figures", text, where, "Measure both again.")
    same = replace(first, where=replace(where, title="two"))
    elsewhere = replace(first, where=replace(where, run_ids=("a", "c")))
    console = Console(file=io.StringIO(), width=80)
    print_audit(
        console, AuditResult(inconsistencies=(first, same, elsewhere), records=3, answers=2)
    )
    printed = console.file.getvalue()
    assert printed.count(text) == 2
    assert printed.splitlines()[-1] == "3 runs and 2 answers checked: 2 inconsistent"
