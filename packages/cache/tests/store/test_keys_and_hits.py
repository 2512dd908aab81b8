from __future__ import annotations

import pytest

from thalweg.cache.store import (
    Hit,
    HitRule,
    ImageSpan,
    KeySpace,
    LocalPrefixIndex,
    MemoryStore,
    block_key,
    find_prefix,
    state_key,
)
from thalweg.interfaces import ConfigError, PrefixMatch

SPACE = KeySpace(b"model and format", b"tenant")
TOKENS = [*range(1000)]
RULE = HitRule(window=128, max_backtracking=6)


def test_only_whole_chunks_have_keys_and_each_key_stands_for_all_before_it() -> None:
    keys = SPACE.chunk_keys(TOKENS)
    assert len(keys) == len(set(keys)) == 7
    assert SPACE.chunk_keys(TOKENS[:640]) == keys[:5]
    for position, first_changed in ((0, 0), (127, 0), (128, 1), (640, 5)):
        changed = SPACE.chunk_keys([*TOKENS[:position], 5_000, *TOKENS[position + 1 :]])
        assert [a == b for a, b in zip(keys, changed, strict=True)] == [n < first_changed for n in range(7)]


def test_known_keys_are_continued_not_made_again() -> None:
    keys = SPACE.chunk_keys(TOKENS)
    assert SPACE.chunk_keys(TOKENS, known=keys[:3]) == keys
    assert SPACE.chunk_keys(TOKENS[:130], known=keys) == keys[:1]


def test_models_formats_and_tenants_share_no_key() -> None:
    spaces = [SPACE, KeySpace(b"model and format"), KeySpace(b"model and formatt", b"enant"), KeySpace(b"other", b"x")]
    assert len({space.chunk_keys(TOKENS)[0] for space in spaces}) == len(spaces)


def test_the_keys_of_this_version_stay_what_they_are() -> None:
    key = KeySpace(b"f", b"s").chunk_keys([*range(128)])[0]
    assert key.hex() == "ce26b4852efbcf77b54e4b686571934203f45701cc1bbbf61ae7741007ddc1ca"


def test_an_image_counts_in_the_chunks_it_meets_and_in_those_after() -> None:
    plain = SPACE.chunk_keys(TOKENS)
    image = SPACE.chunk_keys(TOKENS, [ImageSpan(200, 100, b"a")])
    assert [a == b for a, b in zip(plain, image, strict=True)] == [True] + [False] * 6
    assert SPACE.chunk_keys(TOKENS, [ImageSpan(200, 100, b"b")])[1] != image[1]
    assert SPACE.chunk_keys(TOKENS, [ImageSpan(201, 100, b"a")])[1] != image[1]
    assert SPACE.chunk_keys(TOKENS, [ImageSpan(950, 40, b"a")]) == plain


def test_blocks_and_states_of_a_chunk_have_keys_of_their_own() -> None:
    key = SPACE.chunk_keys(TOKENS)[0]
    assert len({key, block_key(key), state_key(key)}) == 3


def test_bad_key_input_is_named() -> None:
    with pytest.raises(ConfigError, match="fingerprint is empty"):
        KeySpace(b"")
    with pytest.raises(ConfigError, match="salt is empty"):
        KeySpace(b"f", salt_required=True)
    with pytest.raises(ConfigError, match="token_ids hold -1"):
        SPACE.chunk_keys([-1] * 128)


@pytest.mark.parametrize(("length", "hit"), [(1, 0), (261, 0), (262, 128), (389, 128), (390, 256), (1200, 1024)])
def test_the_last_window_and_what_can_be_rolled_back_are_always_computed(length: int, hit: int) -> None:
    assert RULE.longest(length) == hit


def test_the_hit_that_leaves_least_to_compute_wins_and_an_exact_one_at_equal_cost() -> None:
    match = PrefixMatch(8, (2, 5, 8))
    assert RULE.choose(match, 1200) == Hit(1024, restores_state=True, first_computed=1024)
    assert RULE.choose(match, 1100) == Hit(896, restores_state=False, first_computed=768)
    assert RULE.choose(match, 900) == Hit(640, restores_state=True, first_computed=640)
    assert RULE.choose(PrefixMatch(6, (5,)), 1200) == Hit(640, restores_state=True, first_computed=640)
    assert RULE.choose(PrefixMatch(6), 1200) == Hit(768, restores_state=False, first_computed=640)


def test_a_hit_of_one_window_is_not_worth_a_replay() -> None:
    assert RULE.choose(PrefixMatch(1), 1200) == Hit(0, restores_state=False, first_computed=0)
    assert RULE.choose(PrefixMatch(1, (1,)), 1200).num_tokens == 128


def test_what_is_not_allowed_is_not_chosen() -> None:
    match = PrefixMatch(4, (4,))
    assert not HitRule(128, 6, may_restore_state=False).choose(match, 1200).restores_state
    assert HitRule(128, 6, may_replay=False).choose(PrefixMatch(4, (1,)), 1200).num_tokens == 128
    assert HitRule(128, 6, may_replay=False).choose(PrefixMatch(4), 1200).num_tokens == 0
    with pytest.raises(ConfigError, match="window is 0"):
        HitRule(0, 6)
    with pytest.raises(ConfigError, match="max_backtracking is -1"):
        HitRule(128, -1)


def test_a_new_index_learns_what_the_store_still_holds() -> None:
    index, store = LocalPrefixIndex(100, {"default": 60.0}), MemoryStore(1 << 20)
    keys = SPACE.chunk_keys(TOKENS)
    data = [memoryview(b"bytes")]
    held = [*map(block_key, keys[:3]), state_key(keys[1]), *map(block_key, keys[4:])]
    assert all(store.put([(key, data) for key in held]).result())
    assert find_prefix(index, store, keys, "default") == PrefixMatch(3, (2,))
    assert index.match(keys) == PrefixMatch(3, (2,))
