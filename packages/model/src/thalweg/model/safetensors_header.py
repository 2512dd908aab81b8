"""Read the header of a safetensors file: which tensors it holds and where, without touching their bytes."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from thalweg.interfaces import CheckpointError

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000
_BITS = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """Where one tensor lies in a file."""

    name: str
    dtype: str
    """safetensors name, such as BF16."""
    shape: tuple[int, ...]
    begin: int
    """First byte, counted from the start of the file."""
    end: int

    @property
    def num_bytes(self) -> int:
        """Payload size."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class ShardHeader:
    """The tensors of one file, by the names the file uses."""

    path: Path
    file_bytes: int
    tensors: dict[str, TensorHeader]


def read_header(path: Path) -> ShardHeader:
    """Parse and check one file's header. Raises CheckpointError naming the file, the tensor and what is wrong."""
    try:
        with path.open("rb") as file:
            file_bytes = path.stat().st_size
            length_field = file.read(LENGTH_BYTES)
            length = int.from_bytes(length_field, "little")
            limit = min(MAX_HEADER_BYTES, file_bytes - LENGTH_BYTES)
            if len(length_field) < LENGTH_BYTES or not 0 < length <= limit:
                raise CheckpointError(
                    f"{path.name}: header length is {length}; it must be 1 to {max(limit, 0)} in {file_bytes} bytes"
                )
            raw = file.read(length)
    except OSError as error:
        raise CheckpointError(f"{path.name}: cannot be opened ({error.strerror})") from error
    if len(raw) < length:
        raise CheckpointError(f"{path.name}: short read of the header, {len(raw)} of {length} bytes")
    entries = _parse(path, raw)
    start = LENGTH_BYTES + length
    tensors = {
        name: _entry(path, name, entry, start, file_bytes - start) for name, entry in entries if name != "__metadata__"
    }
    _check_payload(path, tensors, start, file_bytes)
    return ShardHeader(path, file_bytes, tensors)


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with its repeated keys."""


def _parse(path: Path, raw: bytes) -> _Pairs:
    try:
        pairs = json.loads(raw, object_pairs_hook=_Pairs)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path.name}: header is not valid JSON ({error})") from error
    if not isinstance(pairs, _Pairs):
        raise CheckpointError(f"{path.name}: header must be a JSON object")
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise CheckpointError(f"{path.name}: tensor {name} appears twice in the header")
        seen.add(name)
    return pairs


def _entry(path: Path, name: str, pairs: Any, start: int, data_bytes: int) -> TensorHeader:
    entry: dict[str, Any] = dict(pairs) if isinstance(pairs, _Pairs) else {}
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    where = f"{path.name}: tensor {name}"
    if not isinstance(dtype, str) or not _naturals(shape) or not _naturals(offsets) or len(offsets) != 2:
        raise CheckpointError(f"{where}: entry is {entry or pairs!r}; it needs dtype, shape and two data_offsets")
    if dtype not in _BITS:
        raise CheckpointError(f"{where}: dtype is {dtype}; known are {', '.join(_BITS)}")
    begin, end = offsets
    if not begin <= end <= data_bytes:
        raise CheckpointError(f"{where}: bytes [{begin}, {end}) lie outside the data area of {data_bytes} bytes")
    bits = math.prod(shape) * _BITS[dtype]
    if bits != 8 * (end - begin):
        raise CheckpointError(
            f"{where}: {end - begin} bytes are stored; shape {list(shape)} of {dtype} takes {_bytes_of(bits)}"
        )
    return TensorHeader(name, dtype, tuple(shape), start + begin, start + end)


def _check_payload(path: Path, tensors: dict[str, TensorHeader], start: int, file_bytes: int) -> None:
    """The tensors fill the data area without gap or overlap; if not, the length field lies and all are shifted."""
    begin, last = start, "the header"
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.begin, tensor.end)):
        if tensor.begin != begin:
            raise CheckpointError(
                f"{path.name}: tensor {tensor.name}: begins at byte {tensor.begin - start} of the data area; "
                f"{last} ends at {begin - start} and tensors must follow each other"
            )
        begin, last = tensor.end, tensor.name
    if begin != file_bytes:
        raise CheckpointError(
            f"{path.name}: the data area has {file_bytes - start} bytes; the tensors of the header fill {begin - start}"
        )


def _bytes_of(bits: int) -> str:
    return str(bits // 8) if bits % 8 == 0 else f"{bits // 8} and {bits % 8} bits"


def _naturals(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
