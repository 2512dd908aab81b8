"""Builds an engine from a configuration: the only place where the components meet."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from thalweg.cache import CacheGeometry, CachePools, MetadataShape, compute_layout
from thalweg.engine.admission import Admission, Limits
from thalweg.engine.checkpoint import checkpoint_directory
from thalweg.engine.config import EngineConfig
from thalweg.engine.draft_pool import draft_pool_bytes
from thalweg.engine.drafting import checkpoint_drafter, settle_config
from thalweg.engine.engine import LLMEngine
from thalweg.engine.flops_facts import flops_model
from thalweg.engine.inputs import InputBuilder
from thalweg.engine.instruments import Instruments
from thalweg.engine.model_device import ModelDevice
from thalweg.engine.model_inputs import ModelInputs
from thalweg.engine.pool_sizes import PoolSizes, size_pools
from thalweg.engine.runner import StreamRunner
from thalweg.engine.sample_stage import SampleStage
from thalweg.engine.speculation_config import SpeculationConfig
from thalweg.engine.statistics import Capacity
from thalweg.engine.step_time_curve import check_cache_directory, given_curve, kept_or_measured_curve
from thalweg.engine.timeline import Timeline
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
    tokenizer = Tokenizer.from_file(
        config.tokenizer or path,
        bos_token_id=facts.bos_token_id,
        eos_token_id=facts.eos_token_id,
        pad_token_id=facts.pad_token_id,
        vocab_size=facts.vocab_size,
    )
    backend = load_backend(config.backend.name)
    backend.guard.enabled = config.backend.sync_guard
    ops = bind(backend.name, dict(config.backend.kernels), config.backend.batch_invariant, registry=backend.registry)
    draft_length = config.speculation.draft_length or 0
    geometry = cache_geometry(facts, config, draft_length, has_draft_layers=drafter is None and draft_length > 0)
    sizes = size_pools(
        config,
        compute_layout(geometry),
        draft_length=draft_length,
        other_bytes=draft_pool_bytes(config, draft_length, facts.vocab_size),
    )
    # Everything that can refuse the options comes before the weights, which may take long to load.
    scheduler = core(
        config.scheduler,
        num_blocks=sizes.num_blocks,
        num_state_slots=sizes.num_state_slots,
        block_size=geometry.tokens_per_block,
        draft_length=draft_length,
        tail_length=facts.engram_max_ngram_size if facts.engram_layer_ids else 1,
        vocab_size=facts.vocab_size,
        flops_model=flops_model(facts),
    )
    limits = Limits(facts.vocab_size, config.scheduler.max_model_len, geometry.tokens_per_block, sizes.num_blocks)
    admission = Admission(tokenizer, limits, config.seed)
    instruments = Instruments.build(
        config.statistics,
        Capacity(
            max_num_seqs=config.scheduler.max_num_seqs,
            num_blocks=sizes.num_blocks,
            num_state_slots=sizes.num_state_slots,
            num_devices=config.parallel.context,
            peak_tflops=config.statistics.peak_tflops,
        ),
        model_name=config.model or path.name,
        rank=0 if communicator is None else communicator.rank,
    )
    if config.speculation.confidence_records is not None:
        instruments.record_confidences(config.speculation.confidence_records, draft_length)
    if model is None:
        model = Model.load(path, mode=config.mode, arithmetic=config.arithmetic, ops=ops)
    pools = CachePools(geometry, sizes.num_blocks, sizes.num_state_slots, backend.device)
    if drafter is None:
        drafter = checkpoint_drafter(path, model, draft_network, pools, config)
    device = build_device(
        backend,
        ops,
        model,
        geometry,
        sizes,
        drafter,
        pools=pools,
        speculation=config.speculation,
        max_num_seqs=config.scheduler.max_num_seqs,
    )
    inputs = InputBuilder(MetadataShape.of(geometry), compressed_vocabulary(model))
    if config.speculation.variable_length:
        is_writer = communicator is None or communicator.rank == 0
        curve = curve or kept_or_measured_curve(config, path, backend, device, inputs, facts.vocab_size, is_writer)
        scheduler.set_step_time_curve(list(curve))
    runner = StreamRunner(
        backend,
        device,
        inputs,
        has_variable_length=curve is not None,
        check_lengths=config.backend.check_lengths,
        timeline=timeline,
    )
    instruments.serve("cpu" if backend.name == "cpu" else "gpu")
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
    )


def build_device(
    backend: Backend,
    ops: Any,
    model: Model,
    geometry: CacheGeometry,
    sizes: PoolSizes,
    drafter: Drafter | None = None,
    *,
    pools: CachePools | None = None,
    speculation: SpeculationConfig | None = None,
    max_num_seqs: int = 0,
) -> ModelDevice:
    """The device work of a model.

    pools: the cache, where the drafter has it already; None makes one. speculation: how drafts are verified, None = by
    default. max_num_seqs: sequences that may have drafts.
    """
    upload = Uploader(backend)
    speculation = SpeculationConfig() if speculation is None else speculation
    stage = SampleStage(
        backend,
        ops,
        upload,
        vocab_size=model.config.vocab_size,
        num_draft_slots=1 + max_num_seqs,
        drafter=drafter,
        verification=speculation.verification,
        draft_positions=speculation.draft_positions,
    )
    inputs = ModelInputs(
        backend,
        ops,
        upload,
        MetadataShape.of(geometry),
        sizes.table_width,
        compressed_vocabulary(model),
        model.config.vocab_size,
    )
    if pools is None:
        pools = CachePools(geometry, sizes.num_blocks, sizes.num_state_slots, backend.device)
    return ModelDevice(model, pools, inputs, stage, drafter)


def cache_geometry(
    facts: ModelConfig, config: EngineConfig, draft_length: int = 0, *, has_draft_layers: bool = False
) -> CacheGeometry:
    """What the cache layout needs to know about a checkpoint. has_draft_layers: its drafter keeps windows, too."""
    return CacheGeometry(
        num_layers=facts.num_hidden_layers,
        compress_ratios=facts.compress_ratios[: facts.num_hidden_layers],
        kv_source_layers=facts.kv_source_layer_ids,
        index_key_source_layers=facts.index_k_source_layer_ids,
        head_dim=facts.head_dim,
        index_head_dim=facts.index_head_dim,
        window_size=facts.sliding_window,
        num_draft_layers=facts.num_draft_layers if has_draft_layers else 0,
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
