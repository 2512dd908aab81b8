"""Log-probabilities and draws in outputs: whose they are, where they are cut, what survives chunks and preemption."""

import itertools
from collections.abc import Mapping

import pytest
import torch
from engine_testing.bench import EOS, LETTERS, Bench, MakeBench, params

from thalweg.engine.inflight import Collected, InflightStep
from thalweg.engine.sampling_config import SamplingConfig
from thalweg.interfaces import RequestOutput

DRAWS = {"sampling": SamplingConfig(return_draws=True)}


def expected(bench: Bench, context: int, token_id: int, count: int) -> dict[int, float]:
    """What an output says about a token after another one: its likeliest alternatives and itself."""
    logprobs = torch.log_softmax(bench.model.logits(torch.tensor([context])), dim=-1)[0]
    order = torch.sort(logprobs, descending=True, stable=True).indices.tolist()
    shown = [*order[:count], *([token_id] if token_id not in order[:count] else [])]
    return {each: pytest.approx(float(logprobs[each]), abs=1e-5) for each in shown}


def check(bench: Bench, output: RequestOutput, count: int) -> None:
    """All outputs of a request have the log-probabilities of the scripted model, `count` alternatives each."""
    for one in output.outputs:
        assert one.logprobs is not None
        contexts = [output.prompt_token_ids[-1], *one.token_ids]
        wanted = [expected(bench, *pair, count) for pair in zip(contexts, one.token_ids, strict=False)]
        assert list(one.logprobs) == wanted
        assert [list(mapping) for mapping in one.logprobs] == [list(mapping) for mapping in wanted]


def check_prompt(bench: Bench, output: RequestOutput, count: int) -> None:
    ids = output.prompt_token_ids
    assert output.prompt_logprobs is not None
    assert list(output.prompt_logprobs) == [expected(bench, *pair, count) for pair in itertools.pairwise(ids)]


@pytest.mark.parametrize("draft_length", [0, 3])
def test_every_token_has_its_alternatives_from_the_most_likely_on(make_bench: MakeBench, draft_length: int) -> None:
    bench = make_bench(draft_length=draft_length)
    for count in (0, 1, 4):
        bench.engine.add_request(f"{count}", "z", params(logprobs=count))
    bench.engine.add_request("nothing", "z", params())
    finals = bench.drain()
    for count in (0, 1, 4):
        check(bench, finals[f"{count}"], count)
    assert finals["nothing"].outputs[0].logprobs is None
    assert {final.outputs[0].text for final in finals.values()} == {"abcdefgh"}


def test_log_probabilities_come_with_their_tokens(bench: Bench) -> None:
    bench.engine.add_request("r", "z", params(logprobs=2, max_tokens=4))
    bench.drain()
    for output in bench.history:
        check(bench, output, 2)
    assert [len(output.outputs[0].token_ids) for output in bench.history] == [1, 2, 3, 4]


def test_a_token_that_is_none_of_the_alternatives_comes_after_them(bench: Bench) -> None:
    late = bench.letters[20]
    bench.engine.add_request("r", "z", params(logprobs=2, max_tokens=2, forced_token_ids=[late]))
    final = bench.drain()["r"]
    assert final.outputs[0].text == "uv"
    check(bench, final, 2)
    assert list((final.outputs[0].logprobs or [{}])[0]) == [*bench.letters[:2], late]


@pytest.mark.parametrize("stop", ["a", "b", "cd", "e", "fg"])
def test_log_probabilities_and_draws_are_cut_with_the_tokens_of_an_accepted_run(
    make_bench: MakeBench, stop: str
) -> None:
    bench = make_bench(draft_length=5, stage_options=DRAWS)
    bench.engine.add_request("string", "z", params(logprobs=1, stop=stop))
    bench.engine.add_request("id", "z", params(logprobs=1, stop_token_ids=[bench.letters[LETTERS.index(stop[-1])]]))
    for final in bench.drain().values():
        one = final.outputs[0]
        assert len(one.token_ids) == LETTERS.index(stop[-1]) + 1
        check(bench, final, 1)
        assert one.draws is not None
        assert len(one.draws) == len(one.token_ids)


def test_every_output_of_a_prompt_has_its_own(make_bench: MakeBench) -> None:
    bench = make_bench(draft_length=2, verification="coupled", stage_options=DRAWS)
    options = {"temperature": 30.0, "logprobs": 2, "max_tokens": 5}
    bench.engine.add_request("together", "z", params(n=4, seed=7, **options))
    for index in range(4):
        bench.engine.add_request(f"{index}", "z", params(seed=7 + index, **options))
    finals = bench.drain()
    check(bench, finals["together"], 2)
    for index, one in enumerate(finals["together"].outputs):
        alone = finals[f"{index}"].outputs[0]
        assert (one.token_ids, one.logprobs) == (alone.token_ids, alone.logprobs)
        assert [draw.sum_smaller_probs for draw in one.draws or ()] == [
            draw.sum_smaller_probs for draw in alone.draws or ()
        ]
    assert len({one.token_ids for one in finals["together"].outputs}) == 4


def test_outputs_have_their_own_whoever_goes_on_in_the_shared_sequence(make_bench: MakeBench) -> None:
    bench = make_bench(stage_options=DRAWS)
    first = bench.letters[0]
    bench.model.say = lambda token_id: EOS if token_id == first else token_id
    options = {"temperature": 2.5, "logprobs": 2, "max_tokens": 3}
    for seed in range(0, 24, 4):
        bench.engine.add_request(f"from {seed}", "z", params(n=4, seed=seed, **options))
    for seed in range(24):
        bench.engine.add_request(f"{seed}", "z", params(seed=seed, **options))
    finals = bench.drain()
    num_other_leaders = 0
    for seed in range(0, 24, 4):
        together = finals[f"from {seed}"]
        check(bench, together, 2)
        alone = [finals[f"{seed + index}"].outputs[0] for index in range(4)]
        assert [(one.token_ids, one.logprobs, one.draws, one.finish_reason) for one in together.outputs] == [
            (one.token_ids, one.logprobs, one.draws, one.finish_reason) for one in alone
        ]
        has_ended = [one.token_ids[0] == EOS for one in alone]
        num_other_leaders += has_ended[0] and not all(has_ended)
    assert num_other_leaders


def test_prompt_log_probabilities_are_complete_with_the_first_token(bench: Bench) -> None:
    for count in (0, 3):
        bench.engine.add_request(f"{count}", "abcxyzab", params(prompt_logprobs=count, n=1))
    bench.engine.add_request("one", [5], params(prompt_logprobs=1))
    bench.engine.add_request("nothing", "z", params())
    finals = bench.drain()
    for output in bench.history:
        if output.request_id in ("0", "3"):
            check_prompt(bench, output, int(output.request_id))
    assert finals["one"].prompt_logprobs == ()
    assert finals["nothing"].prompt_logprobs is None


def test_prompt_log_probabilities_over_chunks_are_those_of_the_whole_prompt(make_bench: MakeBench) -> None:
    prompt = [int(token) for token in torch.randint(3, 400, (50,), generator=torch.Generator().manual_seed(3))]
    bench = make_bench(chunked_prefill=True, max_num_batched_tokens=16, prefill_interval_all=1)
    bench.engine.add_request("r", prompt, params(prompt_logprobs=2, n=3, temperature=1.0, seed=1))
    bench.engine.add_request("other", prompt[:20], params(prompt_logprobs=1))
    finals = bench.drain()
    check_prompt(bench, finals["r"], 2)
    check_prompt(bench, finals["other"], 1)


def test_an_abort_between_chunks_shows_what_is_known_of_the_prompt(make_bench: MakeBench) -> None:
    bench = make_bench(chunked_prefill=True, max_num_batched_tokens=16, prefill_interval_all=1, stage_options=DRAWS)
    bench.engine.add_request("r", [5] * 50, params(prompt_logprobs=0, logprobs=1))
    bench.step()
    bench.step()
    bench.engine.abort_request("r")
    final = bench.drain()["r"]
    assert final.prompt_logprobs is not None
    assert len(final.prompt_logprobs) == 32
    assert final.outputs[0].logprobs == ()
    assert final.outputs[0].draws == ()


def test_recomputed_requests_keep_what_was_known(make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make_bench(num_blocks=8, stage_options=DRAWS)
    collect, num_reported = bench.runner.collect, []

    def counted(step: InflightStep) -> Collected:
        collected = collect(step)
        num_reported.append(0 if collected.prompt_logprobs is None else len(collected.prompt_logprobs.token_ids))
        return collected

    monkeypatch.setattr(bench.runner, "collect", counted)
    for index in range(4):
        bench.engine.add_request(f"{index}", "z" * (index + 2), params(max_tokens=30, logprobs=1, prompt_logprobs=1))
    finals = bench.drain()
    assert sum(final.metrics.num_preemptions for final in finals.values()) > 0
    for final in finals.values():
        check(bench, final, 1)
        check_prompt(bench, final, 1)
        assert len(final.outputs[0].draws or ()) == 30
    assert sum(num_reported) == sum(len(final.prompt_token_ids) - 1 for final in finals.values())


def test_a_broken_row_leaves_the_log_probabilities_of_what_came_before(make_bench: MakeBench) -> None:
    bench = make_bench(draft_length=2)
    broken = bench.letters[5]
    bench.model.broken = lambda token_id: token_id == broken
    bench.engine.add_request("r", "z", params(logprobs=1))
    final = bench.drain()["r"]
    assert final.outputs[0].finish_reason == "error"
    assert final.outputs[0].text == "abcde"
    assert [list(mapping) for mapping in final.outputs[0].logprobs or ()] == [[letter] for letter in bench.letters[:5]]


def test_the_end_of_a_sequence_has_its_log_probability(bench: Bench) -> None:
    stop_at = bench.letters[2]
    bench.model.say = lambda token_id: EOS if token_id == stop_at else token_id
    bench.engine.add_request("r", "z", params(logprobs=1))
    logprobs: tuple[Mapping[int, float], ...] | None = bench.drain()["r"].outputs[0].logprobs
    assert logprobs is not None
    assert [list(mapping) for mapping in logprobs] == [[bench.letters[0]], [bench.letters[1]], [EOS]]


def test_draws_say_which_tokens_were_drafts(make_bench: MakeBench) -> None:
    bench = make_bench(draft_length=2, stage_options=DRAWS)
    bench.engine.add_request("r", "z", params())
    draws = bench.drain()["r"].outputs[0].draws
    assert draws is not None
    assert len(draws) == 8
    assert draws[0].draft_logprob is None
    assert any(draw.draft_logprob is not None for draw in draws)
    assert all(0 <= draw.sum_smaller_probs <= 1 + 1e-6 for draw in draws)
