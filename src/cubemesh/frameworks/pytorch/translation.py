"""Translation in PyTorch: a translator's graph run token by token, with beam search.

    encode    nodes that depend on the source only, once
    step      the other nodes on one position: recurrent ones from the state of the position before,
              all others as in a whole sentence

A hypothesis is a row; the states of rows follow their hypotheses when some are dropped. All
sentences of a batch are searched together, on the device, in the program's precision; only the
number of unfinished sentences is read by the host at each step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn

from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.frameworks.contract.translation import BeamSearch
from cubemesh.frameworks.pytorch.lowerings import InputFeedingDecoder
from cubemesh.frameworks.pytorch.module import BuiltNetwork
from cubemesh.networks import layers
from cubemesh.networks.graph import Network, Node

_POSITION_WISE = (
    *(layers.Embedding, layers.Dropout, layers.Linear, layers.Tanh, layers.Add),
    *(layers.PairSum, layers.PairProduct, layers.Mix),
)
"""Layers whose output at a position of the target depends on no other of its positions."""
_RECURRENT = (layers.Recurrence, layers.InputFeedingDecoder)
_CANDIDATES = 2
"""Continuations that are considered, per hypothesis: one of them may be the end."""

States = dict[str, Any]
"""Node → the state after the last position: a tensor, or nested lists and tuples of them."""


class TokenDecoder:
    """A translator's evaluation, one position of the target at a time."""

    def __init__(self, built: BuiltNetwork) -> None:
        """Unsupported for a network without a source and a target of tokens, or with a layer that
        needs the whole target."""
        self._built, network = built, built.network
        check_translates(network)
        self._source, self._target = (i.name for i in network.inputs)
        self.positions = network.inputs[1].shape[0]
        """Of the target."""
        self._output = network.output
        nodes = network.needed(self._output)
        of_target = {self._target}
        for node in nodes:
            if not of_target.isdisjoint(node.inputs):
                of_target.add(node.name)
        self._encoder = [node for node in nodes if node.name not in of_target]
        self._decoder = [node for node in nodes if node.name in of_target]
        read = {value for node in self._decoder for value in node.inputs}
        self._memory = read - of_target

    def encode(self, sources: Tensor) -> dict[str, Tensor]:
        """Sources (sentences, positions) → the values that the decoder reads."""
        values = {self._source: sources}
        for node in self._encoder:
            values[node.name] = self._run(node, [values[name] for name in node.inputs])
        return {name: values[name] for name in self._memory}

    def step(self, tokens: Tensor, memory: Mapping[str, Tensor], states: States) -> Tensor:
        """The last tokens of each row (rows,) → scores (rows, vocabulary) of the next; `states` are
        updated, and empty at first."""
        values = {**memory, self._target: tokens.unsqueeze(1)}
        for node in self._decoder:
            given = [values[name] for name in node.inputs]
            if isinstance(node.layer, _RECURRENT):
                with self._type_of(node):
                    layer, state = self._built.layers[node.name], states.get(node.name)
                    values[node.name], states[node.name] = _recurrent_step(layer, given, state)
            else:
                values[node.name] = self._run(node, given)
        return values[self._output].squeeze(1)

    def _run(self, node: Node, given: list[Tensor]) -> Tensor:
        with self._type_of(node):
            if node.name in self._built.layer_types:
                given = [x.float() if x.is_floating_point() else x for x in given]
            result: Tensor = self._built.layers[node.name](*given)
        return result

    def _type_of(self, node: Node) -> AbstractContextManager[Any]:
        """The autocast of a node with a precision of its own."""
        dtype = self._built.layer_types.get(node.name)
        if dtype is None:
            return nullcontext()
        kind = next(iter(self._built.parameters.values())).device.type
        return torch.autocast(kind, dtype, enabled=dtype != torch.float32)


def check_translates(network: Network) -> None:
    """Unsupported for a network that cannot translate token by token."""
    tokens = [i.dtype == "integer" for i in network.inputs]
    if tokens != [True, True]:
        raise Unsupported(
            f"{network.name} does not translate: it has no source and target of tokens. "
            "Translators are translator, translator-plain and translator-2x."
        )
    target = network.inputs[1].name
    of_target = {target}
    for node in network.nodes:
        if of_target.isdisjoint(node.inputs):
            continue
        of_target.add(node.name)
        whole = isinstance(node.layer, layers.Recurrence) and node.layer.ways == 2
        if whole or not isinstance(node.layer, (*_POSITION_WISE, *_RECURRENT)):
            raise Unsupported(
                f"{network.name} does not translate token by token: its layer {node.name} "
                f"({type(node.layer).__name__}) needs the whole target."
            )


def _recurrent_step(layer: nn.Module, given: list[Tensor], state: Any) -> tuple[Tensor, Any]:
    """The output (rows, 1, hidden) at one position, and the state after it."""
    if isinstance(layer, InputFeedingDecoder):
        words, begin, memory = given
        state = layer.begin(begin) if state is None else state
        fed, state = layer.step(words[:, 0], memory, state)
        return fed.unsqueeze(1), state
    kind = next(k for k in (nn.LSTM, nn.GRU, nn.RNN) if isinstance(layer, k))
    if state is None and len(given) == 2:
        first = given[1].unsqueeze(0)
        state = (first, torch.zeros_like(first)) if kind is nn.LSTM else first
    # As of one that was lowered, and with its state: PyTorch's own class of the layer.
    return cast(tuple[Tensor, Any], kind.forward(cast(Any, layer), given[0], state))


def _rows(state: Any, rows: Tensor) -> Any:
    """The states of `rows`. Tensors (layers, rows, hidden) of PyTorch's recurrent layers, and
    (rows, hidden)."""
    if isinstance(state, Tensor):
        return state.index_select(state.dim() - 2, rows)
    return type(state)(_rows(part, rows) for part in state)


def search_translations(
    decoder: TokenDecoder, sources: Tensor, search: BeamSearch
) -> list[list[int]]:
    """The best translation of each source (sentences, positions) that a beam search finds."""
    count, width, device = len(sources), search.beam_width, sources.device
    if not count:
        return []
    memory = decoder.encode(sources)
    memory = {name: value.repeat_interleave(width, 0) for name, value in memory.items()}
    states: States = {}
    tokens = torch.full((count * width,), search.begin, device=device, dtype=torch.int64)
    # All hypotheses of a sentence begin alike, so the first alone counts.
    scores = torch.full((count, width), -math.inf, device=device)
    scores[:, 0] = 0
    written = torch.zeros((count, width, 0), device=device, dtype=torch.int64)
    best = torch.full((count,), -math.inf, device=device)
    """Of the complete hypotheses of each sentence."""
    best_text = torch.full((count, decoder.positions), search.end, device=device)
    complete = torch.zeros(count, device=device, dtype=torch.int64)
    first_row = torch.arange(count, device=device).unsqueeze(1) * width
    final = _penalty(decoder.positions, search)
    for position in range(decoder.positions):
        logits = decoder.step(tokens, memory, states).float()
        logits[:, list(search.never)] = -math.inf
        steps = torch.log_softmax(logits, 1).view(count, width, -1)
        vocabulary = steps.shape[2]
        if position == decoder.positions - 1:  # the last position must be the end
            ended = scores + steps[:, :, search.end]
            _keep_best(ended, written, position, search, complete < width, best, best_text)
            break
        candidates = (scores.unsqueeze(2) + steps).flatten(1)
        most = min(_CANDIDATES * width, candidates.shape[1])
        values, places = candidates.topk(most, 1)
        origins, chosen = places // vocabulary, places % vocabulary
        ends = (chosen == search.end) & (values > -math.inf)
        # A hypothesis is complete if its end is among the best `beam_width` continuations.
        ended = values.masked_fill(~ends, -math.inf)[:, :width]
        open_ = complete < width
        texts = written.gather(1, origins[:, :width, None].expand(-1, -1, position))
        _keep_best(ended, texts, position, search, open_, best, best_text)
        complete += (ended > -math.inf).sum(1) * open_
        # The others go on: the best that are not at their end, in their order.
        going, kept = values.masked_fill(ends, -math.inf).topk(width, 1)
        origins, chosen = origins.gather(1, kept), chosen.gather(1, kept)
        # No open hypothesis can become better than by ending now at no cost, at full length.
        complete.masked_fill_(going[:, 0] / final <= best, width)
        if not bool((complete < width).any()):
            break
        scores, tokens = going, chosen.flatten()
        rows = (first_row + origins).flatten()
        states = {name: _rows(state, rows) for name, state in states.items()}
        written = written.gather(1, origins[:, :, None].expand(-1, -1, position))
        written = torch.cat([written, chosen.unsqueeze(2)], 2)
    return [_until(row, search.end) for row in best_text.tolist()]


def _penalty(tokens: int, search: BeamSearch) -> float:
    """The divisor for the log-probability of a translation of `tokens` tokens with its end."""
    if search.beam_width == 1:
        return 1.0
    return float(((5 + tokens) / 6) ** search.length_penalty)


def _keep_best(
    ended: Tensor,
    texts: Tensor,
    tokens: int,
    search: BeamSearch,
    open_: Tensor,
    best: Tensor,
    best_text: Tensor,
) -> None:
    """Replace the best translations by better ones among hypotheses (sentences, n) that ended after
    `tokens` tokens with log-probabilities `ended`, of sentences that are open."""
    value, place = (ended / _penalty(tokens + 1, search)).max(1)
    better = (value > best) & open_
    text = texts.gather(1, place[:, None, None].expand(-1, 1, tokens)).squeeze(1)
    best.copy_(torch.where(better, value, best))
    padded = torch.full_like(best_text, search.end)
    padded[:, :tokens] = text
    best_text.copy_(torch.where(better.unsqueeze(1), padded, best_text))


def _until(tokens: list[int], end: int) -> list[int]:
    return tokens[: tokens.index(end)] if end in tokens else tokens
