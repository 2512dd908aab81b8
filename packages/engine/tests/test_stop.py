import itertools
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg.engine.detokenizer import Detokenizer
from thalweg.engine.stop import StopChecker
from thalweg.engine.tokenizer import Tokenizer

ALPHABET = "ab谷🌊 "
TEXT = st.text(alphabet=ALPHABET, max_size=40)
STOPS = st.lists(st.text(alphabet=ALPHABET, min_size=1, max_size=5), max_size=4)
CUTS = st.lists(st.integers(0, 80), max_size=10)


def naive(text: str, stops: list[str]) -> tuple[str, str | None]:
    for end in range(len(text) + 1):
        for stop in stops:
            if text[:end].endswith(stop):
                return text[: end - len(stop)], stop
    return text, None


def feed(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    checker = StopChecker(stops)
    released = [checker.push(piece) for piece in pieces] + [checker.finish()]
    assert checker.text == "".join(released)
    return checker.text, checker.matched


@given(text=TEXT, stops=STOPS, cuts=CUTS)
@settings(max_examples=500)
def test_any_cut_gives_the_answer_for_the_whole_text(text: str, stops: list[str], cuts: list[int]) -> None:
    edges = [0, *sorted(min(c, len(text)) for c in cuts), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(edges)]
    assert feed(stops, pieces) == naive(text, stops)


@given(text=st.text(alphabet="谷底川流天気🌊🚣👩\u200d👧ab ", max_size=40), data=st.data())
@settings(max_examples=200)
def test_tokens_cut_anywhere_stop_where_the_whole_text_stops(
    tokenizer: Tokenizer, text: str, data: st.DataObject
) -> None:
    spans = st.tuples(st.integers(0, len(text)), st.integers(1, 4)).map(lambda s: text[s[0] : s[0] + s[1]] or "🌊川")
    stops = data.draw(st.lists(spans, max_size=3))
    detokenizer, checker = Detokenizer(tokenizer), StopChecker(stops)
    token_ids = tokenizer.encode(text)
    while token_ids and checker.matched is None:
        size = data.draw(st.integers(1, 4))
        checker.push(detokenizer.push(token_ids[:size]))
        token_ids = token_ids[size:]
    checker.push(detokenizer.finish())
    checker.finish()
    assert (checker.text, checker.matched) == naive(text, stops)


@given(text=TEXT, stops=STOPS)
def test_what_was_shown_is_never_taken_back_and_holds_no_more_than_needed(text: str, stops: list[str]) -> None:
    checker = StopChecker(stops)
    for end, character in enumerate(text, start=1):
        checker.push(character)
        if checker.matched is not None:
            break
        held = text[len(checker.text) : end]
        assert checker.text + held == text[:end]
        assert not held or any(stop.startswith(held) for stop in stops)


def test_the_match_that_ends_first_wins_and_order_decides_ties() -> None:
    assert feed(["cd", "abcde"], ["abcdef"]) == ("ab", "cd")
    assert feed(["abc", "c"], ["xabc"]) == ("x", "abc")
    assert feed(["c", "abc"], ["xabc"]) == ("xab", "c")


def test_a_possible_beginning_is_held_back_until_it_is_resolved() -> None:
    checker = StopChecker(["<end>"])
    assert checker.push("see <e") == "see "
    assert checker.push("n") == ""
    assert checker.push("ough <") == "<enough "
    assert checker.push("end> more") == ""
    assert checker.matched == "<end>"
    assert checker.push("after") == ""
    assert checker.finish() == ""
    assert checker.text == "see <enough "


def test_without_stop_strings_everything_passes_through() -> None:
    assert feed([], ["a", "", "b"]) == ("ab", None)


def test_held_text_is_released_at_the_end() -> None:
    assert feed(["abcd"], ["ab", "c"]) == ("abc", None)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopChecker([""])


def test_a_repetitive_stop_string_costs_linear_time() -> None:
    start = time.process_time()
    text, matched = feed(["a" * 5000 + "b"], ["a"] * 20_000)
    assert (len(text), matched) == (20_000, None)
    assert time.process_time() - start < 2.0


def test_a_stop_string_that_may_not_stop_is_text_and_may_start_one_that_may() -> None:
    checker = StopChecker(["aba"])
    assert checker.push("xaba", can_stop=False) == "xab"
    assert checker.push("ba.") == ""
    assert (checker.matched, checker.text) == ("aba", "xab")
