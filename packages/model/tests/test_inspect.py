"""Inspection from headers alone: the report, and how little it needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from thalweg.interfaces import CheckpointError
from thalweg.model import ModelConfig, inspect_checkpoint, small_config
from thalweg.model.synthetic import write_sparse_checkpoint


def test_a_sound_checkpoint_has_nothing_to_complain_about(random_checkpoint: Path) -> None:
    report = inspect_checkpoint(random_checkpoint)
    assert report.is_loadable
    assert (report.missing, report.unexpected, report.warnings, report.problems) == ((), (), (), ())
    assert report.num_bytes == sum(group.num_bytes for group in report.groups)
    assert report.num_tensors == sum(group.count for group in report.groups)
    assert {"embeddings", "attention", "experts", "engram", "hyper_connections", "draft"} <= set(report.bytes_by_module)
    text = report.render()
    assert "layers.*.ffn.experts.*.w1.weight" in text
    assert "bytes by kind" in text
    assert "missing: 0" in text
    assert "problems" not in text


def test_every_tensor_can_be_listed(random_checkpoint: Path) -> None:
    report = inspect_checkpoint(random_checkpoint)
    lines = report.render(every_tensor=True).splitlines()
    assert sum("safetensors" in line for line in lines) == report.num_tensors


def test_defects_are_reported_instead_of_raised(editable: Any) -> None:
    editable.drop("layers.0.attn.wq_a.scale")
    editable.add("layers.0.extra", "BF16", [2], bytes(4))
    editable.add("mtp.0.embed.weight", "BF16", [512, 64], bytes(65536))
    editable.alter("norm.weight", "F32", [64], bytes(256))
    report = inspect_checkpoint(editable.directory)
    assert not report.is_loadable
    assert report.missing == ("layers.0.attn.wq_a.scale",)
    assert report.unexpected == ("layers.0.extra",)
    assert report.bytes_by_module["not in the config"] == 4
    assert report.bytes_by_module["tied copies"] == 65536
    text = report.render()
    assert "missing: 1\n  layers.0.attn.wq_a.scale" in text
    assert "unexpected: 1\n  layers.0.extra" in text
    assert "norm.weight: dtype is F32; BF16 is needed" in text


def test_shards_that_are_gone_are_reported_with_their_tensors(editable: Any) -> None:
    editable.shard("norm.weight").unlink()
    report = inspect_checkpoint(editable.directory)
    assert any("do not exist" in problem for problem in report.problems)
    assert "norm.weight" in report.missing


def test_without_an_index_there_is_no_report(editable: Any) -> None:
    (editable.directory / "model.safetensors.index.json").unlink()
    with pytest.raises(CheckpointError, match="needs its index"):
        inspect_checkpoint(editable.directory)


def test_a_sparse_checkpoint_has_the_headers_of_a_real_one(tmp_path: Path, draft_config: ModelConfig) -> None:
    for number, config in enumerate((small_config(), draft_config)):
        directory = tmp_path / str(number)
        count = write_sparse_checkpoint(directory, config, num_shards=7)
        report = inspect_checkpoint(directory)
        assert (report.num_tensors, report.num_shards) == (count, 7)
        assert (report.problems, report.warnings, report.unexpected) == ((), (), ())


PROBE = """
import sys
from thalweg.model import inspect_checkpoint
report = inspect_checkpoint(sys.argv[1])
report.render(every_tensor=True)
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(report.num_tensors, report.num_bytes, peak // 1024, "torch" in sys.modules)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak memory from /proc")
def test_inspection_needs_little_memory_and_no_torch(tmp_path: Path, released: dict[str, Any]) -> None:
    text = released["text_config"] | {"n_routed_experts": 48, "dspark_n_routed_experts": 16}
    config = ModelConfig.from_dict(released | {"text_config": text})
    count = write_sparse_checkpoint(tmp_path, config, num_shards=8)
    assert count > 12_000
    command = [sys.executable, "-c", PROBE, str(tmp_path)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert int(output[0]) == count
    assert int(output[1]) > 2 * 10**11
    assert int(output[2]) < 100
    assert output[3] == "False"
