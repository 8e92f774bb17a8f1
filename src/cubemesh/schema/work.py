"""Work: what a `RunSpec` executes, one class for each kind.

The fields of a work are what its result depends on; which framework does it, where, and how long it
is watched are the other parts of a spec (spec.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cubemesh.errors import UsageError
from cubemesh.schema.collective import Collective
from cubemesh.schema.validation import at_least, check_schedule, check_target

Optimizer = Literal["sgd", "rmsprop", "adam", "adamw", "lars"]
RateScaling = Literal["none", "linear"]
RateSchedule = Literal["constant", "step", "cosine"]
Operation = Literal["matrix_product", "copy", "host_to_device", "device_to_host", "disk_read"]
Stage = Literal["read", "decode", "copy"]


@dataclass(frozen=True, kw_only=True)
class NetworkWork:
    """What every work on a network names: the network, its input, and the samples fed to it."""

    network: str
    """Network to run; `cubemesh networks` lists them."""
    batch_per_device: int
    """Batch size per device."""
    image_size: int | None = None
    """Height and width of the input in pixels; None is the network's own."""
    classes: int | None = None
    """Number of classes; None is the network's own."""
    sequence_length: int | None = None
    """Tokens in a sequence, of a network that is fed tokens; None is the network's own."""
    vocabulary: int | None = None
    """Tokens there are, of such a network; None is the network's own."""
    hidden: int | None = None
    """Width of the translator's vectors and LSTMs; None is the network's own."""
    data: str = "synthetic"
    """Data set; `synthetic` generates random samples."""
    data_path: str | None = None
    """Folder (or file) of the data set, for data that is not carried by cubemesh."""
    max_image_pixels: int | None = None
    """Images of more pixels are set aside before they are decoded; None is what the decoder takes
    at most, 89 million."""
    seed: int = 0
    """Seeds the initial weights, the order of samples, and dropout."""

    def __post_init__(self) -> None:
        at_least(self, 1, "batch_per_device", "image_size", "classes")
        at_least(self, 1, "sequence_length", "vocabulary", "hidden", "max_image_pixels")
        at_least(self, 0, "seed")


@dataclass(frozen=True, kw_only=True)
class Forward(NetworkWork):
    """The forward pass and the loss, in training mode, keeping nothing for a backward pass."""

    kind: Literal["forward"] = "forward"


@dataclass(frozen=True, kw_only=True)
class TrainSteps(NetworkWork):
    """Training steps (forward, backward, update) repeated; the step is what is measured."""

    kind: Literal["train_steps"] = "train_steps"
    optimizer: Optimizer = "sgd"
    """Optimiser."""
    learning_rate: float = 0.01
    """Learning rate, for one device."""
    momentum: float = 0.9
    """Of SGD and LARS; the others run with their usual constants and ignore it."""
    weight_decay: float = 0.0
    """Weight decay (L2 penalty)."""
    losses: int = 0
    """Steps on the first minibatch, again and again, that are made before anything is timed; their
    losses are kept as a curve."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "learning_rate", "momentum", "weight_decay", "losses")


@dataclass(frozen=True, kw_only=True)
class Train(NetworkWork):
    """Training over epochs with an evaluation after each; loss and accuracy are what is kept."""

    kind: Literal["train"] = "train"
    epochs: int = 1
    """Maximum number of epochs."""
    optimizer: Optimizer = "sgd"
    """Optimiser."""
    learning_rate: float = 0.01
    """Learning rate, for one device."""
    momentum: float = 0.9
    """Momentum of SGD and LARS; the other optimisers ignore it."""
    weight_decay: float = 0.0
    """Weight decay (L2 penalty)."""
    rate_scaling: RateScaling = "none"
    """`linear`: the learning rate is multiplied by the number of devices (Goyal et al. 2017)."""
    warmup_epochs: float = 0.0
    """Epochs in which the learning rate rises, step by step, to the full one."""
    schedule: RateSchedule = "constant"
    """What the learning rate does after that: stays, falls to a tenth at `rate_drops`, or follows
    half a cosine down to 0 at the end of the last epoch."""
    rate_drops: tuple[int, ...] = ()
    """Of `step`: the epochs after which the rate falls; none given is a third, two thirds and eight
    ninths of all, as 30, 60 and 80 are of 90."""
    target_accuracy: float | None = None
    """Top-1 accuracy, 0 to 1, at which the training is done before its last epoch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "learning_rate", "momentum", "weight_decay", "warmup_epochs")
        at_least(self, 1, "epochs")
        check_schedule(self.schedule, self.rate_drops, self.epochs)
        check_target(self.target_accuracy)


@dataclass(frozen=True, kw_only=True)
class FirstSteps(NetworkWork):
    """The first steps of a training, looked at and not timed: what each device was fed, its
    gradients and losses, and the accuracy after them."""

    kind: Literal["first_steps"] = "first_steps"
    iterations: int = 10
    """Steps to make."""
    optimizer: Optimizer = "sgd"
    """Optimiser."""
    learning_rate: float = 0.01
    """Learning rate, for one device."""
    momentum: float = 0.9
    """Momentum of SGD and LARS; the other optimisers ignore it."""
    weight_decay: float = 0.0
    """Weight decay (L2 penalty)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "learning_rate", "momentum", "weight_decay")
        at_least(self, 1, "iterations")


@dataclass(frozen=True, kw_only=True)
class Input(NetworkWork):
    """One stage of what feeds a network, on its own: a step is a minibatch going through it."""

    kind: Literal["input"] = "input"
    stage: Stage = "decode"
    """`read`: files are read. `decode`: images in memory are decoded, cropped and scaled. `copy`:
    a minibatch on the host is copied to the device."""


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """The fastest this device does one elementary thing: what training speed is held against."""

    kind: Literal["ceiling"] = "ceiling"
    operation: Operation = "matrix_product"
    """Elementary operation to measure."""
    size: int | None = None
    """Matrix side in elements, or bytes of a copy or file; None is found by doubling until the rate
    stops growing, for a matrix product among known shapes too."""
    shape: tuple[int, int, int] | None = None
    """Of a matrix product: rows, columns and the inner length, m, n, k; None is square or found."""
    pinned: bool = True
    """Of a copy between host and device: whether the host's memory is page-locked; `false` is
    pageable memory, as NumPy gives it."""
    folder: str | None = None
    """Of `disk_read`: the folder whose disk is read, by a file that is gone afterwards."""

    def __post_init__(self) -> None:
        at_least(self, 1, "size")
        if self.shape is not None and (
            self.operation != "matrix_product" or self.size is not None or min(self.shape) < 1
        ):
            raise UsageError(
                f"shape={','.join(map(str, self.shape))} does not fit: it is m,n,k of a "
                "matrix_product, each 1 or more, and stands in place of size."
            )
        if (self.operation == "disk_read") != (self.folder is not None):
            raise UsageError(
                f"operation={self.operation} with folder={self.folder} does not fit: disk_read "
                "needs a folder on the disk it is to read, and nothing else takes one."
            )
        if not self.pinned and self.operation not in ("host_to_device", "device_to_host"):
            raise UsageError(
                f"pinned=false goes with host_to_device and device_to_host, and the operation is "
                f"{self.operation}. Leave it out."
            )


Work = TrainSteps | Forward | Train | FirstSteps | Input | Ceiling | Collective
Training = TrainSteps | Train | FirstSteps
"""Work that updates weights."""
WORK_KINDS: dict[str, type[Work]] = {
    "train_steps": TrainSteps,
    "forward": Forward,
    "train": Train,
    "first_steps": FirstSteps,
    "input": Input,
    "ceiling": Ceiling,
    "collective": Collective,
}
