"""The backend that tests run on: the CPU, or the one that the variable THALWEG_TEST_BACKEND names.

Models and drafters that tests make up live on the host all the same, so the ban on waiting for the device is lifted for
them; what surrounds them is on the device.
"""

from __future__ import annotations

import json
import os
from typing import Any

import torch

from thalweg.interfaces import Backend, Drafter, DraftRows, DraftSampler, TargetRows, load_backend
from thalweg.kernels import BoundOps, Registry, bind
from thalweg.model import Model, NativeModel
from thalweg.tiny import checkpoint_path

_WIDTHS = (
    "hidden_size",
    "num_attention_heads",
    "head_dim",
    "qk_rope_head_dim",
    "q_lora_rank",
    "o_lora_rank",
    "o_groups",
    "n_routed_experts",
    "moe_intermediate_size",
    "sliding_window",
    "index_n_heads",
    "index_head_dim",
    "index_topk",
    "candidate_topk_blocks",
    "engram_n_heads",
    "engram_head_dim",
)

NAME = os.environ.get("THALWEG_TEST_BACKEND", "cpu")
IS_CPU = NAME == "cpu"


def make_backend() -> Backend:
    """A new one."""
    backend = load_backend(NAME)
    backend.guard.enabled = IS_CPU
    return backend


def bind_ops(backend: Backend, *, batch_invariant: bool, registry: Registry | None) -> BoundOps:
    """Its ops. On a device those whose bits do not depend on the number of rows: tests compare runs of many batches."""
    return bind(NAME, None, batch_invariant or not IS_CPU, architecture=backend.architecture, registry=registry)


def engine_options(**on_cpu: Any) -> dict[str, Any]:
    """Options of an engine, those that only the CPU has included there."""
    return on_cpu if IS_CPU else {"backend": NAME, "batch_invariant": True, "sync_guard": False}


def widths() -> dict[str, Any]:
    """Keys of a small config that its kernels need."""
    if IS_CPU:
        return {}
    text = json.loads((checkpoint_path() / "config.json").read_text())["text_config"]
    return {name: text[name] for name in _WIDTHS}


def load_model(path: str) -> Model | NativeModel:
    """The model of a checkpoint as tests of the engine want it: fast."""
    if IS_CPU:
        return Model.load(path, mode="plain", arithmetic="float32")
    backend = make_backend()
    ops = bind_ops(backend, batch_invariant=False, registry=None)
    return NativeModel.load(path, ops, device=backend.device)


def on_device(drafter: Any) -> Any:
    """A drafter of the host for the backend."""
    return drafter if IS_CPU or drafter is None else HostDrafter(drafter)


class HostDrafter:
    """Shows a drafter of the host copies of what is on the device, and takes back what it drafts."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)

    def observe(self, rows: TargetRows) -> None:
        features = None if rows.features is None else rows.features.cpu()
        self._drafter.observe(TargetRows(features, rows.positions.cpu(), rows.store_slots.cpu()))

    def propose(self, rows: DraftRows, sampler: DraftSampler) -> tuple[torch.Tensor, torch.Tensor]:
        device = rows.positions.device
        copies = (rows.anchor_token_ids.cpu(), rows.positions.cpu(), rows.state_slots.cpu())
        drafts, confidences = self._drafter.propose(DraftRows(rows.sequence_ids, *copies), HostSampler(sampler, device))
        return drafts.to(device), confidences.to(device)


class HostSampler:
    """A sampler of the device for a drafter of the host."""

    def __init__(self, sampler: DraftSampler, device: torch.device) -> None:
        self._sampler = sampler
        self._device = device

    def sample(self, place: int, logits: torch.Tensor) -> torch.Tensor:
        drawn: torch.Tensor = self._sampler.sample(place, logits.to(self._device))
        return drawn.cpu()
