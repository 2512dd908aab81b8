"""Requests that end at a chosen place of a text: by which kind of stop, with which minimum, and which length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from drafts_testing.bench import EOS, Request, make_tokenizer
from drafts_testing.tables import Memory, Tables
from thalweg.interfaces import SamplingParams

VOCAB = 40
"""Tokens from 26 on have several characters."""
RUN = 6
FIRST_RUN = 2
"""Output index where runs begin: the prefill says one token, the first decode step, which has no drafts, another."""
KINDS = ("end token", "stop token", "string", "string over two tokens", "string over three tokens", "inside a token")

_TOKENIZER = make_tokenizer(VOCAB)


def stop_tables(seed: int) -> Tables:
    """Tables that say the end token more often than others."""
    tables = Tables.random(VOCAB, seed, Memory.EVERYTHING, spread=2.0)
    tables.logits[:, EOS] += 1.5
    return tables


@dataclass(frozen=True)
class Stop:
    """A request whose text, were it not for the stop, would go on after output index `index`."""

    kind: str
    index: int
    request: Request

    @property
    def params(self) -> SamplingParams:
        return self.request[1]

    @property
    def is_reached(self) -> bool:
        """Whether the request must end there; by its length else, or, with a higher minimum, who knows how."""
        return self.params.min_tokens <= self.index < self.params.max_tokens


def stops_at(
    index: int, kind: str, texts: Sequence[tuple[Request, Sequence[int]]], lengths: Sequence[int]
) -> Iterator[Stop]:
    """Requests that stop at this index: every maximum length, and minima of every relation to it, 0 among them.

    texts: requests that never stop, and what they say.
    """
    (prompt, params), stop = _find(index, kind, texts)
    for max_tokens in lengths:
        for min_tokens in (0, index, index + 1, index + 2):
            if min_tokens <= max_tokens:
                changes = stop | {"max_tokens": max_tokens, "min_tokens": min_tokens}
                yield Stop(kind, index, (prompt, replace(params, **changes)))


def _find(index: int, kind: str, texts: Sequence[tuple[Request, Sequence[int]]]) -> tuple[Request, dict[str, object]]:
    """The first text that meets a stop of this kind for the first time at this index."""
    for request, token_ids in texts:
        stop = _stop(kind, index, token_ids)
        if stop is not None:
            return request, stop
    raise AssertionError(f"no text has a first {kind} at {index}")


def _stop(kind: str, index: int, token_ids: Sequence[int]) -> dict[str, object] | None:
    """What a request must ask for; None if the text does not fit."""
    token, before = token_ids[index], token_ids[:index]
    if kind == "end token":
        return {"ignore_eos": False} if token == EOS and EOS not in before else None
    if EOS in token_ids[: index + 1]:
        return None
    if kind == "stop token":
        return {"stop_token_ids": (token, VOCAB - 1)} if token not in before and token != VOCAB - 1 else None
    pieces = [_TOKENIZER.decode([each]) for each in token_ids[: index + 1]]
    if kind == "inside a token":
        wanted, string = len(pieces[-1]) > 1, pieces[-1][1:2]
    else:
        num_tokens = {"string": 1, "string over two tokens": 2, "string over three tokens": 3}[kind]
        part = pieces[-num_tokens:]
        wanted, string = all(part), "".join(part[:-1])[-3:] + part[-1][:2]
        wanted = wanted and (num_tokens < 3 or sum(map(len, part[1:-1])) < 3)
    is_first = string not in "".join(pieces[:-1])
    return {"stop": (string, "nothing of this")} if wanted and is_first and string else None
