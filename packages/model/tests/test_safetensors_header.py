"""Headers of safetensors files: what is read and which damage is noticed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from thalweg.interfaces import CheckpointError
from thalweg.model.safetensors_header import read_header
from thalweg.model.safetensors_writer import write_shard


def write(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_a_file_of_the_usual_library_is_read(tmp_path: Path) -> None:
    tensors = {"a": torch.zeros(3, 5), "b": torch.zeros(7, dtype=torch.bfloat16)}
    save_file(tensors, tmp_path / "x", metadata={"format": "pt"})
    header = read_header(tmp_path / "x")
    assert header.file_bytes == (tmp_path / "x").stat().st_size
    assert {n: (t.dtype, t.shape, t.num_bytes) for n, t in header.tensors.items()} == {
        "a": ("F32", (3, 5), 60),
        "b": ("BF16", (7,), 14),
    }


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    assert write_shard(tmp_path / "x", {"a": ("I8", (3,), b"abc"), "s": ("F32", (), b"1234")}) == 7
    header = read_header(tmp_path / "x")
    raw = (tmp_path / "x").read_bytes()
    assert {name: raw[t.begin : t.end] for name, t in header.tensors.items()} == {"a": b"abc", "s": b"1234"}
    assert header.tensors["s"].shape == ()


def test_elements_smaller_than_a_byte_are_counted_in_bits(tmp_path: Path) -> None:
    header = read_header(write(tmp_path / "x", {"a": entry("F4", [4], [0, 2])}, bytes(2)))
    assert header.tensors["a"].num_bytes == 2


@pytest.mark.parametrize("length", [0, 41, 2**63, 100_000_001])
def test_a_header_length_beyond_the_file_or_zero_is_refused(tmp_path: Path, length: int) -> None:
    path = write(tmp_path / "x", b"{}" + b" " * 38, length=length)
    with pytest.raises(CheckpointError, match=rf"x: header length is {length}; it must be 1 to 40"):
        read_header(path)


def test_a_file_without_a_length_field_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"123")
    with pytest.raises(CheckpointError, match="header length"):
        read_header(tmp_path / "x")


def test_a_file_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="x: cannot be opened"):
        read_header(tmp_path / "x")


@pytest.mark.parametrize("text", [b"{", b"[]", b"[[1, 2]]", b"3", b"\xff\xfe", b'"a"'])
def test_a_header_that_is_no_object_is_refused(tmp_path: Path, text: bytes) -> None:
    with pytest.raises(CheckpointError, match="x: header"):
        read_header(write(tmp_path / "x", text))


def test_a_name_that_appears_twice_is_refused(tmp_path: Path) -> None:
    one = json.dumps(entry())
    with pytest.raises(CheckpointError, match="tensor a appears twice"):
        read_header(write(tmp_path / "x", f'{{"a": {one}, "a": {one}}}'.encode(), bytes(8)))


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (entry(dtype="F99"), "dtype is F99"),
        (entry(dtype=3), "it needs dtype, shape and two data_offsets"),
        (entry(shape=[-2]), "it needs dtype, shape"),
        (entry(shape=[True]), "it needs dtype, shape"),
        (entry(shape="2"), "it needs dtype, shape"),
        (entry(offsets=[0]), "it needs dtype, shape"),
        ({"dtype": "F32"}, "it needs dtype, shape"),
        (7, "it needs dtype, shape"),
        (entry(offsets=[4, 12]), r"bytes \[4, 12\) lie outside the data area of 8 bytes"),
        (entry(offsets=[8, 0]), r"bytes \[8, 0\) lie outside"),
        (entry(shape=[3]), r"8 bytes are stored; shape \[3\] of F32 takes 12"),
        (entry(shape=[10**300, 10**300]), r"8 bytes are stored; shape \[10+, 10+\] of F32 takes 40+$"),
        (entry("F4", [3], [0, 2]), r"2 bytes are stored; shape \[3\] of F4 takes 1 and 4 bits"),
        (entry(offsets=[0, 4]), r"4 bytes are stored; shape \[2\] of F32 takes 8"),
    ],
)
def test_a_damaged_entry_is_refused_with_its_name(tmp_path: Path, bad: Any, reason: str) -> None:
    with pytest.raises(CheckpointError, match=rf"x: tensor bad: .*{reason}"):
        read_header(write(tmp_path / "x", {"bad": bad}, bytes(8)))


@pytest.mark.parametrize(
    ("header", "num_bytes", "reason"),
    [
        ({"a": entry()}, 9, "the data area has 9 bytes; the tensors of the header fill 8"),
        ({}, 1, "the data area has 1 bytes; the tensors of the header fill 0"),
        ({"a": entry(offsets=[1, 9])}, 9, "tensor a: begins at byte 1 of the data area; the header ends at 0"),
        ({"a": entry(), "b": entry(offsets=[9, 17])}, 17, "tensor b: begins at byte 9 of the data area; a ends at 8"),
        ({"a": entry(), "b": entry(offsets=[4, 12])}, 12, "tensor b: begins at byte 4 of the data area; a ends at 8"),
    ],
)
def test_tensors_that_do_not_fill_the_data_area_are_refused(
    tmp_path: Path, header: dict[str, Any], num_bytes: int, reason: str
) -> None:
    with pytest.raises(CheckpointError, match=reason):
        read_header(write(tmp_path / "x", header, bytes(num_bytes)))


def test_a_length_field_that_ends_in_the_padding_does_not_shift_every_tensor(tmp_path: Path) -> None:
    text = json.dumps({"a": entry()}).encode() + b"  "
    with pytest.raises(CheckpointError, match="the data area has 9 bytes; the tensors of the header fill 8"):
        read_header(write(tmp_path / "x", text, bytes(8), length=len(text) - 1))
