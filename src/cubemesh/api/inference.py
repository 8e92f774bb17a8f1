"""Trained networks for inference: ONNX files, and plans: build one, choose again on another device,
measure one."""

from __future__ import annotations

import inspect
import io
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cubemesh.batches import Array
from cubemesh.data.class_names import class_names as class_names_of
from cubemesh.data.text.vocabulary import Vocabulary, load_vocabulary
from cubemesh.detection import detects
from cubemesh.detection.labels import grid_of
from cubemesh.durable_files import replace_file
from cubemesh.errors import DataError, UsageError
from cubemesh.inference import build as builder
from cubemesh.inference.build import BuildSettings, rebuild, with_free_batch
from cubemesh.inference.classify import (
    TOP,
    ClassifiedImage,
    classify,
    image_shape,
    read_names,
)
from cubemesh.inference.cpp.export import export_cpp
from cubemesh.inference.device import this_device
from cubemesh.inference.engines import engine_errors, float_engines, of_device, open_engine
from cubemesh.inference.latencies import (
    MOST_ITERATIONS,
    latency_figures,
    timed_runs,
    trtexec_times,
)
from cubemesh.inference.plan_file import PlanDocument, describe_plan, read_plan, write_plan
from cubemesh.inference.runtime import Plan, device_of
from cubemesh.inference.samples import (
    LABELS,
    SampleSets,
    from_data,
    from_file,
    random_inputs,
    read_samples,
)
from cubemesh.inference.timing import TimingRecord
from cubemesh.inference.translate import (
    TranslatedText,
    check_search,
    translate,
    translator_program,
)
from cubemesh.networks import build, canonical_name
from cubemesh.networks.graph import Network
from cubemesh.networks.own_networks import is_own
from cubemesh.onnx import reader
from cubemesh.onnx.export import export, graph_of
from cubemesh.onnx.graph import Graph
from cubemesh.onnx.writer import serialized
from cubemesh.runs.locks import DeviceLocks
from cubemesh.runs.own_networks import check_weights, network_with_weights
from cubemesh.schema.record import Figure
from cubemesh.schema.work import Tokenizer
from cubemesh.training import manifest
from cubemesh.training.checkpoint import load, path_of, steps_in
from cubemesh.units import parse_duration
from cubemesh.user_code import without_object

Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class ExportedNetwork:
    """A file of a network."""

    file: str
    network: str
    format: str
    parameters: int
    size_bytes: int
    weights: str
    """Where they are from: `seed 0`, or a checkpoint."""


@dataclass(frozen=True, kw_only=True)
class BuiltPlan:
    """A plan and its file."""

    file: str
    size_bytes: int
    seconds: float
    """Time of the build."""
    document: PlanDocument


@dataclass(frozen=True, kw_only=True)
class Classification:
    """Images with their most probable classes, or by a detector with their boxes."""

    model: str
    """The plan, or the folder of checkpoints."""
    network: str
    weights: str
    """Where they are from, in words."""
    images: tuple[ClassifiedImage, ...]


@dataclass(frozen=True, kw_only=True)
class Translation:
    """Texts with their translations."""

    model: str
    """The folder of checkpoints."""
    network: str
    weights: str
    """Where they are from, in words."""
    device: str
    beam_width: int
    length_penalty: float
    texts: tuple[TranslatedText, ...]


@dataclass(frozen=True, kw_only=True)
class MeasuredPlan:
    """Latencies of a plan."""

    file: str
    document: PlanDocument
    batch: int
    split: tuple[int, ...]
    """The batch sizes of the plan in which it runs."""
    iterations: int
    load_s: float
    """From reading the file to being ready."""
    first_s: float
    """The first run."""
    throughput_per_s: float
    """Samples per second."""
    latencies: Mapping[str, Figure]
    """`min`, `mean`, `p50`, …, `max`, in seconds."""
    times: str | None = None
    """The file with the times of each run."""


def export_network(
    name: str | Network | None = None,
    file: str | Path | None = None,
    *,
    checkpoints: str | Path | None = None,
    step: int | None = None,
    image_size: int | None = None,
    classes: int | None = None,
    seed: int = 0,
    weights: Mapping[str, Array] | None = None,
    input_shape: str = "",
    cpp: bool = False,
) -> ExportedNetwork:
    """Write a network with its weights as an ONNX file, by default NAME.onnx; or with `cpp` as a
    folder, by default NAME-cpp, with a file for C++ and the header that runs it, for networks of
    images. The weights are those of the newest checkpoint of a training, or of the one after `step`
    steps; without `checkpoints` they are drawn with `seed`. A module of your own (`model.py:Net`,
    docs/own_network.md) has its own weights, for `input_shape`; a network that a program built
    (`NetworkBuilder`) those of `weights`, by name. UsageError where options do not fit, DataError
    for a checkpoint that cannot be read."""
    choice = _Weights(checkpoints, step, image_size, classes, seed, weights, input_shape)
    network, arrays, source = choice.of(name)
    if file is None and not cpp and network.name.endswith(".onnx"):
        raise UsageError(
            f"{network.name} is an ONNX file already. Name the new one: --output FILE.onnx"
        )
    made = f"{network.name.rstrip('/')}{'-cpp' if cpp else '.onnx'}"
    path = Path(made if file is None else file)
    return ExportedNetwork(
        file=str(path),
        network=network.name,
        format="C++" if cpp else "ONNX",
        parameters=network.evaluation_parameter_count,
        size_bytes=(export_cpp if cpp else export)(network, arrays, path),
        weights=source,
    )


def build_plan(
    source: str | Network | None = None,
    file: str | Path | None = None,
    *,
    checkpoints: str | Path | None = None,
    step: int | None = None,
    image_size: int | None = None,
    classes: int | None = None,
    seed: int = 0,
    weights: Mapping[str, Array] | None = None,
    input_shape: str = "",
    shapes: Mapping[str, Sequence[int]] | None = None,
    data: str | None = None,
    data_path: str | None = None,
    samples: str | Path | None = None,
    accuracy: float | None = None,
    precisions: Sequence[str] | None = None,
    batches: Sequence[int] | None = None,
    engines: Sequence[str] = (),
    device: str | None = None,
    threads: int | None = None,
    seconds: float = 10.0,
    timing_record: str | Path | None = None,
    from_plan: str | Path | None = None,
    wait: str | float = 0.0,
    tell: Tell = lambda line: None,
) -> BuiltPlan:
    """Build the plan of a network of the zoo, of a training's checkpoints, of a module of your own
    or a network of a program (both as in `export_network`), or of an ONNX file, and write it, by
    default as NAME.plan. Which model in which engine is the fastest is measured. The names of the
    classes are those of the data set of a training, or of `data`.

    `device` is `cpu` or `cuda:N`, by default the CPU, or what `from_plan` was built for. Without
    `accuracy` and `precisions` only fp32 is tried, on a GPU fp16. With `accuracy`, the least ratio
    of right answers to those of fp32, 16 bits and 8-bit integers are tried too, on the samples of
    `data` or of the file `samples`. `from_plan` chooses again for this device from an existing
    plan. `wait`, such as "10m", is the longest time to wait for a run that uses this device.
    UsageError where options do not fit, DataError for damaged files, AccuracyError where no
    precision keeps the bound, BusyError where the device stays in use.
    """
    begin = time.perf_counter()
    if device is None:
        device = "cpu" if from_plan is None else device_of(describe_plan(Path(from_plan))[0])
    record = TimingRecord(None if timing_record is None else Path(timing_record))
    settings = BuildSettings(
        batches=(1,) if batches is None else tuple(batches),
        precisions=_precisions(precisions, accuracy, device),
        accuracy=0.99 if accuracy is None else accuracy,
        engines=tuple(engines),
        device=device,
        threads=threads,
        seconds=seconds,
    )
    if from_plan is not None:
        of_weights = (weights, input_shape or None)
        of_source = (source, checkpoints, step, image_size, classes, shapes or None)
        of_accuracy = (data, data_path, samples, accuracy, precisions)
        if any(given is not None for given in (*of_source, *of_weights, *of_accuracy)):
            raise UsageError(
                "--from takes network, weights and accuracy from the plan: leave out the network, "
                "its weights and sizes, the samples, --accuracy and --precision."
            )
        document, models = read_plan(Path(from_plan))
        if batches is None:
            settings = replace(settings, batches=tuple(c.batch for c in document.choices))
        path = Path(from_plan if file is None else file)
        with _locked(device, wait, tell):
            document, models = rebuild(document, models, settings, record, tell)
    else:
        choice = _Weights(checkpoints, step, image_size, classes, seed, weights, input_shape)
        graph, about, network = _source(source, choice)
        graph = with_free_batch(graph, {n: tuple(s) for n, s in (shapes or {}).items()})
        if data is None and samples is None and set(settings.precisions) != {"fp32"}:
            data, data_path = _trained_on(checkpoints, data_path)
        tokenizer = _tokenizer(checkpoints)
        chosen = _samples(graph, network, data, data_path, samples, tokenizer)
        path = Path(f"{graph.name}.plan" if file is None else file)
        with _locked(device, wait, tell):
            document, models = builder.build(graph, about, settings, chosen, record, tell)
        document = replace(document, classes=_class_names(checkpoints, data, data_path))
    size_bytes = write_plan(path, document, models)
    return BuiltPlan(
        file=str(path),
        size_bytes=size_bytes,
        seconds=time.perf_counter() - begin,
        document=document,
    )


def infer_plan(
    file: str | Path,
    *,
    samples: str | Path | None = None,
    output: str | Path | None = None,
    batch: int | None = None,
    duration: float = 3.0,
    iterations: int | None = None,
    warm_up: float = 0.2,
    percentiles: Sequence[float] = (90.0, 95.0, 99.0),
    export_times: str | Path | None = None,
    device: str | None = None,
    threads: int | None = None,
    wait: str | float = 0.0,
    tell: Tell = lambda line: None,
) -> MeasuredPlan:
    """Run a plan again and again for `duration` seconds, or `iterations` times, and measure its
    latency, on a GPU without copying inputs and outputs. The arrays of `samples` (.npz) are the
    inputs, by default random ones; with `output` all scores are written there (.npz), with
    `export_times` the times of each run in the fields of trtexec (.json). UsageError and DataError
    as `Plan.load` has them."""
    for percent in percentiles:
        if not 0 < percent < 100:
            raise UsageError(f"A percentile is above 0 and below 100, not {percent:g}.")
    if output is not None and samples is None:
        raise UsageError("--output writes the scores of --samples FILE.npz: add it.")
    if iterations is not None and not 1 <= iterations <= MOST_ITERATIONS:
        raise UsageError(f"--iterations are 1 to {MOST_ITERATIONS:,}, not {iterations}.")
    if device is None:
        device = device_of(describe_plan(Path(file))[0])
    with _locked(device, wait, tell), ExitStack() as stack:
        begin = time.perf_counter()
        plan = stack.enter_context(Plan.load(file, threads=threads, device=device))
        load_s = time.perf_counter() - begin
        count = batch or plan.batches[-1]
        if count < 1:
            raise UsageError(f"--batch is at least 1, not {count}.")
        if samples is None:
            arrays = random_inputs(plan.document.inputs, count)
        else:
            arrays = {n: a for n, a in read_samples(samples).items() if n != LABELS}
        if output is not None:
            _write(Path(output), plan, arrays)
        inputs = {n: np.resize(a, (count, *a.shape[1:])) for n, a in arrays.items()}
        first_begin = time.perf_counter()
        plan.run(inputs)
        first = time.perf_counter() - first_begin
        runs = timed_runs(plan, inputs, duration, iterations, warm_up)
        document, split = plan.document, plan.split(count)
    seconds = [end - begin for begin, end in runs]
    if export_times is not None:
        _write_file(Path(export_times), trtexec_times(runs).encode())
    return MeasuredPlan(
        file=str(file),
        document=document,
        batch=count,
        split=split,
        iterations=len(seconds),
        load_s=load_s,
        first_s=first,
        throughput_per_s=count * len(seconds) / sum(seconds),
        latencies=latency_figures(seconds, percentiles),
        times=None if export_times is None else str(export_times),
    )


def classify_images(
    model: str | Path,
    images: Sequence[str | Path],
    *,
    class_names: str | Path | Sequence[str] | None = None,
    top: int = TOP,
    step: int | None = None,
    device: str | None = None,
    threads: int | None = None,
    wait: str | float = 0.0,
    tell: Tell = lambda line: None,
) -> Classification:
    """The `top` most probable classes of image files, by a plan or by the newest checkpoint of a
    training (`model` is its folder; `step` chooses another one), which runs in fp32 on the CPU. A
    checkpoint of a detector gives the `top` boxes with the highest coverage.

    `class_names` are the names, or a text file with a line for each class; by default those of the
    data set of the training. A file that is no image has its reason instead of classes. UsageError
    and DataError as `Plan.load` has them, and for a network that takes no images.
    """
    if not images:
        raise UsageError("Name at least one image.")
    if top < 1:
        raise UsageError(f"top={top} is not a number of classes; give 1 or more.")
    given = class_names
    if isinstance(given, (str, Path)):
        given = read_names(given)
    folder = Path(model)
    if folder.is_dir():
        return _by_checkpoint(folder, step, images, given, top, device, threads)
    if step is not None:
        raise UsageError(f"--step {step} is of a folder of checkpoints; {model} is a plan.")
    place = device or device_of(describe_plan(folder)[0])
    with _locked(place, wait, tell), Plan.load(folder, threads=threads, device=place) as plan:
        document = plan.document
        shape = image_shape(document.inputs, document.network)
        names = document.classes if given is None else given
        found = classify(images, shape, plan.run, names, top)
    return Classification(
        model=str(model), network=document.network, weights=document.source, images=found
    )


def translate_texts(
    model: str | Path,
    texts: Sequence[str],
    *,
    beam_width: int = 5,
    length_penalty: float = 0.6,
    step: int | None = None,
    device: str | None = None,
    threads: int | None = None,
    wait: str | float = 0.0,
    tell: Tell = lambda line: None,
) -> Translation:
    """Translations of texts by the newest checkpoint of a translator's training on sentence pairs
    (`model` is its folder; `step` chooses another one), in fp32 by PyTorch, on the CPU unless
    `device` is `cuda:N`.

    They are searched by `beam_width` hypotheses, 1 being greedy search, with the exponent
    `length_penalty` (Wu et al. 2016). A text that cannot be translated has its reason instead.
    UsageError for a plan, a network that does not translate, and a folder without the vocabulary.
    """
    if isinstance(texts, str) or not texts:
        raise UsageError("Name at least one text, in a list.")
    check_search(beam_width, length_penalty)
    folder = Path(model)
    if not folder.is_dir():
        raise UsageError(
            f"'{model}' is no folder of checkpoints, and translating needs one, of a translator: "
            "`cubemesh train translator --data generated-sentences --checkpoints DIR`."
        )
    network, weights, about = _trained(folder, step)
    vocabulary = _vocabulary(folder, network)
    place = "cuda:0" if device == "cuda" else device or "cpu"
    # As for images, a CPU is not locked: nothing is measured.
    with nullcontext() if place == "cpu" else _locked(place, wait, tell):
        program = translator_program(network, weights, place, this_device(threads).threads)
        try:
            found = translate(program, network, vocabulary, texts, beam_width, length_penalty)
        finally:
            program.close()
    return Translation(
        model=str(model),
        network=network.name,
        weights=about,
        device=place,
        beam_width=beam_width,
        length_penalty=length_penalty,
        texts=found,
    )


def _vocabulary(folder: Path, network: Network) -> Vocabulary:
    try:
        vocabulary = load_vocabulary(folder)
    except OSError as error:
        raise UsageError(f"'{folder}' cannot be read: {error.strerror}.") from error
    if vocabulary is None:
        raise UsageError(
            f"'{folder}' has checkpoints of {network.name} without a vocabulary, so it does not "
            "translate texts: --text is for a translator that was trained on "
            "data=generated-sentences or data=parallel-text."
        )
    if len(vocabulary.tokens) > (network.inputs[0].classes or 0):
        raise DataError(f"'{folder}' has a vocabulary of another network than {network.name}.")
    return vocabulary


def _by_checkpoint(
    folder: Path,
    step: int | None,
    images: Sequence[str | Path],
    class_names: Sequence[str] | None,
    top: int,
    device: str | None,
    threads: int | None,
) -> Classification:
    if device not in (None, "cpu"):
        raise UsageError(
            f"--device {device}: checkpoints run on the CPU. Build a plan for a GPU: "
            f"cubemesh build --checkpoints {folder} --device {device}"
        )
    network, weights, about = _trained(folder, step)
    graph = graph_of(network, weights)
    shape = image_shape(graph.inputs, network.name)
    engine = next(iter(float_engines(of_device("cpu"))), None)
    if engine is None:
        raise UsageError(
            "Classifying needs an engine, ONNX Runtime or OpenVINO: pip install "
            "'cubemesh[inference]'"
        )
    names = _class_names(folder, None, None) if class_names is None else class_names
    with engine_errors(engine, network.name):
        session = open_engine(
            engine,
            serialized(graph),
            threads=this_device(threads).threads,
            device="cpu",
            precision="fp32",
            batch=None,
        )
        name = graph.inputs[0].name
        grid = grid_of(network) if detects(network) else None
        found = classify(images, shape, lambda a: session.run({name: a})[0], names, top, grid)
    return Classification(model=str(folder), network=network.name, weights=about, images=found)


def _class_names(
    checkpoints: str | Path | None, data: str | None, data_path: str | None
) -> tuple[str, ...]:
    """The names of the classes of a training's data set, or of the one that is named."""
    if checkpoints is not None:
        data, data_path = _trained_on(checkpoints, data_path)
    return () if data is None else class_names_of(data, data_path)


@contextmanager
def _locked(device: str, wait: str | float, tell: Tell) -> Iterator[None]:
    """Lock a device, as every run does that measures on it."""
    locks = DeviceLocks()
    try:
        locks.take("cuda:0" if device == "cuda" else device, parse_duration(str(wait)), tell)
        yield
    finally:
        locks.close()


def _precisions(
    given: Sequence[str] | None, accuracy: float | None, device: str
) -> tuple[str, ...]:
    if given is not None:
        return tuple(given)
    floats = ("fp32", "bf16") if device == "cpu" else ("fp16",)
    return floats[:1] if accuracy is None else (*floats, "int8")


def _source(source: str | Network | None, choice: _Weights) -> tuple[Graph, str, Network | None]:
    """The graph, what it is in words, and its network unless it is an ONNX file."""
    if isinstance(source, str) and source.endswith(".onnx"):
        if choice.given:
            raise UsageError(
                "An ONNX file has its own weights and sizes: leave out --checkpoints, --step, "
                "--image-size, --classes and --input-shape."
            )
        return reader.read(source), f"ONNX file {Path(source).name}", None
    network, weights, about = choice.of(source)
    return graph_of(network, weights), f"{network.name}, {about}", network


def _trained_on(
    checkpoints: str | Path | None, data_path: str | None
) -> tuple[str | None, str | None]:
    """The data set of a training and its path, unless another path is given; None without one."""
    if checkpoints is None:
        return None, data_path
    settings = _training(Path(checkpoints)).settings
    return settings.get("data"), data_path or settings.get("data_path")


def _samples(
    graph: Graph,
    network: Network | None,
    data: str | None,
    data_path: str | None,
    samples: str | Path | None,
    tokenizer: Tokenizer,
) -> SampleSets | None:
    if samples is not None:
        if (data, data_path) != (None, None):
            raise UsageError("--samples and --data both name samples: leave one out.")
        return from_file(samples, graph)
    if data is None:
        if data_path is not None:
            raise UsageError(f"--data-path {data_path} needs --data NAME.")
        return None
    if network is None:
        raise UsageError(
            f"--data {data} needs a network of cubemesh. Write samples of an ONNX file into a "
            f".npz file with an array for each input ({', '.join(v.name for v in graph.inputs)}) "
            "and `labels`, and name it with --samples."
        )
    return from_data(network, data, data_path, tokenizer=tokenizer)


def _tokenizer(checkpoints: str | Path | None) -> Tokenizer:
    """How a training divided its sentence pairs into tokens."""
    if checkpoints is None:
        return "words"
    return "bpe" if _training(Path(checkpoints)).settings.get("tokenizer") == "bpe" else "words"


def _write(path: Path, plan: Plan, arrays: Mapping[str, Array]) -> None:
    scores = dict(zip(plan.document.outputs, plan.run_all(arrays), strict=True))
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:  # np.savez has no array called `file`
        for name, array in scores.items():
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
    _write_file(path, content.getvalue())


def _write_file(path: Path, content: bytes) -> None:
    try:
        replace_file(path, content)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from error


@dataclass(frozen=True)
class _Weights:
    """Which weights of a network."""

    checkpoints: str | Path | None
    step: int | None
    image_size: int | None
    classes: int | None
    seed: int
    weights: Mapping[str, Array] | None
    input_shape: str

    @property
    def given(self) -> bool:
        """Whether any was chosen."""
        chosen = (self.checkpoints, self.step, self.image_size, self.classes, self.weights)
        return any(one is not None for one in chosen) or bool(self.input_shape)

    def of(self, source: str | Network | None) -> tuple[Network, dict[str, Array], str]:
        """A network, its weights, and where they are from: drawn with a seed, a checkpoint, a
        module or a program. UsageError where options do not fit, DataError for a checkpoint that
        cannot be read."""
        own = isinstance(source, str) and is_own(source)
        if self.input_shape and not own:
            raise UsageError(
                f"--input-shape {self.input_shape} is the input of a network of your own, such as "
                "model.py:Net. Leave it out."
            )
        if self.weights is not None and not isinstance(source, Network):
            raise UsageError("weights are those of a network that a program built: give it too.")
        if self.step is not None and self.checkpoints is None:
            raise UsageError(f"--step {self.step} needs --checkpoints DIR.")
        sizes = (self.checkpoints, self.image_size, self.classes)
        if (own or isinstance(source, Network)) and sizes != (None, None, None):
            raise UsageError(
                "A network of your own has its own weights and sizes: leave out --checkpoints, "
                "--image-size and --classes."
            )
        if isinstance(source, Network):
            if self.weights is None:
                return source, dict(source.draw(self.seed)), f"seed {self.seed}"
            check_weights(source, self.weights)
            arrays = {name: np.asarray(a, np.float32) for name, a in self.weights.items()}
            return source, arrays, "weights of a program"
        if own and source is not None:
            network, arrays = network_with_weights(source, self.input_shape)
            return network, arrays, f"its own weights from {without_object(source)}"
        if self.checkpoints is None:
            if source is None:
                raise UsageError("Name a network, such as resnet-50, or --checkpoints DIR.")
            network = build(source, self.image_size, self.classes)
            return network, dict(network.draw(self.seed)), f"seed {self.seed}"
        if self.image_size is not None or self.classes is not None:
            raise UsageError("A checkpoint has its own image size and classes: leave them out.")
        network, arrays, about = _trained(Path(self.checkpoints), self.step)
        if source is not None and canonical_name(source) != network.name:
            raise UsageError(
                f"'{self.checkpoints}' has checkpoints of {network.name}, not of {source}."
            )
        return network, arrays, about


def _training(folder: Path) -> manifest.Manifest:
    """The training whose checkpoints a folder has; UsageError where there are no checkpoints or
    the folder cannot be read."""
    training = manifest.read(folder)
    try:
        steps = steps_in(folder)
    except OSError as error:
        raise UsageError(f"'{folder}' cannot be read: {error.strerror}.") from error
    if training is None or not steps:
        raise UsageError(
            f"'{folder}' has no checkpoints of cubemesh. `cubemesh train NETWORK --checkpoints "
            "DIR` saves some."
        )
    return training


def _trained(folder: Path, step: int | None) -> tuple[Network, dict[str, Array], str]:
    """The network of a checkpoint, its weights, and what it is in words."""
    training, steps = _training(folder), steps_in(folder)
    chosen = max(steps) if step is None else step
    if chosen not in steps:
        offered = ", ".join(map(str, steps))
        raise UsageError(f"'{folder}' has no checkpoint after step {chosen}; it has {offered}.")
    of_network = inspect.signature(build).parameters.keys() & training.settings.keys()
    network = build(training.settings["network"], **{n: training.settings[n] for n in of_network})
    path = path_of(folder, chosen, 0, steps[chosen])
    try:
        weights = dict(load(folder, chosen, 0, steps[chosen]).snapshot.weights)
    except OSError as error:
        raise DataError(f"'{path}' cannot be read: {error.strerror}.") from error
    wanted = {n: s.shape for n, s in {**network.parameters, **network.state}.items()}
    if {n: a.shape for n, a in weights.items()} != wanted:
        raise DataError(f"'{path}' does not have the weights of {network.name}.")
    return network, weights, f"checkpoint after step {chosen}"
