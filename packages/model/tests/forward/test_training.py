"""`plain` mode is differentiable over whole sequences."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from thalweg.interfaces import ConfigError
from thalweg.model import ForwardBatch, Model, SequenceMemory, small_config, write_random_checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("random")
    write_random_checkpoint(directory, small_config(), seed=3)
    return directory


def loss_of(model: Model, sequences: list[torch.Tensor]) -> torch.Tensor:
    logits = torch.cat([rows[:-1] for rows in model.forward_sequences(sequences)])
    return torch.nn.functional.cross_entropy(logits, torch.cat([tokens[1:] for tokens in sequences]))


def draw(model: Model, lengths: list[int]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(3, model.config.vocab_size, (length,), generator=generator) for length in lengths]


@pytest.mark.parametrize("arithmetic", ["exact", "float32"])
def test_gradients_reach_every_tensor_that_is_not_for_selection(checkpoint: Path, arithmetic: str) -> None:
    model = Model.load(checkpoint, "plain", arithmetic, trainable=True)
    loss_of(model, draw(model, [70, 41])).backward()
    selection_only = {
        name for name in model.parameters if ".indexer." in name or name.endswith(("gate.bias", "gate.bias_vl"))
    }
    without = {name for name, tensor in model.parameters.items() if tensor.grad is None or not tensor.grad.any()}
    assert selection_only
    assert without == selection_only
    assert all(tensor.grad.isfinite().all() for tensor in model.parameters.values() if tensor.grad is not None)


def test_a_gradient_step_lowers_the_loss(checkpoint: Path) -> None:
    model = Model.load(checkpoint, "plain", "float32", trainable=True)
    sequences = draw(model, [48, 33])
    before = loss_of(model, sequences)
    before.backward()
    with torch.no_grad():
        for tensor in model.parameters.values():
            if tensor.grad is not None:
                tensor -= 0.05 * tensor.grad / (tensor.grad.norm() + 1e-9) * tensor.norm()
    assert loss_of(model, sequences) < before


@pytest.mark.parametrize(
    "name", ["layers.0.hc_attn_fn", "layers.2.attn.attn_sink", "layers.2.attn.compressor.norm.weight", "embed.weight"]
)
def test_a_gradient_is_the_slope(name: str, checkpoint: Path) -> None:
    model = Model.load(checkpoint, "plain", "exact", trainable=True)
    tokens = draw(model, [24])[0]
    memory = SequenceMemory(model.config, [24], model.numerics)
    ngrams = torch.from_numpy(model.vocabulary.ngram_ids(tokens.numpy(), model.config.engram_max_ngram_size))
    batch = ForwardBatch(tokens, memory.positions, ngrams)
    weights = torch.linspace(-1, 1, model.config.hidden_size, dtype=torch.float64)

    def value() -> torch.Tensor:
        return (model.forward(batch, memory) @ weights).sum()

    tensor = model.parameters[name]
    value().backward()
    direction, step = tensor.grad / tensor.grad.norm(), 1e-6
    with torch.no_grad():
        tensor += step * direction
        above = value()
        tensor -= 2 * step * direction
        below = value()
    assert float(above - below) / (2 * step) == pytest.approx(float(tensor.grad.norm()), rel=1e-4)


def test_quant_mode_refuses_to_train(checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match="trainable is True in mode 'quant'"):
        Model.load(checkpoint, "quant", trainable=True)
