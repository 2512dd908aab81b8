"""What the model writes: continuations of a few prompts, the likeliest and drawn ones.

Every token is a pass over all the text so far. That needs nothing but the model, so it runs where no engine is built.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from tools.train.evaluate.models import Subject
from tools.train.evaluate.runner import forward
from torch import Tensor

from thalweg.model import Model

PROMPTS = (
    "def __init__(self, ",
    "import os\nimport sys\n\n\ndef main():\n    ",
    "class TestConnection(unittest.TestCase):\n    def test_",
    "The function returns a list of ",
    "    for key, value in ",
    "    Parameters\n    ----------\n    x : array_like\n        ",
)
"""Those of examples/quickstart.py."""
LENGTH = 96
SEED = 0


@dataclass(frozen=True, slots=True)
class Sample:
    """One continuation."""

    temperature: float
    prompt: str
    text: str


def write_samples(
    subject: Subject, tokenizer: Tokenizer, prompts: tuple[str, ...] = PROMPTS, length: int = LENGTH
) -> list[Sample]:
    """Continuations of every prompt at temperatures 0 and 1, in the model's quantised form."""
    model, bos = subject.model("quant"), subject.config.bos_token_id
    ids = [torch.tensor([bos, *tokenizer.encode(prompt).ids], device=subject.device) for prompt in prompts]
    samples = []
    for temperature in (0.0, 1.0):
        texts = continuations(model, ids, length, temperature)
        for prompt, tokens in zip(prompts, texts, strict=True):
            samples.append(Sample(temperature, prompt, tokenizer.decode(tokens.tolist(), skip_special_tokens=False)))
    return samples


@torch.no_grad()
def continuations(model: Model, prompts: list[Tensor], length: int, temperature: float) -> list[Tensor]:
    """`length` tokens int64 after each prompt int64 [L]; temperature 0 takes the likeliest."""
    draw = torch.Generator(prompts[0].device).manual_seed(SEED)
    texts = list(prompts)
    for _ in range(length):
        ends = torch.tensor([len(text) for text in texts]).cumsum(0) - 1
        logits = model.logits(forward(model, texts)[ends])
        if temperature == 0:
            newest = logits.argmax(-1, keepdim=True)
        else:
            newest = torch.multinomial((logits / temperature).softmax(-1), 1, generator=draw)
        texts = [torch.cat([text, token]) for text, token in zip(texts, newest, strict=True)]
    return [text[len(prompt) :] for text, prompt in zip(texts, prompts, strict=True)]
