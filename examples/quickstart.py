"""Generate text with the checkpoint that ships with thalweg: greedy, one batch, a few seconds on a laptop."""

from thalweg.engine import LLM, SamplingParams

PROMPTS = [
    "def __init__(self, ",
    "import os\nimport sys\n\n\ndef main():\n    ",
    "class TestConnection(unittest.TestCase):\n    def test_",
    "The function returns a list of ",
    "    for key, value in ",
    "    Parameters\n    ----------\n    x : array_like\n        ",
]


def main() -> None:
    with LLM() as llm:
        outputs = llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=48))
    for output in outputs:
        continuation = output.outputs[0]
        print(f"--- {output.prompt!r}: {len(continuation.token_ids)} tokens, {continuation.finish_reason}")
        print(f"{output.prompt}{continuation.text}")


if __name__ == "__main__":
    main()
