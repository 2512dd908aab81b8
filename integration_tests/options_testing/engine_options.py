"""The options of the engine that concern sampling: a setting that shows, and what it promises."""

from __future__ import annotations

from dataclasses import replace

from options_testing import engine_promises
from options_testing.careless import careless_registry
from options_testing.cases import LONG, PROMPT_LENGTHS, Option
from thalweg.engine.sampling_config import SamplingConfig

CARELESS = careless_registry()

ENGINE_OPTIONS: dict[str, Option] = {
    "logprobs_mode": Option(
        base=replace(LONG, logprobs=4, prompt_logprobs=4, temperature=0.7, top_p=0.8, min_p=0.01),
        engine={"logprobs_mode": "processed"},
        engine_without={"logprobs_mode": "raw"},
        min_changed=6,
        promise=engine_promises.logprobs_are_of_the_draw,
    ),
    "token_blacklist": Option(
        engine={"sampling": SamplingConfig(token_blacklist=(3, 8, 12))}, promise=engine_promises.blacklist_is_never_said
    ),
    "force_top_k": Option(
        engine={"sampling": SamplingConfig(force_top_k=2)}, promise=engine_promises.tokens_are_among_the_largest
    ),
    "return_draws": Option(
        engine={"sampling": SamplingConfig(return_draws=True)},
        min_changed=6,
        promise=engine_promises.draws_tell_of_the_draw,
    ),
    "batch_invariant, coupled": Option(
        engine={"registry": CARELESS, "batch_invariant": True},
        engine_without={"registry": CARELESS},
        promise=engine_promises.texts_are_those_of_single_requests,
    ),
    "batch_invariant, rejection": Option(
        engine={"registry": CARELESS, "batch_invariant": True, "verification": "rejection"},
        engine_without={"registry": CARELESS, "verification": "rejection"},
        num_greedy=len(PROMPT_LENGTHS),
        promise=engine_promises.texts_are_those_of_single_requests,
    ),
    "verification coupled": Option(
        engine={"verification": "coupled"}, engine_without={"verification": "rejection"}, min_changed=5
    ),
}
