"""What the stages of training share: optimiser, quantisers, clock, resume points, windows and files of tokens."""

from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np
import pytest
import torch
from tools.train.common.files import load_tokens
from tools.train.common.optimiser import Optimiser, Piece, Rates, orthogonalised
from tools.train.common.quantise import fake_quantise, quantise
from tools.train.common.resume import load_resume_point, mean_of_points, save_resume_point
from tools.train.common.schedule import Clock, RateSchedule
from tools.train.common.windows import TokenWindows
from train_testing import DEQUANTISERS, documents

from thalweg.interfaces import CheckpointError, ConfigError

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["fp8", "fp4", "engram"])
def test_fake_quantised_values_are_what_a_file_gives_back(name: str) -> None:
    values = torch.randn(3, 64, 96) * torch.logspace(-6, 3, 96)
    stored = torch.stack([DEQUANTISERS[name](*quantise(matrix, name)) for matrix in values])  # type: ignore[arg-type]
    assert torch.equal(fake_quantise(values, name), stored)  # type: ignore[arg-type]


def test_muon_directions_have_singular_values_near_one() -> None:
    for shape in ((3, 32, 64), (3, 64, 32)):
        values = torch.linalg.svdvals(orthogonalised(torch.randn(shape)).float())
        assert 0.5 < float(values.min()) <= float(values.max()) < 1.3


def test_the_optimiser_steps_pieces_of_one_leaf_by_their_own_rules() -> None:
    leaf = torch.zeros(64, 32).requires_grad_()
    masters = {"a": torch.randn(32, 32), "b": torch.randn(32, 32)}
    pieces = [Piece("a", leaf, 0, 32, "fp8", "muon"), Piece("b", leaf, 32, 32, "bf16", "adam", rate=2.0)]
    optimiser = Optimiser(pieces, masters, Rates(muon=0.1, adam=0.01))
    assert torch.equal(leaf.detach(), torch.cat([masters["a"], masters["b"]]))
    (leaf[32:] * 3 + leaf[:32]).sum().backward()
    optimiser.rate.fill_(1.0)
    optimiser.step()
    torch.testing.assert_close(masters["b"] - leaf.detach()[32:], torch.full((32, 32), 0.02))
    assert torch.equal(optimiser.masters()["a"], leaf.detach()[:32])
    optimiser.is_quantised = True
    optimiser.write()
    assert torch.equal(leaf.detach()[:32], fake_quantise(optimiser.masters()["a"], "fp8"))


def test_a_tensor_in_two_leaves_has_one_master_that_follows_both() -> None:
    leaves = [torch.zeros(64, 32).requires_grad_(), torch.zeros(32, 32).requires_grad_()]
    pieces = [Piece("a", leaves[0], 32, 32, "f32", "adam"), Piece("a", leaves[1], 0, 32, "f32", "adam")]
    master = torch.randn(32, 32)
    optimiser = Optimiser(pieces, {"a": master}, Rates(adam=0.01))
    (2 * leaves[0][32:].sum() - 3 * leaves[1].sum()).backward()
    optimiser.rate.fill_(1.0)
    optimiser.step()
    torch.testing.assert_close(leaves[0].detach()[32:], master + 0.01)  # the sum of both is below 0
    assert torch.equal(leaves[0].detach()[32:], leaves[1].detach())
    assert torch.equal(optimiser.masters()["a"], leaves[1].detach())


def test_averages_are_the_mean_over_steps_and_leave_the_masters_alone() -> None:
    leaf = torch.zeros(32, 32).requires_grad_()
    optimiser = Optimiser([Piece("a", leaf, 0, 32, "f32", "adam")], {"a": torch.randn(32, 32)})
    optimiser.rate.fill_(1.0)
    optimiser.start_averaging()
    seen = [leaf.detach().clone()]
    for _ in range(3):
        leaf.grad = torch.randn(32, 32)
        optimiser.step()
        seen.append(leaf.detach().clone())
    torch.testing.assert_close(optimiser.averages()["a"], torch.stack(seen).mean(0))
    with optimiser.averaged():
        assert torch.equal(leaf.detach(), optimiser.averages()["a"])
    assert torch.equal(leaf.detach(), seen[-1])


def test_tables_decay_at_their_own_rate() -> None:
    leaf, master = torch.zeros(32, 32).requires_grad_(), torch.randn(32, 32)
    pieces = [Piece("a", leaf, 0, 32, "f32", "adam", is_table=True)]
    optimiser = Optimiser(pieces, {"a": master}, Rates(adam=0.5, table_decay=0.2))
    optimiser.rate.fill_(1.0)
    optimiser.step()
    torch.testing.assert_close(leaf.detach(), 0.9 * master)


def test_a_rate_warms_up_stays_and_falls() -> None:
    schedule = RateSchedule(warmup_steps=10, restart_steps=4, constant_until=0.5, final=0.02)
    assert schedule.rate(0.0, 0, 0) == pytest.approx(0.1)
    assert schedule.rate(0.3, 500, 1) == pytest.approx(0.5)
    assert schedule.rate(0.5, 500, 100) == pytest.approx(1.0)
    assert schedule.rate(0.75, 500, 100) == pytest.approx(0.51)
    assert schedule.rate(1.0, 500, 100) == pytest.approx(0.02)


def test_the_clock_runs_only_while_there_is_training() -> None:
    clock = Clock(100.0, elapsed_s=25.0)
    assert clock.progress == 0.25
    clock.resume()
    with clock.paused():
        standing = clock.elapsed_s
        assert clock.elapsed_s == standing
    assert clock.elapsed_s >= standing >= 25.0
    with pytest.raises(ConfigError, match="planned_s is 0"):
        Clock(0)


def test_a_resume_point_replaces_the_last_one_and_has_limits(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds no progress\.json"):
        load_resume_point(tmp_path)
    many = {f"t{index}": torch.full((3 << 20,), float(index), dtype=torch.bfloat16) for index in range(8)}
    save_resume_point(tmp_path, many, {"steps": 1})
    save_resume_point(tmp_path, {"t": torch.ones(3)}, {"steps": 2})
    tensors, progress = load_resume_point(tmp_path)
    assert progress == {"steps": 2}
    assert tensors.keys() == {"t"}
    with pytest.raises(ConfigError, match="at most 7 of 16777216"):
        save_resume_point(tmp_path, {f"t{index}": torch.ones(7 << 20) for index in range(3)}, {})


def test_resume_points_of_one_model_have_a_mean(tmp_path: Path) -> None:
    for name, value in (("first", 1.0), ("second", 2.0)):
        tensors = {"a": torch.full((3,), value), "b": torch.full((2, 2), value, dtype=torch.bfloat16)}
        save_resume_point(tmp_path / name, tensors, {})
    save_resume_point(tmp_path / "other", {"a": torch.ones(4)}, {})
    mean = mean_of_points([tmp_path / "first", tmp_path / "second"])
    assert torch.equal(mean["a"], torch.full((3,), 1.5))
    assert torch.equal(mean["b"], torch.full((2, 2), 1.5))
    with pytest.raises(ConfigError, match="other: names or shapes of weights differ"):
        mean_of_points([tmp_path / "first", tmp_path / "other"])


def test_windows_depend_on_seed_and_step_and_start_with_bos() -> None:
    stream = documents(40, 30, 500)
    windows = TokenWindows(stream, 7, CPU)
    first, again, other = (windows.draw(8, 64, step) for step in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert (first[:, 0] == 0).all()
    text = torch.from_numpy(stream.astype(np.int64)).unfold(0, 65, 1)
    found = [(text[:, 1:] == window[1:]).all(1).nonzero() for window in first]
    assert all(len(places) for places in found), "windows are parts of the stream"
    assert stream[int(found[0][0])] == 0, "an eighth of them begins with a document"
    with pytest.raises(ConfigError, match="the stream has"):
        windows.draw(1, len(stream), 0)


def test_tokens_are_read_packed_or_not(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"neither train\.npy nor train\.xz"):
        load_tokens(tmp_path, "train")
    tokens = np.arange(9, dtype=np.uint16)
    for name, part in (("train-2", tokens[4:]), ("train-1", tokens[:4]), ("train_other", tokens)):
        with lzma.open(tmp_path / f"{name}.xz", "wb") as file:
            np.save(file, part)
    assert np.array_equal(load_tokens(tmp_path, "train"), tokens)
    np.save(tmp_path / "train.npy", tokens[::-1])
    assert np.array_equal(load_tokens(tmp_path, "train"), tokens[::-1])
