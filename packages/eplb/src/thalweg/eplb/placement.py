"""Which slot holds which expert, and the tables that a gate and a dispatch read."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from thalweg.eplb._checks import described, require_integer
from thalweg.eplb.slots import LARGEST_SIZE, check_shape, initial_slots
from thalweg.interfaces import ConfigError, shown
from thalweg.interfaces import Placement as BarePlacement

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Placement(BarePlacement):
    """Copies of logical experts in physical slots, for all layers of a layout; checked and read-only.

    Slot p lives on rank p // slots_per_rank. Made by `from_slots`, `from_tables` or `initial`.
    """

    physical_of_logical: NDArray[np.int32]
    """[layers, experts, slots - experts + 1] slots that hold each expert, copy by copy, padded with -1."""

    @classmethod
    def from_slots(
        cls,
        logical_of_physical: NDArray[np.int32],
        num_ranks: int,
        num_experts: int,
        copy_order: NDArray[np.int32] | None = None,
    ) -> Placement:
        """The placement with these experts in its slots.

        logical_of_physical: [layers, slots] logical expert in each slot.
        copy_order: [layers, slots] a permutation of the slots; the copies of an expert are numbered in this order.
            None: by slot.
        Raises ConfigError unless every expert has a slot in every layer, the slots divide over the ranks, and the order
        is such a permutation.
        """
        held = _checked_slots(logical_of_physical, num_ranks, num_experts)
        table = _slots_of_experts(held, num_experts, copy_order)
        for array in (held, table):
            array.setflags(write=False)
        return cls(held, num_ranks, table)

    @classmethod
    def from_tables(
        cls, logical_of_physical: NDArray[np.int32], physical_of_logical: NDArray[np.int32], num_ranks: int
    ) -> Placement:
        """The placement with these two tables, as another one had them; ConfigError unless they agree."""
        table = _as_array("physical_of_logical", physical_of_logical, 3, "[layers, experts, most copies]")
        placement = cls.from_slots(logical_of_physical, num_ranks, table.shape[1])
        listed = table[table >= 0]
        if listed.size == placement.logical_of_physical.size:
            order = listed.reshape(placement.logical_of_physical.shape)
            placement = cls.from_slots(logical_of_physical, num_ranks, table.shape[1], order)
        if not np.array_equal(placement.physical_of_logical, table):
            raise ConfigError("physical_of_logical is not the inverse of logical_of_physical; it must be")
        return placement

    @classmethod
    def initial(cls, num_layers: int, num_experts: int, num_slots: int, num_ranks: int) -> Placement:
        """Every expert in order, then copies from the first expert on: what holds before anything was counted.

        Raises ConfigError for sizes that are none or do not fit each other.
        """
        require_integer("num_layers", num_layers, 1, LARGEST_SIZE)
        check_shape(num_experts, num_slots, num_ranks)
        return cls.from_slots(initial_slots(num_layers, num_experts, num_slots), num_ranks, num_experts)

    @property
    def num_layers(self) -> int:
        return int(self.logical_of_physical.shape[0])

    @property
    def num_slots(self) -> int:
        """Physical slots of a layer, over all ranks."""
        return int(self.logical_of_physical.shape[1])

    @property
    def num_experts(self) -> int:
        return int(self.physical_of_logical.shape[1])

    @property
    def slots_per_rank(self) -> int:
        return self.num_slots // self.num_ranks

    def copies(self) -> NDArray[np.int32]:
        """[layers, experts] number of copies of each expert."""
        copies: NDArray[np.int32] = np.sum(self.physical_of_logical >= 0, axis=2, dtype=np.int32)
        return copies

    def equals(self, other: Placement) -> bool:
        """Whether every table is the same, the order of the copies included; ConfigError for what is no Placement."""
        check_placement("other", other)
        return (
            self.num_ranks == other.num_ranks
            and np.array_equal(self.logical_of_physical, other.logical_of_physical)
            and np.array_equal(self.physical_of_logical, other.physical_of_logical)
        )

    def with_layers(self, other: Placement, chosen: NDArray[np.bool_]) -> Placement:
        """This placement, with the layers where `chosen` [layers] is true taken from the other one.

        Raises ConfigError for a placement of another shape, and a choice that is no array of bools for the layers.
        """
        check_same_shape(self=self, other=other)
        if not isinstance(chosen, np.ndarray) or chosen.dtype != np.bool_ or chosen.shape != (self.num_layers,):
            raise ConfigError(f"chosen is {described(chosen)}; it must be an array of bool, [{self.num_layers}]")
        held = np.where(chosen[:, None], other.logical_of_physical, self.logical_of_physical)
        table = np.where(chosen[:, None, None], other.physical_of_logical, self.physical_of_logical)
        for array in (held, table):
            array.setflags(write=False)
        return Placement(held, self.num_ranks, table)


def check_placement(name: str, value: Any) -> None:
    """ConfigError unless this is a placement of this package, whose tables were checked."""
    if not isinstance(value, Placement):
        raise ConfigError(f"{name} is {shown(value)}; it must be a thalweg.eplb.Placement")


def check_same_shape(**placements: Placement) -> None:
    """ConfigError unless both of two placements, by name, have the same layers, experts and slots on the same ranks."""
    for name, value in placements.items():
        check_placement(name, value)
    placement, other = placements.values()
    for name in ("num_layers", "num_experts", "num_slots", "num_ranks"):
        ours, theirs = getattr(placement, name), getattr(other, name)
        if ours != theirs:
            raise ConfigError(f"{name} of one placement is {ours} and of the other {theirs}; they must agree")


def _checked_slots(slots: NDArray[np.int32], num_ranks: int, num_experts: int) -> NDArray[np.int32]:
    """A contiguous int32 copy of the table, every expert of which has a slot in every layer."""
    slots = _as_array("logical_of_physical", slots, 2, "[layers, slots]")
    check_shape(num_experts, slots.shape[1], num_ranks)
    if slots.min() < 0 or slots.max() >= num_experts:
        found = f"{slots.min()} to {slots.max()}"
        raise ConfigError(f"logical_of_physical holds experts {found}; they must be in 0..{num_experts - 1}")
    held = slots.astype(np.int32, order="C")
    present = np.zeros((len(held), num_experts), bool)
    np.put_along_axis(present, held.astype(np.int64), True, axis=1)
    if not present.all():
        layer, expert = (int(index) for index in np.argwhere(~present)[0])
        raise ConfigError(f"logical_of_physical has no expert {expert} in layer {layer}; every expert needs a slot")
    return held


def _as_array(name: str, values: Any, num_dimensions: int, accepted: str) -> NDArray[Any]:
    """An array or nested sequences as an array; ConfigError unless they are integers, in so many dimensions, not 0."""
    array: NDArray[Any] | None = None
    with suppress(ValueError, OverflowError):  # sequences of several lengths, too large integers
        array = np.asarray(values)
    if array is not None and array.dtype.kind in "iu" and array.ndim == num_dimensions and array.size:
        return array
    found = described(values if array is None else array)
    raise ConfigError(f"{name} is {found}; it must be integers of {accepted}, none of them 0")


def _slots_of_experts(
    held: NDArray[np.int32], num_experts: int, copy_order: NDArray[np.int32] | None
) -> NDArray[np.int32]:
    """[layers, experts, slots - experts + 1] the inverse of `held`, the copies numbered in the given order."""
    num_layers, num_slots = held.shape
    by_slot = np.broadcast_to(np.arange(num_slots, dtype=np.int32), held.shape)
    if copy_order is None:
        copy_order = by_slot
    else:
        copy_order = _as_array("copy_order", copy_order, 2, "[layers, slots]")
        if copy_order.shape != held.shape or not np.array_equal(np.sort(copy_order, axis=1), by_slot):
            raise ConfigError(
                f"copy_order is {described(copy_order)}, no permutation of the slots in every layer; it must be one"
            )
    by_expert = np.argsort(np.take_along_axis(held, copy_order, axis=1), axis=1, kind="stable")
    slots = np.take_along_axis(copy_order, by_expert, axis=1)
    experts = np.take_along_axis(held, slots, axis=1)
    layers = np.arange(num_layers)[:, None]
    is_first = np.diff(experts, axis=1, prepend=-1) != 0
    firsts = np.maximum.accumulate(np.where(is_first, by_slot, 0), axis=1)
    table = np.full((num_layers, num_experts, num_slots - num_experts + 1), -1, np.int32)
    table[layers, experts, by_slot - firsts] = slots
    return table
