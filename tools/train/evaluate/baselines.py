"""The figures that tests hold the shipped checkpoint to: small, measured through the engine, kept in a file.

`python -m tools.train.evaluate.baselines --checkpoint DIR --data DIR --out FOLDER` writes them, and
`integration_tests/test_small_model.py` measures them again. Nearly everything is in exact arithmetic, so that another
machine finds the same; what differs in a last bit shows only where the two best tokens are nearly equal.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from tools.train.evaluate import samples
from tools.train.evaluate.serving import serve_drafts, serve_windows
from tools.train.evaluate.windows import Windows, read_tokenizer

from thalweg.interfaces import RequestOutput, ThalwegError

NUM_WINDOWS = 2
NUM_TOKENS = 48
MODES = {"plain": "float32", "quant": "exact"}
"""The arithmetic of each mode: nothing is rounded in `plain`, so nothing can flip."""
TEMPERATURES = (0.0, 1.0)
PROMPTS = (
    *samples.PROMPTS,
    "    def __repr__(self):\n        return ",
    "    if not isinstance(",
    "    raise ValueError(",
    "from collections import ",
    "    with open(",
    "        self.assertEqual(",
    "    try:\n        ",
    "    >>> import numpy as np\n    >>> ",
    "    Returns\n    -------\n    ",
    "    @property\n    def ",
    "    while True:\n        ",
    "This module provides ",
    "async def ",
    "    return [x for x in ",
)


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--checkpoint", type=Path, required=True, help="exported checkpoint")
    parser.add_argument("--data", type=Path, required=True, help="folder of evaluation.npy")
    parser.add_argument("--out", type=Path, required=True, help="folder for baselines.json and baseline_windows.npy")
    options = parser.parse_args()
    windows = Windows.read(options.data, options.checkpoint, NUM_WINDOWS).tokens.numpy().astype(np.uint16)
    np.save(options.out / "baseline_windows.npy", windows)
    document: dict[str, Any] = {"sha256": fingerprint(options.checkpoint)}
    document["windows"] = {
        mode: asdict(serve_windows(options.checkpoint, windows, mode, arithmetic)) for mode, arithmetic in MODES.items()
    }
    prompts = encode(options.checkpoint, PROMPTS)
    document["drafts"] = {}
    for temperature in TEMPERATURES:
        outputs, figures = serve_drafts(options.checkpoint, prompts, temperature, NUM_TOKENS)
        document["drafts"][f"{temperature:g}"] = None if figures is None else asdict(figures)
        if temperature == 0:
            document["greedy"] = [greedy_case(text, each) for text, each in zip(PROMPTS, outputs, strict=True)]
    content = json.dumps(document, indent=1, ensure_ascii=False)
    (options.out / "baselines.json").write_text(content + "\n", encoding="utf-8")


def fingerprint(checkpoint: Path) -> dict[str, str]:
    """By name, the digest of every file that decides what is computed."""
    files = [*checkpoint.glob("*.safetensors"), checkpoint / "config.json", checkpoint / "tokenizer.json"]
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(files)}


def encode(checkpoint: Path, prompts: Sequence[str]) -> list[list[int]]:
    """Token ids of each prompt, BOS first."""
    bos = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))["bos_token_id"]
    tokenizer = read_tokenizer(checkpoint)
    return [[bos, *tokenizer.encode(prompt).ids] for prompt in prompts]


def greedy_case(prompt: str, output: RequestOutput) -> dict[str, Any]:
    """A continuation with the gap between the two best logits of each of its tokens."""
    (completion,) = output.outputs
    assert completion.logprobs is not None
    best = [sorted(logprobs.values(), reverse=True)[:2] for logprobs in completion.logprobs]
    return {
        "prompt": prompt,
        "prompt_token_ids": list(output.prompt_token_ids),
        "greedy_token_ids": list(completion.token_ids),
        "top2_gaps": [round(first - second, 6) for first, second in best],
        "text": completion.text,
    }


if __name__ == "__main__":
    try:
        main()
    except ThalwegError as error:
        sys.exit(f"baselines: {error}")
