"""What every backend does with the items of a batch."""

from __future__ import annotations

from collections.abc import Sequence

from thalweg.interfaces import ConfigError, shown


def check_ttl(ttl_s: float | None) -> None:
    """Raise ConfigError unless it is None or above 0 seconds."""
    if ttl_s is not None and not ttl_s > 0:
        raise ConfigError(f"ttl_s is {shown(ttl_s)}; it must be above 0 seconds, or None for no end")


def is_expired(expires: float | None, now: float) -> bool:
    """Whether a lifetime has ended; None is without end."""
    return expires is not None and expires <= now


def size_of(segments: Sequence[memoryview]) -> int:
    """Bytes of all segments."""
    return sum(segment.nbytes for segment in segments)


def as_bytes(segments: Sequence[memoryview]) -> list[memoryview]:
    """The segments as flat bytes, the empty ones left out."""
    return [segment.cast("B") for segment in segments if segment.nbytes]


def scatter(data: bytes, segments: Sequence[memoryview]) -> bool:
    """Fill the segments; False if the object is not of their size."""
    if len(data) != size_of(segments):
        return False
    begin = 0
    for segment in as_bytes(segments):
        segment[:] = data[begin : begin + segment.nbytes]
        begin += segment.nbytes
    return True
