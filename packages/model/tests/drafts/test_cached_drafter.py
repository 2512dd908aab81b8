"""What the cached drafter accepts, and which rows may touch which bytes."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from model_testing.cases import Case
from model_testing.draft_session import RecordingSampler
from model_testing.paged_cache import PagedCache, Running, Views
from torch import Tensor

from thalweg.interfaces import ConfigError, Drafter, InvariantError, TargetRows
from thalweg.model import CachedDrafter

NAME = "two layers, a target with Engram"


@pytest.fixture
def case(load_case: Callable[..., Case]) -> Case:
    return load_case(NAME)


def rings(cache: PagedCache) -> list[Tensor]:
    config = cache.model.config
    first = config.num_hidden_layers
    return [cache.views.window(first + block).clone() for block in range(config.num_draft_layers)]


def prefilled(case: Case, temperatures: tuple[float, ...], *lengths: int) -> tuple[PagedCache, list[Running]]:
    cache = case.cache(temperatures)
    group = [cache.add(case.tokens(length + 12, seed=length)) for length in lengths]
    cache.prefill([(running, length) for running, length in zip(group, lengths, strict=True)])
    return cache, group


def propose(cache: PagedCache, group: list[Running]) -> tuple[list[Tensor], Tensor, Tensor]:
    """Logits shown to a greedy sampler, draft ids, confidences."""
    shown: list[Tensor] = []

    def sample(place: int, logits: Tensor) -> Tensor:
        shown.append(logits.clone())
        return logits.argmax(-1).int()

    anchors = [int(running.tokens[running.done]) for running in group]
    return shown, *cache.propose(group, anchors, SimpleNamespace(sample=sample))


def test_it_is_a_drafter(case: Case) -> None:
    drafter: Drafter = CachedDrafter(case.network, case.cache((1.0,)).views, 2, (1.0, 1.0))
    assert drafter.draft_length == 2
    assert drafter.target_layer_ids == (3, 5, 6)


@pytest.mark.parametrize("length", [-1, 0, 6])
def test_a_draft_length_outside_the_trained_block_is_refused(length: int, case: Case) -> None:
    views = case.cache((1.0,)).views
    with pytest.raises(ConfigError, match=rf"draft_length is {length}; 1\.\.5 \(dspark_block_size\) are accepted"):
        CachedDrafter(case.network, views, length, (1.0,) * max(length, 0))


@pytest.mark.parametrize("temperatures", [(), (1.0,), (1.0, 1.0, 1.0)])
def test_temperatures_must_be_as_many_as_the_drafts(temperatures: tuple[float, ...], case: Case) -> None:
    with pytest.raises(ConfigError, match=rf"has {len(temperatures)} values; draft_length = 2 are needed"):
        CachedDrafter(case.network, case.cache((1.0,)).views, 2, temperatures)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_temperature_that_divides_nothing_is_refused(value: float, case: Case) -> None:
    with pytest.raises(ConfigError, match=f"confidence_temperatures holds {value}"):
        CachedDrafter(case.network, case.cache((1.0,)).views, 2, (1.0, value))


def test_each_place_has_its_temperature_and_tiny_ones_count_as_a_hundred_thousandth(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, group = prefilled(case, (1e-30, 2.0, 1e-5), 9)
    used: list[float] = []
    confidences = case.network.confidences

    def spy(rows: Tensor, markov_rows: Tensor, temperature: float) -> Tensor:
        used.append(temperature)
        return confidences(rows, markov_rows, temperature)

    monkeypatch.setattr(case.network, "confidences", spy)
    propose(cache, group)
    assert used == [1e-5, 2.0, 1e-5]


def test_rings_that_cannot_hold_window_and_block_are_refused(case: Case) -> None:
    views = Views(case.model, 4, 4)
    views.layout = SimpleNamespace(ring_length=20)
    CachedDrafter(case.network, views, 4, (1.0,) * 4)
    with pytest.raises(ConfigError, match=r"ring_length of the cache is 20; sliding_window \+ draft_length = 21"):
        CachedDrafter(case.network, views, 5, (1.0,) * 5)


def test_a_cache_of_the_other_mode_is_refused(case: Case, load_case: Callable[..., Case]) -> None:
    views = Views(load_case(NAME, "plain").model, 4, 4)
    with pytest.raises(ConfigError, match="window records of the cache have 512 bytes; quant mode"):
        CachedDrafter(case.network, views, 1, (1.0,))


def test_target_rows_without_features_are_refused(case: Case) -> None:
    drafter = CachedDrafter(case.network, case.cache((1.0,)).views, 1, (1.0,))
    rows = TargetRows(None, torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int32))
    with pytest.raises(InvariantError, match=r"features is None; the drafter reads layers \[3, 5, 6\]"):
        drafter.observe(rows)


def test_confidences_depend_on_nothing_that_is_drawn_at_or_after_them(case: Case) -> None:
    cache, group = prefilled(case, (1.0,) * 5, 30)
    anchors = [int(running.tokens[running.done]) for running in group]
    found = []
    for place_of_change in range(6):

        def sample(place: int, logits: Tensor, changed: int = place_of_change) -> Tensor:
            return torch.full((len(logits),), 20 + (place == changed), dtype=torch.int32)

        found.append(cache.propose(group, anchors, SimpleNamespace(sample=sample))[1][0])
    reference = found.pop()
    for changed, confidences in enumerate(found):
        assert torch.equal(confidences[: changed + 1], reference[: changed + 1])
        if changed < 4:
            assert confidences[changed + 1] != reference[changed + 1]
            assert torch.equal(confidences[changed + 2 :], reference[changed + 2 :])


def test_a_random_drafter_is_neither_sure_nor_indifferent(case: Case) -> None:
    cache, group = prefilled(case, (1.0,) * 5, 9, 30, 50)
    confidences = propose(cache, group)[2]
    assert ((confidences > 0) & (confidences < 1)).all()
    assert confidences.std() > 0.1


def test_a_sequence_among_others_drafts_what_it_drafts_alone(case: Case) -> None:
    together, group = prefilled(case, (1.0,) * 5, 9, 30, 50)
    shown, ids, confidences = propose(together, group)
    for row, length in enumerate((9, 30, 50)):
        alone, single = prefilled(case, (1.0,) * 5, length)
        shown_alone, ids_alone, confidences_alone = propose(alone, single)
        assert torch.equal(torch.cat(shown_alone), torch.stack([logits[row] for logits in shown]))
        assert torch.equal(ids_alone[0], ids[row])
        assert torch.equal(confidences_alone[0], confidences[row])


def test_padding_sequences_write_nothing_and_change_nobody(case: Case) -> None:
    found = []
    for has_padding in (False, True):
        cache, group = prefilled(case, (1.0,) * 5, 9, 30)
        nobody = Running(torch.zeros(1, dtype=torch.int64), 0, [0])
        shown, ids, confidences = propose(cache, [group[0], *[nobody] * has_padding, group[1]])
        rows = [0, 2] if has_padding else [0, 1]
        found.append([torch.stack(shown)[:, rows], ids[rows], confidences[rows], *rings(cache)])
    for without, with_padding in zip(*found, strict=True):
        assert torch.equal(without, with_padding)
    for ring in rings(cache):
        assert (ring[0] == 0xFF).all()


def test_experts_do_not_see_padding_sequences(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, group = prefilled(case, (1.0,) * 5, 9)
    ops, routed = case.network.numerics.ops, []
    grouped_matmul = ops.grouped_matmul

    def spy(rows: Tensor, counts: list[int], weights: tuple[Tensor, ...]) -> Tensor:
        routed.append(sum(counts[:-1]))
        return grouped_matmul(rows, counts, weights)

    monkeypatch.setitem(ops.__dict__, "grouped_matmul", spy)
    propose(cache, [group[0], Running(torch.zeros(1, dtype=torch.int64), 0, [0])])
    layers, products = case.model.config.num_draft_layers, 2
    assert routed == [5 * case.model.config.dspark_num_experts_per_tok] * layers * products


def test_a_block_writes_its_own_positions_and_nothing_else(case: Case) -> None:
    cache, (running,) = prefilled(case, (1.0,) * 5, 20)
    before = rings(cache)
    propose(cache, [running])
    length = cache.views.layout.ring_length
    for old, new in zip(before, rings(cache), strict=True):
        changed = (old != new).any(-1).any(-1).nonzero().tolist()
        assert sorted(changed) == sorted([running.slot, position % length] for position in range(20, 25))


def test_target_rows_write_their_own_slots_in_every_draft_layer(case: Case) -> None:
    cache = case.cache((1.0,))
    features = torch.randn(3, 3 * case.model.config.hidden_size, dtype=torch.float64)
    before = rings(cache)
    length = cache.views.layout.ring_length
    slots = torch.tensor([2 * length + 5, -1, 3 * length], dtype=torch.int32)
    cache.drafter.observe(TargetRows(features, torch.tensor([5, 6, 0]), slots))
    for old, new in zip(before, rings(cache), strict=True):
        assert (old != new).any(-1).any(-1).nonzero().tolist() == [[2, 5], [3, 0]]


def test_no_sequences_give_no_drafts(case: Case) -> None:
    cache = case.cache((1.0,) * 3)
    ids, confidences = cache.propose([], [], RecordingSampler())
    assert ids.shape == confidences.shape == (0, 3)
    assert (ids.dtype, confidences.dtype) == (torch.int32, torch.float32)


def test_equal_sequences_draft_the_same_whatever_was_rejected_before(case: Case) -> None:
    """Main keys of rejected rows and keys of earlier blocks leave no trace in a later block."""
    found = []
    for rejected in ([], [(5, 1), (4, 0), (3, 2)]):
        cache, (running,) = prefilled(case, (1.0,) * 5, 18)
        truth = running.tokens
        for count, held in rejected:
            propose(cache, [running])
            begin = running.done
            running.tokens = truth.clone()
            running.tokens[begin + held + 1 :] += 1
            cache.decode([(running, count + 1)])
            running.tokens, running.done = truth, begin + held + 1
        while running.done < 24:
            cache.decode([(running, 1)])
        assert running.done == 24
        found.append(propose(cache, [running]))
    assert torch.equal(torch.stack(found[0][0]), torch.stack(found[1][0]))
    assert torch.equal(found[0][2], found[1][2])


def test_float32_arithmetic_stays_close(load_case: Callable[..., Case]) -> None:
    found = []
    for arithmetic in ("exact", "float32"):
        cache, group = prefilled(load_case(NAME, "plain", arithmetic), (1.0,) * 5, 9, 50)
        shown, ids, confidences = propose(cache, group)
        found.append((torch.stack(shown), ids, confidences))
    # Sums of a few hundred float32 products; without quantisation nothing jumps.
    assert (found[0][0] - found[1][0]).abs().max() < 1e-3
    assert torch.equal(found[0][1], found[1][1])
    assert (found[0][2] - found[1][2]).abs().max() < 1e-4
