"""Edits of documents that need no figures; run from /work/main. Fails if a text is not where it was."""
from pathlib import Path

def edit(file, *pairs):
    path = Path(file); text = path.read_text()
    for old, new in pairs:
        assert old in text, (file, old)
        text = text.replace(old, new)
    path.write_text(text)

edit("docs/how-to/speculate.md", ('''A checkpoint with draft layers (`num_nextn_predict_layers` above 0) drafts by itself: `dspark_block_size` tokens per step.
The embedded checkpoint has none. A random small one that has:

    thalweg tiny drafting --drafts
    thalweg generate --model drafting --prompt "Hello" --temperature 0 --max-tokens 24 --log-stats \\
        --logging-interval-steps 8

''', '''A checkpoint with draft layers (`num_nextn_predict_layers` above 0) drafts by itself: `dspark_block_size` tokens per step.
The embedded checkpoint has them:

    thalweg generate --prompt "import os" --temperature 0 --max-tokens 48 --log-stats --logging-interval-steps 4

'''), ('''from thalweg.engine import LLM, SamplingParams
from thalweg.model import small_config, write_random_checkpoint

write_random_checkpoint("drafting", small_config(num_nextn_predict_layers=1))
texts = []
for draft_length in (0, 5):
    with LLM("drafting", draft_length=draft_length, max_model_len=256) as llm:
        outputs = llm.generate(["Hello", "import "], SamplingParams(temperature=0, max_tokens=12))
''', '''from thalweg.engine import LLM, SamplingParams

texts = []
for draft_length in (0, 5):
    with LLM(draft_length=draft_length, max_model_len=256) as llm:
        outputs = llm.generate(["def main(", "import os"], SamplingParams(temperature=0, max_tokens=24))
'''), ('''Its weights are random, so next to nothing is accepted; how much a drafter is worth shows on a trained one.
''', '''`thalweg tiny DIR --drafts` writes a checkpoint with a random drafter: every mechanism runs, and next to nothing is accepted.
'''))
edit("README.md", ("embedded checkpoint is small but trained, and has exactly the architecture and file format of the real model.",
     "embedded checkpoint is small but trained, drafter included, and has exactly the architecture and file format of the real\nmodel."),
     ("the embedded checkpoint (20.5 MB)", "the embedded checkpoint ([what it can tell](docs/concepts/small-model.md))"))
