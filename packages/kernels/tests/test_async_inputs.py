"""Inputs completed on the device: recorded results, a plain loop over rows, tensors without contents, bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels import default_registry
from thalweg.kernels.reference import async_inputs, metadata
from thalweg.kernels.sync_guard import SyncGuard, cuda_sync_mode

GOLDEN = Path(__file__).parent / "golden" / "dspark"


def read(name: str) -> Any:
    return json.loads((GOLDEN / f"{name}.json").read_text())


def ints(values: Any, *shape: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32).reshape(shape or (-1,))


@pytest.mark.parametrize("case", read("zos_seqlens_k"))
def test_context_lengths_are_corrected_as_recorded(case: dict[str, Any]) -> None:
    got = async_inputs.correct_context_lengths(
        ints(case["seqlens_k_in"]),
        ints(case["seqlens_q"]),
        ints(case["remap"]),
        ints(case["prev_num_accepted"]),
        case["nextn"],
    )
    assert got.tolist() == case["seqlens_k_out"]
    assert got.dtype == torch.int32


@pytest.mark.parametrize("case", [case for case in read("zos_remap") if case["has_overlap"]])
def test_recorded_rows_and_base_lengths_give_the_planned_lengths_if_all_drafts_hold(case: dict[str, Any]) -> None:
    num_rows, draft_length = len(case["cur_seq_ids"]), case["nextn"]
    rows, base, lengths = (ints(case[key]) for key in ("remap", "seqlens_k_base", "seqlens_q"))
    for sequence, row in zip(case["cur_seq_ids"], case["remap"], strict=False):
        assert row == (case["prev_seq_ids"].index(sequence) if sequence in case["prev_seq_ids"] else -1)

    def lengths_after(num_accepted: int) -> list[int]:
        accepted = torch.full((len(case["prev_seq_ids"]),), num_accepted, dtype=torch.int32)
        return async_inputs.correct_context_lengths(base, lengths, rows, accepted, draft_length).tolist()

    assert lengths_after(draft_length)[:num_rows] == case["cur_seqlen_k"]
    is_matched = (rows >= 0).tolist()
    shorter = [
        length - draft_length * matched for length, matched in zip(case["cur_seqlen_k"], is_matched, strict=False)
    ]
    assert lengths_after(0)[:num_rows] == shorter
    assert is_matched[num_rows:] == [False] * (case["num_rows_padded"] - num_rows), "padding is never corrected"
    assert lengths_after(0)[num_rows:] == lengths_after(draft_length)[num_rows:]


@pytest.mark.parametrize("case", read("zos_redistribute"))
def test_verify_lengths_are_shared_out_as_recorded(case: dict[str, Any]) -> None:
    got = async_inputs.redistribute(
        case["total_q"], ints(case["remap"]), torch.tensor(case["prev_confidence"], dtype=torch.float32)
    )
    assert got.tolist() == case["seqlens_q"]
    assert got.dtype == torch.int32


@pytest.mark.parametrize("case", read("zos_gathers"))
def test_ids_are_gathered_as_recorded(case: dict[str, Any]) -> None:
    num_rows, num_previous, draft_length = len(case["remap"]), len(case["prev_sampled"]), case["nextn"]
    lengths, rows = ints(case["seqlens_q"]), ints(case["remap"])
    left = ints(case["prev_sampled"]), ints(case["prev_predict"], num_previous, draft_length)
    num_queries = case["cu_seqlens_q"][-1]
    got = async_inputs.gather_token_ids(
        lengths, rows, ints(case["fresh_tokens"]).view(num_rows, -1), *left, num_queries
    )
    assert got.tolist() == case["input_ids"]
    assert got.dtype == torch.int32

    assert case["image_sentinel"] == -1
    ngrams = async_inputs.gather_ngram_ids(
        lengths,
        rows,
        torch.tensor(case["curr_fresh"]),
        torch.tensor(case["win_compressed"]),
        *left,
        ints(case["prev_num_accepted"]),
        torch.tensor(case["lookup_table"]),
        case["pad_token"],
        num_queries,
    )
    assert ngrams.tolist() == case["ngram_token_ids"]
    assert ngrams.dtype == torch.int64
    assert ngrams.shape[1] == case["max_ngram_size"]


@pytest.mark.parametrize("trace", read("zos_trace"))
def test_corrected_lengths_are_what_the_sequence_has_once_the_host_knows(trace: dict[str, Any]) -> None:
    num_accepted = None
    for row in trace["rows"]:
        assert row["remapped"] == (num_accepted is not None)
        base = row["sched_seqlen_k"] - row["sched_seqlen_q"]
        got = async_inputs.correct_context_lengths(
            ints([base]),
            ints([row["seqlen_q"]]),
            ints([0 if row["remapped"] else -1]),
            ints([num_accepted or 0]),
            trace["nextn"],
        )
        assert got.tolist() == [row["seqlen_k"]] == [row["num_tokens_after_prev_post"] + row["seqlen_q"]]
        assert int(got) - row["seqlen_q"] + 1 == row["sampling_position"] == row["seq_len_after_prev_post"]
        num_accepted = row["accepted"]


@st.composite
def steps(draw: st.DrawFn) -> dict[str, Any]:
    """A step after another: what each sequence truly holds, and the arguments that describe it."""
    draft_length, look_back = draw(st.integers(0, 4)), draw(st.integers(0, 3))
    num_previous = draw(st.integers(0, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows = rng.permutation(np.concatenate((np.arange(num_previous), np.full(draw(st.integers(0, 4)), -1))))
    rows = rows[: draw(st.integers(0, len(rows)))]
    accepted = rng.integers(0, draft_length + 1, num_previous)
    confidences = rng.choice([0.0, 0.25, 0.5, 1.0], (num_previous, draft_length)).astype(np.float32)
    if draw(st.booleans()):
        confidences = rng.random((num_previous, draft_length), dtype=np.float32)
    return {
        "draft_length": draft_length,
        "look_back": look_back,
        "rows": rows,
        "accepted": accepted,
        "confidences": confidences,
        "lengths": rng.integers(1, draft_length + 2, len(rows)),
        "base": rng.integers(8, 100, len(rows)),
        "fresh": rng.integers(0, 50, (len(rows), 1 + draft_length)),
        "tokens": rng.integers(0, 50, num_previous),
        "drafts": rng.integers(0, 50, (num_previous, draft_length)),
        "windows": rng.integers(-1, 30, (len(rows), look_back + draft_length)),
        "table": rng.permutation(np.arange(-1, 49)),
    }


@given(steps())
def test_lengths_equal_those_of_a_loop(step: dict[str, Any]) -> None:
    expected = []
    for base, length, row in zip(step["base"], step["lengths"], step["rows"], strict=True):
        rejected = 0 if row < 0 else step["draft_length"] - step["accepted"][row]
        expected.append(base - rejected + length)
    got = async_inputs.correct_context_lengths(
        *(torch.tensor(step[key]) for key in ("base", "lengths", "rows", "accepted")), step["draft_length"]
    )
    assert got.tolist() == expected


@given(steps(), st.data())
def test_verify_lengths_equal_those_of_a_loop_that_hands_out_one_token_at_a_time(
    step: dict[str, Any], data: st.DataObject
) -> None:
    num_rows, draft_length = len(step["rows"]), step["draft_length"]
    total = data.draw(st.integers(num_rows, num_rows * (1 + draft_length)))
    offers = {}
    for number, row in enumerate(step["rows"]):
        survival = np.float32(row >= 0)
        for place in range(draft_length):
            if row >= 0:
                survival = np.float32(survival * step["confidences"][row, place])
            offers[number, place] = survival
    lengths = [1] * num_rows
    for _ in range(total - num_rows):
        number, place = max(offers, key=lambda key: (offers[key], [-part for part in key]))
        del offers[number, place]
        lengths[number] += 1
    got = async_inputs.redistribute(total, torch.tensor(step["rows"]), torch.tensor(step["confidences"]))
    assert got.tolist() == lengths


@given(steps())
def test_ids_equal_those_of_a_loop_over_what_each_sequence_holds(step: dict[str, Any]) -> None:
    look_back, num_queries, pad = step["look_back"], int(step["lengths"].sum()), 777
    ids, ngrams = [], []
    for number, (row, length) in enumerate(zip(step["rows"], step["lengths"], strict=True)):
        window = list(step["windows"][number])
        if row < 0:
            current = compressed = list(step["fresh"][number])
            history = window[:look_back]
        else:
            current = [step["tokens"][row], *step["drafts"][row]]
            compressed = [step["table"][token] for token in current]
            history = window[: look_back + step["accepted"][row]]
        for place in range(length):
            ids.append(current[place])
            line = (history + compressed[: place + 1])[::-1][: look_back + 1]
            cut = next((age for age, value in enumerate(line) if value < 0), len(line))
            ngrams.append(line[:cut] + [pad] * (look_back + 1 - cut))
    lengths, rows, fresh, windows, tokens, drafts, accepted, table = (
        torch.tensor(step[key])
        for key in ("lengths", "rows", "fresh", "windows", "tokens", "drafts", "accepted", "table")
    )
    assert async_inputs.gather_token_ids(lengths, rows, fresh, tokens, drafts, num_queries).tolist() == ids
    got = async_inputs.gather_ngram_ids(
        lengths, rows, fresh, windows, tokens, drafts, accepted, table, pad, num_queries
    )
    assert got.tolist() == ngrams
    assert got.shape == (num_queries, look_back + 1)


def test_survival_is_multiplied_in_float32_one_after_the_other() -> None:
    """In float64 the last draft of the second row would only tie with the first row's, and lose."""
    factors = torch.tensor([0.8132702, 0.64941573, 0.91275555])
    rounded_once = factors.double().prod().float()
    assert float(factors[0] * factors[1] * factors[2]) > float(rounded_once)
    confidences = torch.stack((torch.stack((rounded_once, *torch.zeros(2))), factors))
    assert async_inputs.redistribute(5, ints([0, 1]), confidences).tolist() == [1, 4]


def test_a_survival_that_is_not_a_number_comes_last_and_lengths_still_add_up() -> None:
    confidences = torch.tensor([[0.5, float("nan"), 0.5], [0.0, 0.0, 0.0]])
    rows = torch.tensor([0, -1, 1])
    assert async_inputs.redistribute(4, rows, confidences).tolist() == [2, 1, 1]
    assert async_inputs.redistribute(10, rows, confidences).tolist() == [2, 4, 4]
    assert async_inputs.redistribute(12, rows, confidences).tolist() == [4, 4, 4]


def example(device: torch.device | str) -> dict[str, Tensor]:
    """Three sequences after a step of two, with two drafts and a look-back of two."""
    values: dict[str, Any] = {
        "rows": [1, -1, 0],
        "base": [9, 9, 9],
        "tokens": [4, 5],
        "drafts": [[6, 7], [8, 9]],
        "confidences": [[0.9, 0.8], [0.7, 0.1]],
        "accepted": [0, 2],
        "fresh": [[1, 2, 3]] * 3,
        "windows": [[10, 11, 12, 13], [14, 15, 16, 17], [18, 19, 20, 21]],
        "table": list(range(20)),
        "slots": [2, 0, 1],
        "block_ids": [3, 1, 4, 2],
        "block_offsets": [0, 2, 2, 4],
        "is_placeholder": [False, True, False],
    }
    return {key: torch.tensor(value, device=device) for key, value in values.items()}


def complete(given: dict[str, Tensor]) -> list[Tensor]:
    """Every op of the module, and the decode metadata from the corrected lengths."""
    rows, left, accepted = given["rows"], (given["tokens"], given["drafts"]), given["accepted"]
    lengths = async_inputs.redistribute(6, rows, given["confidences"])
    contexts = async_inputs.correct_context_lengths(given["base"], lengths, rows, accepted, 2)
    ids = async_inputs.gather_token_ids(lengths, rows, given["fresh"], *left, 6)
    ngrams = async_inputs.gather_ngram_ids(
        lengths, rows, given["fresh"], given["windows"], *left, accepted, given["table"], 99, 6
    )
    step = metadata.decode_metadata(
        lengths,
        contexts,
        *(given[key] for key in ("slots", "block_ids", "block_offsets", "is_placeholder")),
        tokens_per_block=8,
        window_size=4,
        ring_length=9,
        ratios=[1, 2],
        table_width=2,
        num_queries=6,
        max_blocks=2,
    )
    return [lengths, contexts, ids, ngrams, step.positions, step.block_tables, *step.compressed_store_slots.values()]


def test_everything_runs_on_tensors_without_contents() -> None:
    expected = complete(example("cpu"))
    assert expected[0].tolist() == [2, 1, 3]
    assert expected[1].tolist() == [11, 10, 10]
    assert expected[2].tolist() == [5, 8, 1, 4, 6, 7]
    for meta, real in zip(complete(example("meta")), expected, strict=True):
        assert meta.device.type == "meta"
        assert (meta.shape, meta.dtype) == (real.shape, real.dtype)


def test_decode_metadata_reads_back_what_the_host_does_not_give() -> None:
    """The counterproof: without the host's numbers, tensors without contents are not enough."""
    two = torch.tensor([1, 1], device="meta")
    given_numbers = {"num_queries": 2, "max_blocks": 1}

    def run(**numbers: int) -> metadata.DecodeRows:
        shape = {"tokens_per_block": 8, "window_size": 4, "ring_length": 9, "ratios": [1], "table_width": 2}
        offsets = torch.tensor([0, 1, 2], device="meta")
        return metadata.decode_metadata(two, two, two, two, offsets, two.bool(), **shape, **numbers)

    assert run(**given_numbers).positions.shape == (2,)
    for name in given_numbers:
        with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
            run(**{key: value for key, value in given_numbers.items() if key != name})


@pytest.mark.gpu
def test_on_cuda_nothing_blocks_and_the_results_are_those_of_the_cpu(cuda: torch.device) -> None:
    given = example(cuda)
    with SyncGuard(*cuda_sync_mode()).forbid():
        got = complete(given)
    for there, here in zip(got, complete(example("cpu")), strict=True):
        assert torch.equal(there.cpu(), here)


@pytest.mark.gpu
def test_a_cuda_graph_of_it_follows_its_inputs(cuda: torch.device) -> None:
    given, changed = example(cuda), example("cpu")
    complete(given)  # what is loaded at the first call cannot be loaded while capturing
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = complete(given)
    changed["rows"], changed["accepted"] = torch.tensor([0, 1, -1]), torch.tensor([1, 2])
    changed["confidences"] = changed["confidences"].flip(0)
    for key, tensor in changed.items():
        given[key].copy_(tensor)
    graph.replay()
    for there, here in zip(got, complete(changed), strict=True):
        assert torch.equal(there.cpu(), here)


def test_the_registry_knows_that_a_graph_can_hold_these_ops() -> None:
    for op in async_inputs.OPS:
        assert default_registry().select(op, "cpu").graph_safe
    assert not default_registry().select("topk_to_slots", "cpu").graph_safe


ROWS, LENGTHS, FRESH = ints([0, -1]), ints([1, 2]), ints([[1, 2], [3, 4]], 2, 2)
LEFT = ints([5]), ints([6], 1, 1)


def test_zero_sequences_and_a_previous_step_without_rows_are_fine() -> None:
    none, fresh = ints([]), ints([-1])
    assert async_inputs.correct_context_lengths(none, none, none, none, 3).tolist() == []
    assert async_inputs.redistribute(0, none, torch.empty(0, 3)).tolist() == []
    assert async_inputs.gather_token_ids(none, none, ints([], 0, 2), none, ints([], 0, 1), 0).tolist() == []
    assert async_inputs.correct_context_lengths(ints([4]), ints([2]), fresh, none, 3).tolist() == [6]
    assert async_inputs.redistribute(3, fresh, torch.empty(0, 3)).tolist() == [3]
    assert async_inputs.gather_token_ids(ints([2]), fresh, ints([7, 8], 1, 2), none, ints([], 0, 1), 2).tolist() == [
        7,
        8,
    ]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: async_inputs.correct_context_lengths(ints([1]), LENGTHS, ROWS, LEFT[0], 1),
            r"base_lengths has shape \[1\]; \[2\] is expected",
        ),
        (
            lambda: async_inputs.correct_context_lengths(LENGTHS, LENGTHS.float(), ROWS, LEFT[0], 1),
            "query_lengths has dtype torch.float32; int32 or int64 is required",
        ),
        (
            lambda: async_inputs.correct_context_lengths(LENGTHS, LENGTHS, ROWS[:, None], LEFT[0], 1),
            r"previous_rows has shape \[2, 1\]; \[N\] is expected",
        ),
        (
            lambda: async_inputs.correct_context_lengths(LENGTHS, LENGTHS, ROWS, LEFT[1], 1),
            r"num_accepted has shape \[1, 1\]; \[P\] is expected",
        ),
        (lambda: async_inputs.redistribute(1, ROWS, torch.ones(1, 3)), "total is 1; 2 sequences with 3 drafts share 2"),
        (lambda: async_inputs.redistribute(9, ROWS, torch.ones(1, 3)), "total is 9; .* share 2 to 8 query tokens"),
        (
            lambda: async_inputs.redistribute(4, ROWS, torch.ones(1, 3).double()),
            "confidences has dtype torch.float64; float32 is required",
        ),
        (
            lambda: async_inputs.redistribute(4, ROWS, torch.ones(3)),
            r"confidences has shape \[3\]; \[P, G\] is expected",
        ),
        (lambda: async_inputs.redistribute(4, ROWS.bool(), torch.ones(1, 3)), "previous_rows has dtype torch.bool"),
        (
            lambda: async_inputs.gather_token_ids(LENGTHS, ROWS, FRESH[:, :1], *LEFT, 3),
            r"token_ids has shape \[2, 1\]; \[2, 2\] is expected",
        ),
        (
            lambda: async_inputs.gather_token_ids(LENGTHS, ROWS, FRESH, LEFT[0], FRESH, 3),
            r"previous_draft_ids has shape \[2, 2\]; \[1, G\] is expected",
        ),
        (
            lambda: async_inputs.gather_ngram_ids(LENGTHS, ROWS, FRESH, FRESH[:, :0], *LEFT, LEFT[0], LENGTHS, 0, 3),
            "windows has 0 columns; at least 1, one per draft, are needed",
        ),
        (
            lambda: async_inputs.gather_ngram_ids(LENGTHS, ROWS, FRESH, FRESH, *LEFT, LENGTHS, LENGTHS, 0, 3),
            r"num_accepted has shape \[2\]; \[1\] is expected",
        ),
    ],
)
def test_bad_input_of_asynchronous_decode_is_named(call: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()


def test_a_row_that_the_previous_step_does_not_have_is_an_index_error_on_the_cpu() -> None:
    with pytest.raises(IndexError):
        async_inputs.redistribute(2, ints([0, 2]), torch.ones(2, 3))
