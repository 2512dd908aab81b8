"""A long text beside which more and more others begin."""

from __future__ import annotations

from determinism_testing.watched import Told, prompt, watched
from drafts_testing.bench import Request, Setup
from thalweg.interfaces import SamplingParams


def growing(setup: Setup, batch: int) -> Told:
    """What one request with a seed says while another one joins it at every step, until the batch has this size.

    The text is long enough for 64 steps; with more drafts it is longer, and begins alike.
    """
    length = 70 + 45 * setup.draft_length
    params = SamplingParams(temperature=1.0, top_p=0.95, seed=77, max_tokens=length, ignore_eos=True)
    others = SamplingParams(temperature=1.0, max_tokens=length, ignore_eos=True)
    requests: list[Request] = [([5, 6, 7], params)]
    requests += [(prompt(number, 1 + number % 7), others) for number in range(1, batch)]
    arrivals = dict(enumerate(range(0, 2 * batch, 2)))
    told = Told(setup, requests, arrivals=arrivals, max_model_len=512, prefill_interval_all=1)
    told.said = told.said[:1]
    return told


def longest_prompt() -> int:
    return max(len(prompt) for prompt, _ in watched())
