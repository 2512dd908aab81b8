"""Complete a batch of prompts, each with its own sampling parameters, and read everything that comes back."""

import sys

from thalweg.engine import LLM, SamplingParams
from thalweg.interfaces import ThalwegError

REQUESTS = [
    ("def fibonacci(n):\n", SamplingParams(temperature=0, max_tokens=24)),
    ("import ", SamplingParams(temperature=0.8, top_p=0.95, seed=7, max_tokens=12, stop="\n")),
    ("class ", SamplingParams(temperature=1.0, top_k=20, seed=8, min_tokens=4, max_tokens=16)),
    ("", SamplingParams()),  # a bad prompt fails alone: its output says why
]


def main() -> None:
    with LLM(max_model_len=256) as llm:
        outputs = llm.generate([prompt for prompt, _ in REQUESTS], [params for _, params in REQUESTS])
    for output in outputs:
        if output.error is not None:
            print(f"{output.prompt!r} failed: {output.error}\n")
            continue
        completion = output.outputs[0]
        print(f"{output.prompt!r} -> {completion.text!r}")
        print(f"  ended by {completion.finish_reason}, stop {completion.stop_reason!r}")
        metrics = output.metrics
        print(f"  {metrics.num_prompt_tokens} prompt tokens, {metrics.num_output_tokens} output tokens")
        print(f"  first token after {metrics.time_to_first_token_s:.2f} s, last after {metrics.total_time_s:.2f} s\n")


if __name__ == "__main__":
    try:
        main()
    except ThalwegError as error:  # a bad variable, a device that is not there: what is wrong and what would help
        sys.exit(f"offline.py: {error}")
