"""The nouns of cubemesh: standard-library frozen dataclasses that every room shares.

A question becomes `RunSpec`s, a worker turns each into a `RunRecord`, and an `Answer` is computed
from records alone. Nothing here measures, reads files or imports anything beyond the standard
library, so a worker in any Python environment can use it.
"""

from cubemesh.model.answer import Answer, Axis, Cell, Chart, Column, Finding, Line, Point, Table
from cubemesh.model.collective import Collective, SweepPoint
from cubemesh.model.cost import Cost
from cubemesh.model.effort import Effort
from cubemesh.model.forecast import MemoryForecast
from cubemesh.model.keeping import Keeping
from cubemesh.model.machine import (
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
from cubemesh.model.outcome import Outcome, Status
from cubemesh.model.profile import Profile, ProfileEvent
from cubemesh.model.published import Claim, PublishedFigure, State, Verdict
from cubemesh.model.question import Question, new_question_id
from cubemesh.model.record import (
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
from cubemesh.model.replica import Replica, Sketch
from cubemesh.model.series import Series
from cubemesh.model.spec import Against, Placement, ProgramSettings, RunSpec
from cubemesh.model.tuned import Tuned
from cubemesh.model.warning import WARNINGS, Warning, warn
from cubemesh.model.work import (
    WORK_KINDS,
    Ceiling,
    FirstSteps,
    Forward,
    Input,
    NetworkWork,
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
    "Cache",
    "Ceiling",
    "Cell",
    "Chart",
    "Claim",
    "Collective",
    "Column",
    "Cost",
    "Cpu",
    "Curve",
    "Effort",
    "Environment",
    "Figure",
    "Finding",
    "FirstSteps",
    "Forward",
    "Gpu",
    "GpuLink",
    "Input",
    "Keeping",
    "Line",
    "Machine",
    "Memory",
    "MemoryForecast",
    "NetworkWork",
    "NumaNode",
    "Outcome",
    "Part",
    "Phase",
    "Placement",
    "Point",
    "Profile",
    "ProfileEvent",
    "ProgramSettings",
    "PublishedFigure",
    "Question",
    "Rank",
    "Replica",
    "RunKey",
    "RunRecord",
    "RunSpec",
    "Series",
    "Sketch",
    "Software",
    "State",
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
    "new_question_id",
    "warn",
]
