"""What a call of `LLM.generate` asks for, one entry per request, and the output of one that is not let in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from thalweg.engine.admission import PromptTooLongError, to_params
from thalweg.interfaces import (
    CompletionOutput,
    ConfigError,
    FinishReason,
    RequestMetrics,
    RequestOutput,
    SamplingParams,
    ThalwegError,
)

Params = SamplingParams | Mapping[str, Any]
TokenIds = Sequence[int]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt as the caller gave it: nothing about it is checked yet."""

    text: Any
    token_ids: Any = None
    """None: the text is the prompt. Else the ids are, and the text is only shown."""


@dataclass(frozen=True, slots=True)
class CallRequest:
    """One request, before the engine has it."""

    request_id: str
    prompt: Prompt
    params: SamplingParams


def align_prompts(
    prompts: str | Sequence[str] | None, prompt_token_ids: TokenIds | Sequence[TokenIds] | None
) -> list[Prompt]:
    """One entry per request. Raises ConfigError when it is not clear how many there are."""
    texts = None if prompts is None else [prompts] if isinstance(prompts, str) else _items("prompts", prompts)
    id_lists = None if prompt_token_ids is None else _to_lists(prompt_token_ids)
    if id_lists is None:
        if texts is None:
            raise ConfigError("prompts and prompt_token_ids are both None; one of them is needed")
        return [Prompt(text) for text in texts]
    if texts is None:
        texts = [None] * len(id_lists)
    if len(texts) != len(id_lists):
        raise ConfigError(
            f"there are {len(texts)} prompts and {len(id_lists)} prompt_token_ids; one per prompt is needed"
        )
    return [Prompt(text, ids) for text, ids in zip(texts, id_lists, strict=True)]


def _to_lists(token_ids: Any) -> list[Any]:
    """A list of id lists; a flat list of ids is one prompt."""
    if hasattr(token_ids, "tolist"):  # an array or tensor; the elements of a tensor are not integers
        token_ids = token_ids.tolist()
    items = _items("prompt_token_ids", token_ids)
    if items and all(isinstance(item, int | np.integer) for item in items):
        return [items]
    return items


def align_params(params: Any, count: int) -> list[SamplingParams]:
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


def refusal(request: CallRequest, error: ThalwegError, *, has_draws: bool) -> RequestOutput:
    """The output of a request that was never let in. has_draws: of an engine that reports draws."""
    prompt, params = request.prompt, request.params
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
        request_id=request.request_id,
        prompt=prompt.text if isinstance(prompt.text, str) else None,
        prompt_token_ids=ids,
        prompt_logprobs=None if params.prompt_logprobs is None else (),
        outputs=tuple(outputs),
        finished=True,
        error=str(error),
        metrics=RequestMetrics(num_prompt_tokens=len(ids), num_output_tokens=0),
    )
