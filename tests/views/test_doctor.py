from __future__ import annotations

import io
import json

from rich.console import Console

from cubemesh.api.doctor import Component, Diagnosis
from cubemesh.machines.system_checks import Check
from cubemesh.views import doctor


def diagnosis(made) -> Diagnosis:
    pip = "/env/bin/python -m pip install"
    return Diagnosis(
        version="0.1.0",
        python="3.12.1",
        executable="/env/bin/python",
        machine=made.machine(gpus=2),
        components=(
            Component(
                name="pytorch",
                version="2.13.0",
                purpose="framework pytorch",
                install=f"{pip} torch",
            ),
            Component(name="views", version=None, purpose="reports", install=f"{pip} altair"),
        ),
        checks=(
            Check(code="cpu-limit", problem=False, found="8 of 8 processors"),
            Check(
                code="gpu-persistence",
                problem=True,
                found="GPUs 0,1: persistence mode is off.",
                remedy="sudo nvidia-smi -i 0,1 -pm 1",
            ),
        ),
    )


def test_a_diagnosis_in_a_terminal(made, golden):
    console = Console(file=io.StringIO(), width=80, highlight=False)
    doctor.print_diagnosis(console, diagnosis(made))
    golden.check("diagnosis.txt", console.file.getvalue())


def test_a_diagnosis_as_json(made):
    document = json.loads(json.dumps(doctor.document(diagnosis(made)), allow_nan=False))
    assert document["kind"] == "diagnosis"
    assert [c["name"] for c in document["components"] if c["version"] is None] == ["views"]
    assert [c["remedy"] for c in document["checks"] if c["problem"]] == [
        "sudo nvidia-smi -i 0,1 -pm 1"
    ]
