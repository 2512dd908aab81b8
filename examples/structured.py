"""Outputs that keep to a JSON schema, a regular expression or a list of choices, whatever the model would rather say.

Install with `pip install 'thalweg[structured]'`.
"""

import json

from thalweg.engine import LLM, GrammarSpec, SamplingParams

FUNCTION = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]{3,8}(_[a-z]{3,8})?$"},
        "arguments": {"type": "array", "items": {"enum": ["path", "text", "mode"]}, "maxItems": 2},
        "returns": {"enum": ["str", "int", "bool", None]},
        "lines": {"type": "integer", "minimum": 1, "maximum": 99},
    },
    "required": ["name", "arguments", "returns", "lines"],
}


def main() -> None:
    as_json = SamplingParams(n=3, seed=1, max_tokens=100, structured=GrammarSpec.json(FUNCTION, any_whitespace=False))
    as_version = SamplingParams(temperature=0, structured=GrammarSpec.regex(r"[0-9]\.[0-9]{1,2}\.[0-9]"))
    as_choice = SamplingParams(temperature=0, structured=GrammarSpec.choice(["import os", "import sys", "import re"]))
    with LLM(max_model_len=256) as llm:
        functions, version, choice = llm.generate(
            ["def save_file(path, text):\n", "__version__ = ", "# a regular expression\n"],
            [as_json, as_version, as_choice],
            use_tqdm=False,
        )
    for answer in (functions, version, choice):
        if answer.error is not None:
            raise SystemExit(answer.error)
    for output in functions.outputs:
        print(json.loads(output.text))
    print(version.outputs[0].text)
    print(choice.outputs[0].text)


if __name__ == "__main__":
    main()
