"""Every field of `SamplingParams`: a setting that shows, and what it promises."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from drafts_testing.bench import EOS
from options_testing import promises
from options_testing.cases import TOKENIZER, VOCAB, Option, always, varied
from options_testing.runs import Said
from thalweg.interfaces import GrammarSpec, SamplingParams

ENDING = SamplingParams(max_tokens=24, seed=2**63)
"""A text that the end token ends, too."""
GRAMMARS = (
    GrammarSpec.regex("([c-j][k-t]?| [d-g]){9,}"),
    GrammarSpec.regex("([^ f]|f[g-k])*", trigger_token_ids=(4,), bound_token_id=7),
    GrammarSpec.ebnf('root ::= ("a" | "c" | " " [d-g]) root | [h-t] root | "e"'),
)
STOPPING = replace(ENDING, stop_token_ids=(3, 4, 5, 6))


def stop_at_texts(number: int, params: SamplingParams, said: Said) -> SamplingParams:
    """Stop strings over two or three tokens, late in what would be said, and one that never comes."""
    text = said.outputs[0].text
    return replace(params, stop=(text[12:14], text[9:12], "zz"))


def stop_at_tokens(number: int, params: SamplingParams, said: Said) -> SamplingParams:
    """The two tokens that come last for the first time in what would be said."""
    return replace(params, stop_token_ids=tuple(dict.fromkeys(said.token_ids))[-2:])


def words_said(number: int, params: SamplingParams, said: Said) -> SamplingParams:
    """Single letters and pairs of what would be said; tokens that show nothing are no words."""
    shown = [TOKENIZER.decode([token_id]) for token_id in said.token_ids]
    pairs = [one.strip() + two for one, two in pairwise(shown) if one and two.strip() == two != ""]
    return replace(params, bad_words=(pairs[0], pairs[3], pairs[5], pairs[7][0]))


def forced(number: int, params: SamplingParams, said: Said) -> SamplingParams:
    """Others than what would be said, alone and in a row, and free tokens between them."""
    others = [(token_id + 5) % VOCAB for token_id in said.token_ids]
    return replace(params, forced_token_ids=(-1, others[1], -1, -1, *others[4:8], -1, -1, -1, others[11], -1))


REQUEST_OPTIONS: dict[str, Option] = {
    "n": Option(
        apply=varied(n=[3, 2, 4], seed=[5, 2**64 - 1, 2**63]),
        num_greedy=0,
        min_changed=6,
        promise=promises.outputs_have_own_seeds,
    ),
    "temperature": Option(apply=varied(temperature=[0.3, 0.0, 2.0]), min_changed=5, num_greedy=0),
    "top_p": Option(apply=varied(top_p=[0.3, 0.6, 0.8])),
    "top_k": Option(apply=varied(top_k=[2, 4, 1]), promise=promises.tokens_are_among_top_k),
    "min_p": Option(apply=varied(min_p=[0.1, 0.5, 1.0]), promise=promises.tokens_reach_min_p),
    "seed": Option(
        apply=varied(seed=[0, 2**64 - 1, -5, 1, 2, 3]), base=replace(ENDING, seed=None), num_greedy=0, min_changed=6
    ),
    "max_tokens": Option(
        apply=varied(max_tokens=[17, 13, 19]), min_changed=6, promise=promises.texts_are_cut_at_length
    ),
    "min_tokens": Option(
        apply=varied(min_tokens=[24, 15, 12]), base=STOPPING, min_changed=5, promise=promises.texts_have_min_tokens
    ),
    "stop": Option(apply=stop_at_texts, min_changed=6, promise=promises.texts_stop_at_strings),
    "stop_token_ids": Option(apply=stop_at_tokens, min_changed=6, promise=promises.texts_stop_at_tokens),
    "ignore_eos": Option(
        apply=always(ignore_eos=True), base=ENDING, min_changed=3, promise=promises.texts_pass_the_end
    ),
    "presence_penalty": Option(apply=varied(presence_penalty=[1.5, 2.0, -2.0])),
    "frequency_penalty": Option(apply=varied(frequency_penalty=[1.0, 2.0, -1.0])),
    "repetition_penalty": Option(apply=varied(repetition_penalty=[1.5, 2.5, 0.6])),
    "logit_bias": Option(
        apply=varied(logit_bias=[{7: 6.0, 3: -100.0}, {EOS: 5.0, 4: 2.0}, {token: 1.0 * token for token in range(20)}]),
    ),
    "bad_words": Option(apply=words_said, min_changed=6, promise=promises.texts_lack_bad_words),
    "logprobs": Option(apply=varied(logprobs=[3, 0, VOCAB]), min_changed=6, promise=promises.logprobs_are_the_models),
    "prompt_logprobs": Option(
        apply=varied(prompt_logprobs=[2, 0, VOCAB]), min_changed=6, promise=promises.prompt_logprobs_are_the_models
    ),
    "structured": Option(
        apply=varied(structured=GRAMMARS), base=ENDING, min_changed=6, promise=promises.texts_follow_their_grammars
    ),
    "forced_token_ids": Option(apply=forced, min_changed=6, promise=promises.tokens_are_forced),
}
