import itertools
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg.engine.detokenizer import Detokenizer
from thalweg.engine.stop import StopChecker, StopStrings
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


def naive_pieces(stops: list[str], pieces: list[tuple[str, bool]]) -> tuple[list[str], str | None]:
    """What is released after every piece, by looking at the whole text again and again."""
    text, released = "", [""]
    for piece, can_stop in pieces:
        for character in piece:
            text += character
            ended = [stop for stop in stops if text.endswith(stop)]
            if ended and can_stop:
                return [*released[1:], text[: len(text) - len(ended[0])]], ended[0]
        held = max(size for size in range(len(text) + 1) if any(is_begun(stop, text, size) for stop in ["x", *stops]))
        released.append(text[: len(text) - held])
    return [*released[1:], text], None


def is_begun(stop: str, text: str, size: int) -> bool:
    """Whether the last characters of the text begin a stop string that goes on."""
    return size < len(stop) and text.endswith(stop[:size])


def feed(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    checker = StopChecker(StopStrings(stops))
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
    detokenizer, checker = Detokenizer(tokenizer), StopChecker(StopStrings(stops))
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
    checker = StopChecker(StopStrings(stops))
    for end, character in enumerate(text, start=1):
        checker.push(character)
        if checker.matched is not None:
            break
        held = text[len(checker.text) : end]
        assert checker.text + held == text[:end]
        assert not held or any(stop.startswith(held) for stop in stops)


@given(
    stops=st.lists(st.text(alphabet="ab", min_size=1, max_size=6), max_size=8),
    pieces=st.lists(st.tuples(st.text(alphabet="ab", max_size=5), st.booleans()), max_size=12),
)
@settings(max_examples=1000)
def test_every_piece_releases_what_a_search_of_the_whole_text_allows(
    stops: list[str], pieces: list[tuple[str, bool]]
) -> None:
    checker = StopChecker(StopStrings(stops))
    texts = []
    for piece, can_stop in pieces:
        checker.push(piece, can_stop=can_stop)
        texts.append(checker.text)
        if checker.matched is not None:
            break
    else:
        checker.finish()
        texts.append(checker.text)
    assert (texts, checker.matched) == naive_pieces(stops, pieces)


def test_the_match_that_ends_first_wins_and_order_decides_ties() -> None:
    assert feed(["cd", "abcde"], ["abcdef"]) == ("ab", "cd")
    assert feed(["abc", "c"], ["xabc"]) == ("x", "abc")
    assert feed(["c", "abc"], ["xabc"]) == ("xab", "c")


def test_a_possible_beginning_is_held_back_until_it_is_resolved() -> None:
    checker = StopChecker(StopStrings(["<end>"]))
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
        StopStrings(["a", ""])


def test_a_repetitive_stop_string_costs_linear_time() -> None:
    start = time.process_time()
    text, matched = feed(["a" * 5000 + "b"], ["a"] * 20_000)
    assert (len(text), matched) == (20_000, None)
    assert time.process_time() - start < 2.0


def test_a_stop_string_that_may_not_stop_is_text_and_may_start_one_that_may() -> None:
    checker = StopChecker(StopStrings(["aba"]))
    assert checker.push("xaba", can_stop=False) == "xab"
    assert checker.push("ba.") == ""
    assert (checker.matched, checker.text) == ("aba", "xab")


def test_a_thousand_stop_strings_cost_what_one_costs() -> None:
    """Fifty times as long would be too long; a search of its own for every string takes a thousand times as long."""
    numbered = [f"stop here, reason {index}" for index in range(1000)]
    text = "stop here, reason 10, or else stop there, reason 100\n" * 400

    def seconds(stops: list[str]) -> float:
        automaton = StopStrings(stops)
        start = time.process_time()
        checker = StopChecker(automaton)
        for character in text:
            checker.push(character, can_stop=False)
        return time.process_time() - start

    assert seconds(numbered) < 50 * seconds(numbered[:1])
    assert feed(numbered, [text]) == ("", "stop here, reason 1")
    assert feed(numbered[101:], [text]) == (text, None)


def test_several_outputs_share_their_stop_strings() -> None:
    stops = StopStrings(["end"])
    first, second = StopChecker(stops), StopChecker(stops)
    assert (first.push("an e"), second.push("the en")) == ("an ", "the ")
    assert (first.push("nd"), second.push("try")) == ("", "entry")
    assert (first.matched, second.matched) == ("end", None)
