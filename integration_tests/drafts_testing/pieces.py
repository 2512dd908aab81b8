"""Prompts in pieces of a size that a test chooses."""

from __future__ import annotations

from typing import Any


def cut_prompts(scheduler: Any, size: int) -> None:
    """End a piece of every prompt at each multiple, through the checkpoints that a store would ask for."""
    add = scheduler.add
    scheduler.add = lambda ids, **rest: add(ids, **rest, checkpoints=tuple(range(size, len(ids), size)))
