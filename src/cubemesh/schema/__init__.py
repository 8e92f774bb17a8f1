"""Schema: the frozen standard-library dataclasses that every room shares.

An experiment yields `RunSpec`s, a worker turns each into a `RunRecord`, and an `Answer` is computed
from records alone. Nothing here measures, reads files or imports anything beyond the standard
library, so a worker in any Python environment can use it.
"""

from cubemesh.schema.answer import Answer, Axis, Cell, Chart, Column, Finding, Line, Point, Table
from cubemesh.schema.collective import Collective, LinkRate, NcclTopology, SweepPoint
from cubemesh.schema.cost import Cost
from cubemesh.schema.experiment_run import ExperimentRun, new_experiment_run_id
from cubemesh.schema.first_steps_trace import RankTrace, Sketch
from cubemesh.schema.machine import (
    Cache,
    Cpu,
    Gpu,
    GpuLink,
    Machine,
    Memory,
    NumaNode,
    Software,
    Unknown,
)
from cubemesh.schema.outcome import Outcome, Status
from cubemesh.schema.profile import Profile, ProfileEvent
from cubemesh.schema.published import Claim, ClaimState, PublishedFigure, Verdict
from cubemesh.schema.record import (
    Breakdown,
    Curve,
    Environment,
    Figure,
    Part,
    Phase,
    Rank,
    RunKey,
    RunRecord,
    TimeRow,
    Window,
)
from cubemesh.schema.series import Series
from cubemesh.schema.spec import (
    Against,
    Budget,
    CheckpointSettings,
    Placement,
    ProgramSettings,
    RunSpec,
    Tuned,
)
from cubemesh.schema.warning import WARNINGS, Warning, warn
from cubemesh.schema.work import (
    WORK_KINDS,
    Ceiling,
    FirstSteps,
    Forward,
    Infer,
    InferLoad,
    InferPrecision,
    Input,
    NetworkWork,
    OwnStep,
    Train,
    Training,
    TrainSteps,
    Work,
)

__all__ = [
    "WARNINGS",
    "WORK_KINDS",
    "Against",
    "Answer",
    "Axis",
    "Breakdown",
    "Budget",
    "Cache",
    "Ceiling",
    "Cell",
    "Chart",
    "CheckpointSettings",
    "Claim",
    "ClaimState",
    "Collective",
    "Column",
    "Cost",
    "Cpu",
    "Curve",
    "Environment",
    "ExperimentRun",
    "Figure",
    "Finding",
    "FirstSteps",
    "Forward",
    "Gpu",
    "GpuLink",
    "Infer",
    "InferLoad",
    "InferPrecision",
    "Input",
    "Line",
    "LinkRate",
    "Machine",
    "Memory",
    "NcclTopology",
    "NetworkWork",
    "NumaNode",
    "Outcome",
    "OwnStep",
    "Part",
    "Phase",
    "Placement",
    "Point",
    "Profile",
    "ProfileEvent",
    "ProgramSettings",
    "PublishedFigure",
    "Rank",
    "RankTrace",
    "RunKey",
    "RunRecord",
    "RunSpec",
    "Series",
    "Sketch",
    "Software",
    "Status",
    "SweepPoint",
    "Table",
    "TimeRow",
    "Train",
    "TrainSteps",
    "Training",
    "Tuned",
    "Unknown",
    "Verdict",
    "Warning",
    "Window",
    "Work",
    "new_experiment_run_id",
    "warn",
]
