"""What sequences own: cache blocks, one state slot, and a draft slot while running."""

from __future__ import annotations

from thalweg.interfaces import CapacityError, Fit, InvariantError
from thalweg.scheduler.config import Sizes
from thalweg.scheduler.reference.block_pool import BlockPool
from thalweg.scheduler.reference.draft_slots import DraftSlots
from thalweg.scheduler.reference.sequence import Sequence


class Memory:
    """The three pools, and the few ways in which a sequence gains and loses from them."""

    def __init__(self, sizes: Sizes, max_num_seqs: int) -> None:
        self.blocks = BlockPool(sizes.num_blocks)
        self.state_slots = BlockPool(sizes.num_state_slots)
        self.draft_slots = DraftSlots(max_num_seqs)
        self._block_size = sizes.block_size
        self._has_drafts = sizes.draft_length > 0

    @property
    def usage(self) -> float:
        """Fraction of the blocks in use; the null block counts."""
        capacity = self.blocks.capacity
        return (capacity - self.blocks.num_free) / capacity

    def needs_more_than_all(self, sequence: Sequence) -> bool:
        """Even an empty pool could not hold it."""
        return sequence.blocks_needed(self._block_size) >= self.blocks.capacity

    def can_start(self, sequence: Sequence) -> bool:
        """Blocks for the whole prompt and a state slot are free now."""
        enough_blocks = self.blocks.can_allocate(sequence.blocks_needed(self._block_size)) is Fit.OK
        return enough_blocks and self.state_slots.num_free > 0

    def start(self, sequence: Sequence) -> bool:
        """Give it all blocks of its prompt and a state slot; the first chunk already takes everything.

        False, and nothing is taken, when another thread emptied a pool since `can_start`.
        """
        blocks = _take(self.blocks, sequence.blocks_needed(self._block_size))
        slots = _take(self.state_slots, 1)
        if blocks and slots:
            sequence.blocks, (sequence.state_slot,) = blocks, slots
            return True
        self.blocks.release(blocks)
        self.state_slots.release(slots)
        return False

    def start_running(self, sequence: Sequence) -> None:
        if self._has_drafts:
            self.draft_slots.take(sequence)

    def grow(self, sequence: Sequence) -> bool:
        """Append the block that its next step writes into, if it lacks one. False when none is free.

        Blocks are never given back here: committed tokens only become more.
        """
        missing = sequence.blocks_needed(self._block_size) - len(sequence.blocks)
        if missing > 1:
            raise InvariantError(f"sequence {sequence.sequence_id} lacks {missing} blocks; one per step is possible")
        if missing == 1:
            sequence.blocks += (block := _take(self.blocks, 1))
            return bool(block)
        return True

    def release(self, sequence: Sequence) -> None:
        """Take back whatever it owns; calling twice is harmless."""
        self.draft_slots.give_back(sequence)
        if sequence.state_slot > 0:
            self.state_slots.release([sequence.state_slot])
            sequence.state_slot = -1
        self.blocks.release(sequence.blocks)
        sequence.blocks = []


def _take(pool: BlockPool, count: int) -> list[int]:
    """The ids, or none when fewer are free."""
    try:
        return pool.allocate(count)
    except CapacityError:
        return []
