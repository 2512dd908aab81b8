"""What sequences own: cache blocks, one state slot, and a draft slot while running."""

from __future__ import annotations

from thalweg.interfaces import CapacityError, Fit, InvariantError
from thalweg.scheduler.config import Sizes
from thalweg.scheduler.reference.block_pool import BlockPool
from thalweg.scheduler.reference.copies import CopyList, ForkCopies
from thalweg.scheduler.reference.draft_slots import DraftSlots
from thalweg.scheduler.reference.sequence import Sequence


class Memory:
    """The three pools, and the few ways in which a sequence gains and loses from them."""

    def __init__(self, sizes: Sizes, max_num_seqs: int) -> None:
        self.blocks = BlockPool(sizes.num_blocks)
        self.state_slots = BlockPool(sizes.num_state_slots)
        self.draft_slots = DraftSlots(max_num_seqs)
        self.copies = CopyList(self.blocks, self.state_slots)
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
        return self._can_take(sequence.blocks_needed(self._block_size))

    def start(self, sequence: Sequence) -> bool:
        """Give it all blocks of its prompt and a state slot; the first chunk already takes everything.

        False, and nothing is taken, when another thread emptied a pool since `can_start`.
        """
        taken = self._take(sequence.blocks_needed(self._block_size))
        if taken is None:
            return False
        sequence.blocks, sequence.state_slot = taken
        return True

    def share(self, parent: Sequence, child: Sequence) -> bool:
        """Give a child, which is as far as its parent, the parent's full blocks and memory of its own for the rest.

        The state slot and a partly filled block are copied by the next plan. False, and nothing is taken, when memory
        is short.
        """
        num_full = parent.num_computed // self._block_size
        num_own = child.blocks_needed(self._block_size) - num_full
        if not self._can_take(num_own) or (taken := self._take(num_own)) is None:
            return False
        own_blocks, child.state_slot = taken
        self.blocks.pin(parent.blocks[:num_full])
        child.blocks = parent.blocks[:num_full] + own_blocks
        # A parent that is itself a child of the same moment holds nothing yet: both copy from where it came.
        origin = self.copies.origin(parent)
        source_slot = origin.state_slot[0] if origin else parent.state_slot
        block = None
        if parent.num_computed % self._block_size:
            source_block = origin.block[0] if origin and origin.block else parent.blocks[num_full]
            block = (source_block, own_blocks[0])
        self.copies.add(child, ForkCopies((source_slot, child.state_slot), block))
        return True

    def start_running(self, sequence: Sequence) -> None:
        if self._has_drafts:
            self.draft_slots.take(sequence)

    def fit(self, sequence: Sequence) -> bool:
        """Give it exactly the blocks that its next step needs: one more, or fewer. False when none is free.

        Fewer are needed when a step in flight kept less than was reserved for it.
        """
        needed = sequence.blocks_needed(self._block_size)
        missing = needed - len(sequence.blocks)
        if missing > 1:
            raise InvariantError(f"sequence {sequence.sequence_id} lacks {missing} blocks; one per step is possible")
        if missing == 1:
            sequence.blocks += (block := _take(self.blocks, 1))
            return bool(block)
        self.blocks.release(sequence.blocks[needed:])
        del sequence.blocks[needed:]
        return True

    def release(self, sequence: Sequence) -> None:
        """Take back whatever it owns; calling twice is harmless."""
        self.copies.cancel(sequence)
        self.draft_slots.give_back(sequence)
        if sequence.state_slot > 0:
            self.state_slots.release([sequence.state_slot])
            sequence.state_slot = -1
        self.blocks.release(sequence.blocks)
        sequence.blocks = []

    def _can_take(self, num_blocks: int) -> bool:
        return self.blocks.can_allocate(num_blocks) is Fit.OK and self.state_slots.num_free > 0

    def _take(self, num_blocks: int) -> tuple[list[int], int] | None:
        """Blocks and a state slot, or nothing at all."""
        blocks = _take(self.blocks, num_blocks)
        slots = _take(self.state_slots, 1)
        if len(blocks) == num_blocks and slots:
            return blocks, slots[0]
        self.blocks.release(blocks)
        self.state_slots.release(slots)
        return None


def _take(pool: BlockPool, count: int) -> list[int]:
    """The ids, or none when fewer are free."""
    try:
        return pool.allocate(count)
    except CapacityError:
        return []
