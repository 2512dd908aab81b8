"""Engram windows, hashes and gate against recorded results and the corner cases that those do not reach."""

from __future__ import annotations

import pytest
import torch

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.engram import engram_apply, engram_gate, engram_hash, ngram_window, squash
from thalweg.kernels.testing import RecordLoader, VectorLoader, bf16_ulps


def test_the_recorded_window_is_reproduced(recorded: RecordLoader) -> None:
    data = recorded("model/engram_window")
    lookup, back = data["lookup"], data["max_ngram_size"] - 1
    history, tokens = [], []
    for i, source in enumerate(data["remap"]):
        count = data["seqlens_q"][i]
        if source < 0:
            ids, base = data["curr_fresh"][i], 0
        else:
            drafted = [data["prev_sampled"][source], *data["prev_predict"][source]]
            ids, base = [lookup[token] for token in drafted], data["prev_num_accepted"][source]
        history.append(data["win_compressed"][i][base : base + back])
        tokens += ids[:count]
    window = ngram_window(torch.tensor(tokens), torch.tensor(history), torch.tensor(data["seqlens_q"]), data["pad"])
    assert window.tolist() == data["out"]


def test_a_blocked_id_hides_everything_older() -> None:
    window = ngram_window(torch.tensor([4, -1, 5, 6]), torch.tensor([[1, 2, 3]]), torch.tensor([4]), 9)
    assert window.tolist() == [[4, 3, 2, 1], [9, 9, 9, 9], [5, 9, 9, 9], [6, 5, 9, 9]]


def test_nothing_before_the_first_token_is_a_pad() -> None:
    window = ngram_window(torch.tensor([4, 5]), torch.tensor([[-1, -1]]), torch.tensor([2]), 7)
    assert window.tolist() == [[4, 7, 7], [5, 4, 7]]


def test_sequences_do_not_see_each_other_and_may_be_empty() -> None:
    history = torch.tensor([[1, 2], [3, 4], [5, 6]])
    window = ngram_window(torch.tensor([10, 20, 21]), history, torch.tensor([1, 0, 2]), 0)
    assert window.tolist() == [[10, 2, 1], [20, 6, 5], [21, 20, 6]]
    assert ngram_window(torch.empty(0, dtype=torch.int64), history, torch.zeros(3), 0).shape == (0, 3)


def test_a_chunked_window_equals_the_whole_one() -> None:
    tokens = torch.tensor([3, 1, -1, 4, 1, 5, 9, 2, 6])
    start = torch.full((1, 3), -1)
    whole = ngram_window(tokens, start, torch.tensor([9]), 8)
    for cut in range(1, 9):
        history = torch.cat((start[0], tokens[:cut]))[-3:].unsqueeze(0)
        rest = ngram_window(tokens[cut:], history, torch.tensor([9 - cut]), 8)
        assert torch.equal(rest, whole[cut:])


def test_recorded_hashes_of_the_real_tables_are_reproduced(recorded: RecordLoader) -> None:
    data, layout = recorded("model/engram_hash_real"), recorded("model/engram_layout_real")
    ids, mask = torch.tensor(data["ngram_token_ids"]), torch.tensor(data["image_mask"])
    for i, layer in enumerate(layout["layers"]):
        rows = engram_hash(
            ids,
            torch.tensor([int(text) for text in layout["multipliers"][i]]),
            torch.tensor(layout["primes"][str(layer)]).flatten(),
            torch.tensor(layout["offsets"][i]).flatten(),
            mask,
        )
        assert rows.tolist() == data["hashes"][i]


def test_multipliers_near_2_to_the_62_stay_exact() -> None:
    ids = torch.tensor([[1, 1, 1]])
    multipliers = [2**62 - 1, 2**61 + 11, 2**62 - 3]
    primes = torch.tensor([53, 59, 61, 67])
    rows = engram_hash(ids, torch.tensor(multipliers), primes, torch.tensor([0, 53, 112, 173]))
    pair = multipliers[0] ^ multipliers[1]
    triple = pair ^ multipliers[2]
    assert rows.tolist() == [[pair % 53, 53 + pair % 59, 112 + triple % 61, 173 + triple % 67]]


@pytest.mark.parametrize("carrier", [torch.float32, torch.float64, torch.bfloat16])
def test_the_recorded_gate_is_reproduced(carrier: torch.dtype, vectors: VectorLoader) -> None:
    data = vectors("model/engram_gate")
    x, keys, value = data["x"].to(carrier), data["kv"][:, :4].to(carrier), data["kv"][:, 4].to(carrier)
    wide = torch.float32 if carrier == torch.bfloat16 else carrier
    gate = engram_gate(x.to(wide), keys.to(wide), data["q_weight"], data["k_weight"], float(data["eps"]))
    assert torch.allclose(gate.float(), data["gate"], rtol=1e-6, atol=0)
    assert bf16_ulps(engram_apply(x, value, gate, data["image_mask"]), data["out"]) == 0


@pytest.mark.parametrize("carrier", [torch.float32, torch.float64])
@pytest.mark.parametrize(("dot", "expected"), [(0.0, 0.50025), (-0.0, 0.49975), (1e-9, 0.50025), (-1e-9, 0.49975)])
def test_a_vanishing_product_gates_by_its_sign(dot: float, expected: float, carrier: torch.dtype) -> None:
    assert float(squash(torch.tensor(dot, dtype=carrier))) == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize(("sign", "expected"), [(1.0, 0.50025), (-1.0, 0.49975)])
def test_a_product_that_underflows_gates_by_its_sign(sign: float, expected: float) -> None:
    x, weight = torch.ones(1, 1, 32), torch.ones(1, 32)
    keys = torch.zeros(1, 1, 32)
    keys[0, 0, 0], weight[0, 0] = 1.0, sign * 1e-30
    gate = engram_gate(x, keys, weight, torch.full((1, 32), 1e-15), 1e-20)
    assert float(gate) == pytest.approx(expected, abs=1e-7)


def test_image_rows_keep_their_streams() -> None:
    x = torch.randn(3, 2, 8, generator=torch.Generator().manual_seed(0))
    out = engram_apply(x, torch.ones(3, 8), torch.ones(3, 2), torch.tensor([False, True, False]))
    assert torch.equal(out[1], x[1])
    assert torch.equal(out[0], x[0] + 1)


def test_the_gate_is_differentiable() -> None:
    generator = torch.Generator().manual_seed(1)
    x, keys = (torch.randn(2, 2, 5, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(2))
    q, k = (torch.randn(2, 5, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(2))
    value = torch.randn(2, 5, dtype=torch.float64, generator=generator).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x, keys, q, k, value: engram_apply(x, value, engram_gate(x, keys, q, k, 1e-6)), (x, keys, q, k, value)
    )


def test_bad_arguments_are_refused_by_name() -> None:
    ids = torch.zeros(2, 3, dtype=torch.int64)
    multipliers, primes, offsets = torch.ones(3).long(), torch.ones(4).long(), torch.zeros(4).long()
    with pytest.raises(ConfigError, match="lengths add up to 3; there are 2 tokens"):
        ngram_window(torch.zeros(2).long(), torch.zeros(1, 3).long(), torch.tensor([3]), 0)
    with pytest.raises(ConfigError, match=r"multipliers has shape \[2\]; \[3\] is expected"):
        engram_hash(ids, multipliers[:2], primes, offsets)
    with pytest.raises(ConfigError, match=r"multipliers has dtype torch\.float64; torch\.int64 is required"):
        engram_hash(ids, multipliers.double(), primes, offsets)
    with pytest.raises(ConfigError, match=r"primes has shape \[5\]; \[4\] is expected"):
        engram_hash(ids, multipliers, torch.ones(5).long(), offsets)
    with pytest.raises(ConfigError, match="ngram_ids has 1 columns; at least 2"):
        engram_hash(ids[:, :1], multipliers[:1], primes, offsets)
    with pytest.raises(ConfigError, match=r"keys has shape \[1, 2, 5\]; \[1, 2, 4\] is expected"):
        engram_gate(torch.ones(1, 2, 4), torch.ones(1, 2, 5), torch.ones(2, 4), torch.ones(2, 4), 1e-6)
