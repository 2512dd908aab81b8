"""Offline inference: a list of prompts in, a list of outputs out."""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from tqdm import tqdm  # type: ignore[import-untyped]

from thalweg.engine.admission import PromptTooLongError, to_params
from thalweg.engine.assembly import build_engine
from thalweg.engine.config import OFFLINE_DEFAULTS, EngineConfig
from thalweg.engine.engine import EngineFailedError, LLMEngine
from thalweg.engine.timeline import Timeline
from thalweg.engine.tokenizer import Tokenizer
from thalweg.interfaces import (
    CompletionOutput,
    ConfigError,
    FinishReason,
    RequestError,
    RequestMetrics,
    RequestOutput,
    SamplingParams,
    ThalwegError,
)

Params = SamplingParams | Mapping[str, Any]
TokenIds = Sequence[int]

_COMPILING_PER_WORKER = 2
"""Enough to keep the compiler busy."""


@dataclass(frozen=True, slots=True)
class _Prompt:
    """One prompt as the caller gave it: nothing about it is checked yet."""

    text: Any
    token_ids: Any = None
    """None: the text is the prompt. Else the ids are, and the text is only shown."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """One request of a call, before the engine has it."""

    request_id: str
    prompt: _Prompt
    params: SamplingParams


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
        wanted = _align(prompts, prompt_token_ids)
        params = _align_params(sampling_params, len(wanted))
        request_ids = [f"generate-{next(self._counter)}" for _ in wanted]
        finals: dict[str, RequestOutput] = {}
        others: dict[str, RequestOutput] = {}
        waiting = deque(map(_Waiting, request_ids, wanted, params))
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

    def _add(self, waiting: _Waiting) -> None:
        text, token_ids = waiting.prompt.text, waiting.prompt.token_ids
        if not isinstance(text, str) and (text is not None or token_ids is None):
            kind = type(text).__name__
            raise RequestError(f"the prompt is a {kind}; it must be a text (token ids go into prompt_token_ids)")
        if isinstance(token_ids, str):
            raise RequestError(f"prompt_token_ids holds the text {token_ids!r}; texts go into prompts")
        to_run: Any = text if token_ids is None else token_ids
        self._engine.add_request(waiting.request_id, to_run, waiting.params, prompt_text=text)

    def _add_some(self, waiting: deque[_Waiting], finals: dict[str, RequestOutput], bar: tqdm) -> None:
        """Queue prompts in their order; stop while enough grammars are being compiled, as none is to miss its deadline
        because of the others of this call."""
        while waiting and self._engine.num_compiling < self._most_compiling:
            each = waiting.popleft()
            try:
                self._add(each)
            except RequestError as error:
                finals[each.request_id] = _refused(each, error, has_draws=self._has_draws)
                bar.update()

    def _run(
        self, waiting: deque[_Waiting], finals: dict[str, RequestOutput], others: dict[str, RequestOutput], bar: tqdm
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
            finals[each.request_id] = _refused(each, error, has_draws=self._has_draws)

    def _clear(self, mine: set[str], others: dict[str, RequestOutput]) -> None:
        """End what an error left of this call, and give other callers their outputs back."""
        self._engine.abort_request(list(mine))
        others |= {output.request_id: output for output in self._engine.flush() if output.request_id not in mine}
        self._engine.hand_back(list(others.values()))


def _align(
    prompts: str | Sequence[str] | None, prompt_token_ids: TokenIds | Sequence[TokenIds] | None
) -> list[_Prompt]:
    """One entry per request. Raises ConfigError when it is not clear how many there are."""
    texts = None if prompts is None else [prompts] if isinstance(prompts, str) else _items("prompts", prompts)
    id_lists = None if prompt_token_ids is None else _to_lists(prompt_token_ids)
    if id_lists is None:
        if texts is None:
            raise ConfigError("prompts and prompt_token_ids are both None; one of them is needed")
        return [_Prompt(text) for text in texts]
    if texts is None:
        texts = [None] * len(id_lists)
    if len(texts) != len(id_lists):
        raise ConfigError(
            f"there are {len(texts)} prompts and {len(id_lists)} prompt_token_ids; one per prompt is needed"
        )
    return [_Prompt(text, ids) for text, ids in zip(texts, id_lists, strict=True)]


def _to_lists(token_ids: Any) -> list[Any]:
    """A list of id lists; a flat list of ids is one prompt."""
    if hasattr(token_ids, "tolist"):  # an array or tensor; the elements of a tensor are not integers
        token_ids = token_ids.tolist()
    items = _items("prompt_token_ids", token_ids)
    if items and all(isinstance(item, int | np.integer) for item in items):
        return [items]
    return items


def _align_params(params: Any, count: int) -> list[SamplingParams]:
    """The checked parameters of each request: bad ones are the caller's mistake, before anything runs."""
    if params is None or isinstance(params, SamplingParams | Mapping):
        return [to_params(params)] * count
    listed = _items("sampling_params", params)
    if len(listed) != count:
        raise ConfigError(f"there are {len(listed)} sampling_params for {count} prompts; give one, or one per prompt")
    return [to_params(item) for item in listed]


def _items(name: str, values: Any) -> list[Any]:
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise ConfigError(f"{name} is {type(values).__name__}; it must be one item or a list with one per prompt")
    return list(values)


def _refused(refused: _Waiting, error: ThalwegError, *, has_draws: bool) -> RequestOutput:
    """The output of a request that was never let in. has_draws: of an engine that reports draws."""
    prompt, params = refused.prompt, refused.params
    ids: tuple[int, ...] = ()
    if isinstance(prompt.token_ids, list | tuple) and all(isinstance(i, int | np.integer) for i in prompt.token_ids):
        ids = tuple(map(int, prompt.token_ids))
    reason = FinishReason.PROMPT_TOO_LONG if isinstance(error, PromptTooLongError) else FinishReason.ERROR
    outputs = [
        CompletionOutput(
            index=index,
            text="",
            token_ids=(),
            logprobs=None if params.logprobs is None else (),
            finish_reason=reason.value,
            stop_reason=None,
            draws=() if has_draws else None,
        )
        for index in range(params.n)
    ]
    return RequestOutput(
        request_id=refused.request_id,
        prompt=prompt.text if isinstance(prompt.text, str) else None,
        prompt_token_ids=ids,
        prompt_logprobs=None if params.prompt_logprobs is None else (),
        outputs=tuple(outputs),
        finished=True,
        error=str(error),
        metrics=RequestMetrics(num_prompt_tokens=len(ids), num_output_tokens=0),
    )
