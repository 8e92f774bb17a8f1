"""Acceptance: planted faults are found and named, a sound machine passes, and without evidence
there is no verdict."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from cubemesh.errors import UsageError
from cubemesh.experiments.acceptance.checks import AcceptanceVerdict, Against
from cubemesh.experiments.acceptance.experiment import EXPERIMENT, Settings, answer, gather
from cubemesh.experiments.acceptance.parts import PARTS, figure_name, part_of
from cubemesh.experiments.acceptance.report import CHECKS, verdict_of
from cubemesh.experiments.core.experiment import Context, Scale
from cubemesh.schema import (
    Answer,
    Ceiling,
    Collective,
    Curve,
    Figure,
    Finding,
    Gpu,
    Machine,
    Outcome,
    Rank,
    RunRecord,
    RunSpec,
    Status,
    SweepPoint,
    Window,
    warn,
)
from cubemesh.schema.record import FIRST_LOSSES
from cubemesh.store import Store

GPUS = 4
RATES = {"matrix_product": 650e12, "copy": 4.1e12, "disk_read": 3e9}
"""Of a sound NVIDIA H200 and its disk; 55 × 10⁹ for copies to and from the host."""
TODAY, BEFORE = "2026-11-25T10:00:00+00:00", "2026-10-{:02d}T10:00:00+00:00"
SETTINGS = Settings(disk_gb_per_s=3.5)
ONLY_WHERE_IT_FAILS = {Against.COMPLETION, Against.LINK}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Faults:
    """What is wrong with a machine; by default nothing is."""

    disk: float = 1.0
    device: int | None = None
    """Trains at 80 % of the others' speed."""
    link: tuple[int, int] | None = None
    """Has half of the others' bandwidth, both ways."""
    sockets: bool = False
    """NCCL uses sockets between GPUs that NVLink joins."""
    wrong: int = 0
    """Wrong elements of collectives."""
    losses_differ: bool = False
    fading: float = 1.0
    """Speed at the end of the burn-in, relative to that at its start."""
    busy: bool = False
    ends: Status = Status.OK
    """How trainings end."""


def windows(spec: RunSpec, faults: Faults) -> tuple[Window, ...]:
    count = spec.budget.windows
    found = []
    for rank in range(spec.placement.devices):
        for i in range(count):
            speed = 0.8 if rank == faults.device else 1.0
            if spec.budget.windows == 60:
                speed *= 1 + (faults.fading - 1) * i / count
            found.append(
                Window(
                    rank=rank,
                    start_s=float(i),
                    elapsed_s=(1 + 0.002 * (-1) ** i) / speed,
                    steps=10,
                    samples=640,
                )
            )
    return tuple(found)


def sweep(work: Collective, faults: Faults) -> tuple[SweepPoint, ...]:
    def point(pair: tuple[int, int] | None, slower: float = 1.0) -> SweepPoint:
        seconds = tuple(0.001 * slower * (1 + 0.002 * (-1) ** i) for i in range(12))
        size = work.sizes_bytes[-1]
        wrong = faults.wrong if pair is None else 0
        return SweepPoint(size_bytes=size, count=size // 4, pair=pair, seconds=seconds, wrong=wrong)

    points = [point(None)]
    if work.collective == "send-receive":
        points += [
            point((a, b), 2.0 if faults.link and {a, b} == set(faults.link) else 1.0)
            for a in range(GPUS)
            for b in range(GPUS)
            if a != b
        ]
    return tuple(points)


def record_with(
    record_of: Callable[..., RunRecord], spec: RunSpec, faults: Faults, repeat: int = 0
) -> RunRecord:
    """What a machine with these faults measures."""
    training = spec.work.kind == "train_steps"
    record = record_of(spec, status=faults.ends if training else Status.OK)
    on_cpu = spec.placement.device == "cpu" or spec.work.kind == "input"
    ranks = tuple(
        Rank(
            rank=n,
            host="node1",
            device="cpu" if on_cpu else f"cuda:{n}",
            device_name="EPYC" if on_cpu else "NVIDIA H200",
            device_uuid=None if on_cpu else f"GPU-{n}",
            outcome=Outcome(status=Status.OK),
        )
        for n in range(spec.placement.devices)
    )
    if not record.ok:
        return dataclasses.replace(record, ranks=ranks, started_utc=TODAY)
    value = 1000.0
    points: tuple[SweepPoint, ...] = ()
    if isinstance(spec.work, Ceiling):
        value = RATES.get(spec.work.operation, 55e9)
        value *= {"fp32": 0.08, "tf32": 0.5}.get(spec.program.precision, 1.0) if value > 1e14 else 1
        value *= faults.disk if spec.work.operation == "disk_read" else 1
    if isinstance(spec.work, Collective):
        points = sweep(spec.work, faults)
    figure = Figure(value=value, unit="B/s", low=0.995 * value, high=1.005 * value, n=12)
    losses = tuple(2.3 - 0.1 * i for i in range(20))
    if faults.losses_differ and repeat:
        losses = (*losses[:7], losses[7] + 1e-7, *losses[8:])
    warnings = [warn("busy-host", "Other processes used 40 %.", "Stop them.")] * faults.busy
    if points and faults.sockets:
        why = "6 of 6 pairs of these GPUs are joined by NVLink, and NCCL used NET/Socket."
        warnings.append(warn("faster-link-unused", why, "Unset NCCL_P2P_DISABLE."))
    return dataclasses.replace(
        record,
        run_id=f"{spec.spec_id}-{repeat}",
        key=dataclasses.replace(record.key, repeat=repeat),
        ranks=ranks,
        started_utc=TODAY,
        windows=() if points else windows(spec, faults),
        figures={figure_name(spec): figure},
        sweep=points,
        curves=(Curve(name=FIRST_LOSSES, x_name="step", x=tuple(range(20)), y=losses),)
        if spec.program.deterministic
        else (),
        warnings=tuple(warnings),
    )


def earlier(records: list[RunRecord], machines: int = 3, speed: float = 1.0) -> list[RunRecord]:
    """The same runs of other machines of the model, on other days."""
    found = []
    for record in (r for r in records if r.ok):
        for n in range(machines):
            name = figure_name(record.spec)
            value = speed * record.figures[name].value * (1 + 0.004 * (n - 1))
            found.append(
                dataclasses.replace(
                    record,
                    run_id=f"{record.run_id}-{n}",
                    key=dataclasses.replace(record.key, machine_id=f"other-{n}"),
                    started_utc=BEFORE.format(n + 1),
                    figures={name: Figure(value=value, unit="B/s")},
                )
            )
    return found


@pytest.fixture
def gpu_machine(machine: Machine) -> Machine:
    gpus = tuple(Gpu(index=n, name="NVIDIA H200", uuid=f"GPU-{n}") for n in range(GPUS))
    return dataclasses.replace(machine, gpus=gpus)


@pytest.fixture
def measured(record_of, play, gpu_machine) -> Callable[..., list[RunRecord]]:
    """The runs of an acceptance test of a machine with faults."""

    def run(settings: Settings = SETTINGS, **faults: object) -> list[RunRecord]:
        planted = Faults(**faults)  # type: ignore[arg-type]
        sent: list[RunRecord] = []
        context = Context(machine=gpu_machine, scale=Scale.QUICK)
        specs, _ = play(EXPERIMENT.plan(settings, context), lambda spec: record_of(spec))
        for spec in specs:
            for repeat in range(spec.budget.repeats):
                sent.append(record_with(record_of, spec, planted, repeat))
        return sent

    return run


def accepted(records: list[RunRecord], fleet: int = 3, settings: Settings = SETTINGS) -> Answer:
    """The answer, with a fleet of so many sound machines."""
    return answer(settings, [*earlier(records, fleet), *records])


def failures(found: Answer) -> list[Finding]:
    return list(found.findings[1:])


def checks(found: Answer) -> list[dict[str, str]]:
    """The rows of the table, by column, as text."""
    (table,) = [t for t in found.tables if t.title == CHECKS]
    names = [column.name for column in table.columns]
    rows = [dict(zip(names, [cell.text for cell in row], strict=True)) for row in table.rows]
    return [{**row, "against": row["reference"].partition(":")[0]} for row in rows]


def test_a_sound_machine_passes_with_every_part_judged(measured) -> None:
    records = measured()
    assert {part_of(r) for r in records} == set(PARTS)
    found = accepted(records)
    assert verdict_of(found) is AcceptanceVerdict.PASS
    assert failures(found) == []
    assert {row["verdict"] for row in checks(found)} == {"pass"}
    assert {row["against"] for row in checks(found)} == {*Against} - ONLY_WHERE_IT_FAILS
    judged = [row for row in checks(found) if row["verdict"] == "pass"]
    assert found.findings[0].value == len(judged)
    assert len([row for row in judged if row["against"] == "neighbours"]) == 3 * GPUS
    assert any("60 % of the datasheet" in note for note in found.notes), "thresholds are stated"


def test_a_slow_disk_is_found_by_its_stated_rate(measured) -> None:
    found = accepted(measured(disk=0.4), fleet=0)
    assert verdict_of(found) is AcceptanceVerdict.FAIL
    (failure,) = failures(found)
    assert failure.code == "check-failed"
    assert failure.text.startswith("disk read: 1.2 GB/s is 34.3 % (34.1 to 34.5)")
    assert failure.low < failure.value < failure.high < 0.6


def test_a_slow_disk_is_found_by_the_fleet_whatever_its_folder(measured) -> None:
    sound = measured()
    slow = measured(Settings(folder="/data"), disk=0.7)
    found = answer(Settings(folder="/data"), [*slow, *earlier(sound)])
    (failure,) = failures(found)
    assert "disk read: 2.1 GB/s is 70 %" in failure.text
    assert "of the mean of the fleet, below the threshold of 90 %" in failure.text
    assert "3 runs of 3 machines" in failure.text


def test_a_slow_device_is_named_among_its_neighbours(measured) -> None:
    found = accepted(measured(device=2))
    assert verdict_of(found) is AcceptanceVerdict.FAIL
    assert {f.code for f in failures(found)} == {"slow-device"}
    assert all("cuda:2 (GPU-2) of node1" in f.text for f in failures(found))
    assert len(failures(found)) == 2, "in the short training and in the burn-in"
    assert "cuda:2" in found.findings[0].text


def test_a_slow_link_is_found_at_both_of_its_ends(measured) -> None:
    found = accepted(measured(link=(1, 3)))
    assert [("cuda:1" in f.text, "cuda:3" in f.text) for f in failures(found)] == [
        (True, False),
        (False, True),
    ]
    assert "slowest to device 3" in failures(found)[0].text


def test_a_fast_link_that_nccl_does_not_use_fails(measured) -> None:
    found = accepted(measured(sockets=True))
    assert verdict_of(found) is AcceptanceVerdict.FAIL
    assert {f.code for f in failures(found)} == {"faster-link-unused"}
    for failure in failures(found):
        assert "joined by NVLink, and NCCL used NET/Socket." in failure.text
        assert "NCCL_P2P_DISABLE" in failure.remedy


def test_wrong_elements_of_a_collective_fail(measured) -> None:
    found = accepted(measured(wrong=3))
    assert verdict_of(found) is AcceptanceVerdict.FAIL
    assert {f.code for f in failures(found)} == {"wrong-results"}
    assert "3 wrong elements, at 64 MiB" in failures(found)[0].text


def test_losses_that_differ_between_repeats_fail(measured) -> None:
    (failure,) = failures(accepted(measured(losses_differ=True)))
    assert failure.code == "wrong-results"
    assert "losses differ from step 8 on" in failure.text


def test_a_machine_that_slows_down_in_the_burn_in_fails(measured) -> None:
    found = accepted(measured(fading=0.8))
    assert {f.code for f in failures(found)} == {"check-failed"}
    assert "of its rate at the start of the burn-in" in failures(found)[0].text


def test_a_run_that_crashes_or_diverges_fails_the_machine(measured) -> None:
    for status in (Status.CRASHED, Status.DIVERGED):
        found = accepted(measured(ends=status))
        assert verdict_of(found) is AcceptanceVerdict.FAIL
        assert {f.code for f in failures(found)} == {"failed-run"}


def test_what_cannot_run_is_left_out_with_its_reason(measured) -> None:
    found = accepted(measured(ends=Status.UNSUPPORTED))
    assert verdict_of(found) is AcceptanceVerdict.PASS
    (out,) = [t for t in found.tables if t.title == "Left out"]
    assert [row[0].text.partition(" ")[0] for row in out.rows] == [
        "training",
        "repeated",
        "training",
        "burn-in",
    ]
    assert {row[1].text for row in out.rows} == {"not supported"}


def test_without_references_a_machine_does_not_pass(measured) -> None:
    settings = Settings(parts=("disk", "results", "training"))
    records = measured(settings)
    found = accepted(records, fleet=2, settings=settings)
    assert verdict_of(found) is AcceptanceVerdict.NOT_JUDGED
    assert {row["verdict"] for row in checks(found) if row["against"] == "fleet"} == {"not judged"}
    assert "2 earlier runs of this model; 3 are needed" in {row["note"] for row in checks(found)}
    assert verdict_of(accepted(records, fleet=3, settings=settings)) is AcceptanceVerdict.PASS


def test_a_fleet_of_another_model_is_no_reference(measured) -> None:
    settings = Settings(parts=("training",))
    records = measured(settings)
    others = [
        dataclasses.replace(
            r, ranks=tuple(dataclasses.replace(k, device_name="X") for k in r.ranks)
        )
        for r in earlier(records, speed=2.0)
    ]
    assert verdict_of(answer(settings, [*records, *others])) is AcceptanceVerdict.NOT_JUDGED


def test_a_low_figure_beside_other_programs_is_not_judged(measured) -> None:
    found = accepted(measured(disk=0.4, busy=True), fleet=0)
    assert failures(found) == []
    (row,) = [r for r in checks(found) if r["check"] == "disk read" and r["against"] == "datasheet"]
    assert row["verdict"] == "not judged"
    assert "busy-host" in row["note"]
    assert verdict_of(found) is AcceptanceVerdict.NOT_JUDGED, "no pass without this verdict"
    assert "disk read" in found.findings[0].text


def test_a_threshold_inside_the_interval_is_not_judged(measured) -> None:
    settings = dataclasses.replace(SETTINGS, disk_gb_per_s=5.0)
    found = accepted(measured(settings), fleet=0, settings=settings)
    (row,) = [r for r in checks(found) if r["check"] == "disk read" and r["against"] == "datasheet"]
    assert (row["verdict"], failures(found)) == ("not judged", [])
    assert "contains the threshold" in row["note"]
    assert verdict_of(found) is AcceptanceVerdict.NOT_JUDGED


def test_an_interrupted_test_gives_no_pass(measured) -> None:
    found = accepted(measured()[:-1])
    assert verdict_of(found) is AcceptanceVerdict.NOT_JUDGED
    assert "burn-in" in found.findings[0].text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("burn_in_minutes", -1.0),
        ("min_of_fleet", 0.0),
        ("min_of_datasheet", 1.5),
        ("devices", 0),
        ("disk_gb_per_s", 0.0),
    ],
)
def test_invalid_settings_are_refused(name: str, value: float) -> None:
    with pytest.raises(UsageError, match=name):
        Settings(**{name: value})


def test_a_cpu_without_numa_nodes_has_no_neighbours(machine, record_of, play) -> None:
    settings = Settings(burn_in_minutes=0)
    planned, _ = play(EXPERIMENT.plan(settings, Context(machine=machine)), record_of)
    sent = [record_of(spec) for spec in planned]
    assert {part_of(r) for r in sent} == {*PARTS} - {
        "host-copies",
        "links",
        "neighbours",
        "burn-in",
    }
    out = {row[0].text: row[1].text for row in answer(settings, sent).tables[-1].rows}
    assert "two devices" in out["links"]
    assert out["burn-in"] == "burn_in_minutes=0"


def test_the_fleet_is_read_from_the_store_and_from_others(measured, tmp_path: Path) -> None:
    settings = Settings(parts=("disk", "training"), stores=(str(tmp_path / "others.sqlite"),))
    records = measured(settings)
    others = earlier(records, machines=6)
    own_before = [
        dataclasses.replace(r, run_id=f"{r.run_id}-d{day}", started_utc=BEFORE.format(20 + day))
        for r in records
        for day in range(5)
    ]
    with Store.open(settings.stores[0]) as there:
        for record in others:
            there.save(record)
    with Store.open(str(tmp_path / "own.sqlite")) as here:
        for record in (*own_before, *records):
            here.save(record)
        found = gather(settings, here, tuple(records))
    machines = [r.key.machine_id for r in found if part_of(r) == "disk"]
    assert sorted(machines) == ["machine"] * 3 + [f"other-{n}" for n in range(6)]
    assert not {r.run_id for r in found} & {r.run_id for r in records}
    stored = answer(settings, sorted([*records, *found], key=lambda r: r.started_utc))
    assert verdict_of(stored) is AcceptanceVerdict.PASS
    assert stored.findings == answer(settings, [*records, *found]).findings
