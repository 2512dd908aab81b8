"""Several outputs of one prompt: who leads, who is forked, who waits for memory, and how each of them ends."""

from dataclasses import replace

import numpy as np
import pytest
from engine_testing.bench import EOS, LETTERS, Bench, MakeBench, params
from engine_testing.first_tokens import FirstTokens
from numpy.typing import NDArray

from thalweg.engine.statistics import StepRecord
from thalweg.interfaces import RequestOutput, SamplingParams, StepKind


class LoneRank:
    """A group of one."""

    rank, size = 0, 1

    def all_reduce_min(self, values: NDArray[np.int32]) -> NDArray[np.int32]:
        return values

    all_reduce_max = all_reduce_min

    def fail(self, reason: str) -> None:
        raise AssertionError(reason)


def sampled(n: int, **values: object) -> SamplingParams:
    """Parameters that draw the likeliest token; output i has seed i."""
    return params(**({"n": n, "temperature": 1.0, "top_k": 1, "seed": 0} | values))


def spell(bench: Bench, first: str, others: dict[str, int] | None = None) -> FirstTokens:
    """Output i begins with letter i of `first`, or with the token that `others` gives for that character."""
    special = others or {}
    ids = [special.get(letter, bench.letters[LETTERS.find(letter)]) for letter in first]
    return FirstTokens(bench, lambda seed: ids[seed])


def texts(output: RequestOutput) -> list[str]:
    return [one.text for one in output.outputs]


def reasons(output: RequestOutput) -> list[str | None]:
    return [one.finish_reason for one in output.outputs]


def test_every_output_goes_on_from_its_own_first_token(bench: Bench) -> None:
    first = spell(bench, "acx")
    bench.engine.add_request("r", "z", sampled(3, max_tokens=3))
    bench.engine.add_request("other", "z", params(max_tokens=4))
    final = bench.drain()["r"]
    assert texts(final) == ["abc", "cde", "xyz"]
    assert reasons(final) == ["length"] * 3
    assert [one.index for one in final.outputs] == [0, 1, 2]
    assert first.num_shared == [3]
    assert bench.text("other") == "abcd"
    assert final.metrics.num_output_tokens == 9
    assert bench.engine.statistics.totals.num_output_tokens == 9 + 4
    assert bench.engine.statistics.totals.num_prompt_tokens == 2 + 2


def test_an_output_record_has_all_outputs_and_comes_once_per_step(bench: Bench) -> None:
    spell(bench, "acx")
    bench.engine.add_request("r", "z", sampled(3, max_tokens=3))
    bench.drain()
    assert [texts(output) for output in bench.history] == [
        ["a", "c", "x"],
        ["ab", "cd", "xy"],
        ["abc", "cde", "xyz"],
    ]
    assert [output.finished for output in bench.history] == [False, False, True]


def test_an_output_that_ends_early_stays_in_the_record_until_the_others_end(bench: Bench) -> None:
    spell(bench, "ax")
    bench.engine.add_request("r", "z", sampled(2, stop="yz", max_tokens=5))
    bench.drain()
    assert [texts(output) for output in bench.history] == [
        ["a", "x"],
        ["ab", "x"],
        ["abc", "x"],
        ["abcd", "x"],
        ["abcde", "x"],
    ]
    final = bench.finals["r"]
    assert reasons(final) == ["length", "stop"]
    assert [one.stop_reason for one in final.outputs] == [None, "yz"]
    assert final.metrics.num_output_tokens == 5 + 3


def test_the_leader_is_the_first_output_that_its_token_does_not_end(bench: Bench) -> None:
    spell(bench, ".c.x", {".": EOS})
    bench.engine.add_request("r", "z", sampled(4, max_tokens=3))
    final = bench.drain()["r"]
    assert texts(final) == ["", "cde", "", "xyz"]
    assert reasons(final) == ["stop", "length", "stop", "length"]
    assert [one.token_ids for one in final.outputs[::2]] == [(EOS,), (EOS,)]


def test_all_outputs_may_end_with_their_first_token(bench: Bench) -> None:
    spell(bench, "...", {".": EOS})
    bench.engine.add_request("eos", "z", sampled(3))
    bench.drain()
    assert reasons(bench.finals["eos"]) == ["stop"] * 3
    assert len(bench.history) == 1


def test_an_ending_token_is_an_ordinary_one_where_it_is_ignored(bench: Bench) -> None:
    spell(bench, ".c", {".": EOS})
    bench.engine.add_request("r", "z", sampled(2, max_tokens=3, ignore_eos=True))
    final = bench.drain()["r"]
    assert texts(final) == ["ab", "cde"]
    assert final.outputs[0].token_ids[0] == EOS
    assert reasons(final) == ["length"] * 2


def test_one_token_per_output_needs_no_fork(bench: Bench) -> None:
    spell(bench, "a.x", {".": EOS})
    bench.engine.add_request("r", "z", sampled(3, max_tokens=1))
    final = bench.drain()["r"]
    assert texts(final) == ["a", "", "x"]
    assert reasons(final) == ["length", "stop", "length"]
    assert len(bench.history) == 1


def test_a_prompt_that_fills_the_model_ends_every_output_at_its_first_token(bench: Bench) -> None:
    spell(bench, "a.x", {".": EOS})
    bench.engine.add_request("r", [5] * 64, sampled(3))
    assert reasons(bench.drain()["r"]) == ["length", "stop", "length"]


@pytest.mark.parametrize("stopping", [0, 1, 2])
def test_a_stop_token_as_first_token_ends_that_output_only(bench: Bench, stopping: int) -> None:
    letters = ["a", "c", "x"]
    stop = bench.letters[LETTERS.index(letters[stopping])]
    spell(bench, "acx")
    bench.engine.add_request("r", "z", sampled(3, stop_token_ids=(stop,), max_tokens=2))
    expected, ends = ["ab", "cd", "xy"], ["length"] * 3
    expected[stopping], ends[stopping] = letters[stopping], "stop"
    final = bench.drain()["r"]
    assert texts(final) == expected
    assert reasons(final) == ends
    assert final.outputs[stopping].stop_reason == stop


def test_a_stop_string_as_first_token_ends_that_output_only(bench: Bench) -> None:
    spell(bench, "aca")
    bench.engine.add_request("r", "z", sampled(3, stop="a", max_tokens=2))
    final = bench.drain()["r"]
    assert texts(final) == ["", "cd", ""]
    assert reasons(final) == ["stop", "length", "stop"]


def test_only_the_last_chunk_of_a_prompt_fans_out(make_bench: MakeBench) -> None:
    bench = make_bench(chunked_prefill=True, max_num_batched_tokens=16, prefill_interval_all=1)
    first = spell(bench, "acx")
    bench.engine.add_request("r", [5] * 50, sampled(3, max_tokens=3))
    assert texts(bench.drain()["r"]) == ["abc", "cde", "xyz"]
    assert first.num_shared == [3]
    assert bench.engine.statistics.totals.num_prompt_tokens == 50


def test_a_rank_of_a_group_steps_until_its_last_output_has_ended(make_bench: MakeBench) -> None:
    bench = make_bench(communicator=LoneRank())
    spell(bench, LETTERS[:12])
    bench.engine.add_request("r", "z", sampled(12, max_tokens=3))
    assert texts(bench.drain()["r"]) == [(LETTERS * 2)[i : i + 3] for i in range(12)]


def test_several_prompts_of_one_step_fan_out_side_by_side(make_bench: MakeBench) -> None:
    bench = make_bench(max_num_seqs=16, num_state_slots=20)
    first = spell(bench, "acxt")
    for name in ("one", "two", "three"):
        bench.engine.add_request(name, "z", sampled(4, max_tokens=3))
    bench.engine.add_request("lone", "z", params(max_tokens=3))
    finals = bench.drain()
    assert texts(finals.pop("lone")) == ["abc"]
    assert [texts(final) for final in finals.values()] == [["abc", "cde", "xyz", "tuv"]] * 3
    assert first.num_shared == [4, 4, 4]


def test_outputs_that_find_no_memory_share_the_prompt_once_more(bench: Bench) -> None:
    """The bench has five state slots."""
    first = spell(bench, LETTERS[:12])
    bench.engine.add_request("r", "z", sampled(12, max_tokens=3))
    final = bench.drain()["r"]
    assert texts(final) == [(LETTERS * 2)[i : i + 3] for i in range(12)]
    assert final.metrics.num_output_tokens == 36
    assert bench.engine.statistics.totals.num_output_tokens == 36
    assert first.num_shared[0] == 5, "more than that could not run"
    assert sum(first.num_shared) < 2 * 12
    assert bench.engine.statistics.totals.num_prompt_tokens < 12 * 2


def test_a_step_draws_for_no_more_outputs_than_could_run(make_bench: MakeBench) -> None:
    bench = make_bench()
    first = spell(bench, LETTERS[:4])
    for index in range(4):
        bench.engine.add_request(f"{index}", "z", sampled(4, max_tokens=2))
    bench.step()
    assert first.num_shared == [4, 2, 1, 1]
    for final in bench.drain().values():
        assert texts(final) == ["ab", "bc", "cd", "de"]


def test_outputs_run_where_there_is_one_state_slot(make_bench: MakeBench) -> None:
    bench = make_bench(max_num_seqs=1, num_state_slots=2)
    spell(bench, "acx")
    bench.engine.add_request("r", "z", sampled(3, max_tokens=3, ignore_eos=True))
    final = bench.drain()["r"]
    assert texts(final) == ["abc", "cde", "xyz"]
    assert reasons(final) == ["length"] * 3


def test_preempted_outputs_are_recomputed_each_for_itself(make_bench: MakeBench) -> None:
    bench = make_bench(num_blocks=8)
    spell(bench, "acxt")
    bench.engine.add_request("r", "z" * 7, sampled(4, max_tokens=30))
    final = bench.drain()["r"]
    assert final.metrics.num_preemptions > 0
    assert texts(final) == [(LETTERS * 3)[LETTERS.index(letter) :][:30] for letter in "acxt"]


def test_an_output_that_lost_its_memory_for_good_leaves_the_others_alone(make_bench: MakeBench) -> None:
    bench = make_bench(num_blocks=8, stop_preempted_request=True)
    spell(bench, "acxt")
    bench.engine.add_request("r", "z" * 7, sampled(4, max_tokens=30))
    final = bench.drain()["r"]
    assert set(reasons(final)) == {"length", "insufficient_system_resource"}
    assert "ran out of blocks" in str(final.error)
    for letter, one in zip("acxt", final.outputs, strict=True):
        whole = (LETTERS * 3)[LETTERS.index(letter) :][:30]
        assert one.text == whole if one.finish_reason == "length" else whole.startswith(one.text)


def test_an_abort_ends_outputs_wherever_they_are(make_bench: MakeBench) -> None:
    for num_steps in range(7):
        bench = make_bench(chunked_prefill=True, max_num_batched_tokens=16, prefill_interval_all=1)
        spell(bench, LETTERS[:9])
        bench.engine.add_request("r", [5] * 40, sampled(9))
        bench.engine.add_request("other", "z", params())
        for _ in range(num_steps):
            bench.step()
        assert bench.engine.abort_request("r") == 1
        assert bench.engine.abort_request("r") == 0
        final = bench.drain()["r"]
        assert set(reasons(final)) == {"abort"}
        assert final.error is None
        assert bench.text("other") == "abcdefgh"


def test_an_abort_keeps_what_had_ended(bench: Bench) -> None:
    spell(bench, ".c", {".": EOS})
    bench.engine.add_request("r", "z", sampled(2))
    bench.step()
    bench.engine.abort_request("r")
    final = bench.drain()["r"]
    assert reasons(final) == ["stop", "abort"]
    assert texts(final)[0] == ""
    assert final.metrics.total_time_s is not None


@pytest.mark.parametrize("kind", list(StepKind))
def test_a_callback_may_abort_outputs_between_any_two_steps(bench: Bench, kind: StepKind) -> None:
    spell(bench, LETTERS[:7])

    def abort(record: StepRecord) -> None:
        if record.plan.kind is kind and record.plan.sequence_ids.size:
            bench.engine.abort_request("r")

    bench.engine.statistics.on_step(abort)
    bench.engine.add_request("r", "z", sampled(7))
    bench.engine.add_request("other", "z", params())
    finals = bench.drain()
    assert set(reasons(finals["r"])) == {"abort"}
    assert bench.text("other") == "abcdefgh"


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_failed_step_ends_every_output_that_had_not_ended(bench: Bench, number: int) -> None:
    def fail(reached: int) -> None:
        if reached == number:
            raise RuntimeError("device lost")

    spell(bench, ".cxabtu", {".": EOS})
    bench.engine.add_request("r", "z", sampled(7))
    bench.model.on_forward = fail
    while bench.engine.has_unfinished():
        bench.step()
    final = bench.finals["r"]
    assert reasons(final) == [*(["stop"] if number else ["error"]), *["error"] * 6]
    assert "device lost" in str(final.error)


def test_a_failure_while_sequences_are_forked_ends_every_output(bench: Bench) -> None:
    first = spell(bench, "acx")
    first.choose = lambda seed: -3
    bench.engine.add_request("r", "z", sampled(3))
    while bench.engine.has_unfinished():
        bench.step()
    final = bench.finals["r"]
    assert reasons(final) == ["error"] * 3
    assert "last_token_id is -3" in str(final.error)


def test_a_shared_sequence_that_the_scheduler_drops_ends_every_output(bench: Bench) -> None:
    bench.engine.add_request("r", "z", sampled(3))
    bench.engine.add_request("other", "z", params())
    bench.scheduler.abort([0])
    final = bench.drain()["r"]
    assert reasons(final) == ["abort"] * 3
    assert bench.text("other") == "abcdefgh"


def test_a_step_that_draws_too_few_first_tokens_is_a_defect(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    collect = bench.runner.collect
    monkeypatch.setattr(bench.runner, "collect", lambda step: replace(collect(step), sibling_ids=np.zeros(1, np.int32)))
    bench.engine.add_request("r", "z", sampled(3))
    while bench.engine.has_unfinished():
        bench.step()
    assert "InvariantError: step 0 drew 1 first tokens for 2 outputs" in str(bench.finals["r"].error)


def test_a_broken_first_token_fails_its_output_only(bench: Bench) -> None:
    first = spell(bench, "acx")
    for index, broken in enumerate([{0}, {1}, {0, 2}, {0, 1, 2}]):
        first.is_broken = broken.__contains__
        name = f"r{index}"
        bench.engine.add_request(name, "z", sampled(3, max_tokens=2))
        final = bench.drain()[name]
        assert texts(final) == ["" if i in broken else text for i, text in enumerate(["ab", "cd", "xy"])]
        assert reasons(final) == ["error" if i in broken else "length" for i in range(3)]
        assert "not numbers" in str(final.error)


def test_time_to_first_token_counts_once_per_request(bench: Bench) -> None:
    records: list[StepRecord] = []
    bench.engine.statistics.on_step(records.append)
    spell(bench, LETTERS[:12])
    bench.engine.add_request("r", "z", sampled(12))
    final = bench.drain()["r"]
    times = [ms for record in records for ms in record.first_token_ms]
    assert final.metrics.time_to_first_token_s is not None
    assert times == [pytest.approx(1000 * final.metrics.time_to_first_token_s)]


def test_random_traffic_of_several_outputs_leaks_nothing_and_says_the_right_things(make_bench: MakeBench) -> None:
    generator = np.random.default_rng(11)
    for case in range(3):
        bench = make_bench(
            num_blocks=int(generator.integers(9, 24)),
            chunked_prefill=bool(case % 2),
            max_num_batched_tokens=64,
            prefill_interval_all=3,
            draft_length=case,
        )
        letters = bench.letters
        FirstTokens(bench, lambda seed, letters=letters: EOS if seed % 7 == 3 else letters[seed % 26])
        seeds: dict[str, int] = {}
        aborted = set()
        for index in range(10):
            name, seed = f"{case}.{index}", int(generator.integers(100))
            stop = ("cd",) if generator.random() < 0.3 else ()
            n, length = int(generator.integers(2, 7)), int(generator.integers(1, 40))
            options = sampled(n, max_tokens=int(generator.integers(1, 20)), stop=stop, seed=seed)
            bench.engine.add_request(name, [5] * length, options)
            seeds[name] = seed
            for _ in range(int(generator.integers(0, 6))):
                bench.step()
            if generator.random() < 0.3:
                victim = list(seeds)[int(generator.integers(len(seeds)))]
                aborted.update([victim] * bench.engine.abort_request(victim))
        finals = bench.drain()
        assert set(finals) == set(seeds)
        assert not list(bench.engine._table)
        assert not bench.engine._table._by_sequence
        for name, final in finals.items():
            assert "abort" not in reasons(final) or name in aborted
            for seed, one in enumerate(final.outputs, start=seeds[name]):
                assert ("" if seed % 7 == 3 else (LETTERS * 3)[seed % 26 :]).startswith(one.text)
