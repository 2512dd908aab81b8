"""Reuse of prefixes: keys of chunks, an index of what is stored, and stores in memory and in files."""

from thalweg.cache.store.file_store import FileStore, FileStoreCounts
from thalweg.cache.store.hits import Hit, HitRule, find_prefix
from thalweg.cache.store.keys import CHUNK_TOKENS, ImageSpan, KeySpace, block_key, state_key
from thalweg.cache.store.memory_store import MemoryStore
from thalweg.cache.store.operations import PruneReport, StoreSummary, VerifyReport, prune, stat, verify
from thalweg.cache.store.prefix_index import LocalPrefixIndex

__all__ = [
    "CHUNK_TOKENS",
    "FileStore",
    "FileStoreCounts",
    "Hit",
    "HitRule",
    "ImageSpan",
    "KeySpace",
    "LocalPrefixIndex",
    "MemoryStore",
    "PruneReport",
    "StoreSummary",
    "VerifyReport",
    "block_key",
    "find_prefix",
    "prune",
    "stat",
    "state_key",
    "verify",
]
