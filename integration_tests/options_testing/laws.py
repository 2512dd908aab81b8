"""Whether what is said in a mode follows the target's law, where no single text is promised."""

from __future__ import annotations

from dataclasses import replace

from drafts_testing.bench import EOS, Setup
from drafts_testing.law import ChiSquare, count_texts, joint_law
from drafts_testing.tables import Tables
from options_testing.modes import Mode
from options_testing.runs import Run
from thalweg.interfaces import SamplingParams

TARGET = Tables.random(4, seed=1)
SETUP = Setup(target=TARGET, drafts=TARGET.with_noise(2, 1.0), verification="rejection")
PROMPT = (3, 2, 0, 3, 1, 2)
"""Two tokens short of a block, so that every sequence soon needs a second one."""
PARAMS = SamplingParams(max_tokens=4, ignore_eos=True)
NUM_SEEDS = 600


def law_in(mode: Mode) -> tuple[Run, ChiSquare]:
    """Many seeds of one prompt served in a mode, and the test of the joint law of their tokens."""
    setup = mode.change(SETUP)
    is_tight = setup.num_blocks is not None
    options = {**setup.options, "max_num_seqs": 24 if is_tight else 200}
    setup = replace(setup, options=options, num_blocks=32 if is_tight else None)
    run = Run(setup, [(PROMPT, replace(PARAMS, seed=seed)) for seed in range(NUM_SEEDS)])
    texts = [said.token_ids for said in run.said]
    counts = count_texts(texts, TARGET.vocab_size, PARAMS.max_tokens, EOS)
    return run, ChiSquare(counts, joint_law(TARGET, PARAMS, PROMPT, PARAMS.max_tokens, EOS))
