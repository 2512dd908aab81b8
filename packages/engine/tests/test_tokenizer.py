from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models

from thalweg.engine.tokenizer import Tokenizer
from thalweg.interfaces import ConfigError, RequestError

IDS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}


def test_text_prompts_start_with_the_begin_token(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode("the river")
    assert token_ids[0] == 0
    assert tokenizer.decode(token_ids) == "the river"
    assert tokenizer.encode("the river", add_bos=False) == token_ids[1:]


def test_a_begin_token_spelled_in_the_text_is_not_doubled(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("<｜begin▁of▁sentence｜>the river") == tokenizer.encode("the river")  # noqa: RUF001


def test_an_empty_text_is_the_begin_token_alone(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("") == [0]


@pytest.mark.parametrize("prompt", ["a\ud800b", b"bytes", None])
def test_a_prompt_that_is_not_unicode_text_fails_its_request(tokenizer: Tokenizer, prompt: object) -> None:
    with pytest.raises(RequestError, match="prompt"):
        tokenizer.encode(prompt)  # type: ignore[arg-type]


def test_special_and_unknown_tokens_have_no_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode([0, 1, 2, 511, 10**6, -1]) == ""
    assert [tokenizer.token_bytes(i) for i in (0, 1, 2, 511, 10**6, -1)] == [b""] * 6


def test_every_token_has_the_bytes_that_the_library_decodes(
    tokenizer: Tokenizer, raw_tokenizer: tokenizers.Tokenizer
) -> None:
    for token_id in range(3, raw_tokenizer.get_vocab_size()):
        assert tokenizer.token_bytes(token_id).decode("utf-8", "replace") == raw_tokenizer.decode([token_id])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.json does not exist"):
        Tokenizer.from_file(tmp_path, vocab_size=512, **IDS)


@pytest.mark.parametrize("content", ["", "{}", "not json", "[1, 2]"])
def test_an_unreadable_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ConfigError, match=r"tokenizer\.json cannot be read"):
        Tokenizer.from_file(tmp_path, vocab_size=512, **IDS)


def test_a_saved_tokenizer_loads_from_its_folder_or_file(
    tmp_path: Path, tokenizer: Tokenizer, raw_tokenizer: tokenizers.Tokenizer
) -> None:
    raw_tokenizer.save(str(tmp_path / "tokenizer.json"))
    for path in (tmp_path, tmp_path / "tokenizer.json", str(tmp_path)):
        loaded = Tokenizer.from_file(path, vocab_size=512, **IDS)
        assert loaded.encode("天気は晴れ") == tokenizer.encode("天気は晴れ")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bos_token_id": 1}, r"bos_token_id is 1 .*begin.* is 0"),
        ({"eos_token_id": 2}, r"eos_token_id is 2 .*end.* is 1"),
        ({"pad_token_id": 0}, r"pad_token_id is 0 .*pad.* is 2"),
        ({"eos_token_id": 100_000}, "eos_token_id is 100000; it must be a token of the tokenizer"),
        ({"pad_token_id": -1}, "pad_token_id is -1"),
        ({"vocab_size": 64}, "with vocab_size 64 and 21 image placeholders it must be below 85"),
    ],
)
def test_a_tokenizer_that_contradicts_the_config_is_refused(
    raw_tokenizer: tokenizers.Tokenizer, change: dict[str, int], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Tokenizer(raw_tokenizer, **{**IDS, "vocab_size": 512, **change})


def test_a_decoder_without_byte_semantics_is_refused() -> None:
    tokenizer = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1, "c": 2}, unk_token="a"))
    for decoder, found in ((None, "none"), (decoders.Metaspace(), "Metaspace")):
        if decoder is not None:
            tokenizer.decoder = decoder
        with pytest.raises(ConfigError, match=f"decoder of the tokenizer is {found}; ByteLevel and Fuse"):
            Tokenizer(tokenizer, vocab_size=3, **IDS)


def test_a_fuse_decoder_joins_plain_tokens() -> None:
    raw = tokenizers.Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1, "<pad>": 2, "谷": 3, "Ġ": 4}, unk_token="<s>"))
    raw.decoder = decoders.Fuse()
    tokenizer = Tokenizer(raw, vocab_size=5, **IDS)
    assert tokenizer.decode([0, 3, 4, 3, 1]) == "谷Ġ谷"
    assert tokenizer.token_bytes(4) == "Ġ".encode()
