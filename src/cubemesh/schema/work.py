"""Work: what a `RunSpec` executes, one class for each kind.

The fields of a work are what its result depends on; which framework does it, where, and how long it
is watched are the other parts of a spec (spec.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cubemesh.errors import UsageError
from cubemesh.schema.collective import Collective
from cubemesh.schema.own_network import OwnData, OwnNetwork
from cubemesh.schema.validation import at_least, check_schedule, check_target
from cubemesh.user_code import short_name

Optimizer = Literal["sgd", "rmsprop", "adam", "adamw", "adamw-8bit", "lars"]
RateScaling = Literal["none", "linear"]
Scenario = Literal["single-stream", "offline"]
LoadScenario = Literal["single-stream", "multi-stream", "server", "offline"]
RateSchedule = Literal["constant", "step", "cosine"]
Operation = Literal[
    "matrix_product",
    "convolution",
    "copy",
    "host_to_device",
    "device_to_host",
    "disk_read",
    "disk_write",
    "disk_mixed",
    "links",
    "peer_access",
    "page_migration",
]
DISK_OPERATIONS: tuple[Operation, ...] = ("disk_read", "disk_write", "disk_mixed")
"""Operations on a file, which need no framework."""
LINK_OPERATIONS: tuple[Operation, ...] = ("links", "peer_access", "page_migration")
"""Operations that measure each pair of several devices in one process, instead of one rate."""
Stage = Literal["read", "decode", "copy", "item", "collate"]
Tokenizer = Literal["words", "bpe"]
Packing = Literal["none", "documents"]
EmbeddingGradients = Literal["dense", "sparse"]


@dataclass(frozen=True, kw_only=True)
class NetworkWork:
    """Common fields of work on a network: the network, its input and its data."""

    network: str
    """Network to run; `cubemesh networks` lists them."""
    batch_per_device: int
    """Batch size per device."""
    image_size: int | None = None
    """Height and width of the input in pixels; None: the network's default."""
    classes: int | None = None
    """Number of classes; None: the network's default."""
    sequence_length: int | None = None
    """Tokens per sequence, of a network for token sequences; None: the network's default."""
    vocabulary: int | None = None
    """Vocabulary size, of such a network; None: the network's default."""
    hidden: int | None = None
    """Hidden size of the translator's embeddings and LSTMs; None: the network's default."""
    data: str = "synthetic"
    """Data set; `synthetic` generates random samples. Of the user's own: `data.py:make`."""
    data_path: str | None = None
    """Folder, file or URL of the data set, for data that is not part of cubemesh."""
    tokenizer: Tokenizer = "words"
    """Of sentence pairs: whole `words`, or sub-words learned by byte-pair encoding (`bpe`)."""
    max_image_pixels: int | None = None
    """Images of more pixels are skipped without decoding; None: the decoder's limit, 89 million."""
    seed: int = 0
    """Seed of the initial weights, the order of samples, and dropout."""
    own_network: OwnNetwork | None = None
    """Description of a network of the user's own; None: it is one of cubemesh's."""
    own_data: OwnData | None = None
    """Code of data of the user's own; None: `data` is one of cubemesh's."""

    def __post_init__(self) -> None:
        at_least(self, 1, "batch_per_device", "image_size", "classes")
        at_least(self, 1, "sequence_length", "vocabulary", "hidden", "max_image_pixels")
        at_least(self, 0, "seed")


@dataclass(frozen=True, kw_only=True)
class Forward(NetworkWork):
    """The forward pass and the loss in training mode, without saving tensors for a backward
    pass."""

    kind: Literal["forward"] = "forward"


@dataclass(frozen=True, kw_only=True)
class ForwardBackward(NetworkWork):
    """The forward pass in training mode, the loss and the backward pass, without an update: each
    pass computes the gradients anew."""

    kind: Literal["forward_backward"] = "forward_backward"


@dataclass(frozen=True, kw_only=True)
class Infer(NetworkWork):
    """Inference: the scores of one batch after another in evaluation mode. The latency of each
    batch is measured, or their throughput."""

    kind: Literal["infer"] = "infer"
    scenario: Scenario = "single-stream"
    """`single-stream`: a batch is passed when the scores of the last one are on the host.
    `offline`: batches are queued without waiting, and their scores stay on the device."""


@dataclass(frozen=True, kw_only=True)
class InferLoad(NetworkWork):
    """Inference under the load of MLPerf's load generator, in one of its scenarios."""

    kind: Literal["infer_load"] = "infer_load"
    scenario: LoadScenario = "single-stream"
    """`single-stream`, `multi-stream`, `server` or `offline`, as in MLPerf Inference."""
    requests_per_s: float | None = None
    """Of `server`: mean rate of requests, which arrive at random times (Poisson)."""
    latency_limit_s: float | None = None
    """Of `server`: limit of the latency at the percentile."""
    percentile: float = 99.0
    """Percentile that the limit applies to."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1e-6, "requests_per_s", "latency_limit_s")
        if not 50 <= self.percentile <= 99.9:
            raise UsageError(f"percentile={self.percentile:g}: it must be 50 to 99.9.")
        given = self.requests_per_s is not None, self.latency_limit_s is not None
        if any(given) != all(given) or all(given) != (self.scenario == "server"):
            raise UsageError(
                f"scenario={self.scenario} with requests_per_s={self.requests_per_s} and "
                f"latency_limit_s={self.latency_limit_s} is not valid: server needs both, and no "
                "other scenario takes them."
            )


@dataclass(frozen=True, kw_only=True)
class OptimizerWork(NetworkWork):
    """Common fields of work that updates weights."""

    optimizer: Optimizer = "sgd"
    """Optimizer."""
    learning_rate: float = 0.01
    """Learning rate, for one device."""
    momentum: float = 0.9
    """Momentum of SGD and LARS; the other optimizers ignore it."""
    weight_decay: float = 0.0
    """Weight decay (L2 penalty)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "learning_rate", "momentum", "weight_decay")


@dataclass(frozen=True, kw_only=True)
class AccumulatedWork(OptimizerWork):
    """Common fields of work whose steps may accumulate gradients."""

    accumulation_steps: int = 1
    """Micro-batches of equal size that each device computes one after the other in a step; their
    gradients are accumulated, and synchronized and applied once. `batch_per_device` counts all of
    them."""
    packing: Packing = "none"
    """Of data with documents: `documents` packs several into each row, with attention within each;
    `none` pads each to a row of its own."""
    embedding_gradients: EmbeddingGradients = "dense"
    """Of a recommendation model's tables: `dense` has every row, `sparse` those that the batch
    selects, for SGD without momentum."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "accumulation_steps")

    @property
    def micro_batch(self) -> int:
        """Samples of the largest micro-batch."""
        return -(-self.batch_per_device // self.accumulation_steps)


@dataclass(frozen=True, kw_only=True)
class TrainSteps(AccumulatedWork):
    """Training steps (forward, backward, update), repeated; the step time is measured."""

    kind: Literal["train_steps"] = "train_steps"
    losses: int = 0
    """Steps on the first batch, repeated, before the measurement; their losses are stored as a
    curve."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "losses")


@dataclass(frozen=True, kw_only=True)
class Train(AccumulatedWork):
    """Training over epochs with an evaluation after each; loss and accuracy are measured."""

    kind: Literal["train"] = "train"
    epochs: int = 1
    """Maximum number of epochs."""
    rate_scaling: RateScaling = "none"
    """`linear`: the learning rate is multiplied by the number of devices (Goyal et al. 2017)."""
    warmup_epochs: float = 0.0
    """Epochs in which the learning rate rises linearly, step by step, to the full one."""
    schedule: RateSchedule = "constant"
    """Learning rate after the warm-up: constant, divided by ten at `rate_drops`, or half a
    cosine down to 0 at the end of the last epoch."""
    rate_drops: tuple[int, ...] = ()
    """Of `step`: epochs after which the rate drops; empty: one third, two thirds and eight
    ninths of all, as 30, 60 and 80 are of 90."""
    target_accuracy: float | None = None
    """Top-1 accuracy, 0 to 1, at which the training stops early."""
    beam_width: int | None = None
    """Of sentence pairs: each evaluation translates the validation sentences too, for BLEU, by a
    beam search of so many hypotheses; 1: greedy search. None: it translates none."""
    length_penalty: float = 0.6
    """Of a beam search: exponent of the length penalty (Wu et al. 2016); 0: none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "warmup_epochs", "length_penalty")
        at_least(self, 1, "epochs", "beam_width")
        check_schedule(self.schedule, self.rate_drops, self.epochs)
        check_target(self.target_accuracy)


@dataclass(frozen=True, kw_only=True)
class InferPrecision(OptimizerWork):
    """Time and accuracy of inference by precision: the network is trained, then every precision,
    engine and way to choose 8-bit ranges is compared with fp32 on the validation samples and timed
    at `batch_per_device`."""

    kind: Literal["infer_precision"] = "infer_precision"
    epochs: int = 5
    """Epochs of the training."""
    training_batch: int = 32
    """Batch size of the training."""
    accuracy: float = 0.99
    """Least ratio of right answers to those of fp32."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "epochs", "training_batch")
        if not 0 < self.accuracy <= 1:
            raise UsageError(f"accuracy={self.accuracy:g}: it must be above 0 and at most 1.")


@dataclass(frozen=True, kw_only=True)
class FirstSteps(OptimizerWork):
    """The first steps of a training, traced and not timed: the samples of each device,
    gradients, losses, and the accuracy after them."""

    kind: Literal["first_steps"] = "first_steps"
    iterations: int = 10
    """Number of steps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "iterations")


@dataclass(frozen=True, kw_only=True)
class Input(NetworkWork):
    """One stage of the input pipeline on its own; a step processes one batch."""

    kind: Literal["input"] = "input"
    stage: Stage = "decode"
    """`read`: files are read. `decode`: images in memory are decoded, cropped and scaled.
    `copy`: a batch on the host is copied to the device. Of data of the user's own `item`: samples
    are taken from them, and `collate`: samples in memory are put into a batch."""


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """A hardware ceiling: the highest rate of one elementary operation on this device."""

    kind: Literal["ceiling"] = "ceiling"
    operation: Operation = "matrix_product"
    """Elementary operation to measure."""
    size: int | None = None
    """Matrix side in elements, batch size of a convolution, or bytes of a copy or file; None:
    doubled until the rate stops growing (a matrix product also tries known shapes)."""
    shape: tuple[int, int, int] | None = None
    """Of a matrix product: rows, columns and the inner length, m, n, k; None: square, or
    searched."""
    pinned: bool = True
    """Of a copy between host and device: whether host memory is page-locked; `false`: pageable,
    as from NumPy."""
    folder: str | None = None
    """Of `disk_read`, `disk_write` and `disk_mixed`: the folder whose disk is measured, through a
    temporary file."""
    other_folders: tuple[str, ...] = ()
    """Of the same: further folders, measured at the same time."""

    @property
    def folders(self) -> tuple[str, ...]:
        """All folders of a disk's operation."""
        return () if self.folder is None else (self.folder, *self.other_folders)

    def __post_init__(self) -> None:
        at_least(self, 1, "size")
        if self.shape is not None and (
            self.operation != "matrix_product" or self.size is not None or min(self.shape) < 1
        ):
            raise UsageError(
                f"shape={','.join(map(str, self.shape))} is not valid: it is m,n,k "
                "of a matrix_product, each 1 or more, and replaces size."
            )
        if (self.operation in DISK_OPERATIONS) != (self.folder is not None):
            raise UsageError(
                f"operation={self.operation} with folder={self.folder} is not valid: "
                f"{', '.join(DISK_OPERATIONS)} need a folder on the disk to measure, and no other "
                "operation takes one."
            )
        if len(set(self.folders)) < len(self.folders) or (self.other_folders and not self.folder):
            raise UsageError(
                f"folder={self.folder} with other_folders={','.join(self.other_folders)} is not "
                "valid: name each folder once, the first as folder."
            )
        if not self.pinned and self.operation not in ("host_to_device", "device_to_host"):
            raise UsageError(
                f"pinned=false is valid for host_to_device and device_to_host, and the "
                f"operation is {self.operation}. Leave it out."
            )


@dataclass(frozen=True, kw_only=True)
class OwnStep:
    """A training step of the user's own code, repeated; the step time is measured."""

    kind: Literal["own_step"] = "own_step"
    step: str
    """Function that makes the step, `FILE.py:NAME` or `PACKAGE.MODULE:NAME`; of a step that the
    caller measured itself, the step."""
    samples: int = 1
    """Samples in a step."""
    import_from: str = ""
    """Folder that the code is imported from, an absolute path."""
    by: Literal["worker", "caller"] = "worker"
    """Whether a worker ran it, or the program that called `cubemesh.measure`."""

    @property
    def name(self) -> str:
        """`train.py:make_step`, without the folder."""
        return short_name(self.step)

    def __post_init__(self) -> None:
        at_least(self, 1, "samples")


Work = (
    TrainSteps
    | Forward
    | ForwardBackward
    | Infer
    | InferLoad
    | InferPrecision
    | Train
    | FirstSteps
    | Input
    | Ceiling
    | Collective
    | OwnStep
)
Training = TrainSteps | Train | FirstSteps
"""Work that updates weights."""
WORK_KINDS: dict[str, type[Work]] = {
    "train_steps": TrainSteps,
    "forward": Forward,
    "forward_backward": ForwardBackward,
    "infer": Infer,
    "infer_load": InferLoad,
    "infer_precision": InferPrecision,
    "train": Train,
    "first_steps": FirstSteps,
    "input": Input,
    "ceiling": Ceiling,
    "collective": Collective,
    "own_step": OwnStep,
}
