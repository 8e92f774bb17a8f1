"""Speech recognizer after Deep Speech 2 (Amodei et al. 2016): two convolutions over a spectrogram
and five recurrent layers in both directions.

    convolution 41×11 / 2×2, 32     over frequencies × frames, batch normalization, ReLU
    convolution 21×11 / 2×1, 32     the same
    GRU or plain recurrence × 5     both directions, added; `hidden` wide: 800
    fully connected                 one score for each of 29 characters, at every second frame

The input has 161 frequencies (windows of 20 ms at 16 kHz) and a frame each 10 ms; `deep-speech-gru`
has gated recurrent units, `deep-speech-rnn` plain recurrences with a ReLU, both in the paper.

The loss is the cross-entropy of a character at each frame. The paper sums over all alignments of a
transcript (connectionist temporal classification, Graves et al. 2006), which needs transcripts
shorter than the frames, and their lengths. Other differences: batch normalization behind the
convolutions alone, not within the recurrent layers; ReLU without the bound of 20.
"""

from __future__ import annotations

from typing import Literal

from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.graph import Network

FREQUENCIES = 161
_LAYERS = 5


def deep_speech_gru(sequence_length: int = 500, vocabulary: int = 29, hidden: int = 800) -> Network:
    """41,179,933 parameters at a width of 800."""
    return _deep_speech("deep-speech-gru", "gru", sequence_length, vocabulary, hidden)


def deep_speech_rnn(sequence_length: int = 500, vocabulary: int = 29, hidden: int = 800) -> Network:
    """13,909,533 parameters at the same width."""
    return _deep_speech("deep-speech-rnn", "rnn", sequence_length, vocabulary, hidden)


def _deep_speech(
    name: str, kind: Literal["gru", "rnn"], frames: int, characters: int, hidden: int
) -> Network:
    net = NetworkBuilder(name)
    x = net.input("spectrogram", (1, FREQUENCIES, frames))
    with net.segment("convolutions"):
        x = net.conv(x, 32, kernel=(41, 11), stride=2, padding=(20, 5), bias=False, name="conv1")
        x = net.relu(net.batch_norm(x, name="bn1"), name="relu1")
        x = net.conv(
            x, 32, kernel=(21, 11), stride=(2, 1), padding=(10, 5), bias=False, name="conv2"
        )
        x = net.relu(net.batch_norm(x, name="bn2"), name="relu2")
    with net.segment("recurrences"):
        x = net.columns(x, name="frames")
        for n in range(1, _LAYERS + 1):
            if kind == "gru":
                x = net.gru(x, hidden, directions="sum", name=f"gru{n}")
            else:
                x = net.rnn(x, hidden, function="relu", directions="sum", name=f"rnn{n}")
    with net.segment("output"):
        x = net.linear(x, characters, name="output")
    net.classify(x)
    return net.build()
