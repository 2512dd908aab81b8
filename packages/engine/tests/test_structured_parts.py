"""How an engine takes the package of structured output into service."""

from typing import Any

import numpy as np
import pytest
import tokenizers
from engine_testing.matchers import PlainFiller
from tokenizers import decoders, models

import thalweg.structured
from thalweg.engine import structured_parts
from thalweg.engine.structured_config import StructuredConfig
from thalweg.engine.structured_parts import LateFiller, compiler_maker, mask_filler
from thalweg.engine.tokenizer import Tokenizer

OPTIONS = StructuredConfig(workers=3, timeout_s=7.5, cache_bytes=1000, max_pending_per_user=5, mask_threads=2)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """What was made of the package: name and arguments."""
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def recorder(name: str, result: Any) -> Any:
        def make(*arguments: Any, **options: Any) -> Any:
            calls.append((name, arguments, options))
            return result

        return make

    monkeypatch.setattr(thalweg.structured, "CompileService", recorder("compiler", "service"), raising=False)
    monkeypatch.setattr(thalweg.structured, "BatchFiller", recorder("filler", PlainFiller()), raising=False)
    return calls


def test_the_compiler_gets_the_options_of_the_engine(made: list[Any], tokenizer: Tokenizer) -> None:
    make = compiler_maker(OPTIONS, tokenizer, draft_length=6)
    assert make is not None
    assert not made
    assert make() == "service"  # type: ignore[comparison-overlap]
    ((_, _, options),) = made
    assert options == {
        "num_workers": 3,
        "timeout_s": 7.5,
        "cache_bytes": 1000,
        "max_pending_per_user": 5,
        "max_rollback": 8,
    }


def test_the_filler_is_made_for_the_first_masks_and_only_once(made: list[Any]) -> None:
    filler = mask_filler(OPTIONS)
    assert isinstance(filler, LateFiller)
    assert not made
    for _ in range(2):
        assert not filler.fill([], np.zeros((3, 16), np.int32)).is_filled.any()
    assert made == [("filler", (), {"num_threads": 2})]


def test_control_tokens_are_no_text_marked_or_not(made: list[Any]) -> None:
    """The tokenizer has no added tokens; the checkpoint says which ones begin, end and pad."""
    words = tokenizers.Tokenizer(models.WordLevel({f"w{index}": index for index in range(9)}, unk_token="w3"))
    words.decoder = decoders.Fuse()
    tokenizer = Tokenizer(words, bos_token_id=4, eos_token_id=1, pad_token_id=6, vocab_size=16)
    make = compiler_maker(OPTIONS, tokenizer, draft_length=0)
    assert make is not None
    make()
    vocabulary = made[0][1][0]()
    assert (vocabulary.vocab_size, vocabulary.end_token_id) == (16, 1)
    assert vocabulary.added_ids == {1, 4, 6}
    assert vocabulary.tokens[5] == b"w5"


def test_without_the_package_there_is_nothing_to_make(monkeypatch: pytest.MonkeyPatch, tokenizer: Tokenizer) -> None:
    monkeypatch.setattr(structured_parts, "is_installed", lambda: False)
    assert compiler_maker(OPTIONS, tokenizer, draft_length=0) is None
    assert mask_filler(OPTIONS) is None
