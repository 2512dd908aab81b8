"""An index of stored prefixes: a forest of chunks, bounded, with lifetimes, pins, and eviction from the leaves."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from thalweg.interfaces import ConfigError, InvariantError, PrefixMatch, shown


@dataclass(slots=True)
class _Node:
    parent: bytes | None
    expires: float
    last_use: int
    has_state: bool = False
    num_children: int = 0


class LocalPrefixIndex:
    """The index of one process; satisfies `interfaces.PrefixIndex`.

    capacity: chunks that it keeps; beyond it the leaf that was used longest ago goes first, never a pinned one. A
    parent lives as long as any of its children. ttl_classes: name -> seconds after `publish`. clock: monotonic seconds.
    Raises ConfigError for a capacity below 1 or a lifetime that is not above 0.
    """

    def __init__(
        self, capacity: int, ttl_classes: Mapping[str, float], clock: Callable[[], float] = time.monotonic
    ) -> None:
        if capacity < 1:
            raise ConfigError(f"capacity is {capacity}; at least 1 chunk is needed")
        for name, seconds in ttl_classes.items():
            if not seconds > 0:
                raise ConfigError(f"ttl_classes[{name!r}] is {shown(seconds)}; a lifetime is above 0 seconds")
        self._capacity, self._lifetimes, self._clock = capacity, dict(ttl_classes), clock
        self._nodes: dict[bytes, _Node] = {}
        self._pins: dict[bytes, int] = {}
        self._leaves: list[tuple[int, bytes]] = []
        self._uses = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._nodes)

    def match(self, chunk_keys: Sequence[bytes]) -> PrefixMatch:
        """See `interfaces.PrefixIndex.match`."""
        with self._lock:
            count = self._count_present(chunk_keys)
            self._use(chunk_keys[:count])
            anchors = (end for end, key in enumerate(chunk_keys[:count], 1) if self._nodes[key].has_state)
            return PrefixMatch(count, tuple(anchors))

    def publish(self, chunk_keys: Sequence[bytes], anchors: Collection[int] = (), ttl_class: str = "default") -> None:
        """See `interfaces.PrefixIndex.publish`."""
        if ttl_class not in self._lifetimes:
            raise ConfigError(f"ttl_class is {shown(ttl_class)}; this index has {', '.join(sorted(self._lifetimes))}")
        if any(not 1 <= anchor <= len(chunk_keys) for anchor in anchors):
            raise ConfigError(f"anchors are {shown(list(anchors))}; the chain has 1..{len(chunk_keys)} chunks")
        with self._lock:
            expires = self._clock() + self._lifetimes[ttl_class]
            parent: bytes | None = None
            for end, key in enumerate(chunk_keys, 1):
                node = self._nodes.get(key)
                if node is None:
                    node = self._nodes[key] = _Node(parent, expires, 0)
                    if parent is not None:
                        self._nodes[parent].num_children += 1
                node.expires = max(node.expires, expires)
                node.has_state |= end in anchors
                parent = key
            self._use(chunk_keys)
            self._evict()

    def forget(self, chunk_keys: Sequence[bytes]) -> None:
        """See `interfaces.PrefixIndex.forget`. What continues a forgotten chunk is dropped with it, pinned or not."""
        with self._lock:
            gone = {key for key in chunk_keys if key in self._nodes}
            if not gone:
                return
            self._drop_with_descendants(gone)

    def pin(self, chunk_keys: Sequence[bytes]) -> int:
        """See `interfaces.PrefixIndex.pin`."""
        with self._lock:
            count = self._count_present(chunk_keys)
            for key in chunk_keys[:count]:
                self._pins[key] = self._pins.get(key, 0) + 1
            return count

    def release(self, chunk_keys: Sequence[bytes]) -> None:
        """See `interfaces.PrefixIndex.release`. A pin outlives the chunk if that is forgotten meanwhile."""
        with self._lock:
            for key in chunk_keys:
                if key not in self._pins:
                    raise InvariantError(f"chunk {key.hex()} is released, and nobody pinned it")
                self._pins[key] -= 1
                if not self._pins[key]:
                    del self._pins[key]
                    if (node := self._nodes.get(key)) is not None:
                        self._note_leaf(key, node)
            self._evict()

    def expire(self) -> int:
        """Drop what has outlived its class and is not pinned; how many chunks went."""
        with self._lock:
            now, before = self._clock(), len(self._nodes)
            # Parents live at least as long as children, so that leaves first finds everything.
            for key, node in sorted(self._nodes.items(), key=lambda item: item[1].expires):
                if node.expires > now:
                    break
                self._drop_branch_from(key, now)
            return before - len(self._nodes)

    def _drop_branch_from(self, leaf: bytes, now: float) -> None:
        key: bytes | None = leaf
        while key is not None and (node := self._nodes.get(key)) is not None:
            if node.num_children or key in self._pins or node.expires > now:
                return
            self._remove(key)
            key = node.parent

    def _drop_with_descendants(self, gone: set[bytes]) -> None:
        children: dict[bytes, list[bytes]] = {}
        for key, node in self._nodes.items():
            if node.parent is not None:
                children.setdefault(node.parent, []).append(key)
        waiting, order = list(gone), dict[bytes, None]()
        while waiting:
            key = waiting.pop()
            if key not in order:
                order[key] = None
                waiting += children.get(key, [])
        for key in order:
            node = self._nodes.pop(key)
            if node.parent is not None and (parent := self._nodes.get(node.parent)) is not None:
                parent.num_children -= 1
                self._note_leaf(node.parent, parent)

    def _count_present(self, chunk_keys: Sequence[bytes]) -> int:
        now = self._clock()
        for count, key in enumerate(chunk_keys):
            node = self._nodes.get(key)
            if node is None or (node.expires <= now and key not in self._pins):
                return count
        return len(chunk_keys)

    def _use(self, chunk_keys: Sequence[bytes]) -> None:
        self._uses += 1
        for key in chunk_keys:
            node = self._nodes[key]
            node.last_use = self._uses
            self._note_leaf(key, node)

    def _note_leaf(self, key: bytes, node: _Node) -> None:
        """Offer a leaf for eviction. Earlier offers stay in the heap until they come up, and are then out of date."""
        if node.num_children == 0 and key not in self._pins:
            heapq.heappush(self._leaves, (node.last_use, key))
        if len(self._leaves) > 2 * len(self._nodes) + 64:
            fresh = ((node.last_use, key) for key, node in self._nodes.items() if not node.num_children)
            self._leaves = [*fresh]
            heapq.heapify(self._leaves)

    def _evict(self) -> None:
        while len(self._nodes) > self._capacity and self._leaves:
            last_use, key = heapq.heappop(self._leaves)
            node = self._nodes.get(key)
            if node is not None and node.last_use == last_use and not node.num_children and key not in self._pins:
                self._remove(key)

    def _remove(self, key: bytes) -> None:
        node = self._nodes.pop(key)
        if node.parent is not None:
            parent = self._nodes[node.parent]
            parent.num_children -= 1
            self._note_leaf(node.parent, parent)
