"""Offline inference: a list of prompts in, a list of outputs out."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from tqdm import tqdm  # type: ignore[import-untyped]

from thalweg.engine.admission import PromptTooLongError
from thalweg.engine.assembly import build_engine
from thalweg.engine.config import EngineConfig
from thalweg.engine.engine import LLMEngine
from thalweg.engine.tokenizer import Tokenizer
from thalweg.interfaces import (
    CompletionOutput,
    ConfigError,
    FinishReason,
    RequestError,
    RequestMetrics,
    RequestOutput,
    SamplingParams,
)

Params = SamplingParams | Mapping[str, Any]
TokenIds = Sequence[int]


class LLM:
    """A checkpoint ready to generate.

    model: checkpoint directory; None loads the small checkpoint of the distribution thalweg-tiny.
    config: a whole configuration; without it one is built from defaults, environment and `overrides`, which are flat
    option names (`max_model_len=512`; `thalweg config` lists them). Preempted requests are recomputed, not ended,
    unless `stop_preempted_request` says otherwise.
    Raises ConfigError for an unknown option or a bad value, CheckpointError for a damaged checkpoint.
    """

    def __init__(self, model: str | None = None, *, config: EngineConfig | None = None, **overrides: Any) -> None:
        if model is not None:
            overrides["model"] = str(model)
        config = EngineConfig.build(**overrides) if config is None else config.with_options(**overrides)
        self._engine = build_engine(config.with_defaults(stop_preempted_request=False))
        self._counter = itertools.count()

    @property
    def engine(self) -> LLMEngine:
        """The engine below, for statistics."""
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
        A prompt that cannot be served gives a finished output with `error` set; the others are not affected.
        Raises ConfigError when lengths disagree or sampling parameters are bad.
        """
        texts, token_ids = _align(prompts, prompt_token_ids)
        params = _align_params(sampling_params, len(token_ids))
        request_ids = [str(next(self._counter)) for _ in token_ids]
        finals: dict[str, RequestOutput] = {}
        with tqdm(total=len(request_ids), desc="Requests", unit="req", disable=not use_tqdm) as bar:
            try:
                for request_id, text, prompt, param in zip(request_ids, texts, token_ids, params, strict=True):
                    try:
                        self._engine.add_request(request_id, prompt, param, prompt_text=text)
                    except RequestError as error:
                        finals[request_id] = _refused(request_id, text, prompt, error)
                        bar.update()
                self._run(finals, set(request_ids), bar)
            finally:
                self._engine.abort_request([request_id for request_id in request_ids if request_id not in finals])
        return [finals[request_id] for request_id in request_ids]

    def close(self) -> None:
        """Release the model and the cache."""
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, finals: dict[str, RequestOutput], mine: set[str], bar: tqdm) -> None:
        num_tokens = 0
        while True:
            outputs = self._engine.step() if self._engine.has_unfinished() else self._engine.flush()
            for output in outputs:
                if output.finished and output.request_id in mine:
                    finals[output.request_id] = output
                    num_tokens += output.metrics.num_output_tokens
                    bar.set_postfix(tokens=num_tokens, refresh=False)
                    bar.update()
            if not self._engine.has_unfinished():
                return


def _align(
    prompts: str | Sequence[str] | None, prompt_token_ids: TokenIds | Sequence[TokenIds] | None
) -> tuple[list[str | None], list[str | TokenIds]]:
    """The text to show and the prompt to run of each request."""
    texts = [prompts] if isinstance(prompts, str) else None if prompts is None else list(prompts)
    id_lists = None if prompt_token_ids is None else _to_lists(prompt_token_ids)
    if id_lists is None:
        if texts is None:
            raise ConfigError("prompts and prompt_token_ids are both None; one of them is needed")
        return list(texts), list(texts)
    if texts is None:
        return [None] * len(id_lists), list(id_lists)
    if len(texts) != len(id_lists):
        raise ConfigError(
            f"there are {len(texts)} prompts and {len(id_lists)} prompt_token_ids; one per prompt is needed"
        )
    return list(texts), list(id_lists)


def _to_lists(token_ids: Any) -> list[TokenIds]:
    if isinstance(token_ids, np.ndarray) and token_ids.ndim == 1 and token_ids.dtype != object:
        return [token_ids.tolist()]
    items = list(token_ids)
    if items and all(isinstance(item, int | np.integer) for item in items):
        return [items]
    return items


def _align_params(params: Any, count: int) -> list[Params | None]:
    if params is None or isinstance(params, SamplingParams | Mapping):
        # Checked once here: parameters for everybody that are bad are the caller's mistake, not one request's.
        return [SamplingParams.from_dict(params) if isinstance(params, Mapping) else params] * count
    listed = list(params)
    if len(listed) != count:
        raise ConfigError(f"there are {len(listed)} sampling_params for {count} prompts; give one, or one per prompt")
    return [SamplingParams.from_dict(item) if isinstance(item, Mapping) else item for item in listed]


def _refused(request_id: str, text: str | None, prompt: object, error: RequestError) -> RequestOutput:
    """The output of a request that was never let in."""
    ids: tuple[int, ...] = ()
    if isinstance(prompt, list | tuple) and all(isinstance(item, int | np.integer) for item in prompt):
        ids = tuple(map(int, prompt))
    reason = FinishReason.PROMPT_TOO_LONG if isinstance(error, PromptTooLongError) else FinishReason.ERROR
    return RequestOutput(
        request_id=request_id,
        prompt=text,
        prompt_token_ids=ids,
        prompt_logprobs=None,
        outputs=(
            CompletionOutput(
                index=0, text="", token_ids=(), logprobs=None, finish_reason=reason.value, stop_reason=None
            ),
        ),
        finished=True,
        error=str(error),
        metrics=RequestMetrics(num_prompt_tokens=len(ids), num_output_tokens=0),
    )
