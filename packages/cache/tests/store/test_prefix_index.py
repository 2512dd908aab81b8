from __future__ import annotations

import random
import threading

import pytest

from thalweg.cache.store import LocalPrefixIndex
from thalweg.interfaces import ConfigError, InvariantError, PrefixIndex, PrefixMatch


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def make(capacity: int = 100, clock: Clock | None = None) -> LocalPrefixIndex:
    return LocalPrefixIndex(capacity, {"default": 10.0, "long": 100.0}, clock or Clock())


def chain(text: str) -> list[bytes]:
    """A key for each prefix of a text, as hash chains have."""
    return [text[:end].encode() for end in range(1, len(text) + 1)]


def test_a_match_is_the_longest_leading_run_with_its_anchors() -> None:
    index: PrefixIndex = make()
    index.publish(chain("abcd"), [2, 4])
    assert index.match(chain("abcx")) == PrefixMatch(3, (2,))
    assert index.match(chain("abcde")) == PrefixMatch(4, (2, 4))
    assert index.match(chain("xbcd")) == PrefixMatch(0)


def test_a_class_says_how_long_a_chunk_lives_and_publishing_again_prolongs_it() -> None:
    clock = Clock()
    index = make(clock=clock)
    index.publish(chain("abcd"))
    clock.now = 5
    index.publish(chain("ab"), ttl_class="long")
    clock.now = 10
    assert index.match(chain("abcd")).num_chunks == 2
    assert (index.expire(), len(index)) == (2, 2)
    clock.now = 105
    assert (index.expire(), len(index)) == (2, 0)


def test_the_leaf_that_was_used_longest_ago_goes_first() -> None:
    index = make(capacity=5)
    index.publish(chain("abc"))
    index.publish(chain("xy"))
    index.match(chain("abc"))
    index.publish(chain("pq"))
    assert [index.match(chain(text)).num_chunks for text in ("abc", "xy", "pq")] == [3, 0, 2]


def test_pinned_chunks_stay_until_the_last_holder_lets_go() -> None:
    clock = Clock()
    index = make(capacity=3, clock=clock)
    index.publish(chain("abc"))
    assert (index.pin(chain("abcd")), index.pin(chain("ab"))) == (3, 2)
    index.publish(chain("xyz"))
    clock.now = 50
    assert index.match(chain("abc")).num_chunks == 3
    assert index.expire() == 0
    index.release(chain("abc"))
    assert index.match(chain("abc")).num_chunks == 2
    index.release(chain("ab"))
    assert (index.match(chain("a")).num_chunks, index.expire(), len(index)) == (0, 3, 0)
    index.publish(chain("a"))
    with pytest.raises(InvariantError, match="nobody pinned"):
        index.release(chain("a"))


def test_what_continues_a_missing_chunk_is_forgotten_with_it() -> None:
    index = make()
    index.publish(chain("abcd"))
    index.publish(chain("abx"))
    index.publish(chain("ay"))
    index.forget([b"ab", b"nowhere"])
    assert len(index) == 2
    assert [index.match(chain(text)).num_chunks for text in ("abcd", "ay")] == [1, 2]


def test_a_pin_outlives_a_chunk_that_is_forgotten_and_published_again() -> None:
    index = make(capacity=2)
    index.publish(chain("ab"))
    index.pin(chain("ab"))
    index.forget([b"a"])
    index.publish(chain("ab"))
    index.pin(chain("ab"))
    index.release(chain("ab"))
    index.publish(chain("x"))
    assert index.match(chain("ab")).num_chunks == 2
    index.release(chain("ab"))


def test_bad_input_is_named() -> None:
    with pytest.raises(ConfigError, match="capacity is 0"):
        LocalPrefixIndex(0, {})
    with pytest.raises(ConfigError, match=r"ttl_classes\['turn'\] is 0"):
        LocalPrefixIndex(1, {"turn": 0})
    with pytest.raises(ConfigError, match="ttl_class is 'never'; this index has default, long"):
        make().publish(chain("a"), ttl_class="never")
    with pytest.raises(ConfigError, match=r"anchors are \[2\]; the chain has 1..1 chunks"):
        make().publish(chain("a"), [2])


@pytest.mark.parametrize("seed", range(4))
def test_random_lives_agree_with_a_plain_model(seed: int) -> None:
    """1,000 operations; the model evicts by looking at every chunk."""
    draw, clock = random.Random(seed), Clock()
    index = make(capacity=12, clock=clock)
    expires: dict[str, float] = {}
    used: dict[str, int] = {}
    pins: dict[str, int] = {}

    def prefixes(text: str) -> list[str]:
        return [text[:end] for end in range(1, len(text) + 1)]

    def present(text: str) -> list[str]:
        return [
            p
            for p in prefixes(text)
            if all(q in expires and (expires[q] > clock.now or pins.get(q)) for q in prefixes(p))
        ]

    def evict() -> None:
        while len(expires) > 12:
            leaves = [p for p in expires if not pins.get(p) and not any(q[:-1] == p for q in expires)]
            if not leaves:
                return
            del expires[min(leaves, key=lambda leaf: (used[leaf], leaf))]

    held: list[str] = []
    for number in range(1000):
        text = "".join(draw.choices("ab", k=draw.randint(1, 6)))
        clock.now += draw.choice([0, 0, 1])
        match draw.choice(["publish", "publish", "match", "pin", "release"]):
            case "publish":
                kind = draw.choice(["default", "long"])
                index.publish(chain(text), ttl_class=kind)
                for prefix in prefixes(text):
                    lifetime = clock.now + {"default": 10, "long": 100}[kind]
                    expires[prefix] = max(expires.get(prefix, 0), lifetime)
                    used[prefix] = number
                evict()
            case "match":
                assert index.match(chain(text)).num_chunks == len(present(text))
                used.update(dict.fromkeys(present(text), number))
            case "pin":
                count = index.pin(chain(text))
                assert count == len(present(text))
                held += [text[:count]] if count else []
                for prefix in prefixes(text[:count]):
                    pins[prefix] = pins.get(prefix, 0) + 1
            case "release" if held:
                text = held.pop(draw.randrange(len(held)))
                index.release(chain(text))
                for prefix in prefixes(text):
                    pins[prefix] -= 1
                evict()
        assert len(index) == len(expires)


def test_threads_leave_a_whole_index() -> None:
    index = make(capacity=50)

    def work(seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(300):
            keys = chain("".join(draw.choices("abc", k=5)))
            index.publish(keys)
            index.release(keys[: index.pin(keys)])
            index.match(keys)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(index) == 50
