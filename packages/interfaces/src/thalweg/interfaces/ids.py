"""Integer ids that must not be mixed up."""

from typing import NewType

BlockId = NewType("BlockId", int)
"""A block of the paged cache; 0 means none and is never handed out."""

SlotId = NewType("SlotId", int)
"""A state slot; 0 is the padding slot and is never handed out."""

SequenceId = NewType("SequenceId", int)
"""A sequence of one scheduler, counted from 0 and never reused."""

Rank = NewType("Rank", int)
"""A process within a group."""
