"""How likely the tokens of prompts were: whole, in chunks, after a preemption, raw and processed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from engine_testing.bench import VOCAB, MakeBench, params
from engine_testing.sampling import plain_logprobs, records, sampler_inputs

from thalweg.engine.prompt_logprobs import PromptLogprobs
from thalweg.engine.prompt_rows import PromptRows
from thalweg.engine.sample_stage import SampleStage
from thalweg.engine.sampling_row import SamplingRow
from thalweg.engine.upload import Uploader
from thalweg.interfaces import InvariantError
from thalweg.kernels import bind
from thalweg.kernels.backends.cpu import CpuBackend

TABLE = 2 * torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(9))
TABLE[:, 1] -= 50


def wanted(token_ids: list[int], sequences: list[int], count: int) -> PromptRows:
    """Looks at query rows 1, 3, 5..."""
    rows = 1 + 2 * np.arange(len(token_ids))
    offsets = np.searchsorted(sequences, [0, 1, 2])
    return PromptRows(rows, np.array(token_ids, np.int32), np.array(sequences), offsets, count)


@pytest.mark.parametrize("slab_rows", [1, 3, 100])
@pytest.mark.parametrize("force_top_k", [0, 7])
@pytest.mark.parametrize("is_raw", [True, False])
def test_slabs_of_rows_say_what_all_rows_together_say(
    is_raw: bool, force_top_k: int, slab_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("thalweg.engine.prompt_logprobs.SLAB_ELEMENTS", slab_rows * VOCAB)
    seen: list[int] = []

    def row_logits(rows: torch.Tensor) -> torch.Tensor:
        seen.append(rows.numel())
        return TABLE[rows]

    rows = [SamplingRow(temperature=0.5, top_p=0.8, num_prompt_logprobs=2), SamplingRow(num_prompt_logprobs=4)]
    best = TABLE.argmax(-1).tolist()
    asked = wanted([best[1], 5, best[5], 7, best[9]], [0, 0, 0, 1, 1], 4)
    options: Any = {"is_raw": is_raw, "force_top_k": force_top_k}
    found = PromptLogprobs(bind("cpu"), Uploader(CpuBackend()), VOCAB, **options).of(asked, records(rows), row_logits)
    assert max(seen) <= slab_rows
    assert sum(seen) == 5
    logits = TABLE[asked.rows].double()
    expected = torch.log_softmax(logits, -1)
    if not is_raw:
        for place, sequence in enumerate(asked.sequences.tolist()):
            expected[place] = plain_logprobs(logits[place], rows[sequence], force_top_k)
    order = torch.sort(expected, descending=True, stable=True).indices[:, :4]
    assert found.top_ids.tolist() == order.tolist()
    np.testing.assert_allclose(found.top_logprobs, expected.gather(1, order), rtol=1e-6, atol=1e-5)
    own = expected.gather(1, torch.from_numpy(asked.token_ids).long()[:, None])[:, 0]
    np.testing.assert_allclose(found.logprobs, own, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("mode", ["raw", "processed"])
@pytest.mark.parametrize("chunk", [8, 11, 64])
def test_prompts_in_chunks_report_every_token_once(make_bench: MakeBench, chunk: int, mode: str) -> None:
    generator = np.random.default_rng(1)
    prompts = [generator.integers(3, VOCAB, length).tolist() for length in (1, 2, 13, 30)]
    bench = make_bench(stage_options={"logprobs_mode": mode}, chunked_prefill=True, max_num_batched_tokens=chunk)
    bench.model.logits = lambda hidden: TABLE[hidden.long()]  # type: ignore[method-assign]
    for index, prompt in enumerate(prompts):
        asked = params(temperature=1.0, seed=index, prompt_logprobs=2, max_tokens=3, repetition_penalty=2.0, n=2)
        bench.engine.add_request(str(index), prompt, asked)
    bench.engine.add_request("silent", prompts[3], params())
    finals = bench.drain()
    assert finals["silent"].prompt_logprobs is None
    for index, prompt in enumerate(prompts):
        found = finals[str(index)].prompt_logprobs
        assert found is not None
        assert len(found) == len(prompt) - 1
        for token, following, logprobs in zip(prompt, prompt[1:], found, strict=False):
            expected = torch.log_softmax(TABLE[token].double(), 0)
            top = expected.topk(2).indices.tolist()
            assert list(logprobs)[:2] == top
            assert set(logprobs) == {*top, following}
            assert logprobs[following] == pytest.approx(float(expected[following]), abs=1e-5)


def test_a_device_that_cannot_say_how_likely_a_prompt_was_is_our_bug() -> None:
    backend = CpuBackend()
    stage = SampleStage(backend, bind("cpu"), Uploader(backend), vocab_size=VOCAB)
    inputs = sampler_inputs([SamplingRow(num_prompt_logprobs=1)], prompt=wanted([3], [0], 1))
    prepared: Any = None
    with pytest.raises(InvariantError, match="log-probabilities of a prompt are wanted"):
        stage.run(prepared, TABLE[:1].clone(), inputs)
