import dataclasses

import pytest

from cubemesh.schema import ClaimState, Figure, Placement, RunSpec, Train

HOLDS, FAILS, UNTOLD = ClaimState.HOLDS, ClaimState.DOES_NOT_HOLD, ClaimState.CANNOT_BE_TESTED_HERE


def trained_on(record_of, devices, scaling, loss):
    work = Train(
        network="little-cnn",
        batch_per_device=128,
        epochs=2,
        learning_rate=1e-4,
        rate_scaling=scaling,
    )
    record = record_of(RunSpec(work=work, placement=Placement(devices=devices)), accuracy=0.5)
    figures = {**record.figures, "validation_loss": Figure(value=loss, unit="")}
    return dataclasses.replace(record, run_id=f"{devices}-{scaling}", figures=figures)


@pytest.mark.parametrize(
    ("constant", "scaled", "state"),
    [((1.0, 2.0), 1.1, HOLDS), ((1.0, 2.0), 1.5, FAILS), ((1.0, 0.9), 1.0, FAILS)],
)
def test_losses_that_grow_unless_the_rate_is_scaled(verdict, record_of, constant, scaled, state):
    records = (
        trained_on(record_of, 1, "none", constant[0]),
        trained_on(record_of, 2, "none", constant[1]),
        trained_on(record_of, 2, "linear", scaled),
    )
    found = verdict("001-22", records)
    assert found.state is state
    assert found.measured.value == pytest.approx(scaled / constant[0])
    assert verdict("001-22", records[:1]).state is UNTOLD


def test_days_of_unnamed_networks_are_told_and_not_judged(verdict, record_of):
    record = trained_on(record_of, 1, "none", 1.0)
    days = Figure(value=3.0, unit="days")
    record = dataclasses.replace(record, figures={"projected_90_epochs_days": days})
    found = verdict("003-10", (record,))
    assert (found.state, found.measured.value) == (UNTOLD, 3.0)
