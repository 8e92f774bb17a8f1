"""Names of the arrays in a snapshot, which are the same in every framework:

optimizer.<parameter>.<slot>   an array of the optimizer for a parameter, in the graph's layout
random.<generator>             the state of a random generator
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from cubemesh.batches import Array
from cubemesh.errors import UsageError

OPTIMIZER = "optimizer."
GENERATOR = "random."


def optimizer_arrays(slots: Mapping[str, Mapping[str, Array]]) -> dict[str, Array]:
    """The arrays of an optimizer by their names in a snapshot; `slots` has them by slot and
    parameter."""
    return {
        f"{OPTIMIZER}{parameter}.{slot}": array
        for slot, arrays in slots.items()
        for parameter, array in arrays.items()
    }


def optimizer_slots(
    arrays: Mapping[str, Array], parameters: Collection[str], slots: Collection[str]
) -> dict[str, dict[str, Array]]:
    """The inverse of `optimizer_arrays`, for an optimizer with these `slots`; UsageError where the
    snapshot is of another optimizer or network."""
    found: dict[str, dict[str, Array]] = {slot: {} for slot in slots}
    for name, array in arrays.items():
        if name.startswith(OPTIMIZER):
            parameter, slot = parameter_and_slot(name, parameters)
            if slot not in found:
                raise UsageError(f"the snapshot has '{name}', and the optimizer has no {slot}.")
            found[slot][parameter] = array
    for slot, own in found.items():
        if missing := [name for name in parameters if name not in own]:
            raise UsageError(f"the snapshot has no {slot} of {', '.join(missing)}.")
    return found


def parameter_and_slot(name: str, parameters: Collection[str]) -> tuple[str, str]:
    """The parameter and the slot in the name of an optimizer's array; UsageError for a parameter
    that the network does not have."""
    parameter, _, slot = name.removeprefix(OPTIMIZER).rpartition(".")
    if parameter not in parameters:
        raise UsageError(f"the snapshot has '{name}', and the network has no such parameter.")
    return parameter, slot


def generator_states(
    arrays: Mapping[str, Array], generators: Collection[str], device: str
) -> dict[str, Array]:
    """The state of each of `generators`, which are those of a program on `device`; UsageError where
    the snapshot has others."""
    found = {n.removeprefix(GENERATOR): a for n, a in arrays.items() if n.startswith(GENERATOR)}
    if set(found) != set(generators):
        raise UsageError(
            f"the snapshot has the random generators {', '.join(sorted(found)) or 'none'}, and a "
            f"program on {device} has {', '.join(sorted(generators)) or 'none'}: it is from "
            "another kind of device. Resume on a device of the same kind."
        )
    return found
