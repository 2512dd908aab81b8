"""What each option of the engine says it does, asserted of what was said with it.

Every function takes the run with the option and the plain one without it.
"""

from __future__ import annotations

import pytest

from options_testing.oracle import assert_logprobs, before_outputs, filtered, model_logprobs
from options_testing.promises import outputs_of
from options_testing.runs import Run, differences


def logprobs_are_of_the_draw(run: Run, without: Run) -> None:
    """They are those after temperature and filters, of the prompt, too; tokens stay what they are."""
    for (request, output), said, before in zip(outputs_of(run), run.said, without.said, strict=True):
        prompt, params = request
        assert output.token_ids == before.token_ids
        drawn_from = filtered(before_outputs(request, output), params)
        assert_logprobs(output.logprobs, output.token_ids, drawn_from, params.logprobs)
        read_from = filtered(model_logprobs(prompt)[:-1], params)
        assert_logprobs(said.prompt_logprobs, prompt[1:], read_from, params.prompt_logprobs)


def blacklist_is_never_said(run: Run, without: Run) -> None:
    blacklist = set(run.setup.sampling.token_blacklist)
    assert all(blacklist & set(before.token_ids) for before in without.said[:4])
    assert not any(blacklist & set(output.token_ids) for _, output in outputs_of(run))


def tokens_are_among_the_largest(run: Run, without: Run) -> None:
    count = run.setup.sampling.force_top_k
    for request, output in outputs_of(run):
        for token_id, logprobs in zip(output.token_ids, before_outputs(request, output), strict=True):
            assert int((logprobs > logprobs[token_id]).sum()) < count


def draws_tell_of_the_draw(run: Run, without: Run) -> None:
    """The mass below each token, and of drafts that they were accepted; tokens stay what they are."""
    for (request, output), final, before in zip(outputs_of(run), run.finals, without.said, strict=True):
        assert output.token_ids == before.token_ids
        draws = final.outputs[0].draws
        assert draws is not None
        assert len(draws) == len(output.token_ids)
        probs = filtered(before_outputs(request, output), request[1]).exp()
        for token_id, draw, row in zip(output.token_ids, draws, probs, strict=True):
            below = (row < row[token_id]) | ((row == row[token_id]) & (row.new_tensor(range(len(row))) <= token_id))
            assert draw.sum_smaller_probs == pytest.approx(float(row[below].sum()), abs=1e-5)
            assert draw.accept_prob in (None, 0.0, 1.0)


def texts_are_those_of_single_requests(run: Run, without: Run) -> None:
    """Careless kernels would say something else to a request alone; without the option they do."""
    alone = [Run(run.setup, [request]).said[0] for request in run.requests]
    assert differences(alone, run.said) == {}
    careless = [Run(without.setup, [request]).said[0] for request in without.requests]
    assert len(differences(careless, without.said)) > 2
