"""The step-time curve of a deployment: given, kept from an earlier start, or measured."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import torch

from thalweg.dspark import CurveCache, CurveKey, StepTimeCurve
from thalweg.engine.config import EngineConfig
from thalweg.engine.device import Device
from thalweg.engine.inputs import InputBuilder
from thalweg.engine.step_time_profile import measure_step_times, profile_sizes
from thalweg.interfaces import Backend, ConfigError, Drafter, shown
from thalweg.model import ModelConfig


def given_curve(config: EngineConfig, points: Sequence[tuple[int, float]]) -> StepTimeCurve | None:
    """The curve of the caller; None without points. Raises ConfigError for one that is bad or that nobody reads."""
    if isinstance(points, Sequence) and not points:
        return None
    if not config.speculation.variable_length:
        raise ConfigError("step_times is given with variable_length False; only verify lengths that vary need them")
    try:
        curve = StepTimeCurve(points)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"step_times: {error}") from error
    if curve.largest < config.scheduler.max_num_seqs:
        raise ConfigError(
            f"step_times: the largest size is {curve.largest}; max_num_seqs {config.scheduler.max_num_seqs} needs one "
            "that holds a token of each"
        )
    return curve


def kept_or_measured_curve(
    config: EngineConfig,
    path: Path,
    facts: ModelConfig,
    drafter: Drafter | None,
    backend: Backend,
    device: Device,
    inputs: InputBuilder,
    sizes: Sequence[int] = (),
    *,
    is_writer: bool,
) -> StepTimeCurve:
    """The newest curve that an earlier start kept of this deployment, or a new measurement.

    config: settled. path, facts: of the checkpoint. sizes: of graphs, where there are any. is_writer: keep what was
    measured. What the disk does is logged and changes nothing else.
    """
    draft_length = config.speculation.draft_length or 0
    sizes = sizes or profile_sizes(config.scheduler.max_num_seqs * (1 + draft_length))

    def measure() -> StepTimeCurve:
        return measure_step_times(
            backend, device, inputs, sizes, draft_length=draft_length, vocab_size=facts.vocab_size
        )

    directory = config.speculation.curve_cache_dir
    if directory is None:
        return measure()
    cache = CurveCache(directory, config.speculation.curve_cache_ttl_s)
    key = curve_key(config, path, facts, drafter, sizes, backend.device_name)
    curve = cache.load(key)
    if curve is None:
        curve = measure()
        if is_writer:
            cache.store(key, curve)
    return curve


def size_on_curve(curve: StepTimeCurve, num_tokens: int) -> int:
    """The size whose time a step of so many query tokens is held against: the next larger one, or the largest."""
    return curve.graph_size(min(num_tokens, curve.largest))


def check_cache_directory(config: EngineConfig) -> None:
    """Raise ConfigError for a curve_cache_dir that is something else than a directory."""
    directory = config.speculation.curve_cache_dir
    if directory is not None and Path(directory).exists() and not Path(directory).is_dir():
        raise ConfigError(f"curve_cache_dir is {shown(directory)}; it must be a directory, or not exist yet")


def curve_key(
    config: EngineConfig,
    path: Path,
    facts: ModelConfig,
    drafter: Drafter | None,
    sizes: Sequence[int],
    device_name: str,
) -> CurveKey:
    """Everything that the time of a forward pass depends on, for a settled configuration.

    facts: those of the checkpoint at this path, so that another one in the same place has another key. drafter: it
    takes part in the pass.
    """
    parallel, backend = config.parallel, config.backend
    toolchain = (
        f"python {platform.python_version()}, torch {torch.__version__}, threads {torch.get_num_threads()}, "
        f"kernels {version('thalweg-kernels')}, model {version('thalweg-model')}, mode {config.mode}, "
        f"arithmetic {config.arithmetic}, providers {backend.kernels}, batch invariant {backend.batch_invariant}, "
        f"graphs {backend.graphs}, drafter {type(drafter).__qualname__}, "
        f"draft length {config.speculation.draft_length}"
    )
    return CurveKey(
        model=f"{path.resolve()}: {facts}",
        sizes=tuple(sizes),
        device_name=f"{backend.name}: {device_name}",
        package_version=version("thalweg-engine"),
        toolchain=toolchain,
        data_parallel_size=parallel.data,
        context_parallel_size=parallel.context,
        expert_parallel_size=parallel.expert,
    )
