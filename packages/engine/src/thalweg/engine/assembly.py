"""Builds an engine from a configuration: the only place where the components meet."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from thalweg.cache import CacheGeometry, ConsumerReplay, ReplayMode, compute_layout, max_sequence_length
from thalweg.engine.admission import Admission, Limits
from thalweg.engine.checkpoint import checkpoint_directory
from thalweg.engine.config import EngineConfig
from thalweg.engine.device_maker import DeviceMaker, tail_length
from thalweg.engine.device_ops import check_ops
from thalweg.engine.draft_pool import draft_pool_bytes
from thalweg.engine.drafting import settle_config
from thalweg.engine.engine import LLMEngine
from thalweg.engine.first_steps import ready_device
from thalweg.engine.flops_facts import flops_model
from thalweg.engine.grammars import Grammars
from thalweg.engine.instruments import Instruments
from thalweg.engine.loading import (
    LoadedDraftNetwork,
    LoadedModel,
    check_given_model,
    check_given_network,
    load_draft_network,
    load_model,
)
from thalweg.engine.memory_profile import measure_needs, needs_of_the_model
from thalweg.engine.pool_sizes import DEVICE_MEMORY_FRACTION, PoolSizes, size_pools, smallest_pools
from thalweg.engine.runner import StreamRunner
from thalweg.engine.statistics import Capacity
from thalweg.engine.step_time_curve import check_cache_directory, given_curve, kept_or_measured_curve
from thalweg.engine.structured_parts import compiler_maker, mask_filler
from thalweg.engine.timeline import Timeline
from thalweg.engine.token_counts import token_count_bytes
from thalweg.engine.tokenizer import Tokenizer
from thalweg.interfaces import Backend, Communicator, Drafter, load_backend
from thalweg.kernels import bind
from thalweg.model import ModelConfig
from thalweg.model.replay import check_replay
from thalweg.scheduler import Scheduler

_LOG = logging.getLogger(__name__)


def build_engine(
    config: EngineConfig,
    *,
    communicator: Communicator | None = None,
    timeline: Timeline | None = None,
    drafter: Drafter | None = None,
    step_times: Sequence[tuple[int, float]] = (),
    model: LoadedModel | None = None,
    draft_network: LoadedDraftNetwork | None = None,
    core: Callable[..., Any] = Scheduler,
) -> LLMEngine:
    """Load the checkpoint and wire everything together.

    communicator: of the data-parallel group that this rank steps with. timeline: records what host and device do.
    drafter: proposes drafts in place of the checkpoint's drafter. step_times: (query tokens, milliseconds) of decode
    steps; without them variable verify lengths need a measurement. model, draft_network: of this checkpoint, loaded
    before, to share their weights. core: makes the scheduler.
    Raises ConfigError for options or config values that are not supported, CheckpointError for a damaged checkpoint,
    CapacityError when the cache would be too small, BackendUnavailableError for a backend that is not installed.
    """
    path = checkpoint_directory(config)
    facts = ModelConfig.from_file(path)
    config = settle_config(config, facts, drafter)
    curve = given_curve(config, step_times)
    check_cache_directory(config)
    tokenizer = _tokenizer(config, facts, path)
    backend = load_backend(config.backend.name)
    ops = _ops(config, backend)
    if model is not None:
        check_given_model(model, config, _longest(config))
    if draft_network is not None:
        check_given_network(draft_network, config)
    geometry = cache_geometry(facts, config, _draft_length(config), has_draft_layers=drafter is None)
    replay = _replay(config, facts, geometry)
    sizes = _sizes(config, facts, geometry, backend)
    rank = 0 if communicator is None else communicator.rank
    scheduler = _scheduler(core, config, facts, geometry, sizes)
    admission = _admission(config, facts, tokenizer, geometry, sizes)
    instruments = _instruments(config, sizes, path, rank=rank)
    # Everything that can refuse the options stands above: the weights may take long to load.
    with ExitStack() as on_failure:
        on_failure.callback(backend.release_memory)
        on_failure.callback(lambda: instruments.close())  # those of then: they are replaced below
        if model is None:
            model = load_model(path, config, backend, ops, _longest(config))
        if drafter is None and draft_network is None and _draft_length(config):
            draft_network = load_draft_network(path, model, backend)
        maker = DeviceMaker(config, backend, ops, geometry, sizes.table_width, model, draft_network, drafter, replay)
        if backend.memory() is not None:
            sizes = _measured_sizes(maker, facts, communicator)
            scheduler = _scheduler(core, config, facts, geometry, sizes)
            admission = _admission(config, facts, tokenizer, geometry, sizes)
            instruments.close()
            instruments = _instruments(config, sizes, path, rank=rank)
        device, inputs = ready_device(maker, sizes, _most_tokens(maker)), maker.inputs()
        if config.speculation.variable_length:
            curve = curve or kept_or_measured_curve(
                config, path, facts, device.drafter, backend, device, inputs, maker.step_sizes, is_writer=rank == 0
            )
            scheduler.set_step_time_curve(list(curve))
        runner = StreamRunner(
            backend,
            device,
            inputs,
            has_variable_length=curve is not None,
            check_lengths=config.backend.check_lengths,
            timeline=timeline,
            filler=mask_filler(config.structured),
            vocab_size=facts.vocab_size,
        )
        instruments.serve("cpu" if backend.name == "cpu" else "gpu")
        on_failure.pop_all()
    _LOG.info("loaded %s: %d cache blocks, %d state slots", path, sizes.num_blocks, sizes.num_state_slots)
    return LLMEngine(
        scheduler,
        runner,
        tokenizer,
        admission,
        is_async=config.scheduler.async_scheduling,
        communicator=communicator,
        timeline=timeline,
        instruments=instruments,
        step_times=curve,
        return_draws=config.sampling.return_draws,
        grammars=Grammars(compiler_maker(config.structured, tokenizer, draft_length=_draft_length(config))),
    )


def cache_geometry(
    facts: ModelConfig, config: EngineConfig, draft_length: int = 0, *, has_draft_layers: bool = False
) -> CacheGeometry:
    """What the cache layout needs to know about a checkpoint.

    has_draft_layers: drafts come from its drafter, whose layers keep windows, too.
    """
    return CacheGeometry(
        num_layers=facts.num_hidden_layers,
        compress_ratios=facts.compress_ratios[: facts.num_hidden_layers],
        kv_source_layers=facts.kv_source_layer_ids,
        index_key_source_layers=facts.index_k_source_layer_ids,
        head_dim=facts.head_dim,
        index_head_dim=facts.index_head_dim,
        window_size=facts.sliding_window,
        num_draft_layers=facts.num_draft_layers if has_draft_layers and draft_length else 0,
        draft_length=draft_length,
        fp4_main=facts.use_fp4_sparse_kv,
        plain=config.mode == "plain",
    )


def _draft_length(config: EngineConfig) -> int:
    """Of a settled configuration."""
    return config.speculation.draft_length or 0


def _replay(config: EngineConfig, facts: ModelConfig, geometry: CacheGeometry) -> ConsumerReplay:
    """How much of a prompt the consumer layers compute. Raises ConfigError where the model cannot do that."""
    replay = ConsumerReplay.of(geometry, config.replay.mode, config.replay.keep_tokens)
    if replay.mode is not ReplayMode.OFF:
        check_replay(facts)
    return replay


def _tokenizer(config: EngineConfig, facts: ModelConfig, path: Path) -> Tokenizer:
    return Tokenizer.from_file(
        config.tokenizer or path,
        bos_token_id=facts.bos_token_id,
        eos_token_id=facts.eos_token_id,
        pad_token_id=facts.pad_token_id,
        vocab_size=facts.vocab_size,
    )


def _longest(config: EngineConfig) -> int:
    """Positions that sequences of a settled configuration may have."""
    scheduler = config.scheduler
    return max_sequence_length(scheduler.max_model_len, _draft_length(config), asynchronous=scheduler.async_scheduling)


def _ops(config: EngineConfig, backend: Backend) -> Any:
    options = config.backend
    backend.guard.enabled = options.sync_guard
    ops = bind(
        backend.name,
        dict(options.kernels),
        options.batch_invariant,
        architecture=backend.architecture,
        registry=backend.registry,
    )
    if config.arithmetic == "native":
        check_ops(ops, backend.name)
    return ops


def _sizes(config: EngineConfig, facts: ModelConfig, geometry: CacheGeometry, backend: Backend) -> PoolSizes:
    """Of the pools where the memory is the host's; of a device the smallest that serve, until it is measured."""
    layout, draft_length = compute_layout(geometry), _draft_length(config)
    if backend.memory() is not None:
        return smallest_pools(config, layout, draft_length=draft_length)
    return size_pools(
        config,
        layout,
        draft_length=draft_length,
        other_bytes=draft_pool_bytes(config, draft_length, facts.vocab_size),
        other_slot_bytes=token_count_bytes(facts.vocab_size),
    )


def _most_tokens(maker: DeviceMaker) -> int:
    """Query tokens of the largest prefill."""
    scheduler = maker.config.scheduler
    largest_decode = scheduler.max_num_seqs * (1 + maker.draft_length)
    return scheduler.max_num_batched_tokens or max(scheduler.max_model_len, 4096, largest_decode)


def _measured_sizes(maker: DeviceMaker, facts: ModelConfig, communicator: Communicator | None) -> PoolSizes:
    """Of the pools of a device, beside the model and the largest steps."""
    is_given = maker.config.cache.num_blocks is not None
    needs = needs_of_the_model(maker.backend) if is_given else measure_needs(maker, _most_tokens(maker))
    return size_pools(
        maker.config,
        compute_layout(maker.geometry),
        needs.total_bytes,
        default_fraction=DEVICE_MEMORY_FRACTION,
        draft_length=maker.draft_length,
        other_bytes=needs.step_bytes + needs.graph_bytes,
        other_slot_bytes=token_count_bytes(facts.vocab_size),
        communicator=communicator,
    )


def _scheduler(
    core: Callable[..., Any], config: EngineConfig, facts: ModelConfig, geometry: CacheGeometry, sizes: PoolSizes
) -> Any:
    return core(
        config.scheduler,
        num_blocks=sizes.num_blocks,
        num_state_slots=sizes.num_state_slots,
        block_size=geometry.tokens_per_block,
        draft_length=_draft_length(config),
        tail_length=tail_length(facts),
        vocab_size=facts.vocab_size,
        flops_model=flops_model(facts, replay=config.replay.mode, replay_keep_tokens=config.replay.keep_tokens),
    )


def _admission(
    config: EngineConfig, facts: ModelConfig, tokenizer: Tokenizer, geometry: CacheGeometry, sizes: PoolSizes
) -> Admission:
    limits = Limits(
        facts.vocab_size,
        config.scheduler.max_model_len,
        geometry.tokens_per_block,
        sizes.num_blocks,
        config.sampling.token_blacklist,
        has_prompt_logprobs=config.replay.mode == "off",
    )
    return Admission(tokenizer, limits, config.seed)


def _instruments(config: EngineConfig, sizes: PoolSizes, path: Path, *, rank: int) -> Instruments:
    capacity = Capacity(
        max_num_seqs=config.scheduler.max_num_seqs,
        num_blocks=sizes.num_blocks,
        num_state_slots=sizes.num_state_slots,
        num_devices=config.parallel.context,
        peak_tflops=config.statistics.peak_tflops,
    )
    instruments = Instruments.build(config.statistics, capacity, model_name=config.model or path.name, rank=rank)
    if config.speculation.confidence_records is not None:
        instruments.record_confidences(config.speculation.confidence_records, _draft_length(config))
    return instruments
