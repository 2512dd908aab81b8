"""One training step of a drafter, as Python runs it or replayed as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from tools.train.common.optimiser import Optimiser
from tools.train.drafter.blocks import block_rows
from tools.train.drafter.experts import DenseExperts
from tools.train.drafter.library import Library
from tools.train.drafter.loss import BlockLoss, block_loss
from tools.train.drafter.masters import MasterSource, pieces, whole_masters
from tools.train.drafter.ops import training_ops
from torch import Tensor

from thalweg.model import DraftNetwork, Model, ModelConfig, Numerics, Trace
from thalweg.model.weights import Weights

WARM_UP_STEPS = 3
"""Steps before a graph is recorded: what is allocated or compiled on first use must not be in it."""


class Trainer:
    """The drafter in training: working tensors, masters, and the step that updates both."""

    def __init__(self, config: ModelConfig, masters: Mapping[str, Tensor], model: Model, library: Library) -> None:
        """config: with draft layers; masters: every draft tensor by name; model: the frozen backbone."""
        head = "embed.weight" if config.tie_word_embeddings else "head.weight"
        table = model.parameters["embed.weight"]
        numerics = Numerics("plain", "float32", training_ops())
        weights = Weights(MasterSource(masters, table.device), numerics, trainable=True)
        with table.device:  # the rotary frequencies are made when the network is
            self.network = DraftNetwork(config, weights, numerics, table, model.parameters[head], DenseExperts)
        self._config = config
        self._model = model
        self._library = library
        parts = list(pieces(config, weights.parameters))
        self.optimiser = Optimiser(parts, {part.name: part.value() for part in parts})
        self.balance_rate = torch.zeros((), device=table.device)
        """float32 []: how far a selection bias moves per step; set it before every step."""
        self.figures = torch.zeros(1 + 3 * config.dspark_block_size, device=table.device)
        """Sums over steps since it was last set to 0: loss, acceptance, agreement and confidence by position."""
        self._run: Callable[[], None] = self._step

    def masters(self) -> dict[str, Tensor]:
        """Every draft tensor by checkpoint name, float32."""
        return whole_masters(self._config, self.optimiser.masters(), self.network.parameters)

    def step(self) -> None:
        """Draw a batch, follow its gradient, move the selection biases, add to the figures."""
        self._run()

    def record(self) -> None:
        """From now on replay the step as one CUDA graph. A few steps are made on the way, at the rates as they are."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_STEPS):
                self._step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step()
        self._run = graph.replay

    def _step(self) -> None:
        for leaf in self.network.parameters.values():
            leaf.grad = None
        trace = Trace()
        loss = self.loss(trace)
        torch.autograd.backward(loss.total)
        self.optimiser.step()
        with torch.no_grad():
            self._balance(trace)
            sums = torch.cat([loss.total[None], loss.acceptance, loss.agreement, loss.confidence])
            self.figures += sums.detach()

    def loss(self, trace: Trace | None = None) -> BlockLoss:
        """The loss of a new batch."""
        batch = self._library.draw()
        size = self._config.dspark_block_size
        with torch.no_grad():
            target_logits = self._model.logits(batch.texts.hidden[batch.texts.following(batch.anchors, size).flatten()])
        rows = block_rows(self.network, batch.texts, batch.anchors, trace)
        return block_loss(self.network, rows, batch.texts, batch.anchors, target_logits, batch.is_greedy)

    def _balance(self, trace: Trace) -> None:
        """Raise the selection bias of experts that were chosen less than the mean, lower that of the others."""
        first = self._config.num_hidden_layers
        for block in range(self._config.num_draft_layers):
            bias = self.network.parameters[f"mtp.{block}.ffn.gate.bias"].detach()
            ids = trace["expert_idx", first + block].flatten()
            load = torch.zeros_like(bias).scatter_add_(0, ids, torch.ones_like(ids, dtype=bias.dtype))
            bias += self.balance_rate * torch.sign(load.mean() - load)
