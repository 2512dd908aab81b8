"""Offline inference: a list of prompts in, a list of outputs out."""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Sequence
from typing import Any, Self

from tqdm import tqdm  # type: ignore[import-untyped]

from thalweg.engine.assembly import build_engine
from thalweg.engine.config import OFFLINE_DEFAULTS, EngineConfig
from thalweg.engine.engine import EngineFailedError, LLMEngine
from thalweg.engine.generate_call import CallRequest, Params, TokenIds, align_params, align_prompts, refusal
from thalweg.engine.timeline import Timeline
from thalweg.engine.tokenizer import Tokenizer
from thalweg.interfaces import RequestError, RequestOutput

_COMPILING_PER_WORKER = 2
"""Enough to keep the compiler busy."""


class LLM:
    """A checkpoint ready to generate.

    model: checkpoint directory; None loads the small checkpoint of the distribution thalweg-tiny.
    config: a whole configuration; without it one is built from defaults, environment and `overrides`, which are flat
    option names (`max_model_len=512`; `thalweg config` lists them). Preempted requests are recomputed, not ended,
    unless `stop_preempted_request=True` is given by name: in a section of `config` it looks like the default.
    timeline: records what host and device do, step by step.
    Raises ConfigError for an unknown option or a bad value, CheckpointError for a damaged checkpoint.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        config: EngineConfig | None = None,
        timeline: Timeline | None = None,
        **overrides: Any,
    ) -> None:
        if model is not None:
            overrides["model"] = model
        config = EngineConfig.build(**overrides) if config is None else config.with_options(**overrides)
        self._has_draws = config.sampling.return_draws
        options = config.structured
        self._most_compiling = min(_COMPILING_PER_WORKER * options.workers, options.max_pending_per_user)
        self._engine = build_engine(config.with_defaults(**OFFLINE_DEFAULTS), timeline=timeline)
        self._counter = itertools.count()

    @property
    def engine(self) -> LLMEngine:
        """The engine below, for statistics, or to step by hand.

        Requests that were added to it directly run to their end when `generate` is called; their outputs come with the
        engine's next `step` or `flush`. The ids "generate-0", "generate-1", ... belong to `generate`.
        """
        return self._engine

    def get_tokenizer(self) -> Tokenizer:
        """The tokenizer of the checkpoint."""
        return self._engine.tokenizer

    def generate(
        self,
        prompts: str | Sequence[str] | None = None,
        sampling_params: Params | Sequence[Params] | None = None,
        *,
        prompt_token_ids: TokenIds | Sequence[TokenIds] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Complete every prompt and return the outputs in the order of the prompts.

        prompts: one text or a list. prompt_token_ids: one list of ids or a list of lists, used as they are; given both,
        the texts are only shown. sampling_params: one for all, or one per prompt; None means the defaults.
        A prompt that cannot be served gives a finished output with `error` set, and so does one whose parameters name
        tokens that the vocabulary lacks; the others are not affected.
        Raises ConfigError when lengths disagree or sampling parameters are bad by themselves.
        """
        wanted = align_prompts(prompts, prompt_token_ids)
        params = align_params(sampling_params, len(wanted))
        request_ids = [f"generate-{next(self._counter)}" for _ in wanted]
        finals: dict[str, RequestOutput] = {}
        others: dict[str, RequestOutput] = {}
        waiting = deque(map(CallRequest, request_ids, wanted, params))
        with tqdm(total=len(request_ids), desc="Requests", unit="req", disable=not use_tqdm) as bar:
            try:
                self._run(waiting, finals, others, bar)
            finally:
                self._clear(set(request_ids), others)
        return [finals[request_id] for request_id in request_ids]

    def close(self) -> None:
        """Release the model and the cache."""
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _add(self, request: CallRequest) -> None:
        text, token_ids = request.prompt.text, request.prompt.token_ids
        if not isinstance(text, str) and (text is not None or token_ids is None):
            kind = type(text).__name__
            raise RequestError(f"the prompt is a {kind}; it must be a text (token ids go into prompt_token_ids)")
        if isinstance(token_ids, str):
            raise RequestError(f"prompt_token_ids holds the text {token_ids!r}; texts go into prompts")
        to_run: Any = text if token_ids is None else token_ids
        self._engine.add_request(request.request_id, to_run, request.params, prompt_text=text)

    def _add_some(self, waiting: deque[CallRequest], finals: dict[str, RequestOutput], bar: tqdm) -> None:
        """Queue prompts in their order; stop while enough grammars are being compiled, as none is to miss its deadline
        because of the others of this call."""
        while waiting and self._engine.num_compiling < self._most_compiling:
            each = waiting.popleft()
            try:
                self._add(each)
            except RequestError as error:
                finals[each.request_id] = refusal(each, error, has_draws=self._has_draws)
                bar.update()

    def _run(
        self, waiting: deque[CallRequest], finals: dict[str, RequestOutput], others: dict[str, RequestOutput], bar: tqdm
    ) -> None:
        """Step until the engine is idle. others: gets the latest output of each request that is not of this call."""
        mine, num_tokens = {each.request_id for each in waiting}, 0
        self._add_some(waiting, finals, bar)
        while self._engine.has_unfinished():
            for output in self._engine.step():
                if output.request_id not in mine:
                    others[output.request_id] = output
                elif output.finished:
                    finals[output.request_id] = output
                    num_tokens += output.metrics.num_output_tokens
                    bar.set_postfix(tokens=num_tokens, refresh=False)
                    bar.update()
            if self._engine.failure is None:
                self._add_some(waiting, finals, bar)
        for each in waiting:
            error = EngineFailedError(f"the engine failed: {self._engine.failure}")
            finals[each.request_id] = refusal(each, error, has_draws=self._has_draws)

    def _clear(self, mine: set[str], others: dict[str, RequestOutput]) -> None:
        """End what an error left of this call, and give other callers their outputs back."""
        self._engine.abort_request(list(mine))
        others |= {output.request_id: output for output in self._engine.flush() if output.request_id not in mine}
        self._engine.hand_back(list(others.values()))
