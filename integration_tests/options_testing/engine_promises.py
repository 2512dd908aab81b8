"""What each option of the engine says it does, asserted of what was said with it.

Every function takes the run with the option and the plain one without it.
"""

from __future__ import annotations

import pytest

from options_testing.cases import TARGET
from options_testing.oracle import assert_logprobs, filtered, logits_after, logits_before, mass_below
from options_testing.promises import outputs_of
from options_testing.runs import Run, differences


def logprobs_are_of_the_draw(run: Run, without: Run) -> None:
    """They are those after temperature and filters, of the prompt, too; tokens stay what they are."""
    for (request, output), said, before in zip(outputs_of(run), run.said, without.said, strict=True):
        prompt, params = request
        assert output.token_ids == before.token_ids
        drawn_from = filtered(logits_before(TARGET, request, output), params)
        assert_logprobs(output.logprobs, output.token_ids, drawn_from, params.logprobs)
        read_from = filtered(logits_after(TARGET, prompt[:-1]), params)
        assert_logprobs(said.prompt_logprobs, prompt[1:], read_from, params.prompt_logprobs)


def blacklist_is_never_said(run: Run, without: Run) -> None:
    blacklist = set(run.setup.sampling.token_blacklist)
    assert all(blacklist & set(before.token_ids) for before in without.said[:4])
    assert not any(blacklist & set(output.token_ids) for _, output in outputs_of(run))


def tokens_are_among_the_largest(run: Run, without: Run) -> None:
    count = run.setup.sampling.force_top_k
    for request, output in outputs_of(run):
        for token_id, logits in zip(output.token_ids, logits_before(TARGET, request, output), strict=True):
            assert int((logits > logits[token_id]).sum()) < count


def draws_tell_of_the_draw(run: Run, without: Run) -> None:
    """The mass below each token; tokens stay what they are. Without drafts nothing was accepted."""
    for (request, output), final, before in zip(outputs_of(run), run.finals, without.said, strict=True):
        assert output.token_ids == before.token_ids
        draws = final.outputs[0].draws
        assert draws is not None
        assert len(draws) == len(output.token_ids)
        drawn_from = filtered(logits_before(TARGET, request, output), request[1])
        for token_id, draw, logprobs in zip(output.token_ids, draws, drawn_from, strict=True):
            assert draw.sum_smaller_probs == pytest.approx(mass_below(logprobs, token_id), abs=1e-5)
            assert (draw.draft_logprob, draw.accept_prob) == (None, None)


def texts_are_those_of_single_requests(run: Run, without: Run) -> None:
    """Careless kernels would say something else to a request alone; without the option they do."""
    alone = [Run(run.setup, [request]).said[0] for request in run.requests[:4]]
    assert differences(alone, run.said[:4]) == {}
    careless = [Run(without.setup, [request]).said[0] for request in without.requests[:4]]
    assert len(differences(careless, without.said[:4])) > 1
