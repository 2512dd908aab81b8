from __future__ import annotations

import hashlib
import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from thalweg.cache.store import FileStore, MemoryStore, prune, stat, verify
from thalweg.interfaces import BlobStore, ConfigError


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def key(name: object) -> bytes:
    return hashlib.sha256(str(name).encode()).digest()


def cut(data: bytearray | bytes, *sizes: int) -> list[memoryview]:
    """The data as segments of these sizes, and one of the rest."""
    view, ends = memoryview(data), [0, *sizes]
    begins = [sum(ends[: n + 1]) for n in range(len(ends))]
    return [view[begin : begin + size] for begin, size in zip(begins, [*sizes, len(data)], strict=True)]


def put(store: BlobStore, name: object, data: bytes, ttl_s: float | None = None) -> bool:
    return store.put([(key(name), cut(data, len(data) // 3))], ttl_s).result(20)[0]


def get(store: BlobStore, name: object, size: int) -> bytes | None:
    data = bytearray(size)
    return bytes(data) if store.get([(key(name), cut(data, size // 2, 1 if size > 2 else 0))]).result(20)[0] else None


Open = Callable[..., FileStore]


@pytest.fixture
def open_file(tmp_path: Path) -> Iterator[Open]:
    opened: list[FileStore] = []

    def make(**options: object) -> FileStore:
        arguments: dict[str, object] = {"fingerprint": b"model", "max_bytes": 1 << 30} | options
        opened.append(FileStore(tmp_path / "store", **arguments))  # type: ignore[arg-type]
        return opened[-1]

    yield make
    for store in opened:
        store.close()


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, open_file: Open) -> BlobStore:
    return MemoryStore(1 << 20) if request.param == "memory" else open_file()


def test_what_was_put_is_found_in_other_segments(store: BlobStore) -> None:
    objects = {n: random.Random(n).randbytes(100 * n) for n in range(5)}
    assert store.put([(key(n), cut(data, n)) for n, data in objects.items()]).result(20) == [True] * 5
    assert [get(store, n, len(data)) for n, data in objects.items()] == [*objects.values()]
    assert store.contains([key(0), key(9)]) == [True, False]


def test_a_batch_answers_for_each_key(store: BlobStore) -> None:
    assert put(store, "a", b"aaaa")
    room = bytearray(4)
    items = [(key("b"), cut(bytearray(4))), (key("a"), cut(bytearray(5))), (key("a"), cut(room))]
    assert store.get(items).result(20) == [False, False, True]
    assert room == b"aaaa"


def test_an_object_of_more_segments_than_one_call_takes_is_whole(store: BlobStore) -> None:
    data = random.Random(0).randbytes(3001)
    assert store.put([(key("many"), cut(data, *[1] * 3000))]).result(20) == [True]
    room = bytearray(3001)
    assert store.get([(key("many"), cut(room, *[2] * 1500))]).result(20) == [True]
    assert room == data


def test_a_lifetime_is_above_zero_and_a_closed_store_misses(store: BlobStore) -> None:
    with pytest.raises(ConfigError, match="ttl_s is 0"):
        store.put([], ttl_s=0)
    assert put(store, "a", b"a")
    store.close()
    assert (put(store, "b", b"b"), get(store, "a", 1)) == (False, None)


def test_objects_expire_with_their_lifetime(open_file: Open) -> None:
    clock = Clock()
    for store in (MemoryStore(1 << 20, clock), open_file(clock=clock)):
        clock.now = 1000
        assert put(store, "short", b"short", 10)
        assert put(store, "long", b"long!", 100)
        assert put(store, "short", b"short", 50)
        clock.now = 1049
        assert [get(store, name, 5) for name in ("short", "long")] == [b"short", b"long!"]
        clock.now = 1050
        assert [get(store, name, 5) for name in ("short", "long")] == [None, b"long!"]


def test_memory_holds_the_newest_objects_that_fit() -> None:
    store = MemoryStore(10)
    assert [put(store, n, bytes(4)) for n in range(3)] == [True] * 3
    assert store.contains([key(n) for n in range(3)]) == [False, True, True]
    assert not put(store, "large", bytes(11))
    assert store.num_bytes == 8


def test_files_outlive_the_process_that_wrote_them(open_file: Open) -> None:
    store = open_file()
    assert put(store, "a", b"abc")
    store.close()
    again = open_file()
    assert get(again, "a", 3) == b"abc"
    assert put(again, "b", b"b")
    assert stat(again.path).num_objects == 2


def test_whole_files_go_when_they_expire_or_no_longer_fit(open_file: Open) -> None:
    clock = Clock()
    store = open_file(max_bytes=3500, clock=clock)
    assert [put(store, n, bytes(900)) for n in range(2)] == [True] * 2
    assert put(store, "brief", bytes(900), 10)
    clock.now += 10
    assert put(store, 2, bytes(900))
    assert store.contains([key(n) for n in (0, 1, "brief", 2)]) == [True, True, False, True]
    assert put(store, 3, bytes(900))
    assert store.contains([key(n) for n in (0, 1, 2, 3)]) == [False, True, True, True]
    assert stat(store.path).num_files == 3
    assert not put(store, "larger than all", bytes(4000))


def test_an_object_is_written_once(open_file: Open) -> None:
    store = open_file()
    assert put(store, "a", b"abc")
    before = stat(store.path).num_bytes
    assert put(store, "a", b"abc")
    assert stat(store.path).num_bytes == before


def segment(store: FileStore, number: int = 0) -> Path:
    return sorted(store.path.glob("segment-*"))[number]


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def test_a_flipped_byte_costs_its_object_alone(open_file: Open) -> None:
    store = open_file()
    assert store.put([(key(n), cut(bytes([n]) * 100)) for n in range(3)]).result(20) == [True] * 3
    flip(segment(store), segment(store).read_bytes().index(bytes([1]) * 100) + 50)
    assert [get(store, n, 100) for n in range(3)] == [bytes(100), None, bytes([2]) * 100]
    assert (store.contains([key(1)]), store.counts.num_damaged) == ([False], 1)
    report = verify(store.path)
    assert (report.num_good, report.damaged) == (2, ((segment(store).name, key(1).hex()),))
    assert put(store, 1, bytes([1]) * 100)
    assert get(store, 1, 100) == bytes([1]) * 100


def test_damage_anywhere_is_a_miss_or_harmless_and_never_an_error(open_file: Open) -> None:
    store = open_file()
    assert store.put([(key(n), cut(bytes([n]) * 8)) for n in range(2)]).result(20) == [True] * 2
    store.close()
    path, whole = segment(store), segment(store).read_bytes()
    damaged = [whole[:end] for end in range(0, len(whole), 3)]
    damaged += [whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :] for at in range(0, len(whole), 2)]
    for data in damaged:
        path.write_bytes(data)
        again = open_file()
        found = [get(again, n, 8) for n in range(2)]
        assert all(data in (None, bytes([n]) * 8) for n, data in enumerate(found))
        assert None in found
        again.close()
        assert path.read_bytes() == data, "damaged files are left alone"


def test_a_file_cut_off_or_deleted_while_it_is_open_is_a_miss(open_file: Open) -> None:
    store = open_file()
    assert put(store, "a", bytes(100))
    assert put(store, "b", bytes(100))
    segment(store, 0).write_bytes(segment(store, 0).read_bytes()[:60])
    segment(store, 1).unlink()
    assert (get(store, "a", 100), get(store, "b", 100)) == (None, None)
    assert put(store, "a", bytes(100))


def test_a_full_disk_is_a_miss_and_leaves_nothing(open_file: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_file()

    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("thalweg.cache.store._segment_file.os.writev", no_space)
        assert not put(store, "a", b"abc")
    assert (store.counts.num_failed_writes, stat(store.path).temporary) == (1, ())
    assert put(store, "a", b"abc")


def test_a_slow_disk_refuses_what_would_wait_too_long(open_file: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    fsync = os.fsync
    store = open_file(max_pending_bytes=250)
    monkeypatch.setattr("thalweg.cache.store._segment_file.os.fsync", lambda file: (go_on.wait(20), fsync(file))[1])
    waiting = [store.put([(key(n), cut(bytes(100)))]) for n in range(3)]
    assert waiting[2].result(20) == [False]
    assert store.counts.num_refused == 1
    go_on.set()
    assert [future.result(20) for future in waiting[:2]] == [[True], [True]]
    assert put(store, 2, bytes(100))


def test_directories_of_others_are_refused_by_name_and_left_alone(open_file: Open, tmp_path: Path) -> None:
    store = open_file()
    with pytest.raises(ConfigError, match="in use by another process"):
        open_file()
    with pytest.raises(ConfigError, match="in use by another process"):
        prune(store.path)
    store.close()
    with pytest.raises(
        ConfigError, match=r"store is of another model .* fingerprint is '6d6f64656c', this engine's '6e6577'"
    ):
        open_file(fingerprint=b"new")
    (store.path / "store.json").write_text('{"format": 99, "fingerprint": ""}')
    with pytest.raises(ConfigError, match="has format 99; this version reads 1"):
        open_file()
    other = tmp_path / "home"
    other.mkdir()
    (other / "letter").write_text("dear")
    with pytest.raises(ConfigError, match=r"home is no store directory and not empty \(it holds 'letter'\)"):
        FileStore(other, b"model", max_bytes=1)
    assert [path.name for path in other.iterdir()] == ["letter"]
    with pytest.raises(ConfigError, match="cannot be used"):
        FileStore(other / "letter", b"model", max_bytes=1)
    for operation in (stat, verify, prune):
        with pytest.raises(ConfigError, match="is no store directory"):
            operation(other)


def test_pruning_deletes_whole_files_and_keeps_what_is_not_ours(open_file: Open) -> None:
    store = open_file()
    assert [put(store, n, bytes(1000)) for n in range(3)] == [True] * 3
    store.close()
    (store.path / "notes.txt").write_text("mine")
    (store.path / "segment-000000000009.blobs").write_bytes(b"not a segment")
    (store.path / "segment-000000000010.blobs.tmp").write_bytes(b"half")
    summary = stat(store.path)
    assert (summary.num_files, summary.foreign, summary.unreadable[0][0]) == (
        3, ("notes.txt",), "segment-000000000009.blobs",
    )  # fmt: skip
    report = prune(store.path, max_bytes=summary.num_bytes // 3)
    assert report.deleted == tuple(f"segment-{name}" for name in (
        "000000000010.blobs.tmp", "000000000001.blobs", "000000000002.blobs",
    ))  # fmt: skip
    assert stat(store.path).foreign == ("notes.txt",)
    again = open_file()
    assert (get(again, 2, 1000), again.counts.num_unreadable_files) == (bytes(1000), 1)
    with pytest.raises(ConfigError, match="max_bytes is -1"):
        prune(store.path, -1)


@pytest.mark.parametrize("field", ["max_bytes", "segment_bytes", "max_pending_bytes"])
def test_sizes_are_at_least_one(open_file: Open, field: str) -> None:
    with pytest.raises(ConfigError, match=f"{field} is 0"):
        open_file(**{field: 0})
    with pytest.raises(ConfigError, match="a key has 3 bytes; keys have 32"):
        open_file().put([(b"abc", [])])


def test_random_operations_agree_with_a_dictionary(open_file: Open) -> None:
    """1,000 operations, opened anew at random; small files so that batches are split."""
    draw, held = random.Random(5), dict[int, bytes]()
    store = open_file(segment_bytes=2000)
    for _ in range(1000):
        names = draw.sample(range(40), draw.randint(1, 4))
        match draw.choices(["put", "get", "reopen"], [10, 20, 1])[0]:
            case "put":
                batch = [(name, random.Random(name).randbytes(name * 20)) for name in names]
                assert all(store.put([(key(name), cut(data, name)) for name, data in batch]).result(20))
                held.update(batch)
            case "get":
                assert [get(store, name, name * 20) for name in names] == [held.get(name) for name in names]
            case _:
                store.close()
                store = open_file(segment_bytes=2000)
    assert verify(store.path).num_good == len(held) == 40
