"""The periodic line: figures as one text, without what is not known."""

from __future__ import annotations

from thalweg.engine.statistics.figures import Endings, Figures, Load, Speculation, Speed, Timing
from thalweg.interfaces import GrammarCounts


def render(figures: Figures) -> str:
    """One line; groups are separated by semicolons."""
    parts = [
        _speed(figures.speed),
        _speculation(figures.speculation),
        _load(figures.load),
        _shares(figures.prefill_share),
        _first_tokens(figures),
        _endings(figures.endings),
        _known("imbalance {:.2f}", figures.imbalance),
        _known("MFU {:.1%}", figures.mfu),
        *map(_timing, figures.timings),
        _grammars(figures.grammars),
    ]
    return f"step {figures.step} ({figures.kind.name.lower()}): " + "; ".join(part for part in parts if part)


def _speed(speed: Speed) -> str:
    return _listed(
        _known("{:.1f} steps/s now", speed.current_steps),
        _known("{:.1f} on average", speed.average_steps),
        _known("{:.1f} tokens/s now", speed.current_tokens),
        _known("{:.1f} prompt tokens/s", speed.prompt_tokens),
        _known("{:.1f} output tokens/s", speed.output_tokens),
    )


def _speculation(speculation: Speculation) -> str:
    if speculation.acceptance is None:
        return ""
    positions = " ".join(f"{part:.1%}" for part in speculation.accepted_by_position)
    return _listed(
        f"acceptance {speculation.acceptance:.1%} ({speculation.num_accepted} of {speculation.num_verified} "
        f"drafts; by position {positions})",
        _known("verify length {:.2f}", speculation.mean_verify_length),
        _known("accepted length {:.2f}", speculation.mean_accepted_length),
        _known("confidence error {:.3f}", speculation.confidence_error),
    )


def _load(load: Load) -> str:
    prompts = _listed(
        _known("{:.0f} running", load.mean_prompt_running),
        _known("{:.0f} waiting", load.mean_prompt_waiting),
        _known("{:.0f} chunked", load.mean_prompt_chunked),
    )
    usage = _listed(
        _known("batch {:.1%}", load.batch_fill),
        _known("KV {:.1%}", load.kv_usage),
        _known("states {:.1%}", load.state_usage),
    )
    queues = f"{load.num_running} running, {load.num_pending} pending, {load.num_chunked} chunked"
    return "; ".join(part for part in (queues, usage, f"mean prompt {prompts}" if prompts else "") if part)


def _shares(prefill: float | None) -> str:
    return "" if prefill is None else f"time {prefill:.1%} prefill, {1 - prefill:.1%} decode"


def _first_tokens(figures: Figures) -> str:
    most, mean = figures.max_first_token_ms, figures.mean_first_token_ms
    return "" if most is None else _listed(f"first token {most:.1f} ms at most", _known("{:.1f} ms on average", mean))


def _endings(endings: Endings) -> str:
    lengths = _listed(_known("mean prompt {:.0f}", endings.mean_prompt), _known("output {:.0f}", endings.mean_output))
    finished = f"{endings.num_finished} finished" + (f" ({lengths})" if lengths else "")
    return f"{finished}, {endings.num_preempted} preempted, {endings.num_aborted} aborted"


def _timing(timing: Timing) -> str:
    times = f"{timing.current_ms:.2f}/{timing.mean_ms:.2f}/{timing.max_ms:.2f} ms now/mean/max"
    share = "" if timing.share is None or timing.name == "step" else f", {timing.share:.1%}"
    return f"{timing.name} {times}, {timing.num_calls} calls{share}"


def _grammars(counts: GrammarCounts) -> str:
    if not counts.num_submitted:
        return ""
    failed = f"{counts.num_failed} failed" + (f" ({counts.num_timeouts} timed out)" if counts.num_timeouts else "")
    return f"grammars {counts.num_compiled} compiled, {counts.num_cache_hits} from the cache, {failed}"


def _known(template: str, value: float | None) -> str:
    return "" if value is None else template.format(value)


def _listed(*parts: str) -> str:
    return ", ".join(part for part in parts if part)
