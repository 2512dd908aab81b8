"""Every sampling op, called once on a small step of rows that differ in all parameters."""

from __future__ import annotations

import torch
from torch import Tensor

from thalweg.kernels import bind
from thalweg.kernels.reference import coupled, filters, penalties, random_numbers, sampling, vocabulary_rows

SAMPLING_MODULES = (coupled, filters, penalties, random_numbers, sampling, vocabulary_rows)
WRITTEN = ("logits", "output_counts", "in_prompt")
ops = bind("cpu", batch_invariant=True)


def sampling_step(device: torch.device | str, *, num_rows: int = 24, vocabulary: int = 40) -> dict[str, Tensor]:
    """Rows with ties, with penalties and without, greedy and drawn, filtered by each filter and by all."""
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(num_rows, vocabulary, generator=generator) * 3
    logits[1::3] = logits[1::3].round()  # ties
    slots = 6
    tensors = {
        "logits": logits,
        "temperature": torch.tensor([0.7, 1.0, 0.0, 1.5])[torch.arange(num_rows) % 4],
        "top_p": torch.tensor([1.0, 0.9, 0.5])[torch.arange(num_rows) % 3],
        "top_k": torch.tensor([-1, 7, 3, -1, 100_000])[torch.arange(num_rows) % 5],
        "min_p": torch.tensor([0.0, 0.05, 0.0, 0.3, 0.0, 0.0, 1.0])[torch.arange(num_rows) % 7],
        "seeds": torch.arange(num_rows) * 7919 - 5,
        "positions": torch.arange(num_rows) * 11,
        "output_counts": torch.randint(0, 3, (slots, vocabulary), generator=generator, dtype=torch.int32),
        "in_prompt": torch.rand(slots, vocabulary, generator=generator) < 0.2,
        "slots": torch.arange(num_rows) % slots,
        "step_ids": torch.randint(-1, vocabulary, (num_rows, 3), generator=generator),
        "repetition": torch.tensor([1.0, 1.3, 0.8])[torch.arange(num_rows) % 3],
        "presence": torch.tensor([0.0, 0.6])[torch.arange(num_rows) % 2],
        "frequency": torch.tensor([0.0, 0.0, 0.4, -0.3])[torch.arange(num_rows) % 4],
        "reset_slots": torch.tensor([3, 0, 5]),
        "prompt_ids": torch.tensor([4, 4, 9, 1, vocabulary + 2]),
        "prompt_rows": torch.tensor([0, 2, 2, 1, 0]),
        "output_ids": torch.tensor([7, 7, 2]),
        "output_rows": torch.tensor([2, 2, 0]),
        "counted_slots": torch.tensor([1, 0, 2]),
        "counted_ids": torch.tensor([[5, 5], [6, 6], [-1, 8]]),
        "bias_rows": torch.tensor([0, 0, num_rows - 1]),
        "bias_ids": torch.tensor([2, 3, 4]),
        "biases": torch.tensor([5.0, -5.0, 100.0]),
        "forbidden_rows": torch.tensor([1, 1, 2]) % num_rows,
        "forbidden_ids": torch.tensor([0, 0, 5]),
    }
    tensors["output_counts"][0], tensors["in_prompt"][0] = 0, False
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def run_sampling_step(given: dict[str, Tensor]) -> list[Tensor]:
    """Every result, and the tensors that were written to."""
    g = {name: tensor.clone() if name in WRITTEN else tensor for name, tensor in given.items()}
    tables = g["output_counts"], g["in_prompt"]
    ops.reset_token_counts(
        *tables, g["reset_slots"], g["prompt_ids"], g["prompt_rows"], g["output_ids"], g["output_rows"]
    )
    ops.count_tokens(g["output_counts"], g["counted_slots"], g["counted_ids"])
    logits = g["logits"]
    ops.forbid_tokens(logits, g["forbidden_rows"], g["forbidden_ids"])
    ops.add_biases(logits, g["bias_rows"], g["bias_ids"], g["biases"])
    ops.apply_penalties(logits, *tables, g["slots"], g["step_ids"], g["repetition"], g["presence"], g["frequency"])
    largest = logits.clone()
    ops.keep_largest(largest, 9)
    filters = g["top_p"], g["top_k"], g["min_p"]
    streams = g["seeds"], g["positions"]
    logprobs = ops.filtered_logprobs(logits, g["temperature"], *filters)
    return [
        ops.argmax_lowest(logits),
        ops.log_softmax(logits),
        ops.filter_mask(logits, *filters),
        logprobs,
        ops.sample_tokens(logits, g["temperature"], *filters, *streams),
        ops.sample_tokens(largest, g["temperature"], *filters, *streams),
        ops.coupled_tokens(logits, g["temperature"], *filters, *streams),
        ops.draw(logprobs.exp(), ops.uniform(*streams)),
        ops.coupled_draw(logprobs.exp(), *streams),
        ops.splitmix_hash(g["seeds"]),
        ops.clear_broken_rows(logits),
        largest,
        logits,
        *tables,
    ]
