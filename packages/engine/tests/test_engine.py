"""The step loop over a real scheduler and a scripted model: admission, stops, aborts, nothing leaked."""

from dataclasses import replace

import numpy as np
import pytest
from engine_testing.bench import BLOCK, EOS, LETTERS, VOCAB, Bench, MakeBench, params

from thalweg.engine.admission import Admission, Limits
from thalweg.engine.tokenizer import Tokenizer
from thalweg.interfaces import ConfigError, RequestError, SamplingParams


def test_a_request_grows_step_by_step_and_ends_once(bench: Bench) -> None:
    bench.engine.add_request("r", "xyz", params(max_tokens=3))
    bench.drain()
    assert [output.outputs[0].text for output in bench.history] == ["a", "ab", "abc"]
    assert [output.finished for output in bench.history] == [False, False, True]
    final = bench.finals["r"]
    assert final.outputs[0].finish_reason == "length"
    assert final.error is None
    assert (final.metrics.num_prompt_tokens, final.metrics.num_output_tokens) == (4, 3)
    first, total = final.metrics.time_to_first_token_s, final.metrics.total_time_s
    assert first is not None
    assert total is not None
    assert 0 <= first <= total


def test_text_prompts_start_with_the_begin_token_and_id_prompts_are_used_as_they_are(bench: Bench) -> None:
    bench.engine.add_request("text", "a", params())
    bench.engine.add_request("ids", np.array([bench.letters[0]]), params(), prompt_text="shown")
    finals = bench.drain()
    assert finals["text"].prompt_token_ids == (0, bench.letters[0])
    assert finals["ids"].prompt_token_ids == (bench.letters[0],)
    assert finals["ids"].prompt == "shown"
    assert finals["text"].outputs == finals["ids"].outputs


def test_end_of_sequence_ends_the_output_and_is_not_text(bench: Bench) -> None:
    stop_at = bench.letters[3]
    bench.model.say = lambda token_id: EOS if token_id == stop_at else token_id
    bench.engine.add_request("r", "z", params())
    final = bench.drain()["r"].outputs[0]
    assert (final.text, final.finish_reason, final.stop_reason) == ("abc", "stop", None)
    assert final.token_ids[-1] == EOS


def test_ignore_eos_goes_on_to_the_length(bench: Bench) -> None:
    bench.model.say = lambda token_id: EOS
    bench.engine.add_request("r", "z", params(ignore_eos=True, max_tokens=5))
    final = bench.drain()["r"].outputs[0]
    assert (final.token_ids, final.finish_reason) == ((EOS,) * 5, "length")


def test_a_stop_token_stays_in_the_output(bench: Bench) -> None:
    stop = bench.letters[2]
    bench.engine.add_request("r", "z", params(stop_token_ids=(stop,)))
    final = bench.drain()["r"].outputs[0]
    assert (final.text, final.token_ids[-1], final.finish_reason, final.stop_reason) == ("abc", stop, "stop", stop)


def test_a_stop_string_leaves_the_output_and_nothing_after_it_leaks(bench: Bench) -> None:
    bench.engine.add_request("r", "z", params(stop="cde"))
    bench.engine.add_request("other", "z", params(max_tokens=8))
    bench.drain()
    mine = [output.outputs[0] for output in bench.history if output.request_id == "r"]
    assert [output.text for output in mine] == ["a", "ab", "ab", "ab", "ab"]
    assert (mine[-1].finish_reason, mine[-1].stop_reason) == ("stop", "cde")
    assert mine[-1].token_ids == tuple(bench.letters[:5])
    assert bench.text("other") == "abcdefgh"


def test_a_stop_string_in_the_last_allowed_token_counts_as_a_stop(bench: Bench) -> None:
    bench.engine.add_request("r", "z", params(stop="c", max_tokens=3))
    final = bench.drain()["r"].outputs[0]
    assert (final.text, final.finish_reason, final.stop_reason) == ("ab", "stop", "c")


def test_text_held_back_for_a_stop_string_is_released_at_the_end(bench: Bench) -> None:
    bench.engine.add_request("r", "z", params(stop="cdx", max_tokens=4))
    assert bench.drain()["r"].outputs[0].text == "abcd"


def test_nothing_stops_an_output_before_min_tokens(bench: Bench) -> None:
    letters = bench.letters
    bench.engine.add_request("string", "z", params(stop="b", min_tokens=2, max_tokens=4))
    bench.engine.add_request("spanning", "z", params(stop="bc", min_tokens=2, max_tokens=4))
    bench.engine.add_request("token", "z", params(stop_token_ids=(letters[1], letters[3]), min_tokens=2, max_tokens=6))
    finals = bench.drain()
    assert (bench.text("string"), finals["string"].outputs[0].finish_reason) == ("abcd", "length")
    assert (bench.text("spanning"), finals["spanning"].outputs[0].finish_reason) == ("a", "stop")
    assert finals["token"].outputs[0].stop_reason == letters[3]


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "the prompt is empty; at least one character"),
        ([], "the prompt is empty; at least one token"),
        ([3, VOCAB], f"prompt token 1 is {VOCAB}; it must be in 0..{VOCAB - 1}"),
        ([-1], "prompt token 0 is -1"),
        ([0.5], "token ids must be integers"),
        ([True], "token ids must be integers"),
        ([1, True], "prompt token 1 is True; token ids must be integers"),
        (["abc"], "prompt token 0 is 'abc'; token ids must be integers"),
        ([[1, 2]], r"prompt token 0 is \[1, 2\]; token ids must be integers"),
        ([[1], [2, 3]], r"prompt token 0 is \[1\]; token ids must be integers"),
        (np.array([[1, 2]]), r"prompt token 0 is \[1, 2\]; token ids must be integers"),
        (np.array([1.5]), r"prompt token 0 is 1\.5; token ids must be integers"),
        (np.array(5), "prompt is 5; it must be a text or a flat list of token ids"),
        ([3, 2**70], f"prompt token 1 is {2**70}; it must be in 0..{VOCAB - 1}"),
        ([2**64 - 1, -1], f"prompt token 0 is {2**64 - 1}; it must be in 0..{VOCAB - 1}"),
        ([10**5000], "prompt token 0 is an integer of 16610 bits; it must be in"),
        (b"bytes", "prompt is b'bytes'; it must be a text or a flat list of token ids"),
        (None, "prompt is None; it must be a text or a flat list of token ids"),
        ([5] * 65, "the prompt has 65 tokens; max_model_len is 64"),
        ("bad \ud800 text", "lone surrogate"),
    ],
)
def test_a_bad_prompt_is_refused_with_its_reason(bench: Bench, prompt: object, message: str) -> None:
    bench.engine.add_request("good", "z", params(max_tokens=2))
    with pytest.raises(RequestError, match=message):
        bench.engine.add_request("bad", prompt, params())  # type: ignore[arg-type]
    assert set(bench.drain()) == {"good"}


def test_a_prompt_as_long_as_the_model_still_gets_one_token(bench: Bench) -> None:
    bench.engine.add_request("r", [5] * 64, params())
    output = bench.drain()["r"].outputs[0]
    assert (len(output.token_ids), output.finish_reason) == (1, "length")


def test_a_prompt_that_the_cache_cannot_hold_is_refused(make_bench: MakeBench) -> None:
    bench = make_bench(num_blocks=4)
    with pytest.raises(RequestError, match="the prompt needs 4 cache blocks; there are 3"):
        bench.engine.add_request("r", [5] * 25, params())


def test_bad_sampling_options_are_refused(bench: Bench) -> None:
    with pytest.raises(RequestError, match="stop_token_ids contains 512"):
        bench.engine.add_request("r", "z", params(stop_token_ids=(VOCAB,)))
    with pytest.raises(RequestError, match="every token is a stop"):
        bench.engine.add_request("r", "z", params(stop_token_ids=tuple(range(VOCAB)), min_tokens=1))
    with pytest.raises(ConfigError, match="sampling_params is int"):
        bench.engine.add_request("r", "x", 3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="unknown sampling option 'temprature'"):
        bench.engine.add_request("r", "x", {"temprature": 1})
    assert not bench.engine.has_unfinished()


def test_no_sequence_of_bad_inputs_leaks_anything_or_touches_the_good_ones(make_bench: MakeBench) -> None:
    bad: list[tuple[object, object, object]] = [
        ("", "", params()),
        ("bad", "", params()),
        ("bad", [VOCAB], params()),
        ("bad", [[1]], params()),
        ("bad", [5] * 65, params()),
        ("bad", "x", 3),
        ("bad", "x", {"temprature": 1}),
        ("bad", "x", {"seed": 1.5}),
        ("bad", "x", params(stop_token_ids=(VOCAB,))),
        ("good 0", "x", params()),
    ]
    generator = np.random.default_rng(7)
    bench = make_bench(num_blocks=12)
    bench.engine.add_request("good 0", "z", params(max_tokens=60))
    for index in range(1, 60):
        for choice in generator.integers(len(bad), size=3):
            with pytest.raises((RequestError, ConfigError, TypeError)):
                bench.engine.add_request(*bad[choice])  # type: ignore[arg-type]
        if index % 6 == 0:
            bench.engine.add_request(f"good {index}", "z", params(max_tokens=8))
        assert bench.engine.abort_request(["bad", "", "nobody"]) == 0
        bench.step()
    finals = bench.drain()
    assert set(finals) == {f"good {index}" for index in range(0, 60, 6)}
    for name, final in finals.items():
        assert final.error is None
        assert final.outputs[0].text == ((LETTERS * 3)[:60] if name == "good 0" else "abcdefgh")
    state = bench.scheduler.debug_state()
    assert not state["waiting"] + state["running"]
    assert not state["sequences"]
    assert not list(bench.engine._table)


def test_outputs_handed_back_come_again_with_the_next_step(bench: Bench) -> None:
    bench.engine.add_request("r", "z", params(max_tokens=2))
    first = bench.engine.step()
    bench.engine.hand_back(first)
    outputs = []
    while bench.engine.has_unfinished():
        outputs += bench.engine.step()
    assert outputs[: len(first)] == first
    assert outputs[-1].finished


def test_a_request_id_is_unique_while_it_is_in_use(bench: Bench) -> None:
    bench.engine.add_request("r", "z", params(max_tokens=1))
    with pytest.raises(RequestError, match="request_id 'r' belongs to an unfinished request"):
        bench.engine.add_request("r", "y", params())
    with pytest.raises(RequestError, match="request_id is ''"):
        bench.engine.add_request("", "y", params())
    bench.drain()
    bench.finals.clear()
    bench.engine.add_request("r", "z", params(max_tokens=2))
    assert bench.drain()["r"].outputs[0].text == "ab"


def test_seeds_are_drawn_from_the_engine_seed_in_order_of_arrival(tokenizer: Tokenizer) -> None:
    limits = Limits(VOCAB, 64, BLOCK, 10)

    def seeds(seed: int) -> list[int]:
        admission = Admission(tokenizer, limits, seed)
        given = [SamplingParams(), SamplingParams(seed=7), SamplingParams()]
        return [admission.admit("r", "x", one).outputs[0].sampling.seed for one in given]

    assert seeds(1) == seeds(1)
    assert seeds(1)[1] == 7
    assert len({*seeds(1), *seeds(2)}) == 5


def test_an_abort_reaches_every_state_and_frees_its_memory(make_bench: MakeBench) -> None:
    bench = make_bench(chunked_prefill=True, max_num_batched_tokens=16, prefill_interval_all=1)
    bench.engine.add_request("running", "z", params(max_tokens=40))
    bench.step()
    bench.engine.add_request("half", [5] * 50, params())
    bench.engine.add_request("waiting", "z", params())
    while not bench.scheduler.has_half_prefilled:
        bench.step()
    bench.engine.add_request("unplanned", "z", params())
    wanted = ["running", "half", "waiting", "unplanned", "nobody", "half"]
    assert bench.engine.abort_request(wanted) == 4
    assert bench.engine.abort_request("running") == 0
    finals = bench.drain()
    assert {name: final.outputs[0].finish_reason for name, final in finals.items()} == dict.fromkeys(
        wanted[:4], "abort"
    )
    assert finals["running"].outputs[0].text.startswith("a")
    assert all(final.error is None for final in finals.values())


def test_an_abort_of_the_only_request_is_reported_without_another_step(bench: Bench) -> None:
    bench.engine.add_request("r", "z", params())
    assert bench.engine.abort_request("r") == 1
    assert [output.outputs[0].finish_reason for output in bench.engine.flush()] == ["abort"]
    bench.drain()
    assert not bench.finals


def test_a_preempted_request_is_recomputed_and_says_the_same(make_bench: MakeBench) -> None:
    roomy, tight = make_bench(), make_bench(num_blocks=8)
    for bench in (roomy, tight):
        for index in range(4):
            bench.engine.add_request(str(index), "z" * (index + 1), params(max_tokens=30))
    expected, got = roomy.drain(), tight.drain()
    assert {name: final.outputs for name, final in expected.items()} == {
        name: final.outputs for name, final in got.items()
    }
    assert sum(final.metrics.num_preemptions for final in got.values()) > 0
    assert not any(final.metrics.num_preemptions for final in expected.values())


def test_a_preempted_request_can_be_told_to_end(make_bench: MakeBench) -> None:
    bench = make_bench(num_blocks=8, stop_preempted_request=True)
    for index in range(4):
        bench.engine.add_request(str(index), "z", params(max_tokens=30))
    ended = [final for final in bench.drain().values() if final.error is not None]
    assert ended
    assert {final.outputs[0].finish_reason for final in ended} == {"insufficient_system_resource"}
    assert all("ran out of blocks" in str(final.error) for final in ended)


def test_random_traffic_leaks_nothing_and_ends_every_request_once(make_bench: MakeBench) -> None:
    generator = np.random.default_rng(5)
    for case in range(6):
        bench = make_bench(
            num_blocks=int(generator.integers(9, 20)),
            chunked_prefill=bool(case % 2),
            max_num_batched_tokens=64,
            prefill_interval_all=3,
        )
        alive: list[str] = []
        for index in range(30):
            name = f"{case}.{index}"
            length, output = int(generator.integers(1, 40)), int(generator.integers(1, 20))
            stop = ("cd",) if generator.random() < 0.3 else ()
            bench.engine.add_request(name, [5] * length, params(max_tokens=output, stop=stop))
            alive.append(name)
            for _ in range(int(generator.integers(0, 5))):
                bench.step()
            if generator.random() < 0.3:
                bench.engine.abort_request(alive[int(generator.integers(len(alive)))])
        finals = bench.drain()
        assert set(finals) == set(alive)
        for final in finals.values():
            text = final.outputs[0].text
            assert LETTERS.startswith(text)
            assert final.outputs[0].finish_reason != "stop" or text == "ab"


def test_outputs_do_not_change_after_they_were_returned(bench: Bench) -> None:
    bench.engine.add_request("r", "z", params(max_tokens=3))
    first = bench.step()[0]
    copy = replace(first)
    bench.drain()
    assert first == copy
