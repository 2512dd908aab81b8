from collections import OrderedDict

from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg.structured.service.cache import ByteCache, RecentKeys


def test_the_entry_that_was_used_longest_ago_leaves_first() -> None:
    cache: ByteCache[str, str] = ByteCache(30)
    for name in "abc":
        assert cache.put(name, name.upper(), 10) == []
    assert cache.get("a") == "A"
    assert cache.put("d", "D", 10) == ["B"]
    assert cache.get("b") is None
    assert len(cache) == 3


def test_an_entry_above_the_limit_is_not_kept_and_displaces_nothing_else() -> None:
    cache: ByteCache[str, str] = ByteCache(30)
    cache.put("a", "A", 30)
    assert cache.put("b", "B", 31) == []
    assert cache.get("a") == "A"
    assert cache.put("a", "larger", 31) == ["A"], "the old value of the same key is not the value any more"
    assert cache.total_bytes == 0


def test_a_limit_of_zero_keeps_nothing() -> None:
    cache: ByteCache[str, str] = ByteCache(0)
    cache.put("a", "A", 1)
    assert cache.get("a") is None


def test_clearing_returns_what_was_kept() -> None:
    cache: ByteCache[str, str] = ByteCache(30)
    cache.put("a", "A", 10)
    assert cache.clear() == ["A"]
    assert (cache.total_bytes, len(cache)) == (0, 0)


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 40) | st.none()), max_size=60))
def test_any_history_equals_a_plain_list_and_never_exceeds_the_limit(history: list[tuple[int, int | None]]) -> None:
    """A key with a size is put, one without is looked up."""
    cache: ByteCache[int, int] = ByteCache(100)
    plain: OrderedDict[int, int] = OrderedDict()
    for step, (key, size) in enumerate(history):
        if size is None:
            assert (cache.get(key) is not None) == (key in plain)
            if key in plain:
                plain.move_to_end(key)
            continue
        cache.put(key, step, size)
        plain.pop(key, None)
        plain[key] = size
        while sum(plain.values()) > 100:
            plain.popitem(last=False)
        assert cache.total_bytes == sum(plain.values()) <= 100
    assert len(cache) == len(plain)


def test_recent_keys_forget_the_oldest() -> None:
    keys = RecentKeys(2)
    assert [keys.add(name) for name in "aabacb"] == [True, False, True, False, True, True]
