"""A small byte-level BPE tokenizer for random checkpoints, with the special tokens where the config expects them."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from thalweg.interfaces import ConfigError
from thalweg.model.config import ModelConfig
from thalweg.model.engram_vocabulary import PAD_TOKEN

_TEXT = """\
A river finds the lowest line of its valley, and that line is called the thalweg. Where the water is deep and fast the
bed is carved; where it is slow the bed is filled. def flow(depth, slope): return depth * slope ** 0.5
The engine reads tokens, keeps what it must remember and forgets the rest. One step prefills a prompt, the next decodes
a token: the window slides, the compressor pools, the indexer selects. for step in range(10): print(step)
import numpy as np. The cache holds blocks, the blocks hold entries, and the entries hold what the layers have read.
"""


def special_tokens(config: ModelConfig) -> dict[int, str]:
    """The special tokens by id; ids beyond the vocabulary (image placeholders may be) are left out."""
    wanted = [
        (config.engram_pad_token_id if config.engram_layer_ids else config.pad_token_id, PAD_TOKEN),
        (config.bos_token_id, _special("begin of sentence")),
        (config.eos_token_id, _special("end of sentence")),
        (config.pad_token_id, _special("padding")),
        (config.image_token_id, _special("image")),
    ]
    if config.num_nextn_predict_layers:
        wanted.append((config.dspark_noise_token_id, _special("noise")))
    tokens: dict[int, str] = {}
    for token_id, text in wanted:
        if token_id < config.vocab_size:
            tokens.setdefault(token_id, text)
    return tokens


def write_tokenizer(path: Path, config: ModelConfig) -> None:
    """Write a tokenizer.json of exactly `vocab_size` tokens.

    All 256 bytes are there when they fit, else the printable ones first (other bytes are dropped when encoding). Merges
    learned from a few sentences follow, then unused tokens. Raises ConfigError when not even one byte fits.
    """
    special = special_tokens(config)
    room = config.vocab_size - len(special)
    if room < 1:
        raise ConfigError(
            f"config.json: text_config.vocab_size is {config.vocab_size}; more than {len(special)} needed"
        )
    alphabet = _alphabet()[:room]
    learned, merges = _learn(alphabet, room)
    ordinary = alphabet + learned
    ordinary += [f"unused{number}" for number in range(room - len(ordinary))]
    free = (token_id for token_id in range(config.vocab_size) if token_id not in special)
    vocab = dict(zip(ordinary, free, strict=True)) | {text: token_id for token_id, text in special.items()}
    tokenizer = _byte_level(models.BPE(vocab=vocab, merges=merges))
    tokenizer.add_special_tokens([special[token_id] for token_id in sorted(special)])
    path.write_text(tokenizer.to_str(pretty=True), encoding="utf-8")  # its own `save` takes only UTF-8 paths


def _special(name: str) -> str:
    """A special token in the spelling of the released tokenizer: full-width bars, U+2581 for spaces."""
    return f"<\uff5c{name}\uff5c>".replace(" ", "\u2581")


def _byte_level(model: models.Model) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _alphabet() -> list[str]:
    """The 256 characters that stand for bytes, those of plain text first."""
    plain = [
        token for token, _ in pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(" \n")
    ]
    first = list("".join(plain)) + [chr(code) for code in range(33, 127)]
    rest = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - set(first))
    return first + rest


def _learn(alphabet: list[str], room: int) -> tuple[list[str], list[tuple[str, str]]]:
    """Merged tokens in order of merging, and the merges, as many as there is room for."""
    trainer = trainers.BpeTrainer(
        vocab_size=room, show_progress=False, initial_alphabet=alphabet, limit_alphabet=len(alphabet)
    )
    tokenizer = _byte_level(models.BPE())
    tokenizer.train_from_iterator(_TEXT.splitlines(), trainer=trainer)
    known = set(alphabet)
    by_id = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    learned = [token for token, _ in by_id if token not in known]
    pairs = {}
    for token in learned:
        for cut in range(1, len(token)):
            if token[:cut] in known and token[cut:] in known:
                pairs[token] = (token[:cut], token[cut:])
                break
        known.add(token)
    learned = [token for token in learned if token in pairs][: room - len(alphabet)]
    return learned, [pairs[token] for token in learned]
