"""How products are shared out among the processors of a device: no device is needed to decide it."""

from __future__ import annotations

import pytest

from thalweg.kernels.sm90.fp8_linear import streams
from thalweg.kernels.sm90.fp8_stream import BLOCK_BYTES, STEP_GROUPS, StreamShape, stream_shape
from thalweg.kernels.sm90.row_products import groups_per_load, invariant_sharing, sharing
from thalweg.kernels.sm90.tile_shapes import STAGED_COLUMN, Cost, TileShape, fastest_shape

PROCESSORS = 132
COSTS = (Cost(TileShape(64, 128, 4), 0.75), Cost(TileShape(256, 128, 2), 1.4))


@pytest.mark.parametrize(("width", "groups"), [(1, 1), (2, 2), (6, 2), (40, 4), (160, 4)])
def test_columns_are_loaded_in_groups_that_divide_them(width: int, groups: int) -> None:
    assert groups_per_load(width) == groups


@pytest.mark.parametrize("num_rows", [1, 8, 9, 16, 32, 64, 100])
@pytest.mark.parametrize(("tiles_down", "width"), [(1, 1), (12, 160), (56, 160), (1024, 40), (4040, 160)])
def test_no_warp_is_without_columns_because_of_splits(num_rows: int, tiles_down: int, width: int) -> None:
    shared_out = sharing(num_rows, tiles_down, width, PROCESSORS)
    places = -(-tiles_down // shared_out.down) * -(-num_rows // (8 * shared_out.blocks))
    assert shared_out.splits == 1 or places * shared_out.splits <= PROCESSORS
    assert shared_out.splits == 1 or shared_out.splits * shared_out.across <= width // groups_per_load(width)


def test_an_order_of_sums_that_is_the_same_for_every_batch_has_one_way_to_share_out_columns() -> None:
    shared_out = [invariant_sharing(num_rows) for num_rows in range(1, 200)]
    assert {(s.across, s.splits) for s in shared_out} == {(4, 1)}


def test_small_weights_are_split_until_all_processors_work() -> None:
    shape = fastest_shape(COSTS, 64, places=14, depth=5120, processors=PROCESSORS)
    assert (shape.rows, shape.splits) == (64, 8)


def test_many_rows_take_the_largest_blocks() -> None:
    shape = fastest_shape(COSTS, 8192, places=256, depth=1280, processors=PROCESSORS)
    assert (shape.rows, shape.splits) == (256, 1)


@pytest.mark.parametrize(("depth", "splits"), [(32, 1), (512, 1), (1024, 2), (2048, 4)])
def test_every_split_has_a_few_steps(depth: int, splits: int) -> None:
    assert fastest_shape(COSTS, 8, places=1, depth=depth, processors=PROCESSORS).splits == splits


@pytest.mark.parametrize(("num_rows", "rows"), [(9, 16), (16, 16), (17, 32), (32, 32)])
@pytest.mark.parametrize(
    ("places", "width", "splits"), [(256, 40, 1), (40, 256, 4), (36, 160, 3), (64, 128, 2), (14, 160, 8), (1, 2, 1)]
)
def test_streamed_columns_are_shared_out_among_processors_that_would_wait(
    num_rows: int, rows: int, places: int, width: int, splits: int
) -> None:
    assert stream_shape(num_rows, places, width, PROCESSORS) == StreamShape(rows, splits)
    assert splits == 1 or splits * STEP_GROUPS <= width


@pytest.mark.parametrize("rows", [16, 32])
def test_stages_and_then_sums_fit_a_block(rows: int) -> None:
    shape = StreamShape(rows, 4)
    assert shape.stages >= 4
    assert 4 * rows * STAGED_COLUMN <= shape.shared_bytes <= BLOCK_BYTES


def test_large_weights_stream_for_some_rows_only() -> None:
    assert [n for n in range(1, 66) if streams(n, 160_000)] == list(range(9, 33))
    assert [n for n in range(1, 66) if streams(n, 20_000)] == list(range(17, 33))
    assert not any(streams(n, 5_000) for n in range(1, 66))
