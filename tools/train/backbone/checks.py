"""Comparisons of device code with plain tensors, for a device that tests cannot run on."""

from __future__ import annotations

import torch
from tools.train.backbone.attention import dense_attention, listed_attention
from tools.train.backbone.indexer import listed, top_lists
from tools.train.backbone.products import wide_product
from tools.train.backbone.sinkhorn import sinkhorn

_BATCH, _LENGTH, _HEADS, _DIM, _WINDOW = 2, 256, 8, 64, 64


def check_kernels(device: torch.device) -> None:
    """Print the largest differences of outputs and gradients."""
    generator = torch.Generator().manual_seed(0)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    logits, weights = 2 * noise(5000, 4, 4), noise(5000, 4, 4)
    results = []
    for place in (torch.device("cpu"), device):
        x = logits.to(place).detach().clone().requires_grad_()
        carry = sinkhorn(x, 20, 1e-6)
        (carry * weights.to(place)).sum().backward()  # type: ignore[no-untyped-call]
        results.append((carry.detach().cpu(), x.grad.cpu() if x.grad is not None else None))
    _report("sinkhorn", results)

    x, weight = noise(4096, 1024).bfloat16(), noise(24, 1024).bfloat16()
    products = [wide_product(x.to(place), weight.to(place)).cpu() for place in (torch.device("cpu"), device)]
    _report("wide product", [(product, None) for product in products])

    queries = noise(_BATCH, _LENGTH, _HEADS, _DIM).to(device)
    keys, entries = noise(_BATCH, _LENGTH, _DIM).to(device), noise(_BATCH, _LENGTH, _DIM).to(device)
    sink = noise(_HEADS).to(device)
    lists = top_lists(noise(_BATCH, _LENGTH, _LENGTH).to(device), 64)
    results = []
    for attend, selection in ((dense_attention, listed(lists, _LENGTH)), (listed_attention, lists)):
        leaf = entries.clone().requires_grad_()
        output = attend(queries, keys, leaf, selection, sink, _WINDOW)
        output.square().sum().backward()  # type: ignore[no-untyped-call]
        results.append((output.detach().cpu(), leaf.grad.cpu() if leaf.grad is not None else None))
    _report("dense against listed attention", results)


def _report(name: str, results: list[tuple[torch.Tensor, torch.Tensor | None]]) -> None:
    (first, first_gradient), (second, second_gradient) = results
    text = f"   {name}: outputs differ by {(first - second).abs().max():.2e} of {first.abs().max():.2f}"
    if first_gradient is not None and second_gradient is not None:
        largest = (first_gradient - second_gradient).abs().max()
        text += f", gradients by {largest:.2e} of {first_gradient.abs().max():.2f}"
    print(text, flush=True)
