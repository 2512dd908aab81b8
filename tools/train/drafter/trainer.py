"""One training step of a drafter, as Python runs it or replayed as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from tools.train.backbone.experts import DenseExperts
from tools.train.backbone.parameters import MasterWeights
from tools.train.common.optimiser import Optimiser
from tools.train.drafter.blocks import block_rows
from tools.train.drafter.library import Library
from tools.train.drafter.loss import BlockLoss, block_loss
from tools.train.drafter.ops import DraftOps
from tools.train.drafter.recording import recorded
from tools.train.drafter.settings import draft_specs
from torch import Tensor

from thalweg.model import DraftNetwork, Model, ModelConfig, Numerics


class Trainer:
    """The drafter in training: working tensors, masters, and the step that updates both."""

    def __init__(self, config: ModelConfig, masters: Mapping[str, Tensor], model: Model, library: Library) -> None:
        """config: with draft layers; masters: float32, every draft tensor by name; model: the frozen backbone."""
        head = "embed.weight" if config.tie_word_embeddings else "head.weight"
        table = model.parameters["embed.weight"]
        on_device = {name: value.to(device=table.device, dtype=torch.float32) for name, value in masters.items()}
        self._ops = DraftOps()
        self._weights = MasterWeights(draft_specs(config), on_device, torch.float32)
        with table.device:  # the rotary frequencies are made when the network is
            self.network = DraftNetwork(
                config,
                self._weights,
                Numerics("plain", "float32", self._ops),
                table,
                model.parameters[head],
                DenseExperts,
            )
        self._config = config
        self._model = model
        self._library = library
        self.optimiser = Optimiser(self._weights.pieces, on_device)
        self.balance_rate = torch.zeros((), device=table.device)
        """float32 []: how far a selection bias moves per step; set it before every step."""
        self.figures = torch.zeros(1 + 3 * config.dspark_block_size, device=table.device)
        """Sums over steps since it was last set to 0: loss, acceptance, agreement and confidence by position."""
        self._run: Callable[[], None] = self.advance

    def masters(self) -> dict[str, Tensor]:
        """Every draft tensor by checkpoint name, float32."""
        biases = self._weights.biases
        # Images are routed as text is.
        return self.optimiser.masters() | {name: biases[name.removesuffix("_vl")].clone() for name in biases}

    def step(self) -> None:
        """Draw a batch, follow its gradient, move the selection biases, add to the figures."""
        self._library.shuffle()
        self._run()

    def record(self) -> None:
        """From now on replay the step as one CUDA graph. A few steps are made on the way, at the rates as they are."""
        self._library.shuffle()
        self._run = recorded(self.advance, "training steps")

    def advance(self) -> None:
        """The step on what the library drew last. Neither reads back nor draws, so that it can be recorded."""
        for leaf in self.network.parameters.values():
            leaf.grad = None
        self._ops.loads.clear()
        loss = self._loss()
        torch.autograd.backward(loss.total)
        self.optimiser.step()
        with torch.no_grad():
            for bias, load in self._ops.loads:
                bias += self.balance_rate * torch.sign(load.mean() - load)
            self.figures += torch.cat([loss.total[None], loss.acceptance, loss.agreement, loss.confidence])

    def _loss(self) -> BlockLoss:
        batch, size = self._library.batch(), self._config.dspark_block_size
        with torch.no_grad():
            target_logits = self._model.logits(batch.texts.hidden[batch.texts.following(batch.anchors, size).flatten()])
        rows = block_rows(self.network, batch.texts, batch.anchors)
        return block_loss(self.network, rows, batch.texts, batch.anchors, target_logits, batch.is_greedy)
