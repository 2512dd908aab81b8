"""What each option says it does, asserted of what was said with it.

Every function takes the run with the option and the plain one without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from drafts_testing.bench import EOS, Request
from options_testing.cases import COMPILER, TARGET, TOKENIZER
from options_testing.oracle import assert_logprobs, logits_after, logits_before
from options_testing.runs import Run, SaidOutput


def outputs_have_own_seeds(run: Run, without: Run) -> None:
    """n outputs in order, each as that of a request of its own with the next seed; they differ from each other."""
    for (prompt, params), said in zip(run.requests, run.said, strict=True):
        assert params.seed is not None
        singles = [(prompt, replace(params, n=1, seed=params.seed + index)) for index in range(params.n)]
        alone = [single.outputs[0] for single in Run(run.setup, singles).said]
        assert said.outputs == tuple(replace(output, index=index) for index, output in enumerate(alone))
        assert len({output.token_ids for output in said.outputs}) == params.n
        assert said.usage[1] == sum(len(output.token_ids) for output in said.outputs)


def tokens_are_among_top_k(run: Run, without: Run) -> None:
    for request, output in outputs_of(run):
        _, params = request
        for token_id, logits in zip(output.token_ids, logits_before(TARGET, request, output), strict=True):
            assert int((logits > logits[token_id]).sum()) < params.top_k or params.temperature == 0


def tokens_reach_min_p(run: Run, without: Run) -> None:
    for request, output in outputs_of(run):
        _, params = request
        for token_id, logits in zip(output.token_ids, logits_before(TARGET, request, output), strict=True):
            assert (logits[token_id] - logits.max()).exp() >= params.min_p * (1 - 1e-6)


def texts_are_cut_at_length(run: Run, without: Run) -> None:
    for ((_, params), output), before in zip(outputs_of(run), without.said, strict=True):
        assert output.token_ids == before.token_ids[: params.max_tokens]
        assert output.finish_reason == "length"


def texts_have_min_tokens(run: Run, without: Run) -> None:
    for (_, params), output in outputs_of(run):
        assert len(output.token_ids) > params.min_tokens or output.finish_reason == "length"
        assert not {EOS, *params.stop_token_ids} & set(output.token_ids[: params.min_tokens])


def texts_stop_at_strings(run: Run, without: Run) -> None:
    for ((_, params), output), before in zip(outputs_of(run), without.said, strict=True):
        whole = before.outputs[0].text
        ends = {text: whole.index(text) + len(text) for text in params.stop if text in whole}
        first = min(ends, key=lambda text: ends[text])
        assert (output.finish_reason, output.stop_reason) == ("stop", first)
        assert output.text == whole[: ends[first] - len(first)]
        count = len(output.token_ids)
        assert output.token_ids == before.token_ids[:count]
        assert len(TOKENIZER.decode(output.token_ids[:-1])) < ends[first] <= len(TOKENIZER.decode(output.token_ids))


def texts_stop_at_tokens(run: Run, without: Run) -> None:
    for ((_, params), output), before in zip(outputs_of(run), without.said, strict=True):
        place = min(before.token_ids.index(token_id) for token_id in params.stop_token_ids)
        assert output.token_ids == before.token_ids[: place + 1]
        assert (output.finish_reason, output.stop_reason) == ("stop", before.token_ids[place])


def texts_pass_the_end(run: Run, without: Run) -> None:
    assert any(EOS in output.token_ids[:-1] for _, output in outputs_of(run))
    for (_, output), before in zip(outputs_of(run), without.said, strict=True):
        assert output.token_ids[: len(before.token_ids)] == before.token_ids
        assert output.finish_reason == "length"


def texts_lack_bad_words(run: Run, without: Run) -> None:
    """Neither as they are nor after a space, as tokens in a row; without the option every one of them is said."""
    for ((_, params), output), before in zip(outputs_of(run), without.said, strict=True):
        for word in params.bad_words:
            forms = [tuple(TOKENIZER.encode(text, add_bos=False)) for text in (word, f" {word}")]
            assert any(_has_run(before.token_ids, form) for form in forms)
            assert not any(_has_run(output.token_ids, form) for form in forms)


def logprobs_are_the_models(run: Run, without: Run) -> None:
    """Whatever the token was drawn from, these are the model's own: token and alternatives, in order."""
    for (request, output), before in zip(outputs_of(run), without.said, strict=True):
        assert output.token_ids == before.token_ids
        expected = logits_before(TARGET, request, output).double().log_softmax(-1)
        assert_logprobs(output.logprobs, output.token_ids, expected, request[1].logprobs)


def prompt_logprobs_are_the_models(run: Run, without: Run) -> None:
    for (prompt, params), said, before in zip(run.requests, run.said, without.said, strict=True):
        assert said.outputs == before.outputs
        expected = logits_after(TARGET, prompt[:-1]).double().log_softmax(-1)
        assert_logprobs(said.prompt_logprobs, prompt[1:], expected, params.prompt_logprobs)


def tokens_are_forced(run: Run, without: Run) -> None:
    for ((_, params), output), before in zip(outputs_of(run), without.said, strict=True):
        for token_id, wanted in zip(output.token_ids, params.forced_token_ids or (), strict=False):
            assert wanted in (-1, token_id)
        assert output.token_ids[0] == before.token_ids[0]


def texts_follow_their_grammars(run: Run, without: Run) -> None:
    """Up to the end token where it ended them; without the option none of them does."""
    for ((_, params), output), before in zip(outputs_of(run), without.said, strict=True):
        assert params.structured is not None
        follows, strays = COMPILER.matcher(params.structured), COMPILER.matcher(params.structured)
        assert all(map(follows.accept, output.token_ids))
        assert output.finish_reason == ("stop" if follows.is_finished else "length")
        assert not all(map(strays.accept, before.token_ids))


def _has_run(token_ids: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    return any(token_ids[place : place + len(wanted)] == wanted for place in range(len(token_ids)))


def outputs_of(run: Run) -> Iterator[tuple[Request, SaidOutput]]:
    """Every request with its first output."""
    return ((request, said.outputs[0]) for request, said in zip(run.requests, run.said, strict=True))
