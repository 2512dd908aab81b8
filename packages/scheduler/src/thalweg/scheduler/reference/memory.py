"""What sequences own: cache blocks, one state slot, and a draft slot while running."""

from __future__ import annotations

from thalweg.interfaces import Fit, InvariantError
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

    def start(self, sequence: Sequence) -> None:
        """Give it all blocks of its prompt and a state slot; the first chunk already takes everything."""
        sequence.blocks = self.blocks.allocate(sequence.blocks_needed(self._block_size))
        (sequence.state_slot,) = self.state_slots.allocate(1)

    def start_running(self, sequence: Sequence) -> None:
        if self._has_drafts:
            self.draft_slots.take(sequence)

    def needs_a_block(self, sequence: Sequence) -> bool:
        return sequence.blocks_needed(self._block_size) > len(sequence.blocks)

    def grow(self, sequence: Sequence) -> None:
        """Append the block that its next step writes into, if it has none yet. Committed tokens never shrink."""
        missing = sequence.blocks_needed(self._block_size) - len(sequence.blocks)
        if missing > 1:
            raise InvariantError(f"sequence {sequence.sequence_id} lacks {missing} blocks; one per step is possible")
        if missing == 1:
            sequence.blocks += self.blocks.allocate(1)

    def release(self, sequence: Sequence) -> None:
        """Take back whatever it owns; calling twice is harmless."""
        self.draft_slots.give_back(sequence)
        if sequence.state_slot > 0:
            self.state_slots.release([sequence.state_slot])
            sequence.state_slot = -1
        self.blocks.release(sequence.blocks)
        sequence.blocks = []
