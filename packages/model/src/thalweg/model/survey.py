"""Compare what a checkpoint directory holds with what its config asks for, from the headers alone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from thalweg.interfaces import CheckpointError
from thalweg.model.config import ModelConfig
from thalweg.model.names import TensorSpec, tensor_specs, tied_target
from thalweg.model.safetensors_header import TensorHeader, read_header

INDEX_NAME = "model.safetensors.index.json"
_ALIAS = "model."
_SHOWN = 10
_HC_NORM = re.compile(r"hc_(attn|ffn|head)_norm\.weight$")
_EXPERT = re.compile(r"(.*\.experts\.)(\d+)(\..*)")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of the checkpoint: its header and the file it lies in."""

    header: TensorHeader
    shard: str


@dataclass(slots=True)
class Survey:
    """What was found. Names are without the optional `model.` prefix."""

    directory: Path
    config: ModelConfig
    stored: dict[str, StoredTensor] = field(default_factory=dict)
    """Indexed tensors that are in their shard."""
    shard_bytes: dict[str, int] = field(default_factory=dict)
    """File size of each shard that could be read."""
    missing: list[str] = field(default_factory=list)
    """Needed by the config, absent."""
    unexpected: list[str] = field(default_factory=list)
    """Present, but nothing of this config."""
    tied: dict[str, str] = field(default_factory=dict)
    """Ignored copies and the tensors used instead."""
    warnings: list[str] = field(default_factory=list)
    """Deviations from the released layout that this reader can live with; errors under `strict`."""
    problems: list[str] = field(default_factory=list)
    """Everything that makes the checkpoint unusable, missing tensors included; each names tensor, found, expected."""

    def raise_problems(self, *, strict: bool = False) -> None:
        """Raise CheckpointError when there are problems; under `strict` also for warnings and unexpected tensors."""
        problems = list(self.problems)
        if strict:
            problems += self.all_warnings()
        if problems:
            raise CheckpointError(f"{self.directory}: " + "\n  ".join(problems))

    def all_warnings(self) -> list[str]:
        """The warnings, unexpected tensors among them."""
        unexpected = [f"unexpected tensors: {first_ten(compact(self.unexpected))}"] if self.unexpected else []
        return self.warnings + unexpected


def survey_checkpoint(directory: str | Path, config: ModelConfig) -> Survey:
    """Read index and headers and run every check that needs no payload.

    Raises CheckpointError only where nothing can be compared (no readable index); the rest is collected.
    """
    survey = Survey(Path(directory), config)
    index = read_index(survey.directory)
    _read_shards(survey, index)
    for name in survey.stored:
        if _HC_NORM.search(name):
            survey.problems.append(
                f"{name}: unsupported checkpoint; norms of the hyper-connections must be folded into hc_*_fn"
            )
    unchecked = dict(survey.stored)
    for spec in tensor_specs(config):
        found = unchecked.pop(spec.name, None)
        if found is None:
            survey.missing.append(spec.name)
        else:
            _check_tensor(survey, spec, found)
    _check_rest(survey, unchecked)
    if survey.missing:
        survey.problems.append(f"missing tensors ({len(survey.missing)}): {', '.join(compact(survey.missing))}")
    return survey


def read_index(directory: Path) -> dict[str, str]:
    """The shard of each tensor, by name without the `model.` prefix. Raises CheckpointError."""
    path = directory / INDEX_NAME
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}); a checkpoint needs its index") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: is not valid JSON ({error})") from error
    mapping = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(mapping, dict) or not all(isinstance(shard, str) for shard in mapping.values()):
        raise CheckpointError(f"{path}: weight_map is missing; it must map tensor names to file names")
    index: dict[str, str] = {}
    for spelled, shard in mapping.items():
        name = spelled.removeprefix(_ALIAS)
        if name in index:
            raise CheckpointError(f"{path}: both {name} and {_ALIAS}{name} are indexed; one spelling is accepted")
        if shard != Path(shard).name or shard in ("", ".", ".."):
            raise CheckpointError(f"{path}: {spelled} lies in {shard!r}; shards must be files beside the index")
        index[name] = shard
    return index


def compact(names: Iterable[str]) -> list[str]:
    """The names in order, runs of experts of one matrix written as one entry: `experts.[3-7].w1.weight`."""
    experts: dict[tuple[str, str], list[int]] = {}
    entries: list[str | tuple[str, str]] = []
    for name in names:
        match = _EXPERT.fullmatch(name)
        if match is None:
            entries.append(name)
            continue
        group = (match[1], match[3])
        if group not in experts:
            entries.append(group)
        experts.setdefault(group, []).append(int(match[2]))
    result = []
    for entry in entries:
        if isinstance(entry, str):
            result.append(entry)
        else:
            result += [f"{entry[0]}{run}{entry[1]}" for run in _runs(experts[entry])]
    return result


def first_ten(names: list[str]) -> str:
    """The first ten names and the count."""
    more = f", ... ({len(names)} in all)" if len(names) > _SHOWN else f" ({len(names)} in all)"
    return ", ".join(names[:_SHOWN]) + more


def _runs(numbers: list[int]) -> list[str]:
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return [str(first) if first == last else f"[{first}-{last}]" for first, last in runs]


def _read_shards(survey: Survey, index: dict[str, str]) -> None:
    """Fill `stored`; report absent and unreadable files, names spelled twice and tensors not in their shard."""
    shards = sorted(set(index.values()))
    absent = [shard for shard in shards if not _is_file(survey.directory / shard)]
    if absent:
        survey.problems.append(f"{INDEX_NAME} names files that do not exist: {', '.join(absent)}")
    spelling: dict[str, str] = {}
    unreadable = set(absent)
    for shard in shards:
        if shard in unreadable:
            continue
        try:
            header = read_header(survey.directory / shard)
        except CheckpointError as error:
            survey.problems.append(str(error))
            unreadable.add(shard)
            continue
        survey.shard_bytes[shard] = header.file_bytes
        for spelled, tensor in header.tensors.items():
            name = spelled.removeprefix(_ALIAS)
            if spelling.setdefault(name, spelled) != spelled:
                survey.problems.append(f"{shard}: both {name} and {_ALIAS}{name} are stored; one spelling is accepted")
            if index.get(name) == shard:
                survey.stored[name] = StoredTensor(tensor, shard)
            else:
                survey.unexpected.append(f"{name} (in {shard}, not indexed there)")
    lost = [name for name, shard in index.items() if name not in survey.stored and shard not in unreadable]
    if lost:
        survey.problems.append(f"indexed but not in their shard: {first_ten([f'{n} ({index[n]})' for n in lost])}")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that no file can have, or a folder that may not be searched
        return False


def _check_tensor(survey: Survey, spec: TensorSpec, found: StoredTensor) -> None:
    header = found.header
    if header.dtype != spec.dtype:
        survey.problems.append(f"{spec.name}: dtype is {header.dtype}; {spec.dtype} is needed ({found.shard})")
    if header.shape != spec.shape:
        reason = ""
        if spec.format == "engram" and header.shape[:1] != spec.shape[:1]:
            reason = "; rows must be the sum of the bucket primes"
        survey.problems.append(
            f"{spec.name}: shape is {list(header.shape)}; {list(spec.shape)} is needed{reason} ({found.shard})"
        )
    if spec.format == "engram" and spec.is_scale:
        table = survey.stored.get(spec.name.removesuffix(".scale") + ".weight")
        if table is not None and table.shard != found.shard:
            survey.warnings.append(f"{spec.name}: lies in {found.shard}; it must be in {table.shard} like its table")


def _check_rest(survey: Survey, rest: dict[str, StoredTensor]) -> None:
    """Sort the tensors that the config does not ask for into tied copies, draft tensors (an error) and unexpected."""
    drafts = []
    for name, found in rest.items():
        target = tied_target(survey.config, name)
        if target is None:
            survey.unexpected.append(name)
            if name.startswith("mtp."):
                drafts.append(name)
            continue
        survey.tied[name] = target
        original = survey.stored.get(target)
        if original is None:
            continue
        for what, copy, needed in (
            ("dtype", found.header.dtype, original.header.dtype),
            ("shape", list(found.header.shape), list(original.header.shape)),
        ):
            if copy != needed:
                survey.problems.append(f"{name}: {what} is {copy}; its tied target {target} has {needed}")
    if drafts:
        survey.problems.append(
            f"unexpected draft tensors: {first_ten(compact(drafts))}; num_nextn_predict_layers is "
            f"{survey.config.num_nextn_predict_layers} and every mtp.* tensor must be used"
        )
