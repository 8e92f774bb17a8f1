"""`cubemesh export`, `cubemesh build` and `cubemesh infer`: trained networks for inference."""

from __future__ import annotations

from typing import Annotated

import typer

from cubemesh.cli import completion
from cubemesh.cli.options import AsJson, Wait, show, tell
from cubemesh.errors import UsageError

Checkpoints = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="Take the weights of this training's checkpoints."),
]
Step = Annotated[
    int | None, typer.Option(min=0, help="Of the checkpoint after this step; default: newest.")
]
ImageSize = Annotated[
    int | None, typer.Option(min=1, help="Height and width of the images in pixels.")
]
Classes = Annotated[int | None, typer.Option(min=1, help="Number of classes.")]
Shape = Annotated[
    str,
    typer.Option(
        "--input-shape",
        metavar="3x224x224",
        help="Input of a network of your own, FILE.py:NAME, which has its own weights.",
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the weights, without --checkpoints.")]
Device = Annotated[
    str | None,
    typer.Option(metavar="cpu|cuda:N", help="Default: the CPU; with a plan, what it is for."),
]
Threads = Annotated[
    int | None, typer.Option(min=1, help="Threads of the engine; default: the usable cores.")
]


def export(
    network: Annotated[
        str | None,
        typer.Argument(
            help="Network; `cubemesh networks` lists them; or your own, FILE.py:NAME. With "
            "--checkpoints theirs.",
            autocompletion=completion.networks,
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Default: NETWORK.onnx, with --cpp NETWORK-cpp."
        ),
    ] = None,
    cpp: Annotated[
        bool,
        typer.Option("--cpp", help="Write a folder with a C++ header that runs the network."),
    ] = False,
    checkpoints: Checkpoints = None,
    step: Step = None,
    image_size: ImageSize = None,
    classes: Classes = None,
    seed: Seed = 0,
    input_shape: Shape = "",
    as_json: AsJson = False,
) -> None:
    """Write a network and its weights as an ONNX file, or for C++."""
    from cubemesh import export_network
    from cubemesh.views import inference as view

    done = export_network(
        network,
        output,
        checkpoints=checkpoints,
        step=step,
        image_size=image_size,
        classes=classes,
        seed=seed,
        input_shape=input_shape,
        cpp=cpp,
    )
    show(view.export_document(done), as_json, lambda c: view.print_export(c, done))


def build(
    network: Annotated[
        str | None,
        typer.Argument(
            metavar="NETWORK|FILE.onnx",
            help="Network of the zoo, your own (FILE.py:NAME), or an ONNX file. With "
            "--checkpoints theirs.",
            autocompletion=completion.networks,
        ),
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Default: NETWORK.plan.")
    ] = None,
    from_plan: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="PLAN", help="Choose again on this device from a plan's models."
        ),
    ] = None,
    checkpoints: Checkpoints = None,
    step: Step = None,
    accuracy: Annotated[
        float | None,
        typer.Option(
            metavar="RATIO",
            help="Try 16 bits and 8-bit integers too, if they keep this ratio of fp32's right "
            "answers, such as 0.99.",
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Data set for calibration and proof; default: the checkpoint's."
        ),
    ] = None,
    data_path: Annotated[
        str | None, typer.Option(metavar="PATH", help="Folder or file of the data set.")
    ] = None,
    samples: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.npz", help="Arrays by input, and labels, instead of a data set."
        ),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,…", help="Precisions to try: fp32, bf16, int8; on a GPU fp16, int8."
        ),
    ] = None,
    batches: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,…", help="Batch sizes to build for; default: 1, with --from the plan's."
        ),
    ] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(help="Engine to try; may be repeated. Default: those installed."),
    ] = None,
    device: Device = None,
    threads: Threads = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            metavar="INPUT=3x224x224",
            help="Lengths of an ONNX input without the batch; may be repeated.",
        ),
    ] = None,
    timing_record: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Keep latencies here; what it has is not measured again."
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.1, help="Time for the trials of a batch size.")
    ] = 10.0,
    image_size: ImageSize = None,
    classes: Classes = None,
    seed: Seed = 0,
    input_shape: Shape = "",
    wait: Wait = "0",
    as_json: AsJson = False,
) -> None:
    """Optimize a trained network for inference on this machine and write its plan."""
    from cubemesh import build_plan
    from cubemesh.views import inference as view

    done = build_plan(
        network,
        output,
        from_plan=from_plan,
        checkpoints=checkpoints,
        step=step,
        accuracy=accuracy,
        data=data,
        data_path=data_path,
        samples=samples,
        precisions=None if precision is None else _words(precision),
        batches=None if batches is None else _numbers("--batches", batches),
        engines=engine or (),
        device=device,
        threads=threads,
        shapes=dict(map(_shape, shape or ())),
        timing_record=timing_record,
        seconds=seconds,
        image_size=image_size,
        classes=classes,
        seed=seed,
        input_shape=input_shape,
        wait=wait,
        tell=tell,
    )
    show(view.build_document(done), as_json, lambda c: view.print_build(c, done))


def infer(
    plan: Annotated[
        str,
        typer.Argument(
            metavar="PLAN",
            help="File written by `cubemesh build`; with --image also a folder of checkpoints, "
            "with --text always.",
        ),
    ],
    image: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Classify this image; may be repeated."),
    ] = None,
    top: Annotated[
        int | None, typer.Option(min=1, help="Classes of an image to show; default: 5.")
    ] = None,
    class_names: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Text with a name for each class; default: the training data's."
        ),
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Translate this sentence; may be repeated."),
    ] = None,
    beam_width: Annotated[
        int | None,
        typer.Option(min=1, help="Hypotheses of a translation; 1: greedy search. Default: 5."),
    ] = None,
    length_penalty: Annotated[
        float | None,
        typer.Option(min=0.0, help="Exponent of the length penalty; default: 0.6."),
    ] = None,
    samples: Annotated[
        str | None,
        typer.Option(metavar="FILE.npz", help="Arrays by input; default: random ones."),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE.npz", help="Write the scores of --samples."),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(min=1, help="Samples of a run; default: the plan's largest batch size."),
    ] = None,
    duration: Annotated[float, typer.Option(min=0.0, help="Seconds to measure.")] = 3.0,
    iterations: Annotated[
        int | None, typer.Option(min=1, help="Runs to measure, instead of --duration.")
    ] = None,
    warm_up: Annotated[
        float, typer.Option(min=0.0, metavar="SECONDS", help="Run this long before.")
    ] = 0.2,
    percentile: Annotated[
        str, typer.Option(metavar="P,P,…", help="Percentiles of the latency.")
    ] = "90,95,99",
    export_times: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.json", help="Write begin and end of each run, in trtexec's fields."
        ),
    ] = None,
    step: Step = None,
    device: Device = None,
    threads: Threads = None,
    wait: Wait = "0",
    as_json: AsJson = False,
) -> None:
    """Measure the latency of a plan, compute the scores of samples, classify images or translate
    texts."""
    from cubemesh import classify_images, infer_plan, translate_texts
    from cubemesh.views import inference as view

    of_arrays = {
        "--samples": samples,
        "--output": output,
        "--batch": batch,
        "--iterations": iterations,
        "--export-times": export_times,
    }
    of_images = {"--image": image or None, "--top": top, "--class-names": class_names}
    of_texts = {"--beam-width": beam_width, "--length-penalty": length_penalty}
    if text:
        for option, value in {**of_arrays, **of_images}.items():
            if value is not None:
                raise UsageError(f"{option} does not go with --text: leave one out.")
        translated = translate_texts(
            plan,
            text,
            beam_width=5 if beam_width is None else beam_width,
            length_penalty=0.6 if length_penalty is None else length_penalty,
            step=step,
            device=device,
            threads=threads,
            wait=wait,
            tell=tell,
        )
        document = view.translation_document(translated)
        show(document, as_json, lambda c: view.print_translations(c, translated))
        if all(one.reason for one in translated.texts):
            raise typer.Exit(1)
        return
    for option, number in of_texts.items():
        if number is not None:
            raise UsageError(f"{option} is for texts: add --text TEXT.")
    if image:
        for option, value in of_arrays.items():
            if value is not None:
                raise UsageError(f"{option} is for arrays or latencies: leave it out of --image.")
        found = classify_images(
            plan,
            image,
            class_names=class_names,
            top=top or 5,
            step=step,
            device=device,
            threads=threads,
            wait=wait,
            tell=tell,
        )
        show(view.classify_document(found), as_json, lambda c: view.print_classes(c, found))
        if all(one.reason for one in found.images):
            raise typer.Exit(1)
        return
    for option, value in (("--top", top), ("--class-names", class_names), ("--step", step)):
        if value is not None:
            raise UsageError(f"{option} is for images: add --image FILE.")
    done = infer_plan(
        plan,
        samples=samples,
        output=output,
        batch=batch,
        duration=duration,
        iterations=iterations,
        warm_up=warm_up,
        device=device,
        percentiles=[_number("--percentile", word) for word in _words(percentile)],
        export_times=export_times,
        threads=threads,
        wait=wait,
        tell=tell,
    )
    show(view.infer_document(done), as_json, lambda c: view.print_infer(c, done))


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _numbers(option: str, text: str) -> list[int]:
    return [_whole(option, word) for word in _words(text)]


def _whole(option: str, word: str) -> int:
    if not word.isascii() or not word.isdigit() or len(word) > 9:
        raise UsageError(f"{option} takes whole numbers separated by commas, not '{word}'.")
    return int(word)


def _number(option: str, word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise UsageError(f"{option} takes numbers separated by commas, not '{word}'.") from None


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, equals, lengths = text.rpartition("=")
    if not equals or not name:
        raise UsageError(f"--shape takes INPUT=3x224x224, not '{text}'.")
    return name, tuple(_whole("--shape", word) for word in lengths.split("x"))
