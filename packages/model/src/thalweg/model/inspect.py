"""Say what a checkpoint holds, what is missing and what is wrong, from its headers alone and without torch."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from thalweg.interfaces.text_table import aligned
from thalweg.model.config import ModelConfig
from thalweg.model.names import tensor_specs
from thalweg.model.survey import StoredTensor, compact, survey_checkpoint

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_UNKNOWN = "not in the config"
_TIED = "tied copies"


@dataclass(frozen=True, slots=True)
class TensorGroup:
    """Tensors that differ only in layer or expert numbers, and are stored alike."""

    pattern: str
    """The name with numbers replaced by `*`."""
    dtype: str
    shape: tuple[int, ...]
    count: int
    num_bytes: int
    """Of all of them together."""


@dataclass(frozen=True, slots=True)
class CheckpointReport:
    """The result of `inspect_checkpoint`."""

    directory: Path
    config: ModelConfig
    tensors: dict[str, StoredTensor]
    """Every tensor that is where the index says, by name."""
    groups: tuple[TensorGroup, ...]
    """The tensor table, one entry per kind of tensor."""
    bytes_by_module: dict[str, int]
    """Payload bytes of embeddings, attention, experts, ...; the modules of `names.Module`."""
    count_by_dtype: dict[str, int]
    num_shards: int
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    warnings: tuple[str, ...]
    problems: tuple[str, ...]
    """Why the loader would refuse the checkpoint; empty when it would load."""

    @property
    def num_tensors(self) -> int:
        """Tensors found."""
        return len(self.tensors)

    @property
    def num_bytes(self) -> int:
        """Payload bytes found."""
        return sum(self.bytes_by_module.values())

    @property
    def is_loadable(self) -> bool:
        """Whether the loader would accept the checkpoint."""
        return not self.problems

    def render(self, *, every_tensor: bool = False) -> str:
        """The report as text. every_tensor: list each tensor instead of one line per kind of tensor."""
        lines = [
            str(self.directory),
            f"{self.num_tensors:,} tensors, {self.num_bytes:,} bytes in {self.num_shards} files, "
            f"{self.config.num_hidden_layers} layers, {self.config.num_draft_layers} draft layers",
            "",
        ]
        if every_tensor:
            header = ("tensor", "dtype", "shape", "bytes", "file")
            rows = [
                (name, t.header.dtype, str(list(t.header.shape)), f"{t.header.num_bytes:,}", t.shard)
                for name, t in self.tensors.items()
            ]
            lines += _table([header, *rows], right={3})
        else:
            header = ("tensor", "dtype", "shape", "count", "bytes")
            rows = [(g.pattern, g.dtype, str(list(g.shape)), f"{g.count:,}", f"{g.num_bytes:,}") for g in self.groups]
            lines += _table([header, *rows], right={3, 4})
        total = max(self.num_bytes, 1)
        lines += ["", "bytes by kind"]
        ordered = sorted(self.bytes_by_module.items(), key=lambda item: -item[1])
        lines += _table([(name, f"{size:,}", f"{100 * size / total:.1f} %") for name, size in ordered], right={1, 2})
        lines += ["", "tensors by dtype"]
        lines += _table([(dtype, f"{count:,}") for dtype, count in sorted(self.count_by_dtype.items())], right={1})
        for title, names in (("missing", self.missing), ("unexpected", self.unexpected)):
            lines += ["", f"{title}: {len(names):,}", *(f"  {name}" for name in compact(names))]
        for title, texts in (("warnings", self.warnings), ("problems", self.problems)):
            if texts:
                lines += ["", title, *(f"  {text}" for text in texts)]
        return "\n".join(lines)


def inspect_checkpoint(directory: str | Path, *, config: ModelConfig | None = None) -> CheckpointReport:
    """Survey a checkpoint directory without reading any payload.

    config: read from the directory when not given. Raises ConfigError or CheckpointError only when config.json or the
    index cannot be read; everything else that is wrong is in the report.
    """
    config = ModelConfig.from_file(directory) if config is None else config
    survey = survey_checkpoint(directory, config)
    modules: dict[str, str] = {spec.name: spec.module for spec in tensor_specs(config)}
    modules |= dict.fromkeys(survey.tied, _TIED)
    bytes_by_module: Counter[str] = Counter()
    count_by_dtype: Counter[str] = Counter()
    groups: dict[tuple[str, str, tuple[int, ...]], list[int]] = {}
    for name, stored in survey.stored.items():
        header = stored.header
        bytes_by_module[modules.get(name, _UNKNOWN)] += header.num_bytes
        count_by_dtype[header.dtype] += 1
        group = groups.setdefault((_NUMBER.sub("*", name), header.dtype, header.shape), [0, 0])
        group[0] += 1
        group[1] += header.num_bytes
    return CheckpointReport(
        directory=Path(directory),
        config=config,
        tensors=survey.stored,
        groups=tuple(TensorGroup(*key, *sums) for key, sums in sorted(groups.items())),
        bytes_by_module=dict(bytes_by_module),
        count_by_dtype=dict(count_by_dtype),
        num_shards=len(survey.shard_bytes),
        missing=tuple(survey.missing),
        unexpected=tuple(survey.unexpected),
        warnings=tuple(survey.warnings),
        problems=tuple(survey.problems),
    )


def _table(rows: list[tuple[str, ...]], right: set[int]) -> list[str]:
    return ["  " + line for line in aligned(rows, right)]
