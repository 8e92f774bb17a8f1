"""Networks as data: the table of known networks, and how one is built.

`NETWORKS` is the table of all networks; `build(name)` makes one. Its cost is in `cost.py`, its
memory in `memory.py`, its description in `describe.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from cubemesh.errors import UsageError, unknown_name
from cubemesh.networks import own_networks
from cubemesh.networks.assembly import of_documents, with_sparse_gradients
from cubemesh.networks.graph import Network
from cubemesh.networks.transformer_sizes import OTHER_NAMES, TRANSFORMERS
from cubemesh.networks.zoo.alexnet import alexnet, overfeat
from cubemesh.networks.zoo.bert import bert
from cubemesh.networks.zoo.captioner import captioner
from cubemesh.networks.zoo.convnext import convnext_t
from cubemesh.networks.zoo.deep_speech import deep_speech_gru, deep_speech_rnn
from cubemesh.networks.zoo.detectnet import detectnet, detectnet_little
from cubemesh.networks.zoo.efficientnet import efficientnet_b0
from cubemesh.networks.zoo.googlenet import googlenet, googlenet_paper
from cubemesh.networks.zoo.gpt2 import gpt2
from cubemesh.networks.zoo.inception_bn import inception_bn
from cubemesh.networks.zoo.inception_v3 import inception_v3
from cubemesh.networks.zoo.littlecnn import cifarnet, little_cnn, little_cnn_unpadded
from cubemesh.networks.zoo.llama import llama
from cubemesh.networks.zoo.mixtral import MIXTURES, mixtral
from cubemesh.networks.zoo.recommendation.dlrm import MODELS as RECOMMENDATION_MODELS
from cubemesh.networks.zoo.recommendation.dlrm import dlrm
from cubemesh.networks.zoo.resnet import resnet_18, resnet_34, resnet_50, resnet_101, resnet_152
from cubemesh.networks.zoo.translator import translator, translator_2x, translator_plain
from cubemesh.networks.zoo.unet import unet
from cubemesh.networks.zoo.vgg import vgg11, vgg16, vgg19
from cubemesh.networks.zoo.vit import vit_b16, vit_l16, vit_s16
from cubemesh.schema.own_network import OwnNetwork
from cubemesh.schema.work import AccumulatedWork, NetworkWork

__all__ = ["NETWORKS", "Network", "NetworkEntry", "build", "build_for", "canonical_name", "entry"]


@dataclass(frozen=True, kw_only=True)
class NetworkEntry:
    """An entry of the table: how a network is built, its default input, and its source."""

    make: Callable[..., Network]
    """(image_size, classes) → Network; for sequences, its `sizes` → Network."""
    image_size: int = 0
    """Of images; 0 for a network that takes none."""
    smallest_image_size: int = 0
    """Below it a window no longer fits."""
    classes: int = 0
    sequence_length: int = 0
    """Of tokens, or of the frames of a spectrogram; 0 for a network of images alone, as in
    `vocabulary`: the tokens there are, or the characters that speech is written in. Of records the
    indices of each category, and the most rows of a table."""
    vocabulary: int = 0
    is_of_records: bool = False
    """Whether it takes records of numbers and categories."""
    hidden: int = 0
    """Width of its vectors, where that can be chosen."""
    source: str
    """Paper or document, and year."""
    differs: str = ""
    """How it differs from its source, in a few words."""

    @property
    def sizes(self) -> dict[str, int]:
        """Its size parameters with their defaults, in the order of `make`'s arguments."""
        names = ("image_size", "classes", "sequence_length", "vocabulary", "hidden")
        return {name: getattr(self, name) for name in names if getattr(self, name)}

    @property
    def samples(self) -> str:
        """What its samples are: `images`, also with a sequence for each, `sequences`, or `samples`
        of records."""
        if self.is_of_records:
            return "samples"
        return "images" if self.image_size else "sequences"


_DOCUMENT_001 = "DGX-1 best practices [001] (2018)"
_GOOGLENET = "Szegedy et al., Going deeper with convolutions (2014)"
_VIT = "Dosovitskiy et al., An image is worth 16×16 words (2020)"
_V1_5 = "v1.5: a bottleneck halves the image in its 3×3 convolution, not in the first 1×1"

NETWORKS: dict[str, NetworkEntry] = {
    "little-cnn": NetworkEntry(
        make=little_cnn,
        image_size=32,
        smallest_image_size=4,
        classes=10,
        source=_DOCUMENT_001,
        differs="the padding is not stated there; here every convolution keeps the size",
    ),
    "little-cnn-unpadded": NetworkEntry(
        make=little_cnn_unpadded,
        image_size=32,
        smallest_image_size=10,
        classes=10,
        source=_DOCUMENT_001,
        differs="the padding is not stated there; here every second convolution is unpadded",
    ),
    "cifarnet": NetworkEntry(
        make=cifarnet,
        image_size=32,
        smallest_image_size=12,
        classes=10,
        source="Caffe's cifar10_full, after Krizhevsky's cuda-convnet (2011)",
        differs="the first layer starts 255 times as wide, for pixels of 0 to 1",
    ),
    "alexnet": NetworkEntry(
        make=alexnet,
        image_size=224,
        smallest_image_size=63,
        classes=1000,
        source="Krizhevsky, One weird trick for parallelizing convolutional neural networks (2014)",
        differs="no response normalization; weights start as He et al. draw them",
    ),
    "overfeat": NetworkEntry(
        make=overfeat,
        image_size=231,
        smallest_image_size=71,
        classes=1000,
        source="Sermanet et al., OverFeat (2013), fast model",
        differs="weights start as He et al. draw them",
    ),
    **{
        name: NetworkEntry(
            make=make,
            image_size=224,
            smallest_image_size=32,
            classes=1000,
            source="Simonyan and Zisserman, Very deep convolutional networks (2014), "
            f"configuration {configuration}",
            differs="weights start as He et al. draw them, not from a shallower network's",
        )
        for name, make, configuration in (
            ("vgg11", vgg11, "A"),
            ("vgg16", vgg16, "D"),
            ("vgg19", vgg19, "E"),
        )
    },
    "googlenet": NetworkEntry(
        make=googlenet,
        image_size=224,
        smallest_image_size=31,
        classes=1000,
        source=_GOOGLENET,
        differs="torchvision's form: batch normalization, no auxiliary classifiers, 3×3 for 5×5",
    ),
    "googlenet-paper": NetworkEntry(
        make=googlenet_paper,
        image_size=224,
        smallest_image_size=47,
        classes=1000,
        source=_GOOGLENET,
        differs="weights start as He et al. draw them",
    ),
    "inception-bn": NetworkEntry(
        make=inception_bn,
        image_size=224,
        smallest_image_size=11,
        classes=1000,
        source="Ioffe and Szegedy, Batch normalization (2015)",
        differs="the first convolution is a plain one, not a separable one",
    ),
    "inception-v3": NetworkEntry(
        make=inception_v3,
        image_size=299,
        smallest_image_size=75,
        classes=1000,
        source="Szegedy et al., Rethinking the Inception architecture (2015)",
        differs="as its authors released it: another stem, 5×5 for 3×3 at 35 × 35",
    ),
    **{
        name: NetworkEntry(
            make=make,
            image_size=224,
            smallest_image_size=1,
            classes=1000,
            source="He et al., Deep residual learning for image recognition (2015)",
            differs=differs,
        )
        for name, make, differs in (
            ("resnet-18", resnet_18, ""),
            ("resnet-34", resnet_34, ""),
            ("resnet-50", resnet_50, _V1_5),
            ("resnet-101", resnet_101, _V1_5),
            ("resnet-152", resnet_152, _V1_5),
        )
    },
    "efficientnet-b0": NetworkEntry(
        make=efficientnet_b0,
        image_size=224,
        smallest_image_size=1,
        classes=1000,
        source="Tan and Le, EfficientNet (2019)",
        differs="torchvision's form; the classifier starts from N(0, 0.02²)",
    ),
    "convnext-t": NetworkEntry(
        make=convnext_t,
        image_size=224,
        smallest_image_size=32,
        classes=1000,
        source="Liu et al., A ConvNet for the 2020s (2022)",
        differs="torchvision's form; weights start from an untruncated N(0, 0.02²)",
    ),
    "unet": NetworkEntry(
        make=unet,
        image_size=512,
        smallest_image_size=16,
        classes=2,
        source="Ronneberger et al., U-Net (2015)",
        differs="padded convolutions, three colours; no bias of transposed convolutions",
    ),
    "detectnet": NetworkEntry(
        make=detectnet,
        image_size=640,
        smallest_image_size=32,
        classes=1,
        source="Tao, Barker and Sarathy, DetectNet (2016)",
        differs="corners in units of 16 pixels; weights start as He et al. draw them, not from "
        "ImageNet's",
    ),
    "detectnet-little": NetworkEntry(
        make=detectnet_little,
        image_size=64,
        smallest_image_size=16,
        classes=3,
        source="Tao, Barker and Sarathy, DetectNet (2016)",
        differs="six convolutions with batch normalization for GoogLeNet, a size of cubemesh's own",
    ),
    **{
        name: NetworkEntry(
            make=make,
            image_size=224,
            smallest_image_size=16,
            classes=1000,
            source=source,
            differs="torchvision's form: no dropout; the head starts from N(0, 0.02²), not from "
            "zero",
        )
        for name, make, source in (
            ("vit-s16", vit_s16, "Touvron et al., Training data-efficient transformers (2021)"),
            ("vit-b16", vit_b16, _VIT),
            ("vit-l16", vit_l16, _VIT),
        )
    },
    **{
        name: NetworkEntry(
            make=partial(make, TRANSFORMERS[name]),
            sequence_length=TRANSFORMERS[name].sequence_length,
            vocabulary=TRANSFORMERS[name].vocabulary,
            source=source,
            differs=differs,
        )
        for make, source, differs, names in (
            (
                gpt2,
                "Radford et al., Language models are unsupervised multitask learners (2019)",
                "as many learned places as the sequence is long",
                ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"),
            ),
            (
                bert,
                "Devlin et al., BERT (2018)",
                "masked-language head alone, at every position; as many learned places as the "
                "sequence is long",
                ("bert-base", "bert-large"),
            ),
            (llama, "Liu et al., MobileLLM (2024), 125M", "", ("llama-125m",)),
            (
                llama,
                "Llama 3.2 1B (2024)",
                "sequences of 8,192 tokens; rotary frequencies as in Llama 3, not rescaled",
                ("llama3-1b",),
            ),
            (
                llama,
                "Grattafiori et al., The Llama 3 herd of models (2024)",
                "",
                ("llama3-8b", "llama3-70b"),
            ),
        )
        for name in names
    },
    **{
        name: NetworkEntry(
            make=partial(mixtral, MIXTURES[name]),
            sequence_length=MIXTURES[name].sizes.sequence_length,
            vocabulary=MIXTURES[name].sizes.vocabulary,
            source="Jiang et al., Mixtral of experts (2024)",
            differs=differs,
        )
        for name, differs in (
            (
                "mixtral-1b",
                "a quarter of the width and half of the blocks, a size of cubemesh's own; load "
                "balance by router",
            ),
            ("mixtral-8x7b", "load balance by router, not of all blocks together"),
        )
    },
    **{
        name: NetworkEntry(
            make=make,
            sequence_length=50,
            vocabulary=32000,
            hidden=512,
            source=f"DGX-1 V100 white paper [002] (2017), {attention}",
            differs="one layer an LSTM and one vocabulary, which the document does not give",
        )
        for name, make, attention in (
            ("translator", translator, "attention by a perceptron (Sockeye)"),
            ("translator-plain", translator_plain, "plain attention (Caffe2)"),
        )
    },
    "translator-2x": NetworkEntry(
        make=translator_2x,
        sequence_length=50,
        vocabulary=32000,
        hidden=512,
        source="Luong, Pham and Manning, Effective approaches to attention (2015); "
        "OpenNMT's defaults: Klein et al. (2017)",
        differs="decoder begins from the encoder's last output; no dropout between its two LSTMs",
    ),
    **{
        name: NetworkEntry(
            make=make,
            sequence_length=500,
            vocabulary=29,
            hidden=800,
            source="Amodei et al., Deep Speech 2 (2016)",
            differs="cross-entropy of each frame, no connectionist temporal classification; batch "
            "normalization of convolutions only",
        )
        for name, make in (
            ("deep-speech-gru", deep_speech_gru),
            ("deep-speech-rnn", deep_speech_rnn),
        )
    },
    "captioner": NetworkEntry(
        make=captioner,
        image_size=224,
        smallest_image_size=11,
        sequence_length=20,
        vocabulary=12000,
        hidden=512,
        source="Vinyals et al., Show and tell (2015)",
        differs="the image is the decoder's first h, not its first word; no dropout",
    ),
    **{
        name: NetworkEntry(
            make=partial(dlrm, name),
            sequence_length=model.indices,
            vocabulary=model.most_rows or max(model.rows),
            hidden=model.width,
            is_of_records=True,
            source=f"Naumov et al., DLRM (2019), {configuration}",
            differs=differs,
        )
        for name, configuration, differs in (
            ("dlrm-small", "Criteo Kaggle", "10,000 rows a table at most; biases start at zero"),
            ("dlrm-kaggle", "Criteo Kaggle", "biases start at zero"),
            ("dlrm-benchmark", "its benchmark of random data", "biases start at zero"),
            ("dlrm-terabyte", "Criteo Terabyte, 10 million rows", "biases start at zero"),
            ("dlrm-mlperf", "MLPerf: Criteo Terabyte, 40 million rows", "biases start at zero"),
        )
        for model in (RECOMMENDATION_MODELS[name],)
    },
}


def canonical_name(name: str) -> str:
    """The name as in `NETWORKS`, whatever its case, dashes and underscores.

    `ResNet50`, `resnet_50` and `resnet-50` are one network, and so are `llama-8b` and `llama3-8b`.
    An own network is known while a command that names it runs (`own_networks.py`). UsageError with
    the nearest name if there is none.
    """
    if name in NETWORKS:
        return name
    if own_networks.is_own(name):
        return own_networks.get(name).name
    wanted = _bare(name)
    for known in (*NETWORKS, *OTHER_NAMES):
        if _bare(known) == wanted:
            return OTHER_NAMES.get(known, known)
    raise unknown_name("network", name, NETWORKS, "`cubemesh networks` lists them.")


def entry(name: str) -> NetworkEntry:
    """The entry of `name`, in any spelling that `canonical_name` accepts; UsageError if there is
    none."""
    name = canonical_name(name)
    return NETWORKS[name] if name in NETWORKS else _own_entry(own_networks.get(name))


def build(
    name: str,
    image_size: int | None = None,
    classes: int | None = None,
    *,
    sequence_length: int | None = None,
    vocabulary: int | None = None,
    hidden: int | None = None,
) -> Network:
    """The network called `name` for square images of `image_size` pixels, or for sequences of
    `sequence_length` tokens; None is its own size.

    Raises UsageError for an unknown name, a size it does not take, an image too small for the
    network, or no classes.
    """
    name = canonical_name(name)
    known = entry(name)
    given = {
        "image_size": image_size,
        "classes": classes,
        "sequence_length": sequence_length,
        "vocabulary": vocabulary,
        "hidden": hidden,
    }
    sizes = known.sizes
    for size, value in given.items():
        if value is None:
            continue
        if size not in sizes:
            raise UsageError(
                f"{size}={value} is not a size of {name}. Its sizes are {', '.join(sizes)}."
            )
        if own_networks.is_own(name) and value != sizes[size]:
            raise UsageError(
                f"{size}={value}: {name} was described with {size}={sizes[size]}, which its code "
                "and the input determine. Run it once for each input (docs/own_network.md)."
            )
        sizes[size] = value
    for size, value in sizes.items():
        if size == "image_size" and value < known.smallest_image_size:
            raise UsageError(
                f"image_size={value} is too small for {name}: the smallest it works with is "
                f"{known.smallest_image_size}, its usual one {known.image_size}."
            )
        if value < 1:
            raise UsageError(f"{size}={value} is too small: {name} needs 1 or more.")
    return known.make(*sizes.values())


def rate_unit(*networks: str) -> str:
    """The unit of their throughput: `images/s` or `sequences/s`; `samples/s` of records, if one is
    unknown, or if they differ."""
    found = {_samples(name) for name in networks}
    return f"{found.pop() if len(found) == 1 else 'samples'}/s"


def build_for(work: NetworkWork) -> Network:
    """The network that `work` names, at its sizes; UsageError as in `build`, DataError for a
    damaged description of an own network."""
    if work.own_network is not None:
        network = own_networks.network_of(work.own_network)
    else:
        network = build(
            work.network,
            work.image_size,
            work.classes,
            sequence_length=work.sequence_length,
            vocabulary=work.vocabulary,
            hidden=work.hidden,
        )
    if isinstance(work, AccumulatedWork):
        network = of_documents(network) if work.packing == "documents" else network
        if work.embedding_gradients == "sparse":
            network = with_sparse_gradients(network)
    return network


def _samples(name: str) -> str:
    return entry(name).samples if name in NETWORKS or own_networks.find(name) else "samples"


def _own_entry(own: OwnNetwork) -> NetworkEntry:
    network = own_networks.network_of(own)
    (given,), classes = network.inputs, network.targets[0].classes or 0
    sizes: dict[str, Any] = {}
    if given.dtype == "integer":
        sizes["sequence_length"], sizes["vocabulary"] = given.shape[0], given.classes or 0
    else:
        sizes["image_size"] = sizes["smallest_image_size"] = given.shape[-1]
        sizes["classes"] = classes
    differs = f"It runs as it is: {own.untraced}" if own.untraced else ""
    return NetworkEntry(make=lambda *_: network, source=own.source, differs=differs, **sizes)


def _bare(name: str) -> str:
    return name.replace("-", "").replace("_", "").casefold()
