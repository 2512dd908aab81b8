"""Geometries that many tests are about."""

from thalweg.cache import CacheGeometry

RELEASED = CacheGeometry(
    num_layers=40,
    compress_ratios=(0, 0) + (2,) * 18 + (1,) * 20,
    kv_source_layers=(2, 8, 14, 20),
    index_key_source_layers=(2, 8, 14, 20),
    head_dim=512,
    index_head_dim=128,
    window_size=128,
    num_draft_layers=3,
    draft_length=5,
)
"""Of the released model."""
TINY = CacheGeometry(
    num_layers=7,
    compress_ratios=(0, 0, 2, 2, 1, 1, 1),
    kv_source_layers=(2, 4),
    index_key_source_layers=(2, 4),
    head_dim=64,
    index_head_dim=32,
    window_size=16,
    num_draft_layers=1,
    draft_length=3,
    tokens_per_block=16,
)
"""With every kind of layer, in a size that tests can fill."""
