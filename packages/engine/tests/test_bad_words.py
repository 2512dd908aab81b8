"""Which tokens would end a forbidden word, in every row of a step."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from thalweg.engine.bad_words import BadWords

TOKENS = st.integers(0, 3)


def expected_pairs(words: list[list[int]], text: list[int], start: int, num_rows: int) -> set[tuple[int, int]]:
    pairs = set()
    for row in range(num_rows):
        past = text[: start + row]
        for word in words:
            beginning = word[:-1]
            if not beginning or past[-len(beginning) :] == beginning:
                pairs.add((row, word[-1]))
    return pairs


@given(
    words=st.lists(st.lists(TOKENS, min_size=1, max_size=4), max_size=6),
    past=st.lists(TOKENS, max_size=7),
    drafts=st.lists(TOKENS, max_size=5),
    data=st.data(),
)
def test_a_token_is_forbidden_where_the_tokens_before_it_begin_a_word(
    words: list[list[int]], past: list[int], drafts: list[int], data: st.DataObject
) -> None:
    num_rows = data.draw(st.integers(1, len(drafts) + 1))
    rows, ids = BadWords(words).pairs(np.array(past, np.int64), np.array(drafts, np.int64), num_rows)
    found = set(zip(rows.tolist(), ids.tolist(), strict=True))
    assert found == expected_pairs(words, past + drafts, len(past), num_rows)


def test_only_the_newest_tokens_are_looked_at() -> None:
    words = BadWords([[5], [1, 2, 3]])
    assert words.look_back == 2
    rows, ids = words.pairs(np.array([9, 9, 1, 2]), np.array([3, 1, 2, 7]), 5)
    expected = [(0, 3), (0, 5), (1, 5), (2, 5), (3, 3), (3, 5), (4, 5)]
    assert sorted(zip(rows.tolist(), ids.tolist(), strict=True)) == expected
