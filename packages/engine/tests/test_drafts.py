"""However good drafts are, and whatever the rule that verifies them, greedy requests say what they say without them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from engine_testing.bench import EOS, LETTERS, VOCAB, Bench, params
from engine_testing.cores import MODES

from thalweg.engine.tokenizer import Tokenizer
from thalweg.interfaces import DraftRows, DraftSampler, RequestOutput

MakeBench = Callable[..., Bench]
LUCK = {
    "right": lambda sequence, position: False,
    "wrong": lambda sequence, position: True,
    "mixed": lambda sequence, position: (7 * sequence + 5 * position) % 4 == 0,
}


@pytest.fixture(params=MODES)
def make_bench(request: pytest.FixtureRequest, tokenizer: Tokenizer) -> MakeBench:
    core, is_async = request.param

    def make(**options: Any) -> Bench:
        return Bench(tokenizer, core=core, async_scheduling=is_async, **options)

    return make


def speculating(make_bench: MakeBench, luck: str = "right", draft_length: int = 3, **options: Any) -> Bench:
    bench = make_bench(draft_length=draft_length, **options)
    assert bench.drafter is not None
    bench.drafter.is_wrong = LUCK[luck]
    return bench


def count_accepted(bench: Bench) -> list[int]:
    """Accepted lengths of decode rows that made tokens, filled while the engine steps."""
    lengths: list[int] = []

    def add(record: Any) -> None:
        if not record.plan.token_ids.size:
            lengths.extend(record.outcome.num_accepted[record.outcome.num_accepted > 0].tolist())

    bench.engine.statistics.on_step(add)
    return lengths


def same(one: RequestOutput, other: RequestOutput) -> bool:
    return (one.outputs, one.error) == (other.outputs, other.error)


@pytest.mark.parametrize("verification", ["rejection", "coupled"])
@pytest.mark.parametrize("luck", LUCK)
@pytest.mark.parametrize("draft_length", [1, 5])
def test_right_drafts_save_steps_and_wrong_ones_change_nothing(
    make_bench: MakeBench, luck: str, draft_length: int, verification: str
) -> None:
    plain, bench = make_bench(), speculating(make_bench, luck, draft_length, verification=verification)
    accepted = count_accepted(bench)
    for engine in (plain.engine, bench.engine):
        for index in range(4):
            engine.add_request(str(index), "xyz"[: index % 3 + 1], params(max_tokens=9 + 3 * index))
    expected, finals = plain.drain(), bench.drain()
    assert all(same(finals[name], expected[name]) for name in expected)
    # The first step after a prefill verifies placeholders.
    longest = {"right": 1 + draft_length, "wrong": 1, "mixed": min(4, 1 + draft_length)}
    assert max(accepted) == longest[luck]
    if luck == "right":
        assert sum(length == 1 for length in accepted) <= 8


@pytest.mark.parametrize("luck", ["right", "mixed"])
def test_every_way_to_end_inside_an_accepted_run(make_bench: MakeBench, luck: str) -> None:
    def serve(bench: Bench) -> dict[str, RequestOutput]:
        letters = bench.letters
        bench.model.say = lambda token_id: EOS if token_id == letters[12] else token_id
        bench.engine.add_request("eos", "z", params(max_tokens=40))
        bench.engine.add_request("ignored eos", "z", params(max_tokens=20, ignore_eos=True))
        bench.engine.add_request("string", "z", params(max_tokens=40, stop=("fg",)))
        bench.engine.add_request("id", "z", params(max_tokens=40, stop_token_ids=(letters[6],)))
        bench.drain()
        bench.engine.add_request("length", "z", params(max_tokens=7))
        bench.engine.add_request("model length", [5] * 60, params(max_tokens=40))
        bench.engine.add_request("late string", "z", params(max_tokens=20, min_tokens=8, stop=("c", "k")))
        bench.engine.add_request("late id", "z", params(max_tokens=9, min_tokens=8, stop_token_ids=(letters[2],)))
        return bench.drain()

    expected, finals = serve(make_bench()), serve(speculating(make_bench, luck))
    assert finals.keys() == expected.keys()
    for name, final in finals.items():
        assert same(final, expected[name]), name
    assert finals["eos"].outputs[0].text == LETTERS[:12]
    assert finals["string"].outputs[0].text == "abcde"
    assert len(finals["model length"].outputs[0].token_ids) == 5
    assert finals["late string"].outputs[0].text == LETTERS[:10]


def test_ending_tokens_are_not_drawn_before_min_tokens_whatever_the_drafts_say(make_bench: MakeBench) -> None:
    def serve(bench: Bench) -> RequestOutput:
        letters = bench.letters
        ending = tuple(letters[index] for index in (2, 3, 9))
        bench.engine.add_request("r", "z", params(max_tokens=20, min_tokens=6, stop_token_ids=ending))
        return bench.drain()["r"]

    expected, final = serve(make_bench()), serve(speculating(make_bench))
    assert same(final, expected)
    assert final.outputs[0].text.startswith("abefghij"[:6])


def test_logits_that_are_not_numbers_end_a_request_after_what_was_accepted_before_them(make_bench: MakeBench) -> None:
    def serve(bench: Bench) -> dict[str, RequestOutput]:
        bench.model.broken = lambda token_id: token_id == bench.letters[7]
        bench.engine.add_request("bad", "z", params(max_tokens=20))
        bench.engine.add_request("good", "j", params(max_tokens=12))
        bench.engine.add_request("stopped before", "z", params(max_tokens=20, stop=("f",)))
        bench.engine.add_request("long enough", "z", params(max_tokens=7))
        return bench.drain()

    expected, finals = serve(make_bench()), serve(speculating(make_bench))
    for name, final in finals.items():
        assert same(final, expected[name]), name
    assert finals["bad"].outputs[0].text == "abcdefg"
    assert "not numbers" in str(finals["bad"].error)
    assert finals["good"].outputs[0].text == LETTERS[10:22]
    assert [finals[name].error for name in ("stopped before", "long enough")] == [None, None]


def test_what_a_drafter_gets_wrong_is_counted_and_harms_no_text(
    make_bench: MakeBench, caplog: pytest.LogCaptureFixture
) -> None:
    """Ids outside the vocabulary, confidences that are not numbers or outside 0..1, at some places."""

    def spoil(bench: Bench) -> Bench:
        assert bench.drafter is not None
        propose = bench.drafter.propose

        def spoiled(rows: DraftRows, sampler: DraftSampler) -> tuple[torch.Tensor, torch.Tensor]:
            drafts, confidences = propose(rows, sampler)
            for row, position in enumerate(rows.positions.tolist()):
                drafts[row, position % 3] = (-1, VOCAB, 2**31 - 1)[position % 3]
                confidences[row, -1] = (float("nan"), -0.25, 1.5)[position % 3]
            return drafts, confidences

        bench.drafter.propose = spoiled  # type: ignore[method-assign]
        return bench

    def serve(bench: Bench) -> dict[str, RequestOutput]:
        for index in range(4):
            bench.engine.add_request(str(index), "xyz"[: index % 3 + 1], params(max_tokens=9 + 3 * index))
        return bench.drain()

    expected, bench = serve(make_bench()), spoil(speculating(make_bench))
    finals = serve(bench)
    assert all(same(finals[name], expected[name]) for name in expected)
    totals = bench.engine.statistics.totals
    assert totals.num_illegal_drafts == totals.num_bad_confidences > 10
    warnings = [record for record in caplog.records if "the drafter proposed" in record.getMessage()]
    assert 1 <= len(warnings) <= 2


def test_a_sequence_preempted_among_its_drafts_says_the_same(make_bench: MakeBench) -> None:
    bench = speculating(make_bench, "mixed", num_blocks=9)
    for index in range(4):
        bench.engine.add_request(str(index), "z" * (index + 1), params(max_tokens=30))
    finals = bench.drain()
    assert all(final.outputs[0].text == (LETTERS * 2)[:30] for final in finals.values())
    assert sum(final.metrics.num_preemptions for final in finals.values()) > 0


def test_sampled_text_does_not_depend_on_how_many_drafts_there_were(make_bench: MakeBench) -> None:
    """Coupled draws: a token is a function of seed, index and distribution."""

    def serve(draft_length: int, luck: str) -> list[tuple[int, ...]]:
        bench = speculating(make_bench, luck, draft_length)
        for index in range(4):
            sampling = params(max_tokens=20, temperature=4.0, seed=index, top_p=0.95, ignore_eos=True)
            bench.engine.add_request(str(index), "z", sampling)
        finals = bench.drain()
        return [finals[name].outputs[0].token_ids for name in sorted(finals)]

    expected = serve(1, "wrong")
    assert len(set(expected)) == 4
    for draft_length, luck in ((1, "right"), (3, "mixed"), (5, "right")):
        assert serve(draft_length, luck) == expected


def test_random_traffic_with_drafts_leaks_nothing(make_bench: MakeBench) -> None:
    generator = np.random.default_rng(11)
    for case in range(4):
        bench = speculating(
            make_bench,
            "mixed",
            draft_length=int(generator.integers(1, 6)),
            num_blocks=int(generator.integers(11, 20)),
            chunked_prefill=bool(case % 2),
            max_num_batched_tokens=64,
            prefill_interval_all=2,
        )
        names = [f"{case}.{index}" for index in range(16)]
        for name in names:
            length, output = int(generator.integers(1, 40)), int(generator.integers(1, 20))
            stop = ("cd",) if generator.random() < 0.3 else ()
            bench.engine.add_request(name, [5] * length, params(max_tokens=output, stop=stop))
            for _ in range(int(generator.integers(0, 4))):
                bench.step()
            if generator.random() < 0.3:
                bench.engine.abort_request(names[int(generator.integers(len(names)))])
        finals = bench.drain()
        assert finals.keys() == set(names)
        for final in finals.values():
            text = final.outputs[0].text
            assert final.error is None
            assert LETTERS.startswith(text)
            assert final.outputs[0].finish_reason != "stop" or text == "ab"
