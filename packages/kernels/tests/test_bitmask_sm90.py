"""The kernel that applies bitmasks on Hopper: equal to the reference, bit for bit."""

from __future__ import annotations

import importlib.util
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from kernels_testing.masks import VALUES, Masks, random_masks, recorded_masks

from thalweg.interfaces import BackendUnavailableError, ConfigError
from thalweg.kernels import SyncGuard, bind, cuda_sync_mode
from thalweg.kernels.sm90 import bitmask as sm90_bitmask
from thalweg.kernels.sm90 import library
from thalweg.kernels.testing import RecordLoader, same_bits

reference = bind("cpu").apply_token_bitmask
kernel = bind("sm90").apply_token_bitmask

needs_tilelang = pytest.mark.skipif(importlib.util.find_spec("tilelang") is None, reason="tilelang is not installed")


def wide_masks(num_rows: int, vocabulary: int, dtype: torch.dtype = torch.float32) -> Masks:
    """A mask for all rows but every fifth, in another order, of all densities."""
    generator = torch.Generator().manual_seed(vocabulary + num_rows)
    words = -(-vocabulary // 32)
    density = torch.rand(num_rows, 1, 1, generator=generator) ** 3
    bits = torch.rand(num_rows, words, 32, generator=generator) >= density
    rows = torch.randperm(num_rows, generator=generator)
    logits = torch.randn(num_rows, vocabulary, generator=generator).to(dtype)
    bitmask = (bits.long() << torch.arange(32)).sum(-1).to(torch.int32)
    return Masks(logits, bitmask, torch.where(rows % 5 == 0, -1, rows))


def check(masks: Masks, device: torch.device) -> None:
    there = masks.on(device)
    kernel(*there)
    reference(*masks)
    assert same_bits(there.logits.cpu(), masks.logits)


def test_without_tilelang_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    library.tilelang.cache_clear()
    monkeypatch.setitem(sys.modules, "tilelang", None)
    with pytest.raises(BackendUnavailableError, match=r"need TileLang, .* pip install 'thalweg-kernels\[nvidia\]'"):
        library.tilelang()


def test_the_version_that_kernels_are_for_is_the_one_that_the_extra_installs() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    (requirement,) = project["optional-dependencies"]["nvidia"]
    assert requirement.split(";")[0] == f"tilelang=={library.VERSION}"


def test_a_tilelang_that_cannot_be_loaded_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "tilelang.py").write_text("raise OSError('libz3.so: cannot open shared object file')")
    library.tilelang.cache_clear()
    monkeypatch.delitem(sys.modules, "tilelang", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(BackendUnavailableError, match=r"cannot be imported \(OSError: libz3\.so: cannot open"):
        library.tilelang()


def test_another_version_of_tilelang_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    other = ModuleType("tilelang")
    other.__version__ = "0.2.0"  # type: ignore[attr-defined]
    library.tilelang.cache_clear()
    monkeypatch.setitem(sys.modules, "tilelang", other)
    with pytest.raises(BackendUnavailableError, match=r"written for tilelang 0\.1\.15; installed is 0\.2\.0"):
        library.tilelang()


def test_arguments_that_the_kernel_cannot_take_are_named() -> None:
    logits, bitmask, rows = torch.zeros(3, 64), torch.zeros(2, 2, dtype=torch.int32), torch.tensor([0, 1])
    with pytest.raises(ConfigError, match=r"bitmask on cpu, rows on cpu; one CUDA device is required"):
        kernel(logits, bitmask, rows)
    with pytest.raises(ConfigError, match=r"logits has strides \[1, 3\]; a last stride of 1 is required"):
        kernel(torch.zeros(64, 3).t(), bitmask, rows)
    with pytest.raises(ConfigError, match=r"bitmask has strides \[1, 2\]; a last stride of 1 is required"):
        kernel(logits, bitmask.t(), rows)
    with pytest.raises(ConfigError, match=r"rows has shape \[3\]; \[2\] is expected"):
        kernel(logits, bitmask, torch.arange(3))


@needs_tilelang
@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_90a", "sm_100a"])
def test_the_kernel_compiles_without_a_gpu(architecture: str) -> None:
    source = sm90_bitmask.token_bitmask_kernel(torch.bfloat16, architecture).get_kernel_source()
    assert "apply_token_bitmask" in source


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize("case", range(5))
def test_recorded_masks_are_applied(case: int, hopper: torch.device, recorded: RecordLoader) -> None:
    masks, expected = recorded_masks(recorded("sampling/apply_bitmask")[case])
    there = masks.on(hopper)
    kernel(*there)
    assert torch.equal(there.logits.cpu(), expected)


@pytest.mark.gpu
@pytest.mark.sm90
def test_random_masks_are_applied_as_by_the_reference(hopper: torch.device) -> None:
    @settings(max_examples=300, deadline=None)
    @given(random_masks(most_rows=20, most_words=300))
    def examples(masks: Masks) -> None:
        check(masks, hopper)

    examples()


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize("dtype", VALUES, ids=str)
@pytest.mark.parametrize("vocabulary", [31, 129_280, 129_281, 8192])
def test_large_and_odd_vocabularies_are_masked(vocabulary: int, dtype: torch.dtype, hopper: torch.device) -> None:
    check(wide_masks(37, vocabulary, dtype), hopper)


@pytest.mark.gpu
@pytest.mark.sm90
def test_what_lies_between_rows_is_not_touched(hopper: torch.device) -> None:
    masks = wide_masks(9, 1003)
    wide, bits = torch.full((18, 1100), 7.0, device=hopper), torch.full((9, 50), 5, dtype=torch.int32, device=hopper)
    wide[::2, 11:1014], bits[:, 4:36] = masks.logits.to(hopper), masks.bitmask.to(hopper)
    expected = wide.cpu()
    reference(expected[::2, 11:1014], masks.bitmask, masks.rows)
    kernel(wide[::2, 11:1014], bits[:, 4:36], masks.rows.to(hopper).repeat_interleave(2)[::2])
    assert torch.equal(wide.cpu(), expected)


@pytest.mark.gpu
@pytest.mark.sm90
def test_logits_of_more_than_2_to_31_elements_are_reached(hopper: torch.device) -> None:
    logits = torch.zeros(16_700, 129_280, dtype=torch.bfloat16, device=hopper)
    bitmask = torch.zeros(2, 4040, dtype=torch.int32, device=hopper)
    kernel(logits, bitmask, torch.tensor([16_699, 16_612], device=hopper))
    masked = torch.isinf(logits).sum(-1)
    assert masked.nonzero().flatten().tolist() == [16_612, 16_699]
    assert masked[[16_612, 16_699]].tolist() == [129_280, 129_280]


@pytest.mark.gpu
@pytest.mark.sm90
def test_a_row_that_does_not_exist_is_left_out(hopper: torch.device) -> None:
    whole = torch.zeros(4, 64, device=hopper)
    kernel(whole[:2], torch.zeros(3, 2, dtype=torch.int32, device=hopper), torch.tensor([2, -5, 1], device=hopper))
    assert torch.isinf(whole).any(-1).tolist() == [False, True, False, False]


@pytest.mark.gpu
@pytest.mark.sm90
def test_a_graph_of_it_blocks_nothing_and_follows_its_inputs(hopper: torch.device) -> None:
    first, second = wide_masks(24, 129_280), wide_masks(24, 129_280)
    second = Masks(second.logits.flip(0), second.bitmask.roll(3, 0), second.rows.flip(0))
    given = first.on(hopper)
    kernel(*given)  # compiles: not while capturing
    graph = torch.cuda.CUDAGraph()
    with SyncGuard(*cuda_sync_mode()).forbid(), torch.cuda.graph(graph):
        kernel(*given)
    for masks in (first, second):
        for tensor, value in zip(given, masks, strict=True):
            tensor.copy_(value)
        graph.replay()
        reference(*masks)
        assert same_bits(given.logits.cpu(), masks.logits)
