"""The name of what stored bytes mean: an object is valid only under the fingerprint it was stored with."""

from __future__ import annotations

import hashlib
import json

from thalweg.cache.geometry import CacheGeometry
from thalweg.cache.layout import LAYOUT_VERSION
from thalweg.interfaces import ConfigError

FORMAT_DOMAIN = "thalweg stored cache format"
"""Keeps this digest apart from any other over the same text."""


def format_fingerprint(geometry: CacheGeometry) -> bytes:
    """32 bytes (SHA-256) that differ wherever a stored block or producer window could mean something else.

    Engines that differ only in `extra_ring` or in their drafter's layers exchange objects: exported windows have the
    ring length without the extra, and nothing of a drafter is stored. Raises ConfigError without a `model_key`: two
    models of the same shape would take each other's objects.
    """
    if not geometry.model_key:
        raise ConfigError("model_key is ''; a store needs the model's revision and rotary parameters in it")
    facts = {
        "version": LAYOUT_VERSION,
        "model_key": geometry.model_key,
        "compress_ratios": geometry.compress_ratios,
        "kv_source_layers": geometry.kv_source_layers,
        "index_key_source_layers": geometry.index_key_source_layers,
        "head_dim": geometry.head_dim,
        "index_head_dim": geometry.index_head_dim,
        "window_size": geometry.window_size,
        "ring_length": geometry.ring_length - geometry.extra_ring,
        "num_stored_layers": geometry.num_stored_layers,
        "tokens_per_block": geometry.tokens_per_block,
        "formats": [geometry.window_format.name, geometry.main_format.name, geometry.index_format.name],
    }
    text = json.dumps([FORMAT_DOMAIN, facts], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).digest()
