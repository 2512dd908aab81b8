"""Builds an engine from a configuration: the only place where the components meet."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from thalweg.cache import CacheGeometry, CachePools, MetadataShape, compute_layout
from thalweg.engine.admission import Admission, Limits
from thalweg.engine.checkpoint import checkpoint_directory
from thalweg.engine.config import EngineConfig
from thalweg.engine.draft_pool import draft_pool_bytes
from thalweg.engine.drafting import checkpoint_drafter, settle_config
from thalweg.engine.engine import LLMEngine
from thalweg.engine.flops_facts import flops_model
from thalweg.engine.grammars import Grammars
from thalweg.engine.inputs import InputBuilder
from thalweg.engine.instruments import Instruments
from thalweg.engine.model_device import ModelDevice
from thalweg.engine.model_inputs import ModelInputs
from thalweg.engine.pool_sizes import PoolSizes, size_pools
from thalweg.engine.runner import StreamRunner
from thalweg.engine.sample_stage import SampleStage
from thalweg.engine.statistics import Capacity
from thalweg.engine.step_time_curve import check_cache_directory, given_curve, kept_or_measured_curve
from thalweg.engine.structured_parts import compiler_maker, mask_filler
from thalweg.engine.timeline import Timeline
from thalweg.engine.token_counts import token_count_bytes
from thalweg.engine.token_rows import CompressedVocabulary
from thalweg.engine.tokenizer import Tokenizer
from thalweg.engine.upload import Uploader
from thalweg.interfaces import Backend, Communicator, Drafter, load_backend
from thalweg.kernels import bind
from thalweg.model import DraftNetwork, Model, ModelConfig
from thalweg.scheduler import Scheduler

_LOG = logging.getLogger(__name__)


def build_engine(
    config: EngineConfig,
    *,
    communicator: Communicator | None = None,
    timeline: Timeline | None = None,
    drafter: Drafter | None = None,
    step_times: Sequence[tuple[int, float]] = (),
    model: Model | None = None,
    draft_network: DraftNetwork | None = None,
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
    geometry = cache_geometry(facts, config, _draft_length(config), has_draft_layers=drafter is None)
    sizes = _sizes(config, facts, geometry)
    scheduler = _scheduler(core, config, facts, geometry, sizes)
    admission = _admission(config, facts, tokenizer, geometry, sizes)
    instruments = _instruments(config, sizes, path, rank=0 if communicator is None else communicator.rank)
    # Everything that can refuse the options stands above: the weights may take long to load.
    with ExitStack() as on_failure:
        on_failure.callback(instruments.close)
        if model is None:
            model = Model.load(path, mode=config.mode, arithmetic=config.arithmetic, ops=ops)
        pools = CachePools(geometry, sizes.num_blocks, sizes.num_state_slots, backend.device)
        if drafter is None:
            drafter = checkpoint_drafter(path, model, draft_network, pools, config)
        device = _device(config, backend, ops, model, pools, sizes, drafter)
        inputs = InputBuilder(MetadataShape.of(geometry), compressed_vocabulary(model))
        if config.speculation.variable_length:
            curve = curve or kept_or_measured_curve(
                config, path, facts, drafter, backend, device, inputs, is_writer=instruments.rank == 0
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


def compressed_vocabulary(model: Model) -> CompressedVocabulary:
    """The map behind the n-gram windows of a model."""
    if model.vocabulary is None:
        return CompressedVocabulary.none()
    return CompressedVocabulary(
        model.vocabulary.compressed_ids, model.vocabulary.pad_id, model.config.engram_max_ngram_size
    )


def _draft_length(config: EngineConfig) -> int:
    """Of a settled configuration."""
    return config.speculation.draft_length or 0


def _tokenizer(config: EngineConfig, facts: ModelConfig, path: Path) -> Tokenizer:
    return Tokenizer.from_file(
        config.tokenizer or path,
        bos_token_id=facts.bos_token_id,
        eos_token_id=facts.eos_token_id,
        pad_token_id=facts.pad_token_id,
        vocab_size=facts.vocab_size,
    )


def _ops(config: EngineConfig, backend: Backend) -> Any:
    options = config.backend
    backend.guard.enabled = options.sync_guard
    return bind(backend.name, dict(options.kernels), options.batch_invariant, registry=backend.registry)


def _sizes(config: EngineConfig, facts: ModelConfig, geometry: CacheGeometry) -> PoolSizes:
    draft_length = _draft_length(config)
    pool_bytes = draft_pool_bytes(config, draft_length, facts.vocab_size)
    return size_pools(
        config,
        compute_layout(geometry),
        draft_length=draft_length,
        other_bytes=pool_bytes,
        other_slot_bytes=token_count_bytes(facts.vocab_size),
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
        tail_length=facts.engram_max_ngram_size if facts.engram_layer_ids else 1,
        vocab_size=facts.vocab_size,
        flops_model=flops_model(facts),
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


def _device(
    config: EngineConfig,
    backend: Backend,
    ops: Any,
    model: Model,
    pools: CachePools,
    sizes: PoolSizes,
    drafter: Drafter | None,
) -> ModelDevice:
    upload = Uploader(backend)
    vocab_size = model.config.vocab_size
    stage = SampleStage(
        backend,
        ops,
        upload,
        vocab_size=vocab_size,
        num_draft_slots=1 + config.scheduler.max_num_seqs,
        num_state_slots=sizes.num_state_slots,
        drafter=drafter,
        verification=config.speculation.verification,
        draft_positions=config.speculation.draft_positions,
        sampling=config.sampling,
        logprobs_mode=config.logprobs_mode,
    )
    shape, vocabulary = MetadataShape.of(pools.geometry), compressed_vocabulary(model)
    inputs = ModelInputs(backend, ops, upload, shape, sizes.table_width, vocabulary, vocab_size)
    return ModelDevice(model, pools, inputs, stage, drafter)
