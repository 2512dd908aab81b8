"""A long text beside which more and more others begin."""

from __future__ import annotations

from determinism_testing.watched import Told, prompt, watched
from drafts_testing.bench import Request, Setup
from thalweg.interfaces import SamplingParams


def growing(setup: Setup, batch: int, at_a_time: int = 1) -> Told:
    """What one request with a seed says while others join it at every step, until the batch has this size.

    The text is long enough for the steps that 64 of them take to come; with more drafts it is longer, and begins alike.
    """
    num_steps = 64 // at_a_time
    length = 6 + num_steps + (45 * setup.draft_length * num_steps) // 64
    params = SamplingParams(temperature=1.0, top_p=0.95, seed=77, max_tokens=length, ignore_eos=True)
    others = SamplingParams(temperature=1.0, max_tokens=length, ignore_eos=True)
    requests: list[Request] = [([5, 6, 7], params)]
    requests += [(prompt(number, 1 + number % 7), others) for number in range(1, batch)]
    arrivals = {number: 2 * -(-number // at_a_time) for number in range(batch)}
    told = Told(setup, requests, arrivals=arrivals, max_model_len=512, prefill_interval_all=1)
    told.said = told.said[:1]
    return told


def longest_prompt() -> int:
    return max(len(prompt) for prompt, _ in watched())
