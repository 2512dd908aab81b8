"""The table of options: what each is called, where it lives in `EngineConfig`, and how text becomes its value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from thalweg.interfaces import Variable, parse_bool

if TYPE_CHECKING:
    from thalweg.engine.config import EngineConfig

T = TypeVar("T")

_EXPECTED: dict[Callable[[str], Any], str] = {int: "an integer", float: "a number"}
"""What Python's own parsers want, in the words of our messages."""


def parsed(parse: Callable[[str], T], text: str, expected: str | None = None) -> T:
    """A value from text. Raises ValueError saying what is expected; the parser's own words are kept if it says so."""
    try:
        return parse(text)
    except ValueError:
        expected = expected or _EXPECTED.get(parse)
        if expected is None:
            raise
        raise ValueError(f"expected {expected}") from None


@dataclass(frozen=True, slots=True)
class Field:
    """One option: its flat name, where it lives in `EngineConfig`, and how text becomes its value."""

    name: str
    """The keyword of `LLM` and, with dashes, the option of the command line."""
    section: str
    """Attribute of `EngineConfig` that holds it; empty for its own attributes."""
    attribute: str
    parse: Callable[[str], Any]
    help: str
    choices: tuple[str, ...] = ()

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> Variable[Any]:
        return Variable(self.name.upper(), self._parse_choice, self.help)

    @property
    def is_switch(self) -> bool:
        return self.parse is parse_bool

    def _parse_choice(self, text: str) -> Any:
        value = parsed(self.parse, text)
        if self.choices and value not in self.choices:
            raise ValueError(f"expected {' or '.join(self.choices)}")
        return value

    def read(self, config: EngineConfig) -> Any:
        """The value this option has in a configuration."""
        owner = getattr(config, self.section) if self.section else config
        return getattr(owner, self.attribute)


def _parse_text(text: str) -> str:
    if not text:
        raise ValueError("expected a non-empty text")
    return text


def _parse_optional_int(text: str) -> int | None:
    return None if text.lower() == "none" else parsed(int, text, "an integer or none")


def _parse_optional_float(text: str) -> float | None:
    return None if text.lower() == "none" else parsed(float, text, "a number or none")


def _parse_pairs(text: str) -> tuple[tuple[str, str], ...]:
    pairs = [part.partition("=") for part in text.split(",") if part]
    if not all(op and equals and provider for op, equals, provider in pairs):
        raise ValueError("expected op=provider pairs separated by commas")
    return tuple((op.strip(), provider.strip()) for op, _, provider in pairs)


def _parse_floats(text: str) -> tuple[float, ...]:
    return _parse_items(float, text, "numbers separated by commas")


def _parse_ids(text: str) -> tuple[int, ...]:
    return _parse_items(int, text, "integers separated by commas")


def _parse_items(parse: Callable[[str], T], text: str, expected: str) -> tuple[T, ...]:
    return tuple(parsed(parse, part, expected) for part in text.split(",")) if text else ()


FIELDS: tuple[Field, ...] = (
    Field("model", "", "model", _parse_text, "checkpoint directory; without it the checkpoint of thalweg-tiny"),
    Field("tokenizer", "", "tokenizer", _parse_text, "tokenizer.json or its directory; without it the checkpoint's"),
    Field("seed", "", "seed", int, "seeds of requests that bring none are drawn from it"),
    Field("mode", "", "mode", _parse_text, "roundings of the model: as on devices, or none", ("quant", "plain")),
    Field(
        "arithmetic",
        "",
        "arithmetic",
        _parse_text,
        "the reference model in double or float, or the model on stored formats, the default on devices",
        ("exact", "float32", "native"),
    ),
    Field(
        "logprobs_mode",
        "",
        "logprobs_mode",
        _parse_text,
        "log-probabilities before or after temperature and filters",
        ("raw", "processed"),
    ),
    Field("token_blacklist", "sampling", "token_blacklist", _parse_ids, "token ids that are never drawn: 1,2,3"),
    Field("force_top_k", "sampling", "force_top_k", int, "restrict every distribution to so many tokens; 0 = off"),
    Field("return_draws", "sampling", "return_draws", parse_bool, "report with every token how it was drawn"),
    Field("max_num_seqs", "scheduler", "max_num_seqs", int, "most sequences that decode at once"),
    Field(
        "max_num_batched_tokens",
        "scheduler",
        "max_num_batched_tokens",
        _parse_optional_int,
        "most query tokens of one step",
    ),
    Field("max_model_len", "scheduler", "max_model_len", int, "longest sequence, prompt and output together"),
    Field("chunked_prefill", "scheduler", "chunked_prefill", parse_bool, "spread long prompts over several steps"),
    Field(
        "stop_preempted_request",
        "scheduler",
        "stop_preempted_request",
        parse_bool,
        "end preempted requests instead of recomputing them",
    ),
    Field(
        "prefill_max_sum_seqlen_k",
        "scheduler",
        "prefill_max_sum_seqlen_k",
        int,
        "most prompt tokens, in full length, of one prefill step",
    ),
    Field("lookahead_tokens", "scheduler", "lookahead_tokens", int, "shortest chunk worth a prefill step"),
    Field(
        "prefill_interval_all",
        "scheduler",
        "prefill_interval_all",
        int,
        "decode steps between votes of which all ranks must want a prefill",
    ),
    Field(
        "prefill_interval_any",
        "scheduler",
        "prefill_interval_any",
        int,
        "decode steps between votes of which one rank must want a prefill",
    ),
    Field(
        "prefill_interval_continue",
        "scheduler",
        "prefill_interval_continue",
        int,
        "decode steps between votes while a prompt is half computed",
    ),
    Field("policy", "scheduler", "policy", _parse_text, "scheduling rules", ("default", "reference")),
    Field(
        "engine_type",
        "scheduler",
        "engine_type",
        _parse_text,
        "prefill and decode, or one of them",
        ("normal", "prompt", "completion"),
    ),
    Field(
        "async_scheduling",
        "scheduler",
        "async_scheduling",
        parse_bool,
        "launch each decode step before the result of the last, the default on devices",
    ),
    Field(
        "num_blocks", "cache", "num_blocks", _parse_optional_int, "cache blocks of 128 tokens, the null one included"
    ),
    Field(
        "memory_fraction",
        "cache",
        "memory_fraction",
        float,
        "share of the memory that the cache may take on the CPU (0.5 if not given), everything on a device (0.9)",
    ),
    Field("slot_ratio", "cache", "slot_ratio", float, "state slots per sequence that may run"),
    Field("expert_parallel_size", "parallel", "expert", int, "ranks that share the experts"),
    Field("data_parallel_size", "parallel", "data", int, "ranks that schedule requests of their own"),
    Field("context_parallel_size", "parallel", "context", int, "ranks that share one sequence's context"),
    Field("engram_parallel_size", "parallel", "engram", int, "ranks that share the Engram tables"),
    Field("draft_length", "speculation", "draft_length", _parse_optional_int, "draft tokens per step"),
    Field("variable_length", "speculation", "variable_length", parse_bool, "verify by confidence, not a fixed length"),
    Field(
        "verification",
        "speculation",
        "verification",
        _parse_text,
        "how drafts are accepted",
        ("rejection", "coupled"),
    ),
    Field(
        "draft_positions",
        "speculation",
        "draft_positions",
        _parse_text,
        "random stream of the drafts",
        ("per_step", "absolute"),
    ),
    Field(
        "confidence_temperatures",
        "speculation",
        "confidence_temperatures",
        _parse_floats,
        "calibration of the drafter's confidence, one number or one per draft",
    ),
    Field(
        "confidence_records",
        "speculation",
        "confidence_records",
        _parse_text,
        "file of confidences and outcomes, for thalweg-dspark calibrate",
    ),
    Field("curve_cache_dir", "speculation", "curve_cache_dir", _parse_text, "directory of measured step-time curves"),
    Field("curve_cache_ttl_s", "speculation", "curve_cache_ttl_s", float, "seconds that a kept curve counts"),
    Field("backend", "backend", "name", _parse_text, "device that runs the model", ("cpu", "sm90", "sm100", "ascend")),
    Field("kernels", "backend", "kernels", _parse_pairs, "op=provider pairs that override the kernel selection"),
    Field("batch_invariant", "backend", "batch_invariant", parse_bool, "demand logits that do not depend on the batch"),
    Field("graphs", "backend", "graphs", parse_bool, "capture decode steps as graphs where the backend has graphs"),
    Field("graph_interval", "backend", "graph_interval", int, "query tokens between two graphs of decode steps"),
    Field("draft_graph_interval", "backend", "draft_graph_interval", int, "sequences between two graphs of drafting"),
    Field("sync_guard", "backend", "sync_guard", parse_bool, "refuse to wait for the device while launching a step"),
    Field("check_lengths", "backend", "check_lengths", parse_bool, "compare lengths on device and host in every step"),
    Field("replay", "replay", "mode", _parse_text, "bounded replay of long prompts", ("off", "mask", "compact")),
    Field("replay_keep_tokens", "replay", "keep_tokens", int, "prompt tokens that the consumer layers recompute"),
    Field("structured_workers", "structured", "workers", int, "processes that compile grammars, once there is one"),
    Field("structured_timeout_s", "structured", "timeout_s", float, "seconds after which a grammar has failed"),
    Field("structured_cache_bytes", "structured", "cache_bytes", int, "memory for compiled grammars; 0 keeps none"),
    Field(
        "structured_max_pending_per_user",
        "structured",
        "max_pending_per_user",
        int,
        "grammars of one user that may wait for a worker",
    ),
    Field("structured_mask_threads", "structured", "mask_threads", int, "threads that fill the masks of a step"),
    Field("log_stats", "statistics", "log_stats", parse_bool, "log a line of statistics every so many steps"),
    Field("logging_interval_steps", "statistics", "logging_interval_steps", int, "steps between two such lines"),
    Field("peak_tflops", "statistics", "peak_tflops", _parse_optional_float, "FP8 peak of a device, for utilisation"),
    Field("metrics", "statistics", "metrics", parse_bool, "count for Prometheus (needs thalweg-engine[metrics])"),
    Field("profile_port", "statistics", "profile_port", _parse_optional_int, "port of the profile server"),
    Field("profile_dir", "statistics", "profile_dir", _parse_text, "directory of profiles"),
)
"""Every option, in the order in which it is shown."""
