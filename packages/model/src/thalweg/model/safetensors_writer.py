"""Write safetensors files and the index beside them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from thalweg.model.survey import INDEX_NAME

_ALIGNMENT = 8


def header_bytes(tensors: Iterable[tuple[str, str, tuple[int, ...], int]]) -> bytes:
    """The start of a file, up to its payload: length field and JSON.

    tensors: (name, safetensors dtype, shape, payload bytes) in payload order.
    """
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for name, dtype, shape, num_bytes in tensors:
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, begin + num_bytes]}
        begin += num_bytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def write_shard(path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]]) -> int:
    """Write one file of name -> (dtype, shape, payload); returns the payload bytes."""
    with path.open("wb") as file:
        file.write(header_bytes((name, dtype, shape, len(data)) for name, (dtype, shape, data) in tensors.items()))
        for _, _, data in tensors.values():
            file.write(data)
    return sum(len(data) for _, _, data in tensors.values())


def write_index(directory: Path, shard_of: Mapping[str, str], total_bytes: int) -> None:
    """Write the index of the files in a directory."""
    document = {"metadata": {"total_size": total_bytes}, "weight_map": dict(sorted(shard_of.items()))}
    (directory / INDEX_NAME).write_text(json.dumps(document, indent=0) + "\n", encoding="utf-8")
